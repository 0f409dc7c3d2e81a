"""Hooks for the time at which a listener starts to wait, and waits that only a commit ends."""

from collections.abc import Callable

import pytest

from corral.api import events
from corral.db import wakeups
from corral.db.notifications import NotifyListener
from corral.services import mail, wait
from corral.services.locks import acquisition

HOUR = 3_600.0


def call_before_waits(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Call a function whenever a listener of this process or a later child is about to wait.

    A commit after the call wakes the listener, because it remembers the last commit that it saw.
    """
    for listener in (wakeups.WalListener, NotifyListener):
        wait = listener.wait

        def wait_with_call(self: object, timeout: float, wait: Callable[..., bool] = wait) -> bool:
            call()
            return wait(self, timeout)

        monkeypatch.setattr(listener, "wait", wait_with_call)


def disable_safety_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the slow polls behind wake-ups, so that a missed wake-up is never recovered.

    A wait that returns was then woken, however long it took.
    """
    monkeypatch.setattr(wakeups, "SAFETY_POLL", HOUR)
    monkeypatch.setattr(NotifyListener, "SAFETY_POLL", HOUR)
    # The writer may publish its commit some time after the kernel reports the change.
    monkeypatch.setattr(
        wakeups, "CHECK_DELAYS", wakeups.CHECK_DELAYS + wakeups.CHECK_DELAYS[-1:] * 100_000
    )
    monkeypatch.setattr(events, "MAX_SLEEP", HOUR)
    for module in (mail, wait):
        monkeypatch.setattr(module, "MAX_LISTEN_SECONDS", HOUR)
    # The slow poll keeps a position in the lock queue alive.
    monkeypatch.setattr(acquisition, "POSITION_MS", int(HOUR * 1_000))
