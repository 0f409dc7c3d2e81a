"""Timers: one letter each, bounds of the delay, and the limit per mailbox."""

from typing import Any

import pytest

from corral.api import Corral
from corral.domain.schedules.model import ScheduleKind, ScheduleState
from corral.kernel.clock import DAY, HOUR, SECOND, YEAR, ManualClock
from corral.kernel.errors import IllegalMove, Invalid, NotFound, Refused
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change


def set_twenty_timers(store: Corral, mailbox: str = "agent:ada") -> list[str]:
    return [store.timers.set(mailbox, n, delay_ms=HOUR).id for n in range(20)]


def test_set_returns_the_timer(store: Corral, clock: ManualClock) -> None:
    timer = store.timers.set("agent:ada", "tick", delay_ms=HOUR, priority=2, project="prj_1")
    assert (timer.kind, timer.mailbox, timer.body) == (ScheduleKind.ONCE, "agent:ada", "tick")
    assert (timer.next_at, timer.priority, timer.project_id) == (clock.now() + HOUR, 2, "prj_1")
    assert store.timers.get(timer.id) == timer
    assert list_events(store) == ["schedule.create"]


@pytest.mark.parametrize("delay_ms", [5 * SECOND, YEAR])
def test_timer_delay_is_five_seconds_to_a_year(
    store: Corral, clock: ManualClock, delay_ms: int
) -> None:
    assert store.timers.set("agent:ada", 1, delay_ms=delay_ms).next_at == clock.now() + delay_ms


@each_case("delay_ms", [5 * SECOND - 1, YEAR + 1, 0, -1, 2**70])
def test_timer_delay_out_of_bounds_is_rejected(store: Corral, delay_ms: int) -> None:
    with raises_without_change(store, Invalid):
        store.timers.set("agent:ada", 1, delay_ms=delay_ms)


@each_case(
    "arguments",
    [{"priority": 101}, {"priority": -101}, {"project": "\0"}, {"project": "\ud800"}],
    ids=ascii,
)
def test_set_rejects_invalid_arguments(store: Corral, arguments: Any) -> None:
    with raises_without_change(store, Invalid):
        store.timers.set("agent:ada", 1, delay_ms=HOUR, **arguments)


@each_case("body", ["\0", "\ud800", len], ids=range(3))
def test_set_requires_a_valid_body(store: Corral, body: Any) -> None:
    with raises_without_change(store, Invalid):
        store.timers.set("agent:ada", body, delay_ms=HOUR)


def test_mailbox_has_at_most_twenty_timers(store: Corral) -> None:
    set_twenty_timers(store)
    with raises_without_change(store, Refused) as caught:
        store.timers.set("agent:ada", 1, delay_ms=HOUR)
    assert caught.value.details == {"mailbox": "agent:ada", "limit": 20}
    assert store.timers.set("agent:bob", 1, delay_ms=HOUR).mailbox == "agent:bob"


def test_fired_and_cancelled_timers_do_not_count(store: Corral, clock: ManualClock) -> None:
    timer, *_ = set_twenty_timers(store)
    store.timers.cancel(timer)
    store.timers.set("agent:ada", 1, delay_ms=DAY)
    with raises_without_change(store, Refused):
        store.timers.set("agent:ada", 1, delay_ms=DAY)
    clock.advance(HOUR)
    store.schedules.fire_due()
    store.timers.set("agent:ada", 1, delay_ms=DAY)


def test_repeating_schedules_are_not_counted_as_timers(store: Corral) -> None:
    for _ in range(21):
        store.schedules.create("agent:ada", 1, every_ms=HOUR)
    store.timers.set("agent:ada", 1, delay_ms=HOUR)


def test_timer_limit_is_a_setting(store: Corral) -> None:
    store.settings.set("schedules.max_timers", 1)
    store.timers.set("agent:ada", 1, delay_ms=HOUR)
    with raises_without_change(store, Refused):
        store.timers.set("agent:ada", 1, delay_ms=HOUR)


def test_schedule_with_one_time_counts_as_a_timer(store: Corral, clock: ManualClock) -> None:
    set_twenty_timers(store)
    with raises_without_change(store, Refused):
        store.schedules.create("agent:ada", 1, at=clock.now() + HOUR)


def test_schedule_with_one_time_has_the_bounds_of_a_timer(
    store: Corral, clock: ManualClock
) -> None:
    with raises_without_change(store, Invalid):
        store.schedules.create("agent:ada", 1, at=clock.now() + SECOND)


def test_paused_timers_count(store: Corral) -> None:
    ids = set_twenty_timers(store)
    store.schedules.pause(ids[0])
    with raises_without_change(store, Refused):
        store.timers.set("agent:ada", 1, delay_ms=HOUR)


def test_cancelled_timer_does_not_fire(store: Corral, clock: ManualClock) -> None:
    timer = store.timers.set("agent:ada", 1, delay_ms=HOUR)
    assert store.timers.cancel(timer.id[:20]).state is ScheduleState.CANCELLED
    clock.advance(HOUR)
    assert store.schedules.fire_due() == []
    with raises_without_change(store, IllegalMove):
        store.timers.cancel(timer.id)
    with raises_without_change(store, NotFound):
        store.timers.cancel("sch_zzz")


@pytest.mark.parametrize("rule", [{"every_ms": HOUR}, {"cron": "0 6 * * *"}], ids=["every", "cron"])
def test_repeating_schedule_cannot_be_cancelled_as_a_timer(
    store: Corral, rule: dict[str, Any]
) -> None:
    schedule = store.schedules.create("agent:ada", "tick", **rule)
    with raises_without_change(store, Invalid) as caught:
        store.timers.cancel(schedule.id[:20])
    assert caught.value.details["reason"] == "not_a_timer"
    assert store.schedules.get(schedule.id) == schedule
