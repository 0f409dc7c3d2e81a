"""Runs of this machine whose keeper ended without a word are found at once, and judged; and what
another machine wants to be stopped here is told to its keeper at once."""

import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from corral.adapters import children, process
from corral.adapters.process import Identity
from corral.api import Corral
from corral.daemon.loop import Plain
from corral.domain.runs.model import Mode, Run, RunState
from corral.kernel.pagination import every
from corral.services.runs.recovery import Recovery, identity_of

LOOK = 60.0  # behind a death that was not told
LOOK_WITHOUT_TOLD = 5.0  # where the system cannot tell of one
CLEAR = 3_600.0


class Reaper(Plain):
    """It watches the keepers themselves: a process that ends wakes it, and nothing else has to."""

    name = "reaper"
    is_led = False
    rest = 0.25

    def __init__(self) -> None:
        self._handles: dict[Identity, int] = {}
        self._told: set[str] = set()  # to stop
        self._next_look = 0.0
        self._next_clear = 0.0

    def watched(self) -> Sequence[int]:
        return tuple(self._handles.values())

    def round(self, store: Corral) -> int:
        children.reap()
        found = 0
        dead = self._ended()
        unseen = self._watch(store)
        if dead or unseen or time.monotonic() >= self._next_look:
            found = len(store.runs.recover())
            self._next_look = time.monotonic() + LOOK
            self._watch(store)
        if time.monotonic() >= self._next_clear:
            self._next_clear = time.monotonic() + CLEAR
            found += store.outputs.clear_deleted()
        return found

    def pause(self, store: Corral) -> float:
        if not process.tells_of_ends():
            self._next_look = 0.0
            return LOOK_WITHOUT_TOLD
        return max(0.05, self._next_look - time.monotonic())

    def _ended(self) -> bool:
        """Whether one of those who are watched has ended; it is watched no longer."""
        poll = select.poll()
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        ended = {handle for handle, _ in poll.poll(0)}
        for identity, handle in [*self._handles.items()]:
            if handle in ended:
                self._forget(identity)
        return bool(ended)

    def _watch(self, store: Corral) -> bool:
        """Watch the keeper of every run of this machine, and nobody else; whether one is gone."""
        runs = [*_going_here(store)]
        self._pass_on_stops(store, runs)
        wanted = {identity for run in runs if (identity := _keeper(run)) is not None}
        for identity in [*self._handles]:
            if identity not in wanted:
                self._forget(identity)
        gone = False
        for identity in wanted - self._handles.keys():
            handle = process.watch(identity)
            if handle is not None:
                self._handles[identity] = handle
            elif process.tells_of_ends():
                gone = True
        return gone

    def _pass_on_stops(self, store: Corral, runs: Sequence[Run]) -> None:
        """Whoever wants a run to end on another machine cannot reach its keeper."""
        stopping = {run.id: run for run in runs if run.state is RunState.STOPPING}
        for id in stopping.keys() - self._told:
            Recovery(store.runs).see_to_the_end(stopping[id], None)
        self._told = {*stopping}

    def _forget(self, identity: Identity) -> None:
        with suppress(OSError):
            os.close(self._handles.pop(identity))


def _going_here(store: Corral) -> Iterator[Run]:
    for run in every(store.runs.list, live=True, limit=200):
        if run.host == process.host() and run.state is not RunState.QUEUED:
            yield run


def _keeper(run: Run) -> Identity | None:
    """Whose end matters: the keeper's; a process that Corral did not start has none."""
    if run.mode is Mode.RECORDED:
        return identity_of(run, run.pid, run.start_token)
    return identity_of(run, run.keeper_pid, run.keeper_token)
