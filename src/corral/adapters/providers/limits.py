"""A quota is used up: how the providers say so, and when they say that it ends.

Only for messages of which the stream says that they are the provider's errors; what an agent or a
tool says may hold the same words and means nothing.
"""

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from corral.adapters.providers.facts import LimitReached
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND

_LIMIT = re.compile(
    r"usage limit|rate.?limit|hit your (?:\w+ )?limit|limit (?:has been )?reached|exhausted your"
    r"|exceeded your current quota|quota exceeded|resource.?exhausted|too many requests"
    r"|insufficient_quota|\b429\b",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\|(\d{10})(?:\d{3})?\b")
_ISO = re.compile(r"\b(20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)")
_DATED = re.compile(
    r"(?:at|resets?|until)\s+(?:on\s+)?([A-Z][a-z]{2})[a-z]*\s+(\d{1,2})(?:st|nd|rd|th)?"
    r"(?:,?\s+(20\d\d))?(?:,|\s+at)?\s+(\d{1,2})(?::(\d\d))?\s*([ap])\.?m",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"(?:at|resets?|until)\s+(?:at\s+)?(\d{1,2})(?::(\d\d))?\s*([ap])\.?m", re.IGNORECASE
)
_ZONE = re.compile(r"\(([A-Za-z_]+(?:/[A-Za-z_+-]+)*)\)")
_IN = re.compile(
    r"(?:in|after)\s+((?:\d+(?:\.\d+)?\s*[a-z]+[\s,]*(?:and\s+)?){1,5})", re.IGNORECASE
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_UNITS = (("ms", 1), ("mo", 0), ("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# A reset further away than this was misread.
FURTHEST = 35 * DAY


def limit_in(message: str, now: int, *, reset_at: int | None = None) -> LimitReached | None:
    """What an error message says about a quota; None when it is about something else."""
    message = message[:4_000]
    if not _LIMIT.search(message):
        return None
    return LimitReached(message, reset_at if reset_at is not None else reset_in(message, now))


def reset_in(message: str, now: int, zone: tzinfo | None = None) -> int | None:
    """The moment that a message names, in milliseconds; None when it names none.

    A time of day without a zone is in the zone of the machine, where the CLI made it.
    """
    for read in (_epoch, _iso, _dated, _time_of_day, _distance):
        try:
            found = read(message, now, zone)
        except (ValueError, OverflowError):
            return None  # it names a moment, in a way that is not understood
        if found is not None:
            return found if now - DAY < found < now + FURTHEST else None
    return None


def _epoch(message: str, now: int, zone: tzinfo | None) -> int | None:
    found = _EPOCH.search(message)
    return int(found[1]) * SECOND if found else None


def _iso(message: str, now: int, zone: tzinfo | None) -> int | None:
    found = _ISO.search(message)
    return _at(datetime.fromisoformat(found[1]), zone) if found else None


def _dated(message: str, now: int, zone: tzinfo | None) -> int | None:
    found = _DATED.search(message)
    if not found:
        return None
    month, day, year, hour, minute, half = found.groups()
    local = _local(message, now, zone)
    day_of = date(int(year or local.year), _MONTHS.index(month.lower()) + 1, int(day))
    moment = datetime.combine(day_of, _clock(hour, minute, half), local.tzinfo)
    if year is None and moment < local - timedelta(days=1):
        moment = moment.replace(year=moment.year + 1)
    return _at(moment, zone)


def _time_of_day(message: str, now: int, zone: tzinfo | None) -> int | None:
    found = _CLOCK.search(message)
    if not found:
        return None
    local = _local(message, now, zone)
    hour, minute, half = found.groups()
    moment = datetime.combine(local.date(), _clock(hour, minute, half), local.tzinfo)
    return _at(moment if moment > local else moment + timedelta(days=1), zone)


def _distance(message: str, now: int, zone: tzinfo | None) -> int | None:
    found = _IN.search(message)
    if not found:
        return None
    total = 0.0
    for amount, unit in _PART.findall(found[1]):
        size = next((size for name, size in _UNITS if unit.lower().startswith(name)), None)
        if not size:
            return None
        total += float(amount) * size
    return now + round(total)


def _clock(hour: str, minute: str | None, half: str) -> time:
    if not 1 <= int(hour) <= 12:
        raise ValueError(hour)
    return time(int(hour) % 12 + (12 if half.lower() == "p" else 0), int(minute or 0))


def _local(message: str, now: int, zone: tzinfo | None) -> datetime:
    moment = datetime.fromtimestamp(now / SECOND, UTC)
    named = _ZONE.search(message)
    if named:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            return moment.astimezone(ZoneInfo(named[1]))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    return moment.astimezone(zone)


def _at(moment: datetime, zone: tzinfo | None) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone) if zone else moment.astimezone()
    return int(moment.timestamp() * SECOND)
