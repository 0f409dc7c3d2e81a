"""When a rule fires: pure functions of the rule and a moment.

Moments follow from the rule alone (from its anchor, or from the calendar), never from when somebody
happened to look, so nothing drifts. Cron rules follow the wall clock of their zone: a time that a
change to summer time leaves out fires right after the gap, one that comes twice fires once.
"""

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from corral.kernel.clock import HOUR, SECOND, YEAR, format_duration
from corral.kernel.errors import Invalid
from corral.kernel.text import check_int
from corral.rooms.schedules.model import Kind

SHORTEST = 5 * SECOND
LONGEST = YEAR
HORIZON = 40 * YEAR  # a rule for the 29th of February rests eight years around a century


class Rule:
    def __init__(self, kind: Kind, rule: str, time_zone: str, anchor_at: int) -> None:
        self.kind = kind
        self.rule = rule
        self.zone = zone(time_zone)
        self.anchor_at = anchor_at

    def next(self, after: int) -> int | None:
        """The first moment later than `after`; None when there is none."""
        if self.kind is Kind.ONCE:
            return self.anchor_at if self.anchor_at > after else None
        if self.kind is Kind.EVERY:
            step = int(self.rule)
            return self.anchor_at + max(0, (after - self.anchor_at) // step + 1) * step
        return self._next_cron(after)

    def latest(self, at: int) -> int | None:
        """The last moment not later than `at`; None when there is none."""
        if self.kind is Kind.ONCE:
            return self.anchor_at if self.anchor_at <= at else None
        if self.kind is Kind.EVERY:
            step = int(self.rule)
            return (
                self.anchor_at + (at - self.anchor_at) // step * step
                if at >= self.anchor_at
                else None
            )
        # Forward from further and further back: the search for cron moments may not end when it
        # goes backwards over a change of the clocks.
        back = HOUR
        while back <= HORIZON:
            found = self.next(at - back)
            if found is not None and found <= at:
                while (later := self.next(found)) is not None and later <= at:
                    found = later
                return found
            back *= 4
        return None

    def _next_cron(self, after: int) -> int | None:
        moment = datetime.fromtimestamp(after // SECOND, self.zone)
        for found in CronSim(self.rule, moment):
            at = int(found.timestamp()) * SECOND
            # Around a change of the clocks the wall-clock search may touch its own start again.
            if at > after:
                return at
        return None


def check_every(ms: int) -> str:
    if not SHORTEST <= check_int(ms, "The interval") <= LONGEST:
        raise Invalid(
            f"{format_duration(max(ms, 0))} is out of bounds; a schedule repeats every "
            "5 s at the most often and every 365 days at the least.",
            every_ms=ms,
        )
    return str(ms)


def check_cron(text: str, time_zone: str, now: int) -> str:
    """The text itself, or Invalid when it is no cron rule or names a day that never comes."""
    try:
        if len(text.split()) != 5:
            raise CronSimError("Wrong number of fields")  # a sixth would be seconds
        first = Rule(Kind.CRON, text, time_zone, 0).next(now)
    except CronSimError as error:
        raise Invalid(
            f"{text!r} is no cron rule ({error}); write five fields: minute, hour, day, "
            "month, weekday, as in '30 9 * * mon-fri'.",
            rule=text,
        ) from None
    if first is None:
        raise Invalid(f"{text!r} would never fire; no such day comes.", rule=text)
    return text


def zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(
            f"{name!r} is no time zone; write one like Europe/Berlin or UTC.", time_zone=name
        ) from None
