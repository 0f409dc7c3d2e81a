"""Retry with back-off while the store is unavailable."""

import time
from collections.abc import Callable

from corral.kernel.errors import StoreUnavailable

# Seconds to wait for an unavailable store while the agent works.
AGENT_STORE_TIMEOUT = 0.5
FIRST_PAUSE = 0.1
# Seconds for which the end of a run and the last facts about it are retried.
RETRY_TIMEOUT = 15 * 60.0


def retry_while_unavailable(
    operation: Callable[[], None], *, timeout: float, max_pause: float
) -> None:
    """Retry `operation` until it succeeds or `timeout` seconds pass; raises StoreUnavailable.

    The pause between two tries doubles up to `max_pause` seconds. Other errors are not retried.
    """
    pause, deadline = FIRST_PAUSE, time.monotonic() + timeout
    while True:
        try:
            operation()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(pause)
        pause = min(pause * 2, max_pause)
