"""Time: UTC integer milliseconds, from a clock that is handed in.

Nothing in Corral asks the system for the time except `SystemClock`, so a test owns time by passing
a clock of its own.
"""

import re
import time
from typing import Protocol

from corral.kernel.errors import Invalid

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY


class Clock(Protocol):
    def now(self) -> int:
        """The present moment in milliseconds since 1970, UTC."""
        ...


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000_000


class SetClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self.at = now

    def now(self) -> int:
        return self.at

    def advance(self, ms: int) -> None:
        self.at += ms


def day_of(ms: int) -> str:
    """The day of a moment in UTC, as 2027-01-31."""
    return time.strftime("%Y-%m-%d", time.gmtime(ms // 1_000))


_UNITS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")


def parse_duration(text: str) -> int:
    """Milliseconds in `90s`, `10m`, `1h30m`, `7d`."""
    parts = _PART.findall(text)
    ms = sum(float(number) * _UNITS[unit] for number, unit in parts)
    whole = "".join(number + unit for number, unit in parts) == text.strip()
    if not parts or not whole or ms > 1_000 * YEAR:
        raise Invalid(
            f"{text[:100]!r} is no duration; write one like 90s, 10m, 1h30m or 7d.", value=text
        )
    return round(ms)


def format_duration(ms: int) -> str:
    """A text that `parse_duration` reads back as `ms`: `1h30m`, `14d`."""
    if ms == 0:
        return "0s"
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNITS[unit])
        if count:
            text += f"{count}{unit}"
    return text
