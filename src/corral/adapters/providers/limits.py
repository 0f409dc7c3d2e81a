"""Recognise usage limits and their reset times in the error messages of providers.

Pass only text that the stream marks as an error of the provider. The text of an agent or a tool can
contain the same phrases.
"""

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from corral.adapters.providers.facts import LimitFact
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
# A reset time further in the future is treated as a parse error.
MAX_RESET_DISTANCE = 35 * DAY


def parse_limit(message: str, now: int, *, reset_at: int | None = None) -> LimitFact | None:
    """Return the limit that an error message reports; None if it reports another error."""
    message = message[:4_000]
    if not _LIMIT.search(message):
        return None
    return LimitFact(message, reset_at if reset_at is not None else parse_reset_time(message, now))


def parse_reset_time(message: str, now: int, zone: tzinfo | None = None) -> int | None:
    """Return the reset time in a message, in milliseconds; None if there is none.

    A time of day without a time zone is local time: the CLI formatted it on this machine.
    """
    for parse in (_parse_epoch, _parse_iso, _parse_date, _parse_time_of_day, _parse_distance):
        try:
            reset_at = parse(message, now, zone)
        except (ValueError, OverflowError):
            return None  # the message has a time in an unknown format
        if reset_at is not None:
            return reset_at if now - DAY < reset_at < now + MAX_RESET_DISTANCE else None
    return None


def _parse_epoch(message: str, now: int, zone: tzinfo | None) -> int | None:
    match = _EPOCH.search(message)
    return int(match[1]) * SECOND if match else None


def _parse_iso(message: str, now: int, zone: tzinfo | None) -> int | None:
    match = _ISO.search(message)
    return _convert_to_ms(datetime.fromisoformat(match[1]), zone) if match else None


def _parse_date(message: str, now: int, zone: tzinfo | None) -> int | None:
    match = _DATED.search(message)
    if not match:
        return None
    month, day, year, hour, minute, half = match.groups()
    local = _convert_to_local(message, now, zone)
    day_of = date(int(year or local.year), _MONTHS.index(month.lower()) + 1, int(day))
    moment = datetime.combine(day_of, _make_time(hour, minute, half), local.tzinfo)
    if year is None and moment < local - timedelta(days=1):
        moment = moment.replace(year=moment.year + 1)
    return _convert_to_ms(moment, zone)


def _parse_time_of_day(message: str, now: int, zone: tzinfo | None) -> int | None:
    match = _CLOCK.search(message)
    if not match:
        return None
    local = _convert_to_local(message, now, zone)
    hour, minute, half = match.groups()
    moment = datetime.combine(local.date(), _make_time(hour, minute, half), local.tzinfo)
    return _convert_to_ms(moment if moment > local else moment + timedelta(days=1), zone)


def _parse_distance(message: str, now: int, zone: tzinfo | None) -> int | None:
    match = _IN.search(message)
    if not match:
        return None
    total = 0.0
    for amount, unit in _PART.findall(match[1]):
        size = next((size for name, size in _UNITS if unit.lower().startswith(name)), None)
        if not size:
            return None
        total += float(amount) * size
    return now + round(total)


def _make_time(hour: str, minute: str | None, half: str) -> time:
    if not 1 <= int(hour) <= 12:
        raise ValueError(hour)
    return time(int(hour) % 12 + (12 if half.lower() == "p" else 0), int(minute or 0))


def _convert_to_local(message: str, now: int, zone: tzinfo | None) -> datetime:
    moment = datetime.fromtimestamp(now / SECOND, UTC)
    named = _ZONE.search(message)
    if named:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            return moment.astimezone(ZoneInfo(named[1]))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    return moment.astimezone(zone)


def _convert_to_ms(moment: datetime, zone: tzinfo | None) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone) if zone else moment.astimezone()
    return int(moment.timestamp() * SECOND)
