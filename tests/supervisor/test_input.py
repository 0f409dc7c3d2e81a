"""Text that a person sends to a run, with and without an open dialog."""

import os
from typing import Any

import pytest

from corral.adapters.providers.screens import SCREENS
from corral.demo.agent import MARK
from corral.domain.runs.model import Attention, Run, RunState
from corral.supervisor import screen_io
from corral.supervisor.input_entries import INPUT_TIMEOUT, REPEAT_SECONDS
from corral.supervisor.screen_io import ScreenIO
from tests.support.home import Home, wait_until
from tests.support.screen_files import SCREEN_FILES


def start_with_dialog(home: Home, *options: str) -> Run:
    run = home.start_agent("scripted", "say so; ask May I?; say after", "--pty", *options)

    def find_dialog() -> Run | None:
        current = home.get(run.id)
        # A dialog that is only partly drawn has fewer options and another id.
        return current if current.dialog is not None and len(current.dialog.options) == 3 else None

    return wait_until(find_dialog, "the dialog is open")


@pytest.mark.parametrize("answer", ["No", "3"])
def test_answering_no_declines(home: Home, answer: str) -> None:
    run = start_with_dialog(home)
    sent = home.json("send", "--json", run.id, answer)
    assert (sent["how"], sent["option"]) == ("answered", "3. No")
    wait_until(lambda: b"after" in home.output_so_far(run), "the agent continues")
    assert b"No answer." in home.output_so_far(run)
    assert b"Answered:" not in home.output_so_far(run)
    wait_until(lambda: home.get(run.id).attention is None, "the dialog is closed")
    assert home.get(run.id).dialog is None


def test_text_that_is_not_an_option_is_rejected_and_nothing_is_typed(home: Home) -> None:
    run = start_with_dialog(home)
    before = home.output_so_far(run)
    for text in ("no thanks", "please use git instead", "4", "\r"):
        for enter in ((), ("--no-enter",)):
            result = home.corral("send", *enter, run.id, text)
            assert result.returncode == 2, result
            if text.strip():
                assert b"1. Yes; 2. Yes, and do not ask again; 3. No" in result.stderr
            assert home.output_so_far(run) == before
            assert home.get(run.id).attention is Attention.NEEDS_INPUT


def test_question_and_its_options_are_shown(home: Home) -> None:
    run = start_with_dialog(home)
    assert run.dialog is not None
    assert run.dialog.question == "Do you want to proceed?"
    assert run.dialog.options == ["1. Yes", "2. Yes, and do not ask again", "3. No"]
    for command in (("show", run.id), ("question", "list")):
        result = home.corral(*command).stdout.decode()
        assert "Do you want to proceed?" in result, result
        assert "3. No" in result, result
        assert "May I?" in result, result
        assert "⏎" not in result, result
    assert "`corral question list`" in home.corral().stdout.decode()
    (listed,) = home.json("question", "list", "--json")
    assert listed["dialog"]["id"] == run.dialog.id


def test_answer_to_another_dialog_is_not_given(home: Home) -> None:
    run = start_with_dialog(home)
    result = home.corral("send", run.id, "yes", "--dialog", "000000000000")
    assert result.returncode == 4, result
    assert home.get(run.id).attention is Attention.NEEDS_INPUT
    assert run.dialog is not None
    assert home.corral("send", run.id, "yes", "--dialog", run.dialog.id).returncode == 0
    wait_until(lambda: b"Answered: yes" in home.output_so_far(run), "the dialog is answered")


def test_idle_run_with_an_open_question_is_not_completed(home: Home) -> None:
    run = start_with_dialog(
        home, "--idle-exit", "8s"
    )  # the agent must be able to ask within this time
    ended = home.wait_for_end(run.id)
    assert b"Answered:" not in home.output(ended)
    assert (ended.state, ended.reason) == (
        RunState.CANCELLED,
        "its question was not answered in time",
    )


def test_idle_run_that_does_not_quit_is_not_called_completed(home: Home) -> None:
    prompt = f"ignore TERM; say {MARK}; sleep 600"  # it shows the input line but ignores input
    run = home.start_agent(
        "scripted", prompt, "--pty", "--idle-exit", "1s", "--grace-period", "300ms"
    )
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.signal) == (RunState.CANCELLED, 9)
    assert "ended with SIGKILL" in str(ended.reason)


def test_slow_start_is_not_idleness(home: Home) -> None:
    """A run that is ended before its interface appears would look completed."""
    gate, programs = home.folder / "gate", home.folder / "programs"
    os.mkfifo(gate)
    programs.mkdir()
    program = programs / "claude"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo 2.1.326; exit; fi\n'
        f"cat {gate} {SCREEN_FILES / 'claude-ready.txt'}\n"
        "sleep 600\n"
    )
    program.chmod(0o755)
    home.env["PATH"] = f"{programs}:{home.env['PATH']}"
    limits = ("--pty", "--idle-exit", "1s", "--grace-period", "100ms")
    slow = home.start_agent("claude", "hello", *limits)
    for _ in range(2):  # these show their interface and reach the same idle timeout
        home.wait_for_end(home.start_agent("scripted", "say so", *limits).id)
    assert home.get(slow.id).is_live, home.get(slow.id)
    gate.write_text("")  # returns when the program opens it
    ended = home.wait_for_end(slow.id)
    assert str(ended.reason).startswith("no activity within the idle timeout"), ended
    assert b"shortcuts" in home.output(ended), "it was idle after its interface appeared"


