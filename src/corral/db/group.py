"""Group commit: the threads of one process share transactions.

Whoever finds nobody writing leads: it runs its own work at once, on its own thread, and pays
nothing for the machinery. Those who come meanwhile leave their work in the line; the leader runs
that too, commits once for all, and hands the lead to the next in line. So sixty-four threads that
each need an fsync pay for a few fsyncs together, in the order in which they came.

Threads whose work was done wake each other, one after the other: if the leader woke all of them,
they would fight for the interpreter.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

# A leader stops taking in others here, so that writers of other processes get their turn.
MAX_BATCH = 128

# Behind a wake-up that never came, as when the thread that owed it was interrupted.
LONGEST_SLEEP = 1.0


class Job:
    """One thread's work on its way through the line."""

    __slots__ = (
        "_gate",
        "_next",
        "_settled",
        "durable",
        "error",
        "leads",
        "result",
        "since",
        "work",
    )

    def __init__(self, work: Callable[[Any], Any] | None, durable: bool) -> None:
        self.work = work
        """None: it cannot be run by another thread, only be given the lead."""
        self.durable = durable
        self.since = time.monotonic()
        """When it began to wait."""
        self.leads = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()
        self._next: Job | None = None
        self._settled = False

    def wait(self) -> None:
        """Until it was run by another thread, or has the lead."""
        while not self._settled:
            self._gate.acquire(timeout=LONGEST_SLEEP)

    def wake(self) -> None:
        self._settled = True
        self._gate.release()

    def wake_next(self) -> None:
        if self._next is not None:
            self._next._gate.release()

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def finish(jobs: list[Job]) -> None:
    """Let the threads go whose jobs were run for them; each of them wakes the next."""
    for job, following in pairwise(jobs):
        job._next = following
    for job in jobs:
        job._settled = True
    if jobs:
        jobs[0].wake()


class Spoilt(Exception):
    """A job failed when it had written already: nothing of the transaction can be kept."""

    def __init__(self, interrupt: BaseException | None) -> None:
        super().__init__()
        self.interrupt = interrupt
        """What was meant for the leader's own thread and not for the job."""


class Line:
    def __init__(self) -> None:
        self._lead = threading.Lock()
        self.waiting: deque[Job] = deque()
        """Empty unless somebody waits."""

    def lead_at_once(self) -> bool:
        """Take the lead when nobody has it and nobody waits for it."""
        return not self.waiting and self._lead.acquire(blocking=False)

    def join(self, job: Job) -> bool:
        """Wait until the job was run by another thread (False) or has the lead (True)."""
        self.waiting.append(job)
        # The leader may have looked at the line just before; then nobody leads and it is on us.
        self._hand_over_if_free()
        try:
            job.wait()
        except BaseException:  # Ctrl-C while waiting
            self._withdraw(job)
            raise
        finally:
            job.wake_next()
        return job.leads

    def _withdraw(self, job: Job) -> None:
        """Leave the line without leaving it stuck."""
        try:
            self.waiting.remove(job)
        except ValueError:
            # It is being run, or was given the lead: both end, and the lead must go on.
            with suppress(KeyboardInterrupt):
                job.wait()
            if job.leads:
                self.pass_on()

    def take(self, durable: bool) -> Job | None:
        """The next job that the leader may run in its own transaction."""
        if self.waiting:
            job = self.waiting[0]
            if job.work is not None and (durable or not job.durable):
                return self.waiting.popleft()
        return None

    def wants_durable(self) -> bool:
        """Whether anyone in line asks for full durability."""
        return any(job.durable for job in tuple(self.waiting))

    def put_back(self, jobs: list[Job]) -> None:
        """Jobs that were taken and not kept after all; they will be run again."""
        self.waiting.extendleft(reversed(jobs))
        jobs.clear()

    def leave_to_itself(self, job: Job) -> None:
        """A job that nobody else can run: it gets the lead next, and meets its fate on its own."""
        job.work = None
        self.waiting.appendleft(job)

    def pass_on(self) -> None:
        """Give the lead to the next in line, or let go of it."""
        self._lead.release()
        if self.waiting:
            self._hand_over_if_free()

    def _hand_over_if_free(self) -> None:
        while self.waiting and self._lead.acquire(blocking=False):
            try:
                job = self.waiting.popleft()
            except IndexError:  # taken meanwhile by nobody but the leader we wanted to help
                self._lead.release()
                continue
            job.leads = True
            job.wake()
            return
