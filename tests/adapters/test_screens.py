"""Parsing of recorded agent CLI screens: state, dialogs, limits."""

from pathlib import Path

import pytest

from corral.adapters.providers.screens import SCREENS, ScreenReader, read_screen

RECORDED = Path(__file__).parents[1] / "fixtures" / "providers" / "screens"
EVERYTHING = frozenset({"all"})
NAMES = sorted(file.stem for file in RECORDED.glob("*.txt"))


def read_lines(name: str) -> list[str]:
    return (RECORDED / f"{name}.txt").read_text().splitlines()


def get_layout(name: str):
    return SCREENS[name.partition("-")[0]]


PROSE = """
● Here is the plan:

  1. Yes, we hit the rate limit (429) yesterday
  2. No, the usage limit was reached · limit resets 1:44am
  3. Do you want to proceed?

 Do you want to proceed?
 ❯ 1. Yes
   2. No

 Esc to cancel

  Would you like to run the following command?

› 1. Yes, proceed (y)
  2. No

  Press enter to confirm or esc to cancel

│ Apply this change?
│ ● 1. Allow once
│   2. No
╰───────────╯
""".splitlines()


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-ready")])
def test_ordinary_output_types_nothing(name: str) -> None:
    lines = read_lines(name)
    blank = next(index for index, line in enumerate(lines) if not line.strip())
    screen_lines = lines[:blank] + PROSE + lines[blank:]
    reading = read_screen(get_layout(name), screen_lines, EVERYTHING)
    assert (reading.state, reading.answer) == ("ready", None)


@pytest.mark.parametrize("provider", [name for name in SCREENS if name != "scripted"])
def test_screen_without_the_interface_is_unknown(provider: str) -> None:
    reading = read_screen(SCREENS[provider], [*PROSE[:5], "$ ls"], EVERYTHING)
    assert (reading.state, reading.answer) == ("unknown", None)
    assert read_screen(SCREENS[provider], [], EVERYTHING).state == "unknown"


@pytest.mark.parametrize("provider", ["claude", "copilot"])
def test_marked_option_is_not_the_input_line(provider: str) -> None:
    menu = ["─" * 60, " Make it your default?", "", "   ❯ Yes, set it", "     No, keep it"]
    reading = read_screen(SCREENS[provider], menu, EVERYTHING)
    assert (reading.state, reading.kind, reading.answer) == ("needs_input", None, None)
    assert (reading.question, reading.draft) == ("Make it your default?", None)
    assert reading.options == ["Yes, set it", "No, keep it"]


def test_text_in_the_input_line_does_not_hide_it() -> None:
    lines = read_lines("claude-ready")
    index = max(number for number, line in enumerate(lines) if line.startswith("❯"))
    lines[index] = "❯\xa0[Pasted text #1]"
    assert read_screen(SCREENS["claude"], lines).state == "ready"


DIALOGS = [name for name in NAMES if name.endswith(("-edit", "-run", "-trust"))]


@pytest.mark.parametrize("name", DIALOGS)
def test_dialog_is_left_to_the_person_by_default(name: str) -> None:
    reading = read_screen(get_layout(name), read_lines(name))
    assert reading.state == "needs_input"
    assert reading.kind == name.partition("-")[2]
    assert reading.answer is None
    assert len(reading.options) > 1


@pytest.mark.parametrize("name", DIALOGS)
def test_policy_for_another_class_answers_nothing(name: str) -> None:
    others = frozenset({"edit", "run", "trust"} - {name.partition("-")[2]})
    assert read_screen(get_layout(name), read_lines(name), others).answer is None


@pytest.mark.parametrize("name", [name for name in DIALOGS if name != "claude-trust"])
def test_approved_dialog_gets_exactly_one_enter(name: str) -> None:
    reader = ScreenReader(get_layout(name), frozenset({name.partition("-")[2]}))
    looks = [reader.look(read_lines(name)) for _ in range(5)]
    assert [look.answer for look in looks] == ["\r", None, None, None, None]
    assert {look.state for look in looks} == {"needs_input"}