class Interface:
    """The interface of a CLI, which shows recorded screens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.typed: list[str] = []
        self.outcomes: list[dict[str, Any]] = []
        self.now = 100.0
        monkeypatch.setattr(screen_io.time, "monotonic", lambda: self.now)
        self.name = name
        self.screen_io = ScreenIO(
            SCREENS[name],
            size=(60, 120),
            approvals=frozenset(),
            type_in=lambda keys: self.typed.append(keys.decode()) is None,
            first_prompt=None,
            log=lambda *_: None,
        )

    def show(self, kind: str) -> None:
        file = SCREEN_FILES / f"{self.name}-{kind}.txt"
        text = file.read_text().rstrip("\n").replace("\n", "\r\n")
        self.screen_io.feed(b"\x1b[2J\x1b[H" + text.encode())
        self.screen_io.poll()

    def send(self, text: str, **overrides: Any) -> None:
        options = {"enter": True, "dialog": None, **overrides}
        self.screen_io.send(text, reply=self.outcomes.append, **options)

    def advance(self, seconds: float) -> None:
        deadline = self.now + seconds
        while self.now < deadline:
            self.now += 0.1
            self.screen_io.poll()


ALL = ("claude", "codex", "copilot", "gemini", "opencode", "qwen")


@pytest.mark.parametrize("name", [name for name in ALL if name != "qwen"])
def test_text_and_enter_are_two_steps_and_the_submission_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    interface = Interface(monkeypatch, name)
    interface.show("ready")
    interface.send("hello")
    interface.advance(1.0)
    assert interface.typed == ["hello"], "no Enter before the screen has settled"
    interface.show("typed")
    interface.advance(1.0)
    assert interface.typed == ["hello", "\r"]
    assert interface.outcomes == []
    interface.show("ready")
    interface.advance(0.2)
    assert interface.outcomes == [{"ok": True}]


@pytest.mark.parametrize("name", ALL)
def test_text_that_stays_in_the_input_line_is_reported(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    interface = Interface(monkeypatch, name)
    interface.show("typed")
    interface.send("hello")
    interface.advance(8 * REPEAT_SECONDS)
    assert interface.typed == ["hello", "\r", "\r", "\r"]
    assert interface.outcomes == [{"ok": False, "error": "not_submitted"}]


@pytest.mark.parametrize("name", ALL)
def test_no_enter_is_pressed_when_a_dialog_opens_meanwhile(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    interface = Interface(monkeypatch, name)
    interface.show("typed")
    interface.send("hello")
    interface.advance(0.6)
    interface.show("run")
    interface.advance(5.0)
    assert interface.typed == ["hello"]
    assert interface.outcomes == [{"ok": False, "error": "typed_into_dialog"}]


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_typed_into_a_screen_that_is_not_understood(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    interface = Interface(monkeypatch, name)
    interface.screen_io.feed(
        b"\x1b[2J\x1b[HA new kind of menu\r\n  * Approve everything\r\n    Deny"
    )
    interface.screen_io.poll()
    interface.send("no")
    interface.advance(INPUT_TIMEOUT + 1)
    assert interface.typed == []
    assert interface.outcomes == [{"ok": False, "error": "no_input_line"}]


@pytest.mark.parametrize("name", ALL)
def test_idle_interface_with_an_open_dialog_is_not_typed_into(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    interface = Interface(monkeypatch, name)
    interface.show("run")
    assert not interface.screen_io.quit("/quit", lambda: None)
    interface.advance(3.0)
    assert interface.typed == []


def test_dialog_that_is_replaced_by_another_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interface = Interface(monkeypatch, "claude")
    interface.show("run")
    interface.send("4")
    interface.screen_io.poll()
    assert interface.typed == ["\x1b[B" * 3], "the arrow keys are typed before Enter"
    interface.show("edit")
    interface.advance(2.0)
    assert interface.typed == ["\x1b[B" * 3]
    assert [outcome["error"] for outcome in interface.outcomes] == ["dialog_changed"]


def test_enter_is_pressed_only_when_the_wanted_option_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interface = Interface(monkeypatch, "claude")
    interface.show("run")
    interface.send("no")
    interface.advance(1.5)  # the arrow keys had no effect and are pressed again
    assert interface.typed == ["\x1b[B" * 3] * 3
    assert [outcome["error"] for outcome in interface.outcomes] == ["answer_not_accepted"]
