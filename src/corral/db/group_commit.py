"""Group commit: the threads of one process share write transactions.

The first thread that finds no active writer becomes the leader. It runs its own job at once, on its
own thread, without any overhead. Threads that arrive meanwhile put their jobs into a queue. The
leader runs these jobs too, commits once for all, and wakes their threads. So sixty-four threads
that each need an fsync share a few fsyncs, in the order of their arrival.

Threads whose jobs are done wake each other in a chain, and the last one passes the leadership to
the next job in the queue. If all woke at once, they would compete for the interpreter with each
other and, at every statement, with the next leader. By the time the chain ends, the threads that
woke first have queued their next jobs, so the next leader finds a full batch.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

# The leader stops taking jobs here, so that writers of other processes get the write lock.
MAX_BATCH = 128

# A waiting thread checks after this many seconds, in case the thread that should have woken it was
# interrupted.
MAX_SLEEP = 0.05


class Job:
    """One thread's write, from the queue to its result."""

    __slots__ = (
        "durable",
        "error",
        "gate",
        "handle",
        "is_leader",
        "is_settled",
        "next_in_chain",
        "result",
        "waiting_since",
        "work",
    )

    def __init__(
        self, work: Callable[[Any], Any] | None, durable: bool, handle: Any = None
    ) -> None:
        self.work = work
        """None: another thread cannot run this job; its thread must become the leader."""
        self.durable = durable
        self.handle = handle
        """The handle that submitted the job; its actor, clock and redaction apply."""
        self.waiting_since = time.monotonic()
        """When the job began to wait."""
        self.is_leader = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.gate = threading.Lock()
        """Released when the thread need not wait any more."""
        self.gate.acquire()
        self.next_in_chain: Job | None = None
        """The next job in the wake-up chain; this job's thread wakes it."""
        self.is_settled = False
        """Whether the job was run, or has the leadership."""

    def wait(self) -> bool:
        """Wait up to MAX_SLEEP; return whether the job was run or has the leadership."""
        if not self.is_settled:
            self.gate.acquire(timeout=MAX_SLEEP)
        return self.is_settled

    def wake(self) -> None:
        self.is_settled = True
        self.gate.release()

    def outcome(self) -> Any:
        """Return the result of the job, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.result


class JoinResult(Enum):
    """Why a thread that waited in the queue may continue."""

    WAS_RUN = "was run"
    """Another thread has run the job."""
    LEADS = "leads"
    """The thread has the leadership, and must run the job and pass the leadership on."""


class Batch:
    """The waiting jobs that a leader runs in the transaction of its own work."""

    __slots__ = ("interrupt", "jobs")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        """The jobs that have been run, and the one that runs; a rollback puts them back."""
        self.interrupt: BaseException | None = None
        """A KeyboardInterrupt for the leader's thread, to be raised after the commit."""


class BatchAborted(Exception):
    """A job failed after it had written, so the whole batch must be rolled back."""

    def __init__(self, interrupt: BaseException | None) -> None:
        super().__init__()
        self.interrupt = interrupt
        """A KeyboardInterrupt that was meant for the leader's own thread, not for the job."""


