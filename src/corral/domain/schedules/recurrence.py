"""When a rule fires: pure functions of the rule and a moment.

Moments follow from the rule alone (from its anchor, or from the calendar), never from when somebody
happened to look, so nothing drifts. Cron rules follow the wall clock of their zone: a time that a
change to summer time leaves out fires right after the gap, one that comes twice fires once.
"""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from corral.domain.schedules.model import Kind
from corral.kernel.clock import HOUR, SECOND, YEAR, format_duration
from corral.kernel.errors import Invalid
from corral.kernel.text import check_int

SHORTEST = 5 * SECOND
LONGEST = YEAR
MARGIN = 26 * HOUR // SECOND  # seconds; a zone has skipped a whole day
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
        # Forward from further and further back: the same search, so the same moments.
        back = HOUR
        while back <= HORIZON:
            found = 0
            for moments in self._search(at - back):
                if moments and moments[0] > at:
                    break
                found = max(found, *(moment for moment in moments if moment <= at), 0)
            if found:
                return found
            back *= 4
        return None

    def _next_cron(self, after: int) -> int | None:
        best: int | None = None
        for moments in self._search(after):
            if best is not None and (not moments or moments[0] >= best):
                return best
            later = [moment for moment in moments if moment > after]
            best = min(later if best is None else [*later, best], default=None)
        return best

    def _search(self, start: int) -> Iterator[list[int]]:
        """The moments of each wall-clock time that the rule names, from about `start` on.

        The search itself knows no zone. Near a change of the clocks it begins well before it, so
        that its answers do not depend on where it began.
        """
        seconds = start // SECOND
        near = (seconds - MARGIN, seconds + MARGIN)
        before, after = (datetime.fromtimestamp(at, self.zone).utcoffset() for at in near)
        begin = seconds if before == after else seconds - MARGIN
        for wall_time in CronSim(
            self.rule, datetime.fromtimestamp(begin, self.zone).replace(tzinfo=None)
        ):
            yield self._moments_of(wall_time)

    def _moments_of(self, wall_time: datetime) -> list[int]:
        """When a clock in the zone shows a time: once as a rule, twice, or never.

        A rule for every hour or minute goes by the time that passes: it leaves out what never
        comes, and fires in both of two equal hours. A rule for a time of day fires once a day.
        """
        first = wall_time.replace(tzinfo=self.zone, fold=0)
        second = wall_time.replace(tzinfo=self.zone, fold=1)
        earlier, later = _milliseconds(first), _milliseconds(second)
        if earlier == later:
            return [earlier]
        if earlier < later:  # shown twice
            return [earlier, later] if self._by_passing_time else [earlier]
        return [] if self._by_passing_time else [self._end_of_gap(later, earlier)]

    @property
    def _by_passing_time(self) -> bool:
        minute, hour = self.rule.split()[:2]
        return minute.startswith("*") or hour.startswith("*")

    def _end_of_gap(self, before: int, after: int) -> int:
        """The moment between the two at which the clocks are changed."""
        old = datetime.fromtimestamp(before // SECOND, self.zone).utcoffset()
        low, high = before // SECOND, after // SECOND
        while high - low > 1:
            middle = (low + high) // 2
            if datetime.fromtimestamp(middle, self.zone).utcoffset() == old:
                low = middle
            else:
                high = middle
        return high * SECOND


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * SECOND


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
            reason="bad_cron_rule",
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
