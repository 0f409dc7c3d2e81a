"""Children that leave behind all that could tell whose they are, and are found all the same."""

import os
import signal
import sys

import pytest

from corral.adapters import process
from corral.domain.runs.model import Run, RunState
from tests.support.home import Home, is_alive, wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux gives orphans to a guard"
)

# Its environment is empty, its session is a new one twice over, and its parents are gone.
ESCAPE = r"""
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
open("here", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.fixture
def escaped(home: Home) -> tuple[Run, process.ProcessIdentity]:
    (home.work / "escape.py").write_text(ESCAPE)
    options = ("--grace", "300ms")
    run = home.start_detached(sys.executable, "-S", "escape.py", options=options)
    child = process.identify(home.read_pid("child"))
    assert child is not None
    found = process.read_stat(child.pid)
    assert found is not None
    assert found.session == child.pid
    assert not process._read_environment(child.pid)[0]
    return run, child


def test_orphan_is_ended_by_a_stop(
    home: Home, escaped: tuple[Run, process.ProcessIdentity]
) -> None:
    run, child = escaped
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    assert not is_alive(child.pid)
    home.wait_for_all_processes()


def test_orphan_is_ended_with_its_run(
    home: Home, escaped: tuple[Run, process.ProcessIdentity]
) -> None:
    run, child = escaped
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 3)
    assert not is_alive(child.pid)
    assert any("left processes behind" in line for line in home.log(ended))
    home.wait_for_all_processes()


def test_orphan_is_ended_by_a_new_supervisor(
    home: Home, escaped: tuple[Run, process.ProcessIdentity]
) -> None:
    run, child = escaped
    assert run.supervisor_pid is not None
    os.kill(run.supervisor_pid, signal.SIGKILL)
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    assert not is_alive(child.pid)
    home.wait_for_all_processes()


def test_orphan_is_ended_by_the_guard_without_a_supervisor(
    home: Home, escaped: tuple[Run, process.ProcessIdentity]
) -> None:
    run, child = escaped
    assert run.supervisor_pid is not None
    os.kill(run.supervisor_pid, signal.SIGKILL)
    (home.work / "go").touch()
    wait_until(lambda: not is_alive(child.pid), "it is ended")
    home.recover()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 3)
    home.wait_for_all_processes()


@pytest.mark.parametrize("agent_too", [False, True])
def test_orphan_is_ended_after_supervisor_and_guard_were_killed(
    home: Home, escaped: tuple[Run, process.ProcessIdentity], agent_too: bool
) -> None:
    """Its parents, session and environment tell nothing then; its resource limits do."""
    run, child = escaped
    assert run.supervisor_pid is not None
    assert run.pid is not None
    for pid in (run.supervisor_pid, home.guard_pid(run), *((run.pid,) if agent_too else ())):
        os.kill(pid, signal.SIGKILL)
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    assert not is_alive(child.pid)
    home.wait_for_all_processes()


def test_process_that_cannot_be_killed_is_named_and_the_run_crashed(
    home: Home, escaped: tuple[Run, process.ProcessIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, child = escaped
    assert run.supervisor_pid is not None
    assert run.pid is not None
    killed = (run.supervisor_pid, home.guard_pid(run), run.pid)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, killed)), "supervisor, guard and agent are gone")
    monkeypatch.setattr(
        process, "send_signal", lambda *_: False
    )  # as for one in uninterruptible sleep
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
    """Its supervisor comes to be a child of the outer run's guard, and goes on all the same."""
    script = f"{sys.executable} -m corral run -d --name inner -- sleep 600; touch here; sleep 600"
    outer = home.start_detached("sh", "-c", script, options=("--grace", "300ms"))
    wait_until((home.work / "here").exists, "the inner one has begun")
    inner = home.in_state(home.get("inner").id, RunState.RUNNING)
    assert inner.supervisor_pid is not None
    found = process.read_stat(inner.supervisor_pid)
    assert found is not None
    assert found.parent == home.guard_pid(outer)
    # Even when nobody is left between its agent and the outer run.
    os.kill(inner.supervisor_pid, signal.SIGKILL)
    os.kill(home.guard_pid(inner), signal.SIGKILL)
    assert home.json("stop", outer.id, "--json")["state"] == "cancelled"
    assert inner.pid is not None
    assert is_alive(inner.pid)
    assert home.json("stop", inner.id, "--json")["state"] == "cancelled"
    home.wait_for_all_processes()
