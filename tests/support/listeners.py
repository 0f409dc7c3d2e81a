"""The moment at which something begins to wait for a commit, and waits that only a commit ends."""

from collections.abc import Callable

import pytest

from corral.api import events
from corral.api import wait as api_wait
from corral.db import wakeups
from corral.db.notifications import NotifyListener
from corral.services import mail
from corral.services.locks import acquisition

HOUR = 3_600.0


def call_before_waits(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Call a function each time that a listener, of this process or a later child, is to wait.

    A commit after the call wakes the listener: it knows the last commit that it has seen.
    """
    for listener in (wakeups.WalListener, NotifyListener):
        wait = listener.wait

        def told(self: object, timeout: float, wait: Callable[..., bool] = wait) -> bool:
            call()
            return wait(self, timeout)

        monkeypatch.setattr(listener, "wait", told)


def disable_safety_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the slow polls behind wake-ups: a wake-up that is missed is never made up for.

    A wait that ends was then woken, whatever time it took.
    """
    monkeypatch.setattr(wakeups, "SAFETY_POLL", HOUR)
    monkeypatch.setattr(NotifyListener, "SAFETY_POLL", HOUR)
    # After the kernel told of a change, the writer may take its time until it shows the commit.
    monkeypatch.setattr(
        wakeups, "CHECK_DELAYS", wakeups.CHECK_DELAYS + wakeups.CHECK_DELAYS[-1:] * 100_000
    )
    for module in (events, acquisition, mail, api_wait):
        monkeypatch.setattr(module, "MAX_SLEEP", HOUR)
    # A place in the queue for a lock is kept alive by the slow poll.
    monkeypatch.setattr(acquisition, "POSITION_MS", int(HOUR * 1_000))
