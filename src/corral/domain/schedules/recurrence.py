"""Recurrence rules: pure functions of a rule and a time.

Times follow from the rule alone (its anchor or the calendar), never from when a process ran, so
they do not drift. Cron rules follow the wall clock of their time zone: a time that a change to
daylight saving time skips fires right after the gap, and a time that occurs twice fires once.
"""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from corral.domain.schedules.model import ScheduleKind
from corral.kernel.clock import HOUR, SECOND, YEAR, format_duration
from corral.kernel.errors import Invalid
from corral.kernel.validation import check_int

MIN_INTERVAL_MS = 5 * SECOND
MAX_INTERVAL_MS = YEAR
OFFSET_MARGIN_S = 26 * HOUR // SECOND  # time zones have skipped a whole day
SEARCH_HORIZON_MS = 40 * YEAR  # around 2100, February 29 is eight years apart


class RecurrenceRule:
    """A rule with its time zone and anchor."""

    def __init__(self, kind: ScheduleKind, rule: str, time_zone: str, anchor_at: int) -> None:
        self.kind = kind
        self.rule = rule
        self.zone = load_zone(time_zone)
        self.anchor_at = anchor_at

    def find_next(self, after: int) -> int | None:
        """Return the first time after `after`; None when there is none."""
        if self.kind is ScheduleKind.ONCE:
            return self.anchor_at if self.anchor_at > after else None
        if self.kind is ScheduleKind.EVERY:
            step = int(self.rule)
            return self.anchor_at + max(0, (after - self.anchor_at) // step + 1) * step
        return self._find_next_cron(after)

    def find_latest(self, at: int) -> int | None:
        """Return the last time not after `at`; None when there is none."""
        if self.kind is ScheduleKind.ONCE:
            return self.anchor_at if self.anchor_at <= at else None
        if self.kind is ScheduleKind.EVERY:
            if at < self.anchor_at:
                return None
            step = int(self.rule)
            return self.anchor_at + (at - self.anchor_at) // step * step
        # Search forward from further and further back: the same search finds the same times.
        distance = HOUR
        while distance <= SEARCH_HORIZON_MS:
            latest = self._find_latest_cron(at - distance, at)
            if latest is not None:
                return latest
            distance *= 4
        return None

    def _find_latest_cron(self, start: int, at: int) -> int | None:
        """Return the last time between about `start` and `at`; None when there is none."""
        latest: int | None = None
        for times in self._search(start):
            if times and times[0] > at:
                break
            earlier = [time for time in times if time <= at]
            latest = max(earlier if latest is None else [*earlier, latest], default=None)
        return latest

    def _find_next_cron(self, after: int) -> int | None:
        best: int | None = None
        for times in self._search(after):
            if best is not None and (not times or times[0] >= best):
                return best
            later = [time for time in times if time > after]
            best = min(later if best is None else [*later, best], default=None)
        return best

    def _search(self, start: int) -> Iterator[list[int]]:
        """Yield the times of each wall-clock time that the rule names, from about `start` on.

        The search itself has no time zone. Near a change of the UTC offset it starts well before
        it, so that the result does not depend on the start.
        """
        seconds = start // SECOND
        near = (seconds - OFFSET_MARGIN_S, seconds + OFFSET_MARGIN_S)
        before, after = (datetime.fromtimestamp(at, self.zone).utcoffset() for at in near)
        begin = seconds if before == after else seconds - OFFSET_MARGIN_S
        for wall_time in CronSim(
            self.rule, datetime.fromtimestamp(begin, self.zone).replace(tzinfo=None)
        ):
            yield self._list_times(wall_time)

    def _list_times(self, wall_time: datetime) -> list[int]:
        """Return the times at which a clock in the zone shows a wall-clock time: one, two or none.

        A rule for every hour or minute follows elapsed time: it skips the gap and fires in both of
        two equal hours. A rule for a time of day fires once a day.
        """
        first = wall_time.replace(tzinfo=self.zone, fold=0)
        second = wall_time.replace(tzinfo=self.zone, fold=1)
        earlier, later = _to_milliseconds(first), _to_milliseconds(second)
        if earlier == later:
            return [earlier]
        if earlier < later:  # shown twice
            return [earlier, later] if self._is_elapsed_time else [earlier]
        return [] if self._is_elapsed_time else [self._find_end_of_gap(later, earlier)]

    @property
    def _is_elapsed_time(self) -> bool:
        minute, hour = self.rule.split()[:2]
        return minute.startswith("*") or hour.startswith("*")

    def _find_end_of_gap(self, before: int, after: int) -> int:
        """Return the time between the two at which the UTC offset changes (binary search)."""
        old = datetime.fromtimestamp(before // SECOND, self.zone).utcoffset()
        low, high = before // SECOND, after // SECOND
        while high - low > 1:
            middle = (low + high) // 2
            if datetime.fromtimestamp(middle, self.zone).utcoffset() == old:
                low = middle
            else:
                high = middle
        return high * SECOND


def _to_milliseconds(time: datetime) -> int:
    return int(time.timestamp()) * SECOND


def check_every(ms: int) -> str:
    """Return a valid interval as the text of a rule; raises Invalid when it is out of range."""
    if not MIN_INTERVAL_MS <= check_int(ms, "The interval") <= MAX_INTERVAL_MS:
        raise Invalid(
            f"Invalid interval {format_duration(max(ms, 0))}: expected 5 s to 365 days.",
            every_ms=ms,
        )
    return str(ms)


def check_cron(text: str, time_zone: str, now: int) -> str:
    """Return a valid cron rule. Raises Invalid, including for a rule that never fires."""
    try:
        if len(text.split()) != 5:
            raise CronSimError("Wrong number of fields")  # a sixth would be seconds
        first = RecurrenceRule(ScheduleKind.CRON, text, time_zone, 0).find_next(now)
    except CronSimError as error:
        raise Invalid(
            f"Invalid cron rule {text!r} ({error}): expected the five fields minute, hour, day, "
            "month, weekday, as in '30 9 * * mon-fri'.",
            rule=text,
            reason="bad_cron_rule",
        ) from None
    if first is None:
        raise Invalid(f"The cron rule {text!r} never fires: no such date exists.", rule=text)
    return text


def load_zone(name: str) -> ZoneInfo:
    """Load a time zone by its IANA name; raises Invalid for an unknown one."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(
            f"Unknown time zone {name!r}: use an IANA name such as Europe/Berlin, or UTC.",
            time_zone=name,
        ) from None
