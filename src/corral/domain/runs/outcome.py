"""How a run's end is named, and whether it goes on after a failure. Pure: no store, no process."""

from corral.domain.runs.model import RunState, Stop
from corral.kernel.clock import SECOND
from corral.kernel.exit_status import End
from corral.kernel.text import MAX_NAME, abridged

QUICK_MS = 3 * SECOND
QUICK_FAILURES = 3

IDLE = "nothing happened any more"
UNSURE = "its guard was killed, and processes that it started may still run"
SHOWN_PIDS = 10
MAX_REASON = 500
"""Characters of a reason that are stored: a refusal also says what to do."""
UNANSWERED = "its question was not answered in time"

# What is said of a stop where nobody said more.
REASONS = {
    Stop.ASKED: "stopped",
    Stop.TIMED_OUT: "its time was over",
    Stop.INTERRUPTED: "its keeper was told to end",
    Stop.OVER_BUDGET: "its budget was spent",
}
_VERBS = {Stop.TIMED_OUT: "time_out", Stop.INTERRUPTED: "interrupt"}


def verb_of(end: End, stop: Stop | None) -> str:
    """Return the verb of a run's end. The reason for a stop takes precedence over the exit status.
    A run whose processes are not known to be dead has crashed."""
    if end.survivors or end.unsure:
        return "crash"
    if stop is not None:
        return _VERBS.get(stop, "cancel")
    # Some say only in words that they failed, and some are let go with a signal.
    if end.well or (end.exit_code == 0 and end.reason is None):
        return "complete"
    if end.sent:
        return "cancel"
    return "fail" if end.exit_code is not None else "crash"


def reason_of(end: End, stop_reason: str | None) -> str | None:
    """A few words on why it ended as it did; nothing where it simply ended well."""
    if end.survivors:
        pids = ", ".join(map(str, end.survivors[:SHOWN_PIDS]))
        return f"{len(end.survivors)} of its processes could not be ended (pid {pids})"
    if end.unsure:
        return UNSURE
    if stop_reason is not None:
        return stop_reason
    if end.well or end.reason is not None:
        return storable(end.reason, MAX_REASON)
    if end.signal is not None:
        return f"signal {end.signal}"
    if end.exit_code is None:
        return "gone"
    return None if end.exit_code == 0 else f"exit code {end.exit_code}"


def storable(text: str | None, most: int = MAX_NAME) -> str | None:
    """An agent's own words, cut to what can be stored; whatever it says, its run must end."""
    if text is None:
        return None
    return abridged(text.encode("utf-8", "replace").decode().replace("\0", ""), most) or None


def quick_failures(before: int, end: End, lasted_ms: int) -> int:
    """How many attempts in a row failed within seconds, this one included."""
    failed = end.exit_code != 0
    return before + 1 if failed and lasted_ms < QUICK_MS else 0


def pause_ms(quick: int) -> int:
    """How long to wait before the next attempt: the longer the more often it failed at once."""
    return SECOND // 2 * 2 ** (quick - 1) if quick else 0


def goes_on(end: End, *, stop_reason: str | None, attempts: int, restarts: int, quick: int) -> bool:
    """Whether a failed attempt is followed by another one of the same run."""
    if stop_reason is not None or end.exit_code == 0:
        return False
    return attempts <= restarts and quick < QUICK_FAILURES


_ALERTS = {
    RunState.COMPLETED: "finished",
    RunState.FAILED: "failed",
    RunState.TIMED_OUT: "failed",
    RunState.CRASHED: "crashed",
    RunState.INTERRUPTED: "crashed",
}


def alert_of(state: RunState, stop: Stop | None) -> str | None:
    """What an end is called where people are told of it; whoever stopped it knows already."""
    return "budget" if stop is Stop.OVER_BUDGET else _ALERTS.get(state)