class CommitQueue:
    """The queue of jobs of one process, and the leadership among their threads."""

    def __init__(self) -> None:
        self._leadership = threading.Lock()
        self.waiting: deque[Job] = deque()
        self._hand_overs: list[Job] = []
        """The job whose thread passes the leadership on, once it is awake."""

    def try_lead(self) -> bool:
        """Become the leader if there is none and no job waits."""
        return not self.waiting and self._leadership.acquire(False)

    @contextmanager
    def exclusive(self, *, durable: bool) -> Iterator[float]:
        """Lead without running jobs of other threads; yields when the wait for it began."""
        job = Job(None, durable)
        self.join(job)
        try:
            yield job.waiting_since
        finally:
            self.release_lead()

    def join(self, job: Job) -> JoinResult:
        """Wait until another thread has run the job, or the job's thread leads."""
        try:
            # Append inside the try: otherwise Ctrl-C between append and try would leave a job whose
            # thread is gone.
            self.waiting.append(job)
            # The leader may have checked the queue before this append: then this thread leads.
            if not self._leadership.locked():
                self._hand_over_if_free()
            # Positional arguments: passing the timeout by name would double the cost of the call.
            if not job.gate.acquire(True, MAX_SLEEP):
                self._wait(job)
        except BaseException:  # Ctrl-C while waiting
            self._withdraw(job)
            raise
        finally:
            if job.next_in_chain is not None:
                job.next_in_chain.gate.release()
            else:
                self._hand_over_for(job)
        return JoinResult.LEADS if job.is_leader else JoinResult.WAS_RUN

    def _wait(self, job: Job) -> None:
        while not job.wait():
            # The thread that should pass the leadership on is slow to wake, or was interrupted.
            for owing in self._hand_overs[:]:
                self._hand_over_for(owing)

    def _hand_over_for(self, job: Job) -> None:
        """Pass the leadership on if this job's thread should, and no other thread has done it."""
        with suppress(ValueError):
            self._hand_overs.remove(job)
            self.release_lead()

    def _withdraw(self, job: Job) -> None:
        """Remove a job whose thread was interrupted, without blocking the queue."""
        try:
            self.waiting.remove(job)
        except ValueError:
            # The job is being run, or it has the leadership. Both end; the leadership must move on.
            with suppress(KeyboardInterrupt):
                self._wait(job)
            if job.is_leader:
                self.release_lead()

    def take(self, durable: bool, batch: Batch) -> Job | None:
        """Move the next job that the leader may run in its own transaction to the batch, if any."""
        if self.waiting:
            job = self.waiting[0]
            if job.work is not None and (durable or not job.durable):
                # Ctrl-C here may leave the job in both, which `put_back` expects, but never in
                # neither: then its thread would wait for ever.
                batch.jobs.append(job)
                try:
                    self.waiting.remove(job)
                except ValueError:  # its thread withdrew it in the meantime
                    batch.jobs.pop()
                    return None
                return job
        return None

    def has_durable(self) -> bool:
        """Whether a waiting job asks for full durability."""
        return any(job.durable for job in tuple(self.waiting))

    def put_back(self, batch: Batch) -> None:
        """Return jobs whose transaction was rolled back to the head of the queue, to run again."""
        if self.waiting and batch.jobs and self.waiting[0] is batch.jobs[-1]:
            batch.jobs.pop()  # `take` or `isolate` was interrupted
        self.waiting.extendleft(reversed(batch.jobs))
        batch.jobs.clear()

    def isolate(self, job: Job, batch: Batch) -> None:
        """Let the last job of a batch, which aborted it, fail in a transaction of its own."""
        job.work = None
        self.waiting.appendleft(job)
        batch.jobs.pop()

    def end_lead(self, batch: Batch) -> None:
        """End the leadership: wake the threads of the batch, or release the lead if it is empty."""
        if batch.jobs:
            self._finish(batch.jobs)
        else:
            self.release_lead()

    def _finish(self, jobs: list[Job]) -> None:
        """Wake the threads of jobs that the leader ran; the last one passes the leadership on."""
        following = None
        for job in reversed(jobs):
            job.next_in_chain = following
            job.is_settled = True
            following = job
        self._hand_overs.append(jobs[-1])
        jobs[0].wake()

    def release_lead(self) -> None:
        """Pass the leadership to the next waiting job, or release it."""
        self._leadership.release()
        if self.waiting:
            self._hand_over_if_free()

    def _hand_over_if_free(self) -> None:
        while self.waiting and self._leadership.acquire(False):
            try:
                job = self.waiting.popleft()
            except IndexError:  # its thread withdrew it in the meantime
                self._leadership.release()
                continue
            job.is_leader = True
            job.wake()
            return
