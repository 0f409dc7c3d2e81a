"""Moments as other programs write them: seconds, milliseconds, and finer; ISO texts.

One column may mix them all. A number tells by its size what it counts: between 1973 and 5138 no
count of seconds is as large as one of milliseconds, and so on upwards.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

# From here on it counts milliseconds, microseconds, nanoseconds.
_MILLIS, _MICROS, _NANOS, _END = 10**11, 10**14, 10**17, 10**20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_NUMBER = re.compile(r"\d{1,19}(?:\.\d{1,9})?")
_SPACED = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(:\d\d)?(?:[.,](\d+))?\s*(.*)")


def moment_of(value: Any) -> int | None:
    """Milliseconds since 1970 in UTC; None when that is no moment."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return _of_number(value)
    if isinstance(value, float):
        return _of_number(value) if value == value and abs(value) < _END else None
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return _of_number(float(text) if "." in text else int(text))
        return _of_text(text)
    return None


def _of_number(value: float) -> int | None:
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


def _of_text(text: str) -> int | None:
    """ISO 8601 in its common spellings; without a zone it is UTC."""
    match = _SPACED.fullmatch(text)
    if match is None:
        return _parsed(text)
    date, minutes, seconds, fraction, zone = match.groups()
    parts = (fraction or "").ljust(3, "0")[:3]
    return _parsed(f"{date}T{minutes}{seconds or ':00'}.{parts}{_zone(zone)}")


def _zone(zone: str) -> str:
    return "+00:00" if zone.upper() in ("", "Z", "UTC", "GMT") else zone


def _parsed(text: str) -> int | None:
    try:
        found = datetime.fromisoformat(text)
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        ms = (aware - _EPOCH) // _MS
    except (ValueError, OverflowError):
        return None
    return ms if ms > 0 else None
