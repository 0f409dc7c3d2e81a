"""Rendering of pipe and terminal output as text, without harmful control sequences."""

import re
import subprocess
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.adapters.output.render import TerminalEmulator, render, render_pipe
from tests.support.grouped_cases import each_case

HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


def render_screen(data: bytes, *, columns: int = 80, rows: int = 24) -> str:
    return render(data, terminal=True, columns=columns, rows=rows)


@each_case(
    ("data", "text"),
    [
        (b"plain\ttext\n", "plain\ttext\n"),
        (b"windows\r\nlines\r\n", "windows\nlines\n"),
        (b"\x1b[31mred\x1b[0m and \x1b[1;4mmore\x1b[m\n", "red and more\n"),
        (b" 10%\r 50%\r100%\n", "100%\n"),
        (b"long line\rshort\n", "shortline\n"),
        (b"long line\r\x1b[Kshort\n", "short\n"),
        (b"long line\r\x1b[2Kshort\n", "short\n"),
        (b"long line\x1b[2K\rshort\n", "short    \n"),
        (b"typo\b\b\bhis\n", "this\n"),
        (b"\b\bx\n", "x\n"),
        (b"\x1b]0;evil title\x07text\n", "text\n"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "link\n"),
        (b"\x1bP1$r0m\x1b\\after\n", "after\n"),
        (b"\x1b]52;c;ZXZpbA==\x07clip\n", "clip\n"),
        (b"\x1b]0;never ended", ""),
        (b"bell\x07 nul\x00 del\x7f\n", "bell nul del\n"),
        (b"\xff\xfe\n", "\ufffd\ufffd\n"),
        ("c1 \x9b31m csi \x9d0;t\x9c\n".encode(), "c1 31m csi 0;t\n"),
        ("bidi \u202eevil\u202c \u2066x\u2069\n".encode(), "bidi evil x\n"),
        ("tags \U000e0041\U000e0042\n".encode(), "tags \n"),
        ("ü☃ 漢字 👩‍👩‍👧\n".encode(), "ü☃ 漢字 👩‍👩‍👧\n"),
        (b"cut \x1b[3", "cut 3"),
        (b"", ""),
    ],
)
def test_output_of_a_pipe_is_rendered(data: bytes, text: str) -> None:
    assert render_pipe(data) == text


@each_case(
    ("data", "text"),
    [
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b" 10%\r 50%\r100%\r\n", "100%\n"),
        (b"\x1b[31mred\x1b[0m\r\n", "red\n"),
        (b"\x1b[38:2::255:0:0mred\x1b[<u\x1b[>1u\x1b[!p\x1b[?2026h x\r\n", "red x\n"),
        (b"a\r\nb\r\nc\x1b[2AX\r\n", "aX\nb\nc\n"),
        (b"spinner \\\b|\b/\bdone\r\n", "spinner done\n"),
        (b"before\r\n\x1b[?1049hTUI\x1b[5;5Hmore\x1b[?1049lafter\r\n", "before\nafter\n"),
        (b"before\r\n\x1b[?1049h\x1b[HTUI runs", "TUI runs\n"),
        (b"x\x1b]0;evil\x07y\x1b]8;;http://x\x1b\\z\r\n", "xyz\n"),
        (b"menu\r\n  one\r\n  two\x1b[1A\r> one\x1b[1B\r\n", "menu\n> one\n  two\n"),
        ("漢字 ok\r\n".encode(), "漢字 ok\n"),
        (b"\x1b[999999999;999999999Hx", "\n" * 23 + " " * 79 + "x\n"),
        (b"\xffx\r\n", "\ufffdx\n"),
        (b"", ""),
    ],
)
def test_output_of_a_terminal_is_rendered(data: bytes, text: str) -> None:
    assert render_screen(data) == text
    terminal = TerminalEmulator()  # byte by byte gives the same result
    for byte in data:
        terminal.feed(bytes([byte]))
    assert terminal.text() == text


