"""Times as people read them: relative to now."""

from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND

UNITS = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND))


def format_age(ms: int, now: int, *, space: str = "") -> str:
    """Format the distance of a time from `now` in its largest unit, rounded down.

    `5m ago`, `in 2h` or `now`; `space` separates the number from its unit.
    """
    distance = now - ms
    for unit, size in UNITS:
        if abs(distance) >= size:
            text = f"{abs(distance) // size}{space}{unit}"
            return f"{text} ago" if distance > 0 else f"in {text}"
    return "now"
