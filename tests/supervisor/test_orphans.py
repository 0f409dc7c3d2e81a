"""Orphaned processes that left their session and environment are found and ended with their run."""

import os
import signal
import sys

import pytest

from corral.adapters.processes import process
from corral.domain.runs.model import Run, RunState
from tests.support.home import Home, is_alive, wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="adoption of orphans needs Linux"
)

# Double fork with new sessions and an empty environment.
DOUBLE_FORK = r"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = (
            "import os, signal, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.setsid() if os.getpid() != os.getpgid(0) else None\n"
            "if os.fork(): os._exit(0)\n"
            "os.setsid()\n"
            "open('child.part', 'w').write(f'{os.getpid()}\\n')\n"
            "os.rename('child.part', 'child')\n"
            "time.sleep(600)\n"
        )
        os.execve(sys.executable, [sys.executable, "-S", "-c", code], {})
    os._exit(0)
while not os.path.exists("child"):
    time.sleep(0.01)
open("started", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.fixture
def orphan(home: Home) -> tuple[Run, process.ProcessIdentity]:
    (home.work / "double_fork.py").write_text(DOUBLE_FORK)
    options = ("--grace-period", "300ms")
    run = home.start_detached(sys.executable, "-S", "double_fork.py", options=options)
    child = process.identify(home.read_pid("child"))
    assert child is not None
    proc_stat = process.read_stat(child.pid)
    assert proc_stat is not None
    assert proc_stat.session == child.pid
    assert not process._read_environment(child.pid)[0]
    return run, child


def test_orphan_is_ended_by_a_stop(home: Home, orphan: tuple[Run, process.ProcessIdentity]) -> None:
    run, child = orphan
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    assert not is_alive(child.pid)
    home.wait_for_all_processes()


def test_orphan_is_ended_with_its_run(
    home: Home, orphan: tuple[Run, process.ProcessIdentity]
) -> None:
    run, child = orphan
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 3)
    assert not is_alive(child.pid)
    assert any("left processes behind" in line for line in home.log(ended))
    home.wait_for_all_processes()


def test_orphan_is_ended_by_a_new_supervisor(
    home: Home, orphan: tuple[Run, process.ProcessIdentity]
) -> None:
    run, child = orphan
    assert run.supervisor_pid is not None
    os.kill(run.supervisor_pid, signal.SIGKILL)
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    assert not is_alive(child.pid)
    home.wait_for_all_processes()


def test_orphan_is_ended_by_the_guard_without_a_supervisor(
    home: Home, orphan: tuple[Run, process.ProcessIdentity]
) -> None:
    run, child = orphan
    assert run.supervisor_pid is not None
    os.kill(run.supervisor_pid, signal.SIGKILL)
    (home.work / "go").touch()
    wait_until(lambda: not is_alive(child.pid), "the orphan is ended")
    home.recover()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 3)
    home.wait_for_all_processes()


@pytest.mark.parametrize("agent_too", [False, True])
def test_orphan_is_ended_after_supervisor_and_guard_were_killed(
    home: Home, orphan: tuple[Run, process.ProcessIdentity], agent_too: bool
) -> None:
    """Only its resource limits still identify the run then."""
    run, child = orphan
    assert run.supervisor_pid is not None
    assert run.pid is not None
    for pid in (run.supervisor_pid, home.guard_pid(run), *((run.pid,) if agent_too else ())):
        os.kill(pid, signal.SIGKILL)
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    assert not is_alive(child.pid)
    home.wait_for_all_processes()


def test_process_that_cannot_be_killed_is_named_and_the_run_crashed(
    home: Home, orphan: tuple[Run, process.ProcessIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, child = orphan
    assert run.supervisor_pid is not None
    assert run.pid is not None
    killed = (run.supervisor_pid, home.guard_pid(run), run.pid)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, killed)), "supervisor, guard and agent are gone")
    monkeypatch.setattr(
        process, "send_signal", lambda *_: False
    )  # like a process in uninterruptible sleep
    with home.store() as store:
        store.internal.runs.request_stop(run.id)
        store.runs.recover()
    monkeypatch.undo()
    ended = home.get(run.id)
    assert ended.state is RunState.CRASHED
    assert str(child.pid) in str(ended.reason)
    assert is_alive(child.pid)
    os.kill(child.pid, signal.SIGKILL)


def test_nested_run_is_not_an_orphan(home: Home) -> None:
    """The guard of the outer run adopts the nested supervisor and must not end it."""
    script = (
        f"{sys.executable} -m corral run -d --name inner -- sleep 600; touch started; sleep 600"
    )
    outer = home.start_detached("sh", "-c", script, options=("--grace-period", "300ms"))
    wait_until((home.work / "started").exists, "the nested run started")
    inner = home.in_state(home.get("inner").id, RunState.RUNNING)
    assert inner.supervisor_pid is not None
    proc_stat = process.read_stat(inner.supervisor_pid)
    assert proc_stat is not None
    assert proc_stat.parent == home.guard_pid(outer)
    # Also when the nested supervisor and guard are gone.
    os.kill(inner.supervisor_pid, signal.SIGKILL)
    os.kill(home.guard_pid(inner), signal.SIGKILL)
    assert home.json("stop", outer.id, "--json")["state"] == "cancelled"
    assert inner.pid is not None
    assert is_alive(inner.pid)
    assert home.json("stop", inner.id, "--json")["state"] == "cancelled"
    home.wait_for_all_processes()
