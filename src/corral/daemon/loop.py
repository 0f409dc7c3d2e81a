"""The interface of a loop, and the thread that runs it.

A round that fails is counted, logged and retried with exponential back-off; it ends neither the
loop nor the daemon.
"""

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Protocol

import msgspec

from corral.api import Corral
from corral.kernel.errors import CorralError

FIRST_PAUSE, MAX_PAUSE = 0.5, 60.0  # seconds, after consecutive failures
FOLLOWER_SECONDS = 30.0  # between two checks whether this daemon is the leader

log = logging.getLogger("corral")


class Loop(Protocol):
    """Work that is done periodically, and whenever a commit may have added some."""

    name: str
    needs_leader: bool
    """Whether one daemon per store runs the loop; otherwise one per machine."""
    wakes_on_commit: bool
    """Whether a commit may add work."""
    min_interval: float
    """Minimum seconds between two rounds, so that a busy store does not keep the loop busy."""

    def run_once(self, store: Corral) -> int:
        """Do what is due and return how much was done. Must be safe to interrupt."""
        ...

    def run_as_follower(self, store: Corral) -> int:
        """Do what only this machine can do while another daemon is the leader; return how much."""
        ...

    def next_delay(self, store: Corral) -> float:
        """Return the seconds until the next round, if nothing wakes the loop before."""
        ...

    def watched(self) -> Sequence[int]:
        """Return descriptors that become readable when there is work."""
        ...


class BaseLoop:
    """Defaults: one loop per store, woken by commits only."""

    needs_leader = True
    wakes_on_commit = True
    min_interval = 0.02

    def run_as_follower(self, store: Corral) -> int:
        return 0

    def watched(self) -> Sequence[int]:
        return ()


class LoopState(StrEnum):
    """Whether a loop does its work."""

    WORKS = "works"
    """The last round succeeded."""
    WAITS = "waits"
    """Another daemon is the leader of the loop."""
    FAILS = "fails"
    """The last round failed and is retried."""


class LoopStatus(msgspec.Struct, frozen=True):
    """The state of one loop of a daemon."""

    name: str
    state: LoopState
    leader: str | None
    """The daemon that is the leader; None: each machine runs its own."""
    worked_at: int | None
    """When a round last had something to do."""
    done: int
    errors: int
    error: str | None
    failed_at: int | None


class LoopThread:
    """Runs one loop in a thread of its own until it is stopped."""

    def __init__(self, loop: Loop, store: Corral, is_leader: Callable[[], bool]) -> None:
        self.loop = loop
        self._store = store
        self._is_leader = is_leader
        self._stopping = threading.Event()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._failures = 0  # consecutive
        self._done = self._errors = 0
        self._error: str | None = None
        self._worked_at: int | None = None
        self._failed_at: int | None = None
        self.thread = threading.Thread(target=self._run, name=loop.name, daemon=True)

    def wake(self) -> None:
        """Start a round soon, because there may be work."""
        with suppress(OSError):  # the pipe is full, so a wake-up is pending
            os.write(self._wake_writer, b".")

    def stop(self) -> None:
        """Stop after the current round."""
        self._stopping.set()
        self.wake()

    def status(self, leader: str | None) -> LoopStatus:
        if self.loop.needs_leader and not self._is_leader():
            state = LoopState.WAITS
        else:
            state = LoopState.FAILS if self._failures else LoopState.WORKS
        return LoopStatus(
            name=self.loop.name,
            state=state,
            leader=leader if self.loop.needs_leader else None,
            worked_at=self._worked_at,
            done=self._done,
            errors=self._errors,
            error=self._error,
            failed_at=self._failed_at,
        )

    # -- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            started_at = time.monotonic()
            self._wait(self._run_round())
            duration = time.monotonic() - started_at
            self._stopping.wait(max(0.0, self.loop.min_interval - duration))

    def _run_round(self) -> float:
        """Run one round and return the seconds to wait."""
        self._clear_wakes()
        is_leading = not self.loop.needs_leader or self._is_leader()
        run_round = self.loop.run_once if is_leading else self.loop.run_as_follower
        try:
            done = run_round(self._store)
            delay = self._record_round(done, is_leading)
        except Exception as error:
            return self._fail(error)
        if self._failures:
            log.info("%s works again", self.loop.name)
        self._failures = 0
        return delay

    def _record_round(self, done: int, is_leading: bool) -> float:
        """Count what a round did and return the seconds until the next."""
        if done:
            self._done += done
            self._worked_at = self._store.now()
            return 0.0
        return self.loop.next_delay(self._store) if is_leading else FOLLOWER_SECONDS

    def _fail(self, error: Exception) -> float:
        self._failures += 1
        self._errors += 1
        is_expected = isinstance(error, CorralError)
        self._error = str(error) if is_expected else f"{type(error).__name__}: {error}"
        self._failed_at = self._store.now()  # works without a connection to the store
        pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), MAX_PAUSE)
        log.error(
            "%s failed; retrying in %.1f s: %s",
            self.loop.name,
            pause,
            self._error,
            exc_info=None if is_expected else error,
        )
        # Commits do not interrupt this wait: they would defeat the back-off.
        self._stopping.wait(pause)
        return 0.0

    def _wait(self, seconds: float) -> None:
        # Checked after the wake-ups were cleared: the one of `stop` may have been among them.
        if seconds <= 0 or self._stopping.is_set():
            return
        poll = select.poll()
        for descriptor in (self._wake_reader, *self.loop.watched()):
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1_000)

    def _clear_wakes(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake_reader, 4_096):
                pass
