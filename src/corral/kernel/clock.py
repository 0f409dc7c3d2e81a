"""Time as integer milliseconds in UTC, read from an injected clock.

Only `SystemClock` reads the system time, so a test controls time by passing a `ManualClock`.
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
        """Return the current time in milliseconds since 1970, UTC."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that changes only when `advance` is called; for tests."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self.at = now

    def now(self) -> int:
        return self.at

    def advance(self, ms: int) -> None:
        self.at += ms


def utc_date(ms: int) -> str:
    """Format the UTC date of a time, such as `2027-01-31`."""
    return time.strftime("%Y-%m-%d", time.gmtime(ms // 1_000))


def utc_time(ms: int) -> str:
    """Format a time in UTC, such as `2027-01-31 09:30:00 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ms // 1_000))


_UNITS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")


def parse_duration(text: str) -> int:
    """Parse `90s`, `10m`, `1h30m` or `7d` into milliseconds; raises Invalid."""
    parts = _DURATION_PART.findall(text)
    ms = sum(float(number) * _UNITS[unit] for number, unit in parts)
    is_complete = "".join(number + unit for number, unit in parts) == text.strip()
    if not parts or not is_complete or ms > 1_000 * YEAR:
        raise Invalid(
            f"Invalid duration {text[:100]!r}: expected a form like 90s, 10m, 1h30m or 7d.",
            value=text,
        )
    return round(ms)


def format_duration(ms: int) -> str:
    """Format milliseconds so that `parse_duration` returns the same value: `1h30m`, `14d`."""
    if ms == 0:
        return "0s"
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNITS[unit])
        if count:
            text += f"{count}{unit}"
    return text
