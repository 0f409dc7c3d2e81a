"""Group commit: the threads of one process share transactions.

Whoever finds nobody writing leads: it runs its own work at once, on its own thread, and pays
nothing for the machinery. Those who come meanwhile leave their work in the line; the leader runs
that too, commits once for all, and lets them go. So sixty-four threads that each need an fsync pay
for a few fsyncs together, in the order in which they came.

Threads whose work was done wake each other, one after the other, and the last of them gives the
lead to the next in line: if all woke at once, they would fight for the interpreter with each other
and, at every statement, with the next leader. Behind them it finds those who came back in line.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# A leader stops taking in others here, so that writers of other processes get their turn.
MAX_BATCH = 128

# Behind a wake-up that does not come, as when the thread that owed it was interrupted.
LONGEST_SLEEP = 0.05


class Job:
    """One thread's work on its way through the line."""

    __slots__ = (
        "durable",
        "error",
        "following",
        "gate",
        "handle",
        "leads",
        "result",
        "settled",
        "since",
        "work",
    )

    def __init__(
        self, work: Callable[[Any], Any] | None, durable: bool, handle: Any = None
    ) -> None:
        self.work = work
        """None: it cannot be run by another thread, only be given the lead."""
        self.durable = durable
        self.handle = handle
        """The handle that submitted the job; its actor, clock and redaction apply."""
        self.since = time.monotonic()
        """When it began to wait."""
        self.leads = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.gate = threading.Lock()
        """Open when it need not wait any more."""
        self.gate.acquire()
        self.following: Job | None = None
        """Whose thread this one's wakes."""
        self.settled = False
        """Whether it was run, or has the lead."""

    def wait(self) -> bool:
        """Whether it was run by another thread, or has the lead; False after LONGEST_SLEEP."""
        if not self.settled:
            self.gate.acquire(timeout=LONGEST_SLEEP)
        return self.settled

    def wake(self) -> None:
        self.settled = True
        self.gate.release()

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


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
        self._owed: list[Job] = []
        """The job whose thread gives the lead to the next in line, once it is awake."""

    def lead_at_once(self) -> bool:
        """Take the lead when nobody has it and nobody waits for it."""
        return not self.waiting and self._lead.acquire(False)

    def join(self, job: Job) -> bool:
        """Wait until the job was run by another thread (False) or has the lead (True)."""
        try:
            # Inside the block: an interrupt right after it would leave a job without a thread.
            self.waiting.append(job)
            # The leader may have checked the queue before this append: then this thread leads.
            if not self._lead.locked():
                self._hand_over_if_free()
            # By position: given by its name, the number would cost twice as much.
            if not job.gate.acquire(True, LONGEST_SLEEP):
                self._wait(job)
        except BaseException:  # Ctrl-C while waiting
            self._withdraw(job)
            raise
        finally:
            if job.following is not None:
                job.following.gate.release()
            else:
                self._pay(job)
        return job.leads

    def _wait(self, job: Job) -> None:
        while not job.wait():
            # Whoever owes the lead is slow to wake, or was interrupted.
            for owing in self._owed[:]:
                self._pay(owing)

    def _pay(self, job: Job) -> None:
        """Give the lead on if this job's thread owes that, and nobody did it in its stead."""
        with suppress(ValueError):
            self._owed.remove(job)
            self.pass_on()

    def _withdraw(self, job: Job) -> None:
        """Leave the line without leaving it stuck."""
        try:
            self.waiting.remove(job)
        except ValueError:
            # It is being run, or was given the lead: both end, and the lead must go on.
            with suppress(KeyboardInterrupt):
                self._wait(job)
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

    def finish(self, jobs: list[Job]) -> None:
        """Let the threads go whose jobs were run for them; the last of them passes the lead on."""
        following = None
        for job in reversed(jobs):
            job.following = following
            job.settled = True
            following = job
        self._owed.append(jobs[-1])
        jobs[0].wake()

    def pass_on(self) -> None:
        """Give the lead to the next in line, or let go of it."""
        self._lead.release()
        if self.waiting:
            self._hand_over_if_free()

    def _hand_over_if_free(self) -> None:
        while self.waiting and self._lead.acquire(False):
            try:
                job = self.waiting.popleft()
            except IndexError:  # taken meanwhile by nobody but the leader we wanted to help
                self._lead.release()
                continue
            job.leads = True
            job.wake()
            return
