"""A store may be away for a moment; what has to be told is told again until it is back."""

import time
from collections.abc import Callable

from corral.kernel.errors import StoreUnavailable

FIRST_PAUSE = 0.1


def insist(act: Callable[[], None], *, patience: float, longest_pause: float) -> None:
    """Do something once that the store may be away for; StoreUnavailable when it still is after so
    many seconds."""
    pause, deadline = FIRST_PAUSE, time.monotonic() + patience
    while True:
        try:
            act()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
        else:
            return
        time.sleep(pause)
        pause = min(pause * 2, longest_pause)
