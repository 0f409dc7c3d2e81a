"""What a loop is, and the thread that goes round with it.

A round that fails is counted, told, and tried again after a pause that grows; it ends neither the
loop nor the daemon.
"""

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from corral.api import Corral
from corral.kernel.errors import CorralError

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # after failures in a row
STAND_BY = 30.0  # behind a lead that changed hands without a word

log = logging.getLogger("corral")


class Loop(Protocol):
    """Something that is done again and again."""

    name: str
    is_led: bool
    """Whether one on a store is enough; else each machine has its own."""
    heeds: bool
    """Whether a commit may bring it work."""
    rest: float
    """Seconds at least between two rounds: a busy store must not keep it busy in vain."""

    def round(self, store: Corral) -> int:
        """Do what is due; gives back how much was done. Nothing is lost when it is cut short."""
        ...

    def aside(self, store: Corral) -> int:
        """What only this machine can do, while another one leads; gives back how much was done."""
        ...

    def pause(self, store: Corral) -> float:
        """Seconds after which it has to look again, if nothing happens before."""
        ...

    def watched(self) -> Sequence[int]:
        """Descriptors that become readable when there is something to do."""
        ...


class Plain:
    """A loop that is one on a store, woken by commits, and watches nothing else."""

    is_led = True
    heeds = True
    rest = 0.02

    def aside(self, store: Corral) -> int:
        return 0

    def watched(self) -> Sequence[int]:
        return ()


class LoopStatus(msgspec.Struct, frozen=True):
    """How one loop of a daemon is."""

    name: str
    state: str
    """works; waits: another daemon leads it; fails: the last round did."""
    leader: str | None
    """The daemon that leads it; None: each machine has its own."""
    worked_at: int | None
    """When it last found something to do."""
    done: int
    errors: int
    error: str | None
    failed_at: int | None


class Runner:
    """One loop in a thread of its own, until it is stopped."""

    def __init__(self, loop: Loop, store: Corral, may_work: Callable[[], bool]) -> None:
        self.loop = loop
        self._store = store
        self._may_work = may_work
        self._stopping = threading.Event()
        self._ear, self._mouth = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._mouth, False)
        self._failures = 0  # in a row
        self._done = self._errors = 0
        self._error: str | None = None
        self._worked_at: int | None = None
        self._failed_at: int | None = None
        self.thread = threading.Thread(target=self._go_round, name=loop.name, daemon=True)

    def wake(self) -> None:
        """Something may have happened."""
        with suppress(OSError):  # full: it is woken already
            os.write(self._mouth, b".")

    def stop(self) -> None:
        """Let it finish its round, and no more."""
        self._stopping.set()
        self.wake()

    def status(self, leader: str | None) -> LoopStatus:
        waits = self.loop.is_led and not self._may_work()
        return LoopStatus(
            name=self.loop.name,
            state="waits" if waits else "fails" if self._failures else "works",
            leader=leader if self.loop.is_led else None,
            worked_at=self._worked_at,
            done=self._done,
            errors=self._errors,
            error=self._error,
            failed_at=self._failed_at,
        )

    # -- the thread ----------------------------------------------------------------------------

    def _go_round(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._wait(self._once())
            self._stopping.wait(max(0.0, self.loop.rest - (time.monotonic() - began)))

    def _once(self) -> float:
        """One round; gives back how long nothing has to be done."""
        self._forget_wakes()
        leads = not self.loop.is_led or self._may_work()
        try:
            done = self.loop.round(self._store) if leads else self.loop.aside(self._store)
            if done:
                self._done += done
                self._worked_at = self._store.now()
            pause = self.loop.pause(self._store) if leads and not done else STAND_BY
        except Exception as error:
            return self._fail(error)
        if self._failures:
            log.info("%s works again", self.loop.name)
        self._failures = 0
        return 0.0 if done else pause

    def _fail(self, error: Exception) -> float:
        self._failures += 1
        self._errors += 1
        known = isinstance(error, CorralError)
        self._error = str(error) if known else f"{type(error).__name__}: {error}"
        self._failed_at = self._store.now()  # known also while the store is away
        pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE)
        log.error(
            "%s failed, and tries again in %.1f s: %s",
            self.loop.name,
            pause,
            self._error,
            exc_info=None if known else error,
        )
        # Not woken by commits meanwhile: they would make the pause short.
        self._stopping.wait(pause)
        return 0.0

    def _wait(self, seconds: float) -> None:
        # Looked at behind the wakes that were forgotten: the one of `stop` may be among them.
        if seconds <= 0 or self._stopping.is_set():
            return
        poll = select.poll()
        for descriptor in (self._ear, *self.loop.watched()):
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1_000)

    def _forget_wakes(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._ear, 4_096):
                pass