def test_scrolled_lines_are_kept_up_to_a_limit() -> None:
    data = b"".join(b"line %d\r\n" % n for n in range(1_000))
    assert render_screen(data) == data.replace(b"\r", b"").decode()
    terminal = TerminalEmulator(history=100)
    terminal.feed(data)
    lines = terminal.text().splitlines()
    assert len(lines) == 123
    assert (lines[0], lines[-1]) == ("line 877", "line 999")
    assert terminal.screen()[-2:] == ["line 999", ""]


def test_line_wider_than_the_terminal_wraps() -> None:
    assert render_screen(b"0123456789abc\r\n", columns=10) == "0123456789\nabc\n"


def test_full_screen_program_restores_the_earlier_screen() -> None:
    lines = b"".join(b"line %d\r\n" % n for n in range(30))
    tui = b"\x1b[?1049h" + b"scrolling\r\n" * 100 + b"\x1b[?1049l"
    assert (
        render_screen(lines + tui + b"end\r\n") == (lines + b"end\r\n").replace(b"\r", b"").decode()
    )


def test_terminal_resize_is_handled() -> None:
    terminal = TerminalEmulator(10, 3)
    terminal.feed(b"0123456789abc\r\n")
    terminal.resize(40, 5)
    terminal.feed(b"x" * 30)
    assert "x" * 30 in terminal.text()


def test_unterminated_string_takes_no_memory_and_little_time() -> None:
    terminal = TerminalEmulator()
    terminal.feed(b"seen \x1b]0;")
    for _ in range(50):
        terminal.feed(b"x" * 100_000)
        assert len(terminal._incomplete) <= 64 * 1024
    terminal.feed(b"\x07 and seen")
    assert terminal.text() == "seen  and seen\n"


escapes = st.sampled_from(
    [
        *(b"\x1b[", b"\x1b]", b"\x1b", b"\x9b", b"?", b";", b"1049", b"h", b"l", b"H", b"J", b"K"),
        *(b"\x07", b"\r", b"\n", b"\b", b"\t", b"99999", b"r", b"m", b"c", b"\x0e", b"(0", b"#8"),
        *(
            "\u202e".encode(),
            "漢".encode(),
            b"\xcc\x81",
            b"P",
            b"S",
            b"T",
            b"\x1bM",
            b"\x1bD",
            b"L",
        ),
    ]
)


def test_sequences_that_break_the_emulator_are_dropped() -> None:
    assert render_screen(b"before \x1b[7Jafter\n") == "before after\n"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(escapes, st.binary(max_size=6)), max_size=60).map(b"".join))
def test_no_control_sequence_passes(data: bytes) -> None:
    for text in (render_pipe(data), render_screen(data), "\n".join(render_rows(data))):
        assert not HARMFUL.search(text)


def render_rows(data: bytes) -> list[str]:
    terminal = TerminalEmulator(12, 5, history=7)
    for at in range(0, len(data), 3):
        terminal.feed(data[at : at + 3])
    return terminal.screen()


def test_real_programs_on_a_real_terminal_are_readable() -> None:
    """`ls` in columns and colours, as `script` or a supervisor records it."""
    import os
    import pty

    main, other = pty.openpty()
    subprocess.run(
        ["sh", "-c", "printf 'loading 1%%\\rloading 99%%\\n'; printf '\\033[1mbold\\033[0m\\n'"],
        stdout=other,
        check=True,
    )
    os.close(other)
    data = os.read(main, 4_096)
    os.close(main)
    assert render_screen(data) == "loading 99%\nbold\n"


@each_case(
    "data",
    [
        "e" + "\u0301" * 100_000,
        "e" + "\u0301\x1b[m" * 33_000,
        "x" * 10_000 + "\ra" * 100_000,
        "x" * 33_000 + "\x1b[2K\x1b[1K" * 33_000,
        "\b" * 300_000,
        "\x1b" * 300_000,
        "\x1b[" * 150_000,
        "\x1b]" * 150_000,
        "\x1b[9999L\x1b[9999@" * 1_700,
        "\x1b[?1049h\x1b[?1049l" * 7_000,
        "\x1b[" + "1" * 300_000 + "H",
    ],
    ids=range(11),
)
def test_adversarial_output_is_rendered_quickly(data: str) -> None:
    busy = time.process_time()
    render_pipe(data.encode())
    render_screen(data.encode())
    assert time.process_time() - busy < 3
