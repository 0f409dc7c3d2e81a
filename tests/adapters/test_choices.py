"""Selection of a dialog option by an answer, and the keys for it, on recorded screens."""

from pathlib import Path

import pytest

from corral.adapters.output.render import TerminalEmulator
from corral.adapters.providers.choices import find_option, keys_for
from corral.adapters.providers.screens import SCREENS, ScreenLayout, ScreenReading, read_screen

RECORDED = Path(__file__).parents[1] / "fixtures" / "providers" / "screens"
DIALOGS = sorted(
    file.stem for file in RECORDED.glob("*.txt") if file.stem.endswith(("-edit", "-run", "-trust"))
)
DOWN, UP, RIGHT, ENTER, ESCAPE = "\x1b[B", "\x1b[A", "\x1b[C", "\r", "\x1b"


def read_dialog(name: str) -> tuple[ScreenLayout, ScreenReading]:
    screen = SCREENS[name.partition("-")[0]]
    return screen, read_screen(screen, (RECORDED / f"{name}.txt").read_text().splitlines())


@pytest.mark.parametrize("name", DIALOGS)
def test_no_never_selects_an_allowing_option(name: str) -> None:
    screen, reading = read_dialog(name)
    wanted = find_option(screen, reading, "no")
    assert wanted is not None
    label = reading.options[wanted].lower()
    assert any(word in label for word in ("no", "reject", "don't")), label
    assert not screen.yes.match(reading.options[wanted])


@pytest.mark.parametrize("name", DIALOGS)
def test_yes_selects_the_option_that_allows_once(name: str) -> None:
    screen, reading = read_dialog(name)
    wanted = find_option(screen, reading, "Yes.")
    assert wanted is not None
    assert screen.yes.match(reading.options[wanted])


@pytest.mark.parametrize("name", DIALOGS)
def test_option_is_selected_by_number_or_label(name: str) -> None:
    screen, reading = read_dialog(name)
    for index, option in enumerate(reading.options):
        assert find_option(screen, reading, str(index + 1)) == index
        assert find_option(screen, reading, option.upper()) == index


@pytest.mark.parametrize("text", ["", " ", "\r", "0", "9", "nope", "not now", "yes please", "1.5"])
@pytest.mark.parametrize("name", DIALOGS)
def test_other_text_selects_no_option(name: str, text: str) -> None:
    screen, reading = read_dialog(name)
    assert find_option(screen, reading, text) is None


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("claude-run", (DOWN * 3, False)),
        ("claude-edit", (DOWN * 2, False)),
        ("claude-trust", (ENTER, True)),
        ("codex-run", (ESCAPE, True)),
        ("gemini-run", (ESCAPE, True)),
        ("gemini-trust", (DOWN * 2, False)),
        ("qwen-run", (ESCAPE, True)),
        ("copilot-run", (ESCAPE, True)),
        ("copilot-trust", (ESCAPE, True)),
        ("opencode-run", (RIGHT * 2, False)),
    ],
)
def test_keys_for_no_do_not_select_the_marked_yes(name: str, keys: tuple[str, bool]) -> None:
    screen, reading = read_dialog(name)
    wanted = find_option(screen, reading, "no")
    assert wanted is not None
    assert keys_for(screen, reading, wanted) == keys


def test_ambiguous_no_selects_no_option() -> None:
    screen, reading = read_dialog("claude-run")
    declines = ["4. No, not now", "5. No, and never ask"]
    both = ScreenReading("needs_input", options=[*reading.options[:3], *declines], marked=0)
    assert find_option(screen, both, "no") is None
    assert find_option(screen, both, "5") == 4


def test_two_open_dialogs_of_gemini_offer_no_option() -> None:
    """Its question about the folder may be below another dialog, which gets the keys."""
    _, reading = read_dialog("gemini-two")
    assert (reading.state, reading.kind, reading.options) == ("needs_input", None, [])
    assert (
        read_screen(SCREENS["gemini"], read_lines("gemini-two"), frozenset({"all"})).answer is None
    )


def read_lines(name: str) -> list[str]:
    return (RECORDED / f"{name}.txt").read_text().splitlines()


def test_message_below_a_dialog_of_gemini_does_not_hide_it() -> None:
    _, reading = read_dialog("gemini-notice")
    assert (reading.state, reading.kind) == ("needs_input", "run")
    assert len(reading.options) == 3


@pytest.mark.parametrize("marked", [0, 1, 2])
def test_option_that_opencode_marks_by_colour_is_recognized(marked: int) -> None:
    terminal = TerminalEmulator(110, 40, history=0, colours=True)
    data = (RECORDED / "opencode-run.ansi").read_bytes()
    terminal.feed(data.split(b"\n#\n")[0])
    for step in data.split(b"\n#\n")[1 : marked + 1]:
        terminal.feed(step)
    reading = read_screen(SCREENS["opencode"], terminal.screen(), background=terminal.background)
    assert (reading.state, reading.marked) == ("needs_input", marked)


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("claude-ready", ""),
        ("claude-typed", "hello"),
        ("codex-typed", "hello"),
        ("gemini-typed", "hello"),
        ("qwen-typed", "hello"),
        ("copilot-typed", "hello"),
        ("opencode-typed", "hello"),
        ("claude-run", None),
        ("gemini-run", None),
    ],
)
def test_text_in_the_input_line_is_read(name: str, draft: str | None) -> None:
    _, reading = read_dialog(name)
    assert reading.draft == draft
    if draft is not None:
        assert reading.state == "ready"
