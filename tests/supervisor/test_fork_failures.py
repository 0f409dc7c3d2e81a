"""A fork that fails: no process or descriptor is left, and the end of the run is recorded."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.domain.runs.model import RunState
from corral.kernel.exit_status import ExitStatus
from corral.supervisor import child
from corral.supervisor.child import CannotStart, ChildProcess, Stdio
from corral.supervisor.main import StartOrder, _prepare
from corral.supervisor.supervisor import Supervisor
from tests.support.home import Home
from tests.support.run_factories import held

Failure = Callable[[pytest.MonkeyPatch], None]


def fail_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(child.os, "fork", fork)


def fail_third_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes = [os.pipe(), os.pipe()]

    def open_pipe() -> tuple[int, int]:
        if not pipes:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pipes.pop()

    monkeypatch.setattr(child.os, "pipe", open_pipe)


def list_descriptors() -> set[str]:
    return {*os.listdir("/dev/fd")}


@pytest.mark.parametrize(
    ("fail", "code"), [(fail_fork, errno.EAGAIN), (fail_third_pipe, errno.EMFILE)]
)
def test_failed_fork_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Failure, code: int
) -> None:
    before = list_descriptors()
    with monkeypatch.context() as patch:
        fail(patch)
        with pytest.raises(CannotStart) as raised:
            ChildProcess.fork(
                ["true"], cwd="/", env={}, stdio=Stdio(0, 1, 2), folder=tmp_path, attempt=1
            )
    assert (raised.value.exit_code, raised.value.reason) == (126, f"true: {os.strerror(code)}")
    assert list_descriptors() == before


@pytest.mark.parametrize("previous", [ExitStatus(exit_code=1), None], ids=["restart", "queued"])
def test_failed_fork_of_an_attempt_ends_the_run(
    home: Home, monkeypatch: pytest.MonkeyPatch, previous: ExitStatus | None
) -> None:
    with home.store() as store:
        run = store.runs.start(command=["true"], project=str(home.work))
        if previous is not None:
            run = store.internal.runs.launch(store.internal.runs.acquire(run.id, held()))
        order = StartOrder(store=store.address, run=run.id)
        supervisor = Supervisor(store, run, *_prepare(store, run, order, None))
        before = list_descriptors()
        with monkeypatch.context() as patch:
            fail_fork(patch)
            with pytest.raises(CannotStart):
                supervisor._start_attempt(previous, 1)
        ended = store.runs.get(run.id)
        assert (ended.state, ended.exit_code) == (RunState.FAILED, 126)
        assert list_descriptors() <= before
