"""Recurrence rules: no drift, and correct local times around clock changes."""

import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.domain.schedules.model import ScheduleKind
from corral.domain.schedules.recurrence import RecurrenceRule, check_cron, check_every, load_zone
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, YEAR
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def parse_time(text: str, zone_name: str = "UTC") -> int:
    """Parse a wall-clock time that exists once, or one with an offset (`+02:00`)."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(zone_name))
    return int(moment.timestamp() * 1_000)


def wall_time(moment: int | None, zone_name: str) -> str:
    assert moment is not None
    local_time = datetime.fromtimestamp(moment / 1_000, UTC).astimezone(ZoneInfo(zone_name))
    return local_time.isoformat(timespec="minutes")


def cron(text: str, zone_name: str = "UTC") -> RecurrenceRule:
    return RecurrenceRule(ScheduleKind.CRON, text, zone_name, 0)


def firings(rule: RecurrenceRule, start: int, end: int, zone_name: str) -> list[str]:
    """Return every time after `start` and up to `end`, as wall-clock times of the zone."""
    results: list[str] = []
    moment = rule.find_next(start)
    while moment is not None and moment <= end:
        results.append(wall_time(moment, zone_name))
        moment = rule.find_next(moment)
    return results


def firings_backwards(rule: RecurrenceRule, start: int, end: int, zone_name: str) -> list[str]:
    results: list[str] = []
    moment = rule.find_latest(end)
    while moment is not None and moment > start:
        results.append(wall_time(moment, zone_name))
        moment = rule.find_latest(moment - 1)
    return results[::-1]


# -- once and every --------------------------------------------------------------------------


def test_once_fires_one_time() -> None:
    rule = RecurrenceRule(ScheduleKind.ONCE, "", "UTC", 100)
    assert [rule.find_next(after) for after in (0, 99, 100, 101)] == [100, 100, None, None]
    assert [rule.find_latest(when) for when in (0, 99, 100, 101)] == [None, None, 100, 100]


def test_interval_counts_from_its_anchor() -> None:
    rule = RecurrenceRule(ScheduleKind.EVERY, "10", "UTC", 100)
    assert [rule.find_next(after) for after in (0, 99, 100, 101, 109, 110)] == [
        100,
        100,
        110,
        110,
        110,
        120,
    ]
    assert [rule.find_latest(when) for when in (99, 100, 109, 110, 115)] == [
        None,
        100,
        100,
        110,
        110,
    ]


@given(st.integers(5_000, YEAR), st.integers(0, 2**45), st.integers(0, 2**45))
def test_interval_times_are_whole_steps_from_the_anchor(step: int, anchor: int, after: int) -> None:
    moment = RecurrenceRule(ScheduleKind.EVERY, str(step), "UTC", anchor).find_next(after)
    assert moment is not None
    assert moment > after
    assert (moment - anchor) % step == 0
    assert moment == anchor or moment - step <= after


# -- cron ------------------------------------------------------------------------------------


@each_case(
    ("rule", "after", "expected"),
    [
        ("* * * * *", "2027-01-15T08:00:00", "2027-01-15T08:01"),
        ("* * * * *", "2027-01-15T08:00:59.999", "2027-01-15T08:01"),
        ("30 9 * * *", "2027-01-15T09:30:00", "2027-01-16T09:30"),
        ("30 9 * * *", "2027-01-15T09:29:59.999", "2027-01-15T09:30"),
        ("0 0 1 * *", "2027-01-31T12:00:00", "2027-02-01T00:00"),
        ("0 0 31 * *", "2027-04-01T00:00:00", "2027-05-31T00:00"),
        ("0 0 29 2 *", "2027-01-01T00:00:00", "2028-02-29T00:00"),
        ("0 9 * * mon-fri", "2027-01-15T09:00:00", "2027-01-18T09:00"),
        ("0 9 * * 0", "2027-01-15T09:00:00", "2027-01-17T09:00"),
        ("0 9 * * 7", "2027-01-15T09:00:00", "2027-01-17T09:00"),
        ("*/20 8-9 * * *", "2027-01-15T09:40:00", "2027-01-16T08:00"),
        ("0 0 * jan,jul *", "2027-01-31T00:00:00", "2027-07-01T00:00"),
    ],
)
def test_cron_rule_has_its_next_time(rule: str, after: str, expected: str) -> None:
    assert wall_time(cron(rule).find_next(parse_time(after)), "UTC") == f"{expected}+00:00"


def test_cron_rule_uses_the_wall_clock_of_its_zone() -> None:
    after = parse_time("2027-01-15T08:00:00")
    assert wall_time(cron("0 9 * * *", BERLIN).find_next(after), BERLIN) == "2027-01-16T09:00+01:00"
    assert (
        wall_time(cron("0 9 * * *", NEW_YORK).find_next(after), NEW_YORK)
        == "2027-01-15T09:00-05:00"
    )
    assert (
        wall_time(cron("0 9 * * *", "Asia/Kathmandu").find_next(after), "UTC")
        == "2027-01-16T03:15+00:00"
    )


# Clocks go forward in Berlin on 28 March 2027 (02:00 becomes 03:00) and back on 31 October (03:00
# becomes 02:00); in New York on 14 March and 7 November, each an hour of the local night earlier.
SPRING = [(BERLIN, "2027-03-28", "+01:00", "+02:00"), (NEW_YORK, "2027-03-14", "-05:00", "-04:00")]
AUTUMN = [(BERLIN, "2027-10-31", "+02:00", "+01:00"), (NEW_YORK, "2027-11-07", "-04:00", "-05:00")]
EACH_SPRING = each_case(("zone_name", "day", "before", "after"), SPRING, ids=str)
EACH_AUTUMN = each_case(("zone_name", "day", "before", "after"), AUTUMN, ids=str)


def night_span(zone_name: str, day: str) -> tuple[int, int]:
    """Return the span from midnight (exclusive) to noon of a day."""
    return parse_time(f"{day}T00:00:00", zone_name), parse_time(f"{day}T12:00:00", zone_name)


def both_ways(rule: RecurrenceRule, span: tuple[int, int], zone_name: str) -> list[str]:
    result = firings(rule, *span, zone_name)
    assert firings_backwards(rule, *span, zone_name) == result
    return result


@EACH_SPRING
def test_skipped_hour_fires_right_after_the_gap(
    zone_name: str, day: str, before: str, after: str
) -> None:
    rule = cron("30 2 * * *", zone_name)
    assert both_ways(rule, night_span(zone_name, day), zone_name) == [f"{day}T03:00{after}"]


@EACH_SPRING
def test_rule_is_back_at_its_time_the_day_after_a_gap(
    zone_name: str, day: str, before: str, after: str
) -> None:
    rule = cron("30 2 * * *", zone_name)
    start, _ = night_span(zone_name, day)
    first = rule.find_next(start)
    assert first is not None
    assert wall_time(rule.find_next(first), zone_name)[11:] == f"02:30{after}"
    assert wall_time(rule.find_latest(start), zone_name)[11:] == f"02:30{before}"


@EACH_SPRING
def test_time_outside_the_gap_fires_once_that_day(
    zone_name: str, day: str, before: str, after: str
) -> None:
    for text, expected in (
        ("59 1 * * *", f"{day}T01:59{before}"),
        ("0 3 * * *", f"{day}T03:00{after}"),
        ("30 3 * * *", f"{day}T03:30{after}"),
        ("0 9 * * *", f"{day}T09:00{after}"),
    ):
        assert both_ways(cron(text, zone_name), night_span(zone_name, day), zone_name) == [expected]


@EACH_SPRING
def test_hourly_rule_fires_every_real_hour_across_the_gap(
    zone_name: str, day: str, before: str, after: str
) -> None:
    result = both_ways(cron("0 * * * *", zone_name), night_span(zone_name, day), zone_name)
    assert result[:3] == [f"{day}T01:00{before}", f"{day}T03:00{after}", f"{day}T04:00{after}"]
    assert len(result) == 11


@EACH_SPRING
def test_quarter_hour_rule_keeps_its_step_across_the_gap(
    zone_name: str, day: str, before: str, after: str
) -> None:
    rule = cron("*/15 * * * *", zone_name)
    span = night_span(zone_name, day)
    assert len(both_ways(rule, span, zone_name)) == 11 * 4
    moment = rule.find_next(span[0])
    while moment is not None and moment < span[1]:
        following = rule.find_next(moment)
        assert following == moment + 15 * MINUTE
        moment = following


@EACH_AUTUMN
def test_repeated_hour_fires_once(zone_name: str, day: str, before: str, after: str) -> None:
    hour = 2 if zone_name == BERLIN else 1
    rule = cron(f"30 {hour} * * *", zone_name)
    assert both_ways(rule, night_span(zone_name, day), zone_name) == [f"{day}T0{hour}:30{before}"]


@EACH_AUTUMN
def test_rule_is_back_at_its_time_the_day_after_a_repeated_hour(
    zone_name: str, day: str, before: str, after: str
) -> None:
    hour = 2 if zone_name == BERLIN else 1
    rule = cron(f"30 {hour} * * *", zone_name)
    first = rule.find_next(night_span(zone_name, day)[0])
    assert first is not None
    assert rule.find_next(first) == first + 25 * HOUR


@EACH_AUTUMN
def test_hourly_rule_fires_in_both_repeated_hours(
    zone_name: str, day: str, before: str, after: str
) -> None:
    hour = 2 if zone_name == BERLIN else 1
    result = both_ways(cron("0 * * * *", zone_name), night_span(zone_name, day), zone_name)
    assert f"{day}T0{hour}:00{before}" in result
    assert f"{day}T0{hour}:00{after}" in result
    assert len(result) == 13


@EACH_AUTUMN
def test_daily_rule_outside_the_repeated_hour_fires_once(
    zone_name: str, day: str, before: str, after: str
) -> None:
    for text in ("0 0 * * *", "59 0 * * *", "30 3 * * *", "0 9 * * *"):
        start = parse_time(f"{day}T00:00:00", zone_name) - 1
        result = both_ways(cron(text, zone_name), (start, start + 25 * HOUR), zone_name)
        assert len(result) == 1, text


# -- latest is the inverse of next ---------------------------------------------------------

RULES = [
    "* * * * *",
    "0 * * * *",
    "*/15 * * * *",
    "30 2 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "0 3 * * *",
    "0 0 * * *",
    "0 12 * * sun",
    "0 0 1 * *",
    "15 2,14 * * *",
    "0 0 29 2 *",
    "*/7 1-3 * * *",
]
ZONES = ["UTC", BERLIN, NEW_YORK, "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kolkata"]
# Around clock changes, the hard case, and at any other time.
MOMENTS = st.one_of(
    st.integers(parse_time("2024-01-01T00:00:00"), parse_time("2030-01-01T00:00:00")),
    st.sampled_from(["2027-03-28T01", "2027-10-31T01", "2027-03-14T07", "2027-11-07T06"]).flatmap(
        lambda hour: st.integers(-3 * HOUR, 3 * HOUR).map(
            lambda off: parse_time(f"{hour}:00:00") + off
        )
    ),
)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(RULES), st.sampled_from(ZONES), MOMENTS)
@example("30 2 * * *", BERLIN, parse_time("2027-03-28T01:00:00"))
@example("30 2 * * *", BERLIN, parse_time("2027-10-31T01:30:00"))
@example("30 2 * * *", BERLIN, parse_time("2027-10-31T00:59:59"))
@example("0 * * * *", NEW_YORK, parse_time("2027-11-07T06:00:00"))
def test_latest_is_the_inverse_of_next(text: str, zone_name: str, moment: int) -> None:
    rule = cron(text, zone_name)
    following, before = rule.find_next(moment), rule.find_latest(moment)
    assert following is not None
    assert before is not None
    assert before <= moment < following
    assert rule.find_latest(following) == following, "a time is its own latest"
    assert rule.find_latest(following - 1) == before, "no time lies between the two"
    assert rule.find_next(before) == following
    assert rule.find_next(before - 1) == before


@settings(deadline=None, max_examples=60)
@given(st.integers(5_000, YEAR), st.integers(0, 2**44), st.integers(0, 2**44))
def test_latest_is_the_inverse_of_next_for_intervals(step: int, anchor: int, moment: int) -> None:
    rule = RecurrenceRule(ScheduleKind.EVERY, str(step), "UTC", anchor)
    following, before = rule.find_next(moment), rule.find_latest(moment)
    assert following is not None
    assert rule.find_latest(following) == following
    if before is None:
        assert moment < anchor == following
    else:
        assert before <= moment < following == before + step


# -- invalid rules -------------------------------------------------------------------------


@each_case("text", ["0 0 30 2 *", "0 0 31 4 *", "0 0 31 2,4,6,9,11 *"])
def test_rule_that_never_fires_is_rejected_quickly(text: str) -> None:
    start = time.process_time()
    with pytest.raises(Invalid) as caught:
        check_cron(text, "UTC", parse_time("2027-01-01T00:00:00"))
    assert time.process_time() - start < 2
    assert caught.value.details["rule"] == text


@each_case(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "a b c d e",
        "*/0 * * * *",
        "5-1 * * * *",
        "@daily",
        "* * * * *\0",
        "\u0663 * * * *",
    ],
    ids=ascii,
)
def test_invalid_cron_rule_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_cron(text, "UTC", parse_time("2027-01-01T00:00:00"))
    assert caught.value.details["reason"] == "bad_cron_rule"


def test_rare_time_is_found_quickly() -> None:
    start = time.process_time()
    assert check_cron("0 0 29 2 mon", "UTC", parse_time("2027-01-01T00:00:00")) == "0 0 29 2 mon"
    assert time.process_time() - start < 2


@each_case("ms", [5 * SECOND, DAY, YEAR])
def test_interval_within_bounds_is_kept_as_text(ms: int) -> None:
    assert check_every(ms) == str(ms)


@each_case("ms", [5 * SECOND - 1, YEAR + 1, 0, -5_000])
def test_interval_out_of_bounds_is_rejected(ms: int) -> None:
    with pytest.raises(Invalid) as caught:
        check_every(ms)
    assert caught.value.details["every_ms"] == ms


@each_case("name", ["UTC", BERLIN, "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
def test_time_zone_is_found_by_name(name: str) -> None:
    assert load_zone(name).key == name


@each_case(
    "name",
    ["", "Mars/Olympus", "CETT", "../../etc/passwd", "/etc/localtime", "a\0b", "\ud800", "Europe"],
)
def test_unknown_time_zone_is_rejected_with_an_example(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        load_zone(name)
    assert "Europe/Berlin" in caught.value.message


@each_case("rule", ["30 */2 * * *", "45 */3 * * *", "0 0 29 2 *"])
@each_case("zone_name", ["Pacific/Chatham", "Australia/Lord_Howe", "Pacific/Apia"])
def test_backward_search_handles_half_hour_clock_changes(rule: str, zone_name: str) -> None:
    """The search runs inside a write: an endless search would block every writer of the store."""
    other = cron(rule, zone_name)
    start = parse_time("2027-04-03T12:00", zone_name)
    for moment in range(start, start + 2 * DAY, 45 * MINUTE):
        latest = other.find_latest(moment)
        assert latest is not None
        assert latest <= moment
