"""Behaviours 1 to 10 of projects and runs that users of agent-yes rely on."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.processes import process
from corral.adapters.providers.screens import SCREENS, ScreenReader
from corral.api import Corral
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import HOUR, SECOND, ManualClock
from corral.kernel.errors import Conflict
from corral.kernel.exit_status import ExitStatus
from tests.support.errors import because
from tests.support.home import Home, is_alive, wait_until
from tests.support.processes import NOBODY
from tests.support.run_factories import (
    ended,
    held,
    recorded,
    run_spec,
    running,
    without_supervisors,
)
from tests.support.screen_files import SCREEN_FILES
from tests.support.store import rows, unchanged


@pytest.fixture
def engine() -> str:
    """Processes and screens; projects and runs are tested on both engines in tests/domain."""
    return "sqlite"


@pytest.fixture
def unrelated_process() -> Iterator["subprocess.Popen[bytes]"]:
    """A process outside of any run, of another user if the tests run as root."""
    other = NOBODY if os.geteuid() == 0 else None
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, start_new_session=True, user=other
    ) as child:
        yield child
        child.kill()


def start_run_of(store: Corral, child: "subprocess.Popen[bytes]", **overrides: Any) -> Run:
    """Record a run with the pid of that process and a dead supervisor."""
    identity = process.identify(child.pid)
    assert identity is not None
    details = {
        "host": identity.host,
        "boot_id": identity.boot_id,
        "pid": identity.pid,
        "start_token": identity.start_token,
        "supervisor_pid": 4_190_000,
    }
    run = store.internal.runs.enqueue(run_spec())
    return store.internal.runs.launch(
        store.internal.runs.acquire(run.id, held(1, **details | overrides))
    )


# -- 1, 2: projects ----------------------------------------------------------------------------


def test_1_registering_again_keeps_id_prompt_and_creation_time(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    first = store.projects.register(tmp_path, command="claude", prompt="go on")
    clock.advance(SECOND)
    second = store.projects.register(tmp_path, command="codex")
    assert (second.id, second.command, second.prompt) == (first.id, "codex", "go on")
    assert (second.created_at, second.updated_at) == (first.created_at, clock.now())
    assert store.projects.register(tmp_path, prompt=None).prompt is None


def test_2_projects_are_listed_by_last_run_never_run_last(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    projects = []
    for name in ("first", "never", "second"):
        (tmp_path / name).mkdir()
        projects.append(store.projects.register(tmp_path / name))
    for project in (projects[0], projects[2]):
        clock.advance(SECOND)
        running(store, project_id=project.id)
    assert [project.name for project in store.projects.list().items] == ["second", "first", "never"]


# -- 3, 4: ends --------------------------------------------------------------------------------


def test_3_run_has_its_duration_and_second_finish_is_idempotent(
    store: Corral, clock: ManualClock
) -> None:
    run = recorded(store)
    clock.advance(90 * SECOND)
    over = store.runs.finish(run.id, exit_code=0)
    assert (over.state, over.exit_code) == (RunState.COMPLETED, 0)
    assert (over.ended_at or 0) - (over.started_at or 0) == 90 * SECOND
    clock.advance(HOUR)
    with unchanged(store):
        assert store.runs.finish(run.id, exit_code=1) == over
        assert store.internal.runs.record_end(run, ExitStatus(exit_code=0)) == over
    (stats,) = store.insights.stats(by="provider").items
    assert stats.median_ms == 90 * SECOND


def test_4_exit_code_is_kept_when_the_run_is_reported_lost(
    store: Corral, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_supervisors(monkeypatch)
    run = ended(store, ExitStatus(exit_code=3))
    assert run.state is RunState.FAILED
    clock.advance(HOUR)
    with unchanged(store):
        store.runs.lose(run.id)
        store.internal.runs.record_end(run, ExitStatus())
        store.runs.recover()
    assert store.runs.get(run.id).exit_code == 3


# -- 5: deleting -------------------------------------------------------------------------------


def test_5_deleting_a_project_deletes_its_runs_and_files(home: Home) -> None:
    runs = [home.start_detached("sh", "-c", f"echo {n}") for n in range(3)]
    for run in runs:
        home.wait_for_end(run.id)
    home.wait_for_all_processes()
    assert all(home.folder_of(run).exists() for run in runs)
    with home.store() as store:
        assert runs[0].project_id is not None
        store.projects.delete(runs[0].project_id)
        for table in ("runs", "launches", "resource_samples", "log_lines", "output_chunks"):
            assert rows(store, f"SELECT count(*) FROM {table}") == [(0,)], table
    assert not any(home.folder_of(run).exists() for run in runs)


def test_5_project_with_an_active_run_cannot_be_deleted(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path)
    run = running(store, project_id=project.id)
    with unchanged(store), pytest.raises(Conflict, check=because("run_active", id=run.id)):
        store.projects.delete(project.id)


# -- 6, 7: process identity --------------------------------------------------------------------


def test_6_reused_pid_is_a_crash_and_gets_no_signal(
    store: Corral, unrelated_process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    without_supervisors(monkeypatch)
    run = start_run_of(store, unrelated_process, start_token="1")
    (recovered,) = store.runs.recover()
    assert (recovered.state, recovered.reason) == (RunState.CRASHED, "pid reused")
    assert store.runs.get(run.id).exit_code is None
    identity = process.ProcessIdentity(
        process.host(), process.boot_id(), unrelated_process.pid, "1"
    )
    assert not process.send_signal(identity, signal.SIGTERM)
    unrelated_process.communicate()
    assert unrelated_process.returncode == 0, "the process got no signal"


def test_7_live_process_of_another_user_stays_running(
    store: Corral, unrelated_process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    started = without_supervisors(monkeypatch)
    run = start_run_of(store, unrelated_process)
    if os.geteuid() == 0:
        assert os.stat(f"/proc/{unrelated_process.pid}").st_uid == NOBODY
    with unchanged(store):
        assert store.runs.recover() == []
    assert store.runs.get(run.id).state is RunState.RUNNING
    assert len(started) == 1, "a live process gets a new supervisor"
    assert unrelated_process.poll() is None


def test_7_unreadable_process_is_not_reported_as_gone(
    store: Corral, unrelated_process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    without_supervisors(monkeypatch)
    start_run_of(store, unrelated_process)
    read_stat = process.read_stat

    def hidden(pid: int) -> process.ProcessStat | None:
        if pid == unrelated_process.pid:
            raise PermissionError(13, "Permission denied")
        return read_stat(pid)

    monkeypatch.setattr(process, "read_stat", hidden)
    with unchanged(store):
        assert store.runs.recover() == []


# -- 8: restart after a failure ----------------------------------------------------------------


def test_8_failed_agent_restarts_with_its_conversation(
    home: Home,
) -> None:
    count = home.work / "count"
    run = home.start_agent("scripted", f"say started; fail 1 {count}", "--restart", "on-failure:5")
    over = home.wait_for_end(run.id)
    assert (over.id, over.state, over.exit_code) == (run.id, RunState.COMPLETED, 0)
    assert over.attempts == 2
    with home.store() as store:
        session = store.sessions.get(over.session_id or "").provider_session
        assert len(store.runs.list().items) == 1
        restarts = [
            event for event in store.events.newest(subject=run.id).items if event.verb == "restart"
        ]
        assert [event.data["after"]["exit_code"] for event in restarts] == [1]
    (conversation,) = (home.folder / "conversations").glob("*.jsonl")
    assert conversation.stem == session, "the same conversation"
    turns = [json.loads(line) for line in conversation.read_text().splitlines()]
    prompts = [turn["text"] for turn in turns if turn["role"] == "user"]
    assert len(prompts) == 2
    assert prompts[1] != prompts[0], "the second prompt continues the conversation"


def test_8_three_quick_failures_end_the_run(home: Home) -> None:
    site = home.folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(  # every failure counts as quick on a slow machine
        "from corral.domain.runs import outcome\noutcome.QUICK_FAILURE_MS = 3_600_000\n"
    )
    home.env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), home.env.get("PYTHONPATH")]))
    run = home.start_detached("sh", "-c", "exit 4", options=("--restart", "on-failure:50"))
    over = home.wait_for_end(run.id)
    assert (over.state, over.exit_code, over.attempts) == (RunState.FAILED, 4, 3)
    home.wait_for_all_processes()


# -- 9: idle runs ------------------------------------------------------------------------------


def test_9_idle_agent_gets_the_exit_command_and_completes(
    home: Home,
) -> None:
    run = home.start_agent("scripted", "say hello", "--pty", "--idle-exit", "3s")
    over = home.wait_for_end(run.id)
    assert (over.state, over.exit_code) == (RunState.COMPLETED, 0)
    assert over.reason == "no activity within the idle timeout"
    assert over.signal is None, "no signal was needed"


def test_9_working_agent_is_not_idle(home: Home) -> None:
    """The screen of a working Claude does not change for longer than the idle timeout.

    A shell script draws the screen well before the timeout.
    """
    text = (SCREEN_FILES / "claude-working.txt").read_text()
    (home.work / "screen").write_text(text.rstrip("\n").replace("\n", "\r\n"), newline="")
    (home.work / "claude").write_text(
        "#!/bin/sh\ncat screen\n: > drawn\nwhile ! [ -e go ]; do sleep 0.1; done\n"
    )
    (home.work / "claude").chmod(0o700)
    run = home.start_detached(
        str(home.work / "claude"), options=("--pty", "--idle-exit", "3s", "--grace-period", "1s")
    )
    assert run.provider == "claude"
    wait_until((home.work / "drawn").exists, "the screen was drawn")
    with home.store() as store:
        drawn = store.now()
        wait_until(lambda: store.now() > drawn + 5 * SECOND, "the idle timeout is over")
    assert home.get(run.id).state is RunState.RUNNING
    assert is_alive(run.pid or 0)
    (home.work / "go").touch()
    assert home.wait_for_end(run.id).exit_code == 0


# -- 10: screens -------------------------------------------------------------------------------


def test_10_ordinary_output_is_not_a_dialog() -> None:
    prose = [
        "● The plan:",
        "",
        "  1. Yes, we hit the rate limit",
        "  2. No",
        "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT} 1. Yes",
    ]
    for name, screen in SCREENS.items():
        reader = ScreenReader(screen, frozenset({"all"}))
        reading = reader.look(prose)
        assert (reading.answer, reading.state == "limit") == (None, False), name


@pytest.mark.parametrize("name", ["claude-edit", "claude-run", "copilot-run", "gemini-edit"])
def test_10_approved_dialog_gets_exactly_one_answer(name: str) -> None:
    lines = (SCREEN_FILES / f"{name}.txt").read_text().splitlines()
    screen = SCREENS[name.partition("-")[0]]
    reader = ScreenReader(screen, frozenset({"all"}))
    answers = [reader.look(lines).answer for _ in range(5)]
    typed = [answer for answer in answers if answer is not None]
    assert len(typed) == 1
    assert typed[0].endswith("\r") or typed[0] in ("1", "y")
    assert [ScreenReader(screen, frozenset()).look(lines).answer for _ in range(2)] == [None, None]


def test_10_automatic_answer_is_logged(home: Home) -> None:
    run = home.start_agent("scripted", "ask May I?", "--pty", "--yes", "all", "--idle-exit", "2s")
    over = home.wait_for_end(run.id)
    assert home.output(over).count(b"Answered: ") == 1
    approvals = [line for line in home.log(over) if line.startswith("Approved")]
    assert len(approvals) == 1
