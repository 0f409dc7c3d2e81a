"""The limits of a run: time, idle time, budget and sandbox quotas."""

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from corral.adapters.processes import process
from corral.domain.runs.model import StopKind

if TYPE_CHECKING:
    from corral.domain.runs.model import Launch
    from corral.supervisor.attempt import AgentAttempt
    from corral.supervisor.launch_plan import LaunchPlan
    from corral.supervisor.lease import RunLease

# A terminal interface that is not recognized after this time counts as started.
MAX_START_SECONDS = 120.0
MIN_IDLE_CHECK_SECONDS = 0.05


class RunLimits:
    """Ends the attempts of a run that is to stop, is done, or exceeds a limit.

    The store learns of an exceeded limit before the agent is terminated, except for a sandbox
    quota: its agent is killed at once.
    """

    def __init__(self, lease: "RunLease", launch: "Launch", plan: "LaunchPlan") -> None:
        self._lease = lease
        self._plan = plan
        self._grace_period_ms = launch.grace_period_ms
        self._timeout = _to_seconds(launch.timeout_ms)
        self._idle_timeout = _to_seconds(launch.idle_ms)

    def next_checks(self, attempt: "AgentAttempt", now: float) -> Iterator[float]:
        """Yield the times at which `enforce` has something to check or to do."""
        if attempt.terminator is not None:
            yield attempt.terminator.next_step
        else:
            if self._timeout is not None:
                yield attempt.started_at + self._timeout
            if self._idle_timeout is not None:
                yield max(attempt.active_at + self._idle_timeout, now + MIN_IDLE_CHECK_SECONDS)
        if self._plan.worktree_sandbox is not None:
            yield self._plan.worktree_sandbox.next_poll

    def enforce(self, attempt: "AgentAttempt", now: float) -> None:
        """Continue or begin the termination of the agent if it is to stop or exceeds a limit."""
        over_budget = attempt.agent_io.status.over_budget
        if over_budget and self._lease.stop_reason is None:
            self._lease.request_stop(StopKind.OVER_BUDGET, over_budget)
        if attempt.terminator is not None:
            attempt.terminator.step(now)
        elif self._lease.stop_reason is not None or attempt.agent_io.status.is_done:
            attempt.begin_termination(self._grace_period_ms)
        elif self._timeout is not None and now >= attempt.started_at + self._timeout:
            self._lease.request_stop(StopKind.TIMED_OUT)
        elif (exceeded := self._find_exceeded_quota(attempt)) is not None:
            self._kill(attempt, exceeded)
        elif self._idle_timeout is not None:
            self._end_if_idle(attempt, now, self._idle_timeout)

    def set_grace_period(self, attempt: "AgentAttempt | None", grace_period_ms: int) -> None:
        """Replace the grace period; that of a SIGTERM that was sent already is only shortened."""
        self._grace_period_ms = grace_period_ms
        if attempt is not None and attempt.terminator is not None:
            attempt.terminator.set_grace_period(grace_period_ms)

    def _find_exceeded_quota(self, attempt: "AgentAttempt") -> str | None:
        """Return a description of the sandbox quota that the run exceeds, or None."""
        if self._plan.worktree_sandbox is None:
            return None
        return self._plan.worktree_sandbox.find_exceeded_limit(attempt.agent_process)

    def _kill(self, attempt: "AgentAttempt", reason: str) -> None:
        """Kill a sandboxed agent and stop the run.

        All processes of a sandbox die with the process that created the sandbox.
        """
        process.send_signal(attempt.agent_process, signal.SIGKILL)
        self._grace_period_ms = 0
        self._lease.request_stop(StopKind.INTERRUPTED, reason)

    def _end_if_idle(self, attempt: "AgentAttempt", now: float, idle_timeout: float) -> None:
        attempt.update_activity(now)
        if attempt.agent_io.status.is_starting and now < attempt.started_at + MAX_START_SECONDS:
            attempt.active_at = now
        if now >= attempt.active_at + idle_timeout and not attempt.agent_io.status.is_working:
            attempt.mark_idle()
            attempt.begin_termination(self._grace_period_ms)


def _to_seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000
