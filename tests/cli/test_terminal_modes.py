"""Reset of the terminal modes that a program left set."""

from corral.cli.terminal_modes import TerminalModes
from tests.support.grouped_cases import each_case

OPENED = b"\x1b[?1049h\x1b[?25l\x1b[?1000;1006h\x1b[?2004h\x1b[>1u\x1b[>4;2m\x1b=\x1b[2 q\x1b[1;20r"


def modes(*pieces: bytes) -> TerminalModes:
    result = TerminalModes()
    for piece in pieces:
        result.feed(piece)
    return result


def test_set_modes_are_reset_and_the_alternate_screen_is_left_last() -> None:
    result = modes(OPENED)
    assert result.is_alternate
    reset = result.reset()
    for sequence in (
        b"\x1b[?25h",
        b"\x1b[?1000l",
        b"\x1b[?1006l",
        b"\x1b[?2004l",
        b"\x1b[<u",
        b"\x1b[>4;0m",
        b"\x1b>",
        b"\x1b[0 q",
        b"\x1b7\x1b[r\x1b8",
    ):
        assert sequence in reset, reset
    assert reset.endswith(b"\x1b[?1049l\x1b[0m")
    assert result.reset() == b""


def test_program_that_cleaned_up_leaves_nothing_to_reset() -> None:
    closed = b"\x1b[r\x1b[0 q\x1b>\x1b[>4;0m\x1b[<u\x1b[?2004l\x1b[?1006;1000l\x1b[?25h\x1b[?1049l"
    assert modes(OPENED, b"text", closed).reset() == b""


@each_case("at", range(1, len(OPENED)))
def test_sequence_may_be_split_anywhere(at: int) -> None:
    expected = modes(OPENED)
    assert modes(OPENED[:at], OPENED[at:]).reset() == expected.reset()


def test_plain_program_changes_nothing() -> None:
    assert modes(b"\x1b[31mred\x1b[0m\r\n", b"\x1b[2J\x1b[H$ ").reset() == b""
