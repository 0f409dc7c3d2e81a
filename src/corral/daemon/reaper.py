"""The reaper loop: recovers runs whose supervisor died on this machine.

It also forwards stop requests to live supervisors, and deletes output files that retention has
released.
"""

import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from corral.adapters.processes import child_processes, process
from corral.adapters.processes.process import ProcessIdentity
from corral.api import Corral
from corral.daemon.loop import BaseLoop
from corral.domain.runs.model import Run, RunMode, RunState
from corral.domain.runs.processes import get_identity
from corral.kernel.pagination import iter_all

CHECK_SECONDS = 60.0  # in case an exit was not noticed
POLL_SECONDS = 5.0  # where the system cannot report exits (no pidfd)
CLEAR_SECONDS = 3_600.0  # between two deletions of old output files


class Reaper(BaseLoop):
    """Recovers runs whose supervisor died, and forwards stop requests to live supervisors.

    It watches the supervisors by pidfd, so the exit of a supervisor wakes the loop at once.
    """

    name = "reaper"
    needs_leader = False
    min_interval = 0.25

    def __init__(self) -> None:
        self._pidfds: dict[ProcessIdentity, int] = {}
        self._stop_forwarded: set[str] = set()  # run ids
        self._next_check = 0.0
        self._next_clear = 0.0

    def watched(self) -> Sequence[int]:
        return tuple(self._pidfds.values())

    def run_once(self, store: Corral) -> int:
        child_processes.reap()
        done = 0
        has_exit = self._drop_exited()
        has_missed_exit = self._watch_supervisors(store)
        if has_exit or has_missed_exit or time.monotonic() >= self._next_check:
            done = len(store.runs.recover())
            self._next_check = time.monotonic() + CHECK_SECONDS
            self._watch_supervisors(store)
        if time.monotonic() >= self._next_clear:
            self._next_clear = time.monotonic() + CLEAR_SECONDS
            done += store.internal.outputs.clear_deleted()
        return done

    def next_delay(self, store: Corral) -> float:
        if not process.can_watch_exits():
            self._next_check = 0.0
            return POLL_SECONDS
        return max(0.05, self._next_check - time.monotonic())

    def _drop_exited(self) -> bool:
        """Stop watching the supervisors that have exited; return whether there were any."""
        poll = select.poll()
        for pidfd in self._pidfds.values():
            poll.register(pidfd, select.POLLIN)
        exited = {pidfd for pidfd, _ in poll.poll(0)}
        for identity, pidfd in [*self._pidfds.items()]:
            if pidfd in exited:
                self._unwatch(identity)
        return bool(exited)

    def _watch_supervisors(self, store: Corral) -> bool:
        """Watch the supervisors of all live runs of this machine; return whether one is gone."""
        runs = [*_iter_local_runs(store)]
        self._forward_stops(store, runs)
        wanted = {identity for run in runs if (identity := _identify_watched(run)) is not None}
        for identity in [*self._pidfds]:
            if identity not in wanted:
                self._unwatch(identity)
        is_one_gone = False
        for identity in wanted - self._pidfds.keys():
            pidfd = process.watch_exit(identity)
            if pidfd is not None:
                self._pidfds[identity] = pidfd
            elif process.can_watch_exits():
                is_one_gone = True
        return is_one_gone

    def _forward_stops(self, store: Corral, runs: Sequence[Run]) -> None:
        """Send new stop requests to the supervisors.

        A command on another machine cannot reach their control sockets.
        """
        stopping = {run.id: run for run in runs if run.state is RunState.STOPPING}
        for id in stopping.keys() - self._stop_forwarded:
            store.internal.runs.forward_stop(stopping[id])
        self._stop_forwarded = {*stopping}

    def _unwatch(self, identity: ProcessIdentity) -> None:
        with suppress(OSError):
            os.close(self._pidfds.pop(identity))


def _iter_local_runs(store: Corral) -> Iterator[Run]:
    for run in iter_all(store.runs.list, live=True, limit=200):
        if run.host == process.host() and run.state is not RunState.QUEUED:
            yield run


def _identify_watched(run: Run) -> ProcessIdentity | None:
    """Return the supervisor of a run; for a process that Corral did not start, the process."""
    if run.mode is RunMode.RECORDED:
        return get_identity(run, run.pid, run.start_token)
    return get_identity(run, run.supervisor_pid, run.supervisor_token)