def test_keys_are_repeated_only_for_an_answered_open_dialog() -> None:
    reader = ScreenReader(SCREENS["claude"], frozenset({"edit"}))
    assert reader.retry_keys() is None
    assert reader.look(read_lines("claude-edit")).answer == "\r"
    assert [reader.retry_keys() for _ in range(3)] == ["\r", "\r", None]
    reader.look(read_lines("claude-run"))  # not allowed
    assert reader.retry_keys() is None


def test_dialog_that_appears_again_is_answered_again() -> None:
    reader = ScreenReader(SCREENS["claude"], frozenset({"run"}))
    screens = ["claude-run", "claude-run", "claude-working", "claude-run"]
    assert [reader.look(read_lines(name)).answer for name in screens] == ["\r", None, None, "\r"]


def test_another_command_in_the_same_dialog_is_another_question() -> None:
    reader = ScreenReader(SCREENS["claude"], frozenset({"run"}))
    other = [line.replace("rm -f zz", "ls") for line in read_lines("claude-run")]
    screens = [read_lines("claude-run"), other, other]
    assert [reader.look(lines).answer for lines in screens] == ["\r", "\r", None]


def test_spinner_does_not_change_the_dialog() -> None:
    reader = ScreenReader(SCREENS["claude"], frozenset({"run"}))
    other = [line.replace("Waiting…", "Waiting… (3s)") for line in read_lines("claude-run")]
    assert other != read_lines("claude-run")
    screens = [read_lines("claude-run"), other]
    assert [reader.look(lines).answer for lines in screens] == ["\r", None]


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("claude-run", "rm -f zz"),
        ("codex-run", "$ touch zz"),
        ("gemini-run", "│ touch zz"),
        ("qwen-run", "touch zz"),
        ("copilot-run", "│ touch zz"),
        ("opencode-run", "$ touch zz"),
    ],
)
def test_subject_of_a_dialog_is_read(name: str, subject: str) -> None:
    subject_lines = read_screen(get_layout(name), read_lines(name)).subject
    assert any(line.startswith(subject) for line in subject_lines), subject_lines
    assert not any("STUB:" in line for line in subject_lines)


def test_yes_is_selected_when_no_is_marked() -> None:
    reading = read_screen(SCREENS["claude"], read_lines("claude-trust"), frozenset({"trust"}))
    assert reading.options == ["No, exit", "Yes, I trust this folder"]
    assert reading.answer == "\x1b[B\r"


def test_dialog_without_allow_once_is_left_to_the_person() -> None:
    lines = [line.replace("1. Yes", "1. Yes, always") for line in read_lines("claude-run")]
    assert read_screen(SCREENS["claude"], lines, EVERYTHING).answer is None


def test_question_in_the_subject_does_not_change_the_class() -> None:
    lines = read_lines("codex-run")
    index = next(index for index, line in enumerate(lines) if line.strip() == "$ touch zz")
    lines.insert(index, "  Would you like to make the following edits?")
    reading = read_screen(SCREENS["codex"], lines, frozenset({"edit"}))
    assert (reading.state, reading.kind, reading.answer) == ("needs_input", None, None)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-working")])
def test_working_agent_is_recognized(name: str) -> None:
    assert read_screen(get_layout(name), read_lines(name), EVERYTHING).state == "working"


def test_limit_is_read_from_the_status_lines() -> None:
    reading = read_screen(SCREENS["claude"], read_lines("claude-limit"))
    assert reading.state == "limit"
    assert "resets 1:44am" in str(reading.detail)
    reading = read_screen(SCREENS["codex"], read_lines("codex-limit"))
    assert reading.state == "limit"
    assert str(reading.detail).endswith("try again at 2:23 AM.")


@pytest.mark.parametrize(
    "text",
    [
        "  ⚠ Usage limit reached · limit resets 1:44am",
        "  ⏸ manual mode on · esc to interrupt · ← for agents",
    ],
)
def test_text_of_the_agent_is_not_a_status_line(text: str) -> None:
    lines = read_lines("claude-ready")
    rule = next(index for index, line in enumerate(lines) if line.startswith("────"))
    lines[rule:rule] = ["● Look:", text, ""]
    assert read_screen(SCREENS["claude"], lines).state == "ready"


def test_program_that_did_not_start_is_fatal() -> None:
    reading = read_screen(SCREENS["claude"], ["", "error: unknown option '--foo'"])
    assert (reading.state, reading.detail) == ("fatal", "error: unknown option '--foo'")
