"""The steps of a termination: a request to quit, SIGTERM, then SIGKILL."""

import signal
import time

from corral.supervisor.terminate import Terminator


def start_termination(*, asked: bool) -> Terminator:
    """Begin the termination of a run that has no process, with 10 s between its steps."""
    return Terminator(None, "mark of no run", guard=None, grace_period_ms=10_000, asked=asked)


def test_new_grace_period_begins_with_its_sigterm() -> None:
    terminator = start_termination(asked=True)
    assert terminator.forced_by is None
    before = time.monotonic()
    terminator.set_grace_period(30_000)
    assert terminator.forced_by is signal.SIGTERM
    assert terminator.next_step >= before + 30
    terminator.step(before + 29)
    assert terminator.forced_by is signal.SIGTERM


def test_grace_period_of_an_earlier_sigterm_is_only_shortened() -> None:
    terminator = start_termination(asked=False)
    first = terminator.next_step
    terminator.set_grace_period(30_000)
    assert terminator.next_step == first
    terminator.set_grace_period(0)
    assert terminator.next_step <= time.monotonic()
