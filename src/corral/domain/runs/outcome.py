"""The outcome of a run: final state, reason, restart and back-off. Pure functions."""

from corral.domain.runs.model import RunState, StopKind
from corral.kernel.clock import SECOND
from corral.kernel.exit_status import ExitStatus

QUICK_FAILURE_MS = 3 * SECOND
MAX_QUICK_FAILURES = 3

IDLE_REASON = "no activity within the idle timeout"
GUARD_KILLED_REASON = "its guard process was killed, and processes that it started may still run"
MAX_SHOWN_PIDS = 10
MAX_REASON = 500
"""Maximum characters of a stored reason. It has room for an error message with its advice."""
UNANSWERED_REASON = "its question was not answered in time"

# The reasons of stops for which the caller gave none.
DEFAULT_STOP_REASONS = {
    StopKind.REQUESTED: "stopped",
    StopKind.TIMED_OUT: "timed out",
    StopKind.INTERRUPTED: "its supervisor was asked to exit",
    StopKind.OVER_BUDGET: "its budget was spent",
}
_VERBS = {StopKind.TIMED_OUT: "time_out", StopKind.INTERRUPTED: "interrupt"}


def end_verb(exit_status: ExitStatus, stop: StopKind | None) -> str:
    """Return the verb of a run's end.

    The reason for a stop takes precedence over the exit status. A run whose processes are not known
    to be dead has crashed.
    """
    if exit_status.survivors or exit_status.may_have_survivors:
        return "crash"
    if stop is not None:
        return _VERBS.get(stop, "cancel")
    # Some agents report a failure only in their output (a reason with exit code 0), and some are
    # ended by a signal after they finished (`finished_work`).
    if exit_status.finished_work or (exit_status.exit_code == 0 and exit_status.reason is None):
        return "complete"
    if exit_status.signal_was_forwarded:
        return "cancel"
    return "fail" if exit_status.exit_code is not None else "crash"


def end_reason(exit_status: ExitStatus, stop_reason: str | None) -> str | None:
    """Return the reason for the outcome, not yet shortened; None for a plain success."""
    if exit_status.survivors:
        pids = ", ".join(map(str, exit_status.survivors[:MAX_SHOWN_PIDS]))
        return f"{len(exit_status.survivors)} of its processes could not be killed (pid {pids})"
    if exit_status.may_have_survivors:
        return GUARD_KILLED_REASON
    if stop_reason is not None:
        return stop_reason
    if exit_status.finished_work or exit_status.reason is not None:
        return sanitize(exit_status.reason)
    if exit_status.signal is not None:
        return f"signal {exit_status.signal}"
    if exit_status.exit_code is None:
        return "gone"
    return None if exit_status.exit_code == 0 else f"exit code {exit_status.exit_code}"


def sanitize(text: str | None) -> str | None:
    """Return an agent's text without characters that cannot be stored; None for an empty text.

    It never fails: a run must end whatever its agent printed.
    """
    if text is None:
        return None
    return text.encode("utf-8", "replace").decode().replace("\0", "") or None


def count_quick_failures(before: int, exit_status: ExitStatus, lasted_ms: int) -> int:
    """Return how many attempts in a row failed within seconds, this one included."""
    failed = exit_status.exit_code != 0
    return before + 1 if failed and lasted_ms < QUICK_FAILURE_MS else 0


def compute_backoff_ms(quick_failures: int) -> int:
    """Return the exponential back-off before the next attempt, by consecutive quick failures."""
    return SECOND // 2 * 2 ** (quick_failures - 1) if quick_failures else 0


def should_restart(
    exit_status: ExitStatus,
    *,
    stop_reason: str | None,
    attempts: int,
    max_restarts: int,
    quick_failures: int,
) -> bool:
    """Whether the run gets another attempt after this one."""
    if stop_reason is not None or exit_status.exit_code == 0:
        return False
    return attempts <= max_restarts and quick_failures < MAX_QUICK_FAILURES


_ALERTS = {
    RunState.COMPLETED: "finished",
    RunState.FAILED: "failed",
    RunState.TIMED_OUT: "failed",
    RunState.CRASHED: "crashed",
    RunState.INTERRUPTED: "crashed",
}


def choose_alert_kind(state: RunState, stop: StopKind | None) -> str | None:
    """Return the kind of alert for an outcome; None for a stop on request."""
    return "budget" if stop is StopKind.OVER_BUDGET else _ALERTS.get(state)
