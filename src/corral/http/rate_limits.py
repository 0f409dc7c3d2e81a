"""How much one caller may ask for: so many calls a second, with some room for a burst."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

MOST_CALLERS = 10_000


class Rate(NamedTuple):
    """Calls a second that are always allowed, and how many may come at once."""

    per_second: float
    burst: float


class Buckets:
    """A bucket of calls for each caller, filled again as time goes by. Memory is bounded: whoever
    has not called for longest is forgotten first, and begins with a full bucket again."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, rate: Rate) -> float:
        """Take one call; 0 when it is allowed, else the seconds until the next one is."""
        now = self._now()
        left, since = self._left.pop(caller, (rate.burst, now))
        left = min(rate.burst, left + (now - since) * rate.per_second)
        wait = 0.0 if left >= 1 else (1 - left) / rate.per_second
        self._left[caller] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > MOST_CALLERS:
            self._left.popitem(last=False)
        return wait


def retry_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(max(1, math.ceil(seconds)))}
