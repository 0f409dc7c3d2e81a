"""API rate limiting: a token bucket per caller."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from corral.http.errors import ApiError

MAX_CALLERS = 10_000


class Rate(NamedTuple):
    """A sustained rate, and the number of requests that may come at once."""

    per_second: float
    burst: float


# By the scope of the token. One page view makes many requests at once: the page, its assets and the
# fragments that it fetches.
RATES = {"full": Rate(5_000, 10_000), "read": Rate(5_000, 10_000), "agent": Rate(100, 400)}
ANONYMOUS_RATE = Rate(20, 100)
"""Requests with an invalid token, by address."""
WEBHOOK_RATE = Rate(500, 5_000)
"""Requests of chat platforms, by address."""


class RateLimiter:
    """Token buckets by caller. Beyond MAX_CALLERS the least recently used bucket is discarded, so
    memory is bounded; a discarded caller starts with a full bucket."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, rate: Rate) -> float:
        """Take one request from the caller's bucket.

        Returns 0 if the request is allowed, otherwise the seconds until the next one is.
        """
        now = self._now()
        tokens, updated_at = self._buckets.pop(caller, (rate.burst, now))
        tokens = min(rate.burst, tokens + (now - updated_at) * rate.per_second)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / rate.per_second
        self._buckets[caller] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return wait

    def check(self, caller: str, rate: Rate) -> None:
        """Take one request; raises ApiError 429 when the caller's bucket is empty."""
        wait = self.take(caller, rate)
        if wait:
            raise ApiError(
                429,
                "too_many",
                f"Rate limit exceeded: {rate.per_second:,.0f} requests per second. Try again after "
                "the time in Retry-After.",
                headers=retry_after(wait),
            )


def retry_after(seconds: float) -> dict[str, str]:
    """Return the Retry-After header, in whole seconds and at least 1."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}
