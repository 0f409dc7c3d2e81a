"""Timestamps of other programs: seconds, milliseconds, microseconds, nanoseconds, or ISO text.

One column may mix all of them. The size of a number determines its unit: for dates between 1973 and
5138, the ranges of seconds, milliseconds and so on do not overlap.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

# Lower bounds of milliseconds, microseconds and nanoseconds, and the upper bound.
_MILLIS, _MICROS, _NANOS, _END = 10**11, 10**14, 10**17, 10**20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NUMBER = re.compile(r"\d{1,19}(?:\.\d{1,9})?")
_SPACED = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(:\d\d)?(?:[.,](\d+))?\s*(.*)")


def parse_timestamp(value: Any) -> int | None:
    """Return milliseconds since 1970 in UTC; None when the value is not a timestamp."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return _parse_number(value)
    if isinstance(value, float):
        return _parse_number(value) if value == value and abs(value) < _END else None
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return _parse_number(float(text) if "." in text else int(text))
        return _parse_text(text)
    return None


def _parse_number(value: float) -> int | None:
    if not 0 < value < _END:
        return None
    if value < _MILLIS:
        ms = round(value * 1_000)
    elif value < _MICROS:
        ms = round(value)
    elif value < _NANOS:
        ms = int(value) // 1_000
    else:
        ms = int(value) // 1_000_000
    return ms or None


def _parse_text(text: str) -> int | None:
    """Parse the common forms of ISO 8601; without a time zone it is UTC."""
    match = _SPACED.fullmatch(text)
    if match is None:
        return _parse_iso(text)
    date, minutes, seconds, fraction, zone = match.groups()
    parts = (fraction or "").ljust(3, "0")[:3]
    return _parse_iso(f"{date}T{minutes}{seconds or ':00'}.{parts}{_normalize_zone(zone)}")


def _normalize_zone(zone: str) -> str:
    return "+00:00" if zone.upper() in ("", "Z", "UTC", "GMT") else zone


def _parse_iso(text: str) -> int | None:
    try:
        parsed = datetime.fromisoformat(text)
        aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
        ms = (aware - _EPOCH) // _MS
    except (ValueError, OverflowError):
        return None
    return ms if ms > 0 else None
