"""Firing of schedules: each scheduled time once, misfire policies and overlap policies."""

from itertools import pairwise

import pytest

from corral.api import Corral
from corral.db.statement import Statement
from corral.domain.mail.model import Letter, LetterState
from corral.domain.schedules.model import ScheduleState
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, YEAR, ManualClock
from corral.kernel.errors import Invalid
from tests.support.store import list_events, raises_without_change, unchanged

REMOVE_TIME_ZONE = Statement(
    "UPDATE schedules SET time_zone = 'Unknown/Zone' WHERE rule = '3600000'"
)


def list_scheduled_times(letters: list[Letter]) -> list[int]:
    """Return the scheduled times of letters."""
    return [int(str(letter.key).rpartition("@")[2]) for letter in letters]


def test_nothing_is_put_before_the_scheduled_time(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    clock.advance(HOUR - 1)
    with unchanged(store):
        assert store.schedules.fire_due() == []
    assert store.schedules.next_at() == schedule.next_at


def test_firing_puts_one_letter_and_sets_the_next_time(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", {"do": "it"}, every_ms=HOUR, priority=4)
    clock.advance(HOUR)
    (letter,) = store.schedules.fire_due()
    assert (letter.mailbox, letter.body, letter.priority) == ("agent:ada", {"do": "it"}, 4)
    assert letter.key == f"{schedule.id}@{schedule.next_at}"
    fired = store.schedules.get(schedule.id)
    assert (fired.last_at, fired.next_at) == (schedule.next_at, clock.now() + HOUR)
    assert letter.id == fired.last_letter_id
    assert list_events(store) == ["schedule.create", "letter.put", "schedule.fire"]


def test_firing_twice_at_the_same_time_puts_one_letter(store: Corral, clock: ManualClock) -> None:
    store.schedules.create("agent:ada", 1, every_ms=HOUR)
    clock.advance(HOUR)
    store.schedules.fire_due()
    with unchanged(store):
        assert store.schedules.fire_due() == []


def test_late_firing_does_not_shift_later_times(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    for delay in (7 * MINUTE, 59 * MINUTE, 1, 0):
        scheduled_at = store.schedules.next_at()
        assert scheduled_at is not None
        clock.at = scheduled_at + delay
        assert list_scheduled_times(store.schedules.fire_due()) == [scheduled_at]
    assert store.schedules.get(schedule.id).next_at == schedule.next_at + 4 * HOUR


def test_scheduled_time_with_an_existing_letter_is_not_put_again(
    store: Corral, clock: ManualClock
) -> None:
    schedule = store.schedules.create("agent:ada", "x", every_ms=HOUR)
    existing = store.mail.put("agent:ada", "x", key=f"{schedule.id}@{schedule.next_at}")
    clock.advance(HOUR)
    assert [letter.id for letter in store.schedules.fire_due()] == [existing.id]
    assert len(store.mail.list().items) == 1


def test_timer_fires_once_and_is_finished(store: Corral, clock: ManualClock) -> None:
    schedule = store.timers.set("agent:ada", "tick", delay_ms=HOUR)
    clock.advance(HOUR)
    assert [letter.body for letter in store.schedules.fire_due()] == ["tick"]
    finished = store.timers.get(schedule.id)
    assert (finished.state, finished.next_at) == (ScheduleState.FINISHED, None)
    clock.advance(YEAR)
    assert store.schedules.fire_due() == []
    assert list_events(store) == ["schedule.create", "letter.put", "schedule.finish"]


def test_due_schedules_fire_in_time_order_up_to_the_limit(
    store: Corral, clock: ManualClock
) -> None:
    for n in (3, 1, 2):
        store.schedules.create("agent:ada", n, every_ms=n * HOUR)
    clock.advance(3 * HOUR)
    assert [letter.body for letter in store.schedules.fire_due(limit=2)] == [1, 2]
    assert [letter.body for letter in store.schedules.fire_due(limit=2)] == [3]
    for limit in (0, 1_001):
        with raises_without_change(store, Invalid):
            store.schedules.fire_due(limit=limit)


def test_next_at_is_the_earliest_of_active_schedules(store: Corral, clock: ManualClock) -> None:
    assert store.schedules.next_at() is None
    store.schedules.create("agent:ada", 1, every_ms=DAY)
    hourly = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    assert store.schedules.next_at() == clock.now() + HOUR
    store.schedules.pause(hourly.id)
    assert store.schedules.next_at() == clock.now() + DAY


# -- misfire policies ----------------------------------------------------------------------


def test_misfire_all_puts_every_missed_time(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR, misfire="all")
    first_time = schedule.next_at or 0
    clock.advance(5 * HOUR + MINUTE)
    assert list_scheduled_times(store.schedules.fire_due()) == [
        first_time + n * HOUR for n in range(5)
    ]
    assert store.schedules.next_at() == first_time + 5 * HOUR


def test_misfire_latest_puts_the_last_missed_time(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR, misfire="latest")
    first_time = schedule.next_at or 0
    clock.advance(5 * HOUR + MINUTE)
    assert list_scheduled_times(store.schedules.fire_due()) == [first_time + 4 * HOUR]
    assert store.schedules.next_at() == first_time + 5 * HOUR


def test_misfire_skip_puts_no_missed_time(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR, misfire="skip")
    clock.advance(5 * HOUR + 2 * MINUTE)
    assert store.schedules.fire_due() == []
    updated = store.schedules.get(schedule.id)
    assert (updated.state, updated.last_letter_id) == (ScheduleState.ACTIVE, None)
    assert updated.next_at == (schedule.next_at or 0) + 5 * HOUR
    assert store.mail.list().items == []


@pytest.mark.parametrize(("delay", "count"), [(0, 1), (MINUTE, 1), (MINUTE + 1, 0)])
def test_time_is_missed_after_the_misfire_grace(
    store: Corral, clock: ManualClock, delay: int, count: int
) -> None:
    store.schedules.create("agent:ada", 1, every_ms=HOUR, misfire="skip")
    clock.advance(HOUR + delay)
    assert len(store.schedules.fire_due()) == count


def test_misfire_grace_is_a_project_setting(store: Corral, clock: ManualClock) -> None:
    store.settings.set("schedules.misfire_grace_ms", 10 * MINUTE, scope="project:prj_1")
    store.schedules.create(
        "agent:ada", "in project", every_ms=HOUR, misfire="skip", project="prj_1"
    )
    store.schedules.create("agent:ada", "other", every_ms=HOUR, misfire="skip")
    clock.advance(HOUR + 9 * MINUTE)
    assert [letter.body for letter in store.schedules.fire_due()] == ["in project"]


def test_missed_timer_is_put_late(store: Corral, clock: ManualClock) -> None:
    store.timers.set("agent:ada", "tick", delay_ms=HOUR)
    clock.advance(30 * DAY)
    assert [letter.body for letter in store.schedules.fire_due()] == ["tick"]


def test_skipped_last_time_finishes_the_schedule(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", 1, at=clock.now() + HOUR, misfire="skip")
    clock.advance(DAY)
    assert store.schedules.fire_due() == []
    assert store.schedules.get(schedule.id).state is ScheduleState.FINISHED


@pytest.mark.parametrize("rule", [{"every_ms": 5 * SECOND}, {"cron": "* * * * *"}], ids=str)
def test_catch_up_after_downtime_is_bounded_per_call(
    store: Corral, clock: ManualClock, rule: dict[str, object]
) -> None:
    schedule = store.schedules.create("agent:ada", 1, misfire="all", **rule)
    clock.advance(YEAR)
    first_batch = store.schedules.fire_due()
    second_batch = store.schedules.fire_due()
    assert len(first_batch) == len(second_batch) == 100
    times = list_scheduled_times(first_batch) + list_scheduled_times(second_batch)
    assert times[0] == schedule.next_at
    assert times == sorted({*times})
    steps = {after - before for before, after in pairwise(times)}
    assert len(steps) == 1, "no scheduled time is missing between two calls"


@pytest.mark.parametrize("misfire", ["latest", "skip"])
def test_frequent_rule_is_current_after_a_long_downtime(
    store: Corral, clock: ManualClock, misfire: str
) -> None:
    store.schedules.create("agent:ada", 1, cron="* * * * *", misfire=misfire)
    clock.advance(YEAR + 30 * SECOND)
    assert len(store.schedules.fire_due()) == 1
    assert store.schedules.next_at() == clock.now() + 30 * SECOND


# -- overlap policies ------------------------------------------------------------------------


def list_open_keys(store: Corral) -> list[str | None]:
    return [letter.key for letter in store.mail.list(mailbox="agent:ada").items]


def fire_twice(store: Corral, clock: ManualClock, overlap: str) -> tuple[Letter, list[Letter]]:
    store.schedules.create("agent:ada", 1, every_ms=HOUR, overlap=overlap)
    clock.advance(HOUR)
    (letter,) = store.schedules.fire_due()
    clock.advance(HOUR)
    return letter, store.schedules.fire_due()


def test_overlap_allow_puts_several_open_letters(store: Corral, clock: ManualClock) -> None:
    first_letter, next_letters = fire_twice(store, clock, "allow")
    assert [letter.id for letter in store.mail.list().items] == [
        first_letter.id,
        next_letters[0].id,
    ]


def test_overlap_skip_skips_while_the_last_letter_is_open(
    store: Corral, clock: ManualClock
) -> None:
    first_letter, next_letters = fire_twice(store, clock, "skip")
    assert next_letters == []
    assert [letter.id for letter in store.mail.list().items] == [first_letter.id]
    assert "schedule.skip" in list_events(store)
    assert store.schedules.next_at() == clock.now() + HOUR


@pytest.mark.parametrize("overlap", ["skip", "replace"])
def test_ended_letter_does_not_overlap(store: Corral, clock: ManualClock, overlap: str) -> None:
    store.schedules.create("agent:ada", 1, every_ms=HOUR, overlap=overlap)
    for _ in range(3):
        clock.advance(HOUR)
        assert len(store.schedules.fire_due()) == 1
        store.mail.ack(store.mail.claim("agent:ada", owner="o")[0])


def test_overlap_replace_drops_the_open_letter(store: Corral, clock: ManualClock) -> None:
    first_letter, next_letters = fire_twice(store, clock, "replace")
    assert [letter.id for letter in store.mail.list().items] == [next_letters[0].id]
    assert store.mail.get(first_letter.id).state is LetterState.REFUSED
    assert "replaced by the next letter" in str(store.mail.get(first_letter.id).last_error)


def test_unconfirmed_letter_counts_as_open(store: Corral, clock: ManualClock) -> None:
    store.schedules.create("agent:ada", 1, every_ms=HOUR, overlap="skip")
    clock.advance(HOUR)
    store.schedules.fire_due()
    store.mail.begin_delivery(store.mail.claim("agent:ada", owner="o")[0])
    clock.advance(HOUR)
    assert store.schedules.fire_due() == []


def test_overlap_skip_puts_only_the_first_of_many_missed_times(
    store: Corral, clock: ManualClock
) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR, misfire="all", overlap="skip")
    clock.advance(4 * HOUR)
    assert list_scheduled_times(store.schedules.fire_due()) == [schedule.next_at]
    assert list_events(store).count("schedule.skip") == 3


def test_overlap_replace_leaves_the_last_of_many_missed_times(
    store: Corral, clock: ManualClock
) -> None:
    schedule = store.schedules.create(
        "agent:ada", 1, every_ms=HOUR, misfire="all", overlap="replace"
    )
    clock.advance(4 * HOUR)
    store.schedules.fire_due()
    assert list_open_keys(store) == [f"{schedule.id}@{(schedule.next_at or 0) + 3 * HOUR}"]


def test_pruned_last_letter_does_not_overlap(store: Corral, clock: ManualClock) -> None:
    store.schedules.create("agent:ada", 1, every_ms=60 * DAY, overlap="skip")
    clock.advance(60 * DAY)
    store.schedules.fire_due()
    store.mail.ack(store.mail.claim("agent:ada", owner="o")[0])
    clock.advance(60 * DAY)
    store.db.prune()
    assert len(store.schedules.fire_due()) == 1


def test_broken_schedule_does_not_block_the_others(store: Corral, clock: ManualClock) -> None:
    broken = store.schedules.create("agent:ada", "bad", every_ms=HOUR)
    store.schedules.create("agent:ada", "good", every_ms=2 * HOUR)
    # A rule that cannot be evaluated, such as a removed time zone.
    with store.transaction() as tx:
        tx.run(REMOVE_TIME_ZONE)
    clock.advance(2 * HOUR)
    assert "good" in [letter.body for letter in store.schedules.fire_due()]
    stopped = store.schedules.get(broken.id)
    assert stopped.state is ScheduleState.PAUSED
    assert "Unknown/Zone" in str(stopped.last_error), "the reason is recorded"
    assert "schedule.pause" in list_events(store, broken.id)
