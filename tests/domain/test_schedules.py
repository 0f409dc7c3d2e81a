"""Schedules: create, get, list, pause, resume, run and delete."""

from typing import Any

import pytest

from corral.api import Corral
from corral.domain.schedules.model import Misfire, Overlap, ScheduleKind, ScheduleState
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, YEAR, ManualClock
from corral.kernel.errors import Ambiguous, IllegalMove, Invalid, NotFound
from corral.kernel.pagination import encode_cursor
from tests.support.grouped_cases import each_case
from tests.support.store import (
    list_events,
    raises_without_change,
    rows,
    shared_length,
    unchanged,
    walk,
)


def test_create_returns_the_schedule(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create(
        "agent:ada",
        {"do": "it"},
        every_ms=HOUR,
        misfire="all",
        overlap="skip",
        priority=3,
        name="hourly",
        project="prj_1",
    )
    assert schedule.id.startswith("sch_")
    assert (schedule.mailbox, schedule.body, schedule.priority) == ("agent:ada", {"do": "it"}, 3)
    assert (schedule.kind, schedule.rule, schedule.time_zone) == (
        ScheduleKind.EVERY,
        str(HOUR),
        "UTC",
    )
    assert (schedule.misfire, schedule.overlap) == (Misfire.ALL, Overlap.SKIP)
    assert (schedule.name, schedule.project_id, schedule.state) == (
        "hourly",
        "prj_1",
        ScheduleState.ACTIVE,
    )
    assert (schedule.next_at, schedule.last_at, schedule.last_letter_id) == (
        clock.now() + HOUR,
        None,
        None,
    )
    assert schedule.created_at == clock.now()
    assert store.schedules.get(schedule.id) == schedule
    assert rows(store, "SELECT kind, verb, subject, project_id FROM events") == [
        ("schedule", "create", schedule.id, "prj_1")
    ]


def test_cron_rule_uses_its_time_zone(store: Corral, clock: ManualClock) -> None:
    # The clock is set to 08:00 UTC on a day in January: 09:00 in Berlin.
    schedule = store.schedules.create("agent:ada", 1, cron="30 9 * * *", time_zone="Europe/Berlin")
    assert (schedule.kind, schedule.rule) == (ScheduleKind.CRON, "30 9 * * *")
    assert schedule.next_at == clock.now() + 30 * MINUTE


def test_schedule_can_put_one_letter_at_a_time(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", 1, at=clock.now() + DAY)
    assert (schedule.kind, schedule.next_at) == (ScheduleKind.ONCE, clock.now() + DAY)


@pytest.mark.parametrize("every_ms", [5 * SECOND, YEAR])
def test_interval_is_five_seconds_to_a_year(store: Corral, every_ms: int) -> None:
    assert store.schedules.create("agent:ada", 1, every_ms=every_ms).rule == str(every_ms)


@each_case(
    "arguments",
    [
        {},
        {"every_ms": HOUR, "cron": "* * * * *"},
        {"cron": "* * * * *", "at": 1_800_000_010_000},
        {"every_ms": 5 * SECOND - 1},
        {"every_ms": YEAR + 1},
        {"every_ms": 0},
        {"every_ms": -HOUR},
        {"every_ms": 2**70},
        {"cron": ""},
        {"cron": "invalid"},
        {"cron": "* * * *"},
        {"cron": "60 * * * *"},
        {"cron": "* * * * *\0"},
        {"cron": "0 0 30 2 *"},
        {"cron": "* * * * * *"},
        {"at": 1_800_000_000_000},
        {"at": 1_800_000_000_000 - 1},
        {"at": -1},
        {"at": 1_800_000_000_000 + YEAR + 1},
        {"at": 2**70},
        {"every_ms": HOUR, "time_zone": "Unknown/Zone"},
        {"every_ms": HOUR, "time_zone": ""},
        {"every_ms": HOUR, "time_zone": "../../etc/passwd"},
        {"every_ms": HOUR, "time_zone": "a\0b"},
        {"every_ms": HOUR, "time_zone": "\ud800"},
        {"every_ms": HOUR, "misfire": "unknown"},
        {"every_ms": HOUR, "overlap": "unknown"},
        {"every_ms": HOUR, "priority": 101},
        {"every_ms": HOUR, "priority": -101},
        {"every_ms": HOUR, "name": "a\0b"},
        {"every_ms": HOUR, "name": "x" * 201},
        {"every_ms": HOUR, "project": "a\0b"},
        {"every_ms": HOUR, "project": "\ud800"},
    ],
    ids=lambda arguments: ascii(arguments)[:60],
)
def test_create_rejects_invalid_arguments(store: Corral, arguments: dict[str, Any]) -> None:
    with raises_without_change(store, Invalid):
        store.schedules.create("agent:ada", 1, **arguments)


@each_case("mailbox", ["", "ada", "agent:a\0", "agent:\ud800"], ids=ascii)
def test_create_requires_a_valid_mailbox(store: Corral, mailbox: str) -> None:
    with raises_without_change(store, Invalid):
        store.schedules.create(mailbox, 1, every_ms=HOUR)


@each_case("body", ["\0", "\ud800", len, "x" * 1024 * 1024], ids=range(4))
def test_create_requires_a_valid_body(store: Corral, body: Any) -> None:
    with raises_without_change(store, Invalid):
        store.schedules.create("agent:ada", body, every_ms=HOUR)


# -- ids -------------------------------------------------------------------------------------


def test_id_can_be_shortened_to_a_unique_prefix(store: Corral, clock: ManualClock) -> None:
    first_schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    clock.advance(DAY)
    second_schedule = store.schedules.create("agent:ada", 2, every_ms=HOUR)
    shared = shared_length(first_schedule.id, second_schedule.id)
    assert store.schedules.get(second_schedule.id[: shared + 1]) == second_schedule
    assert store.schedules.get(second_schedule.id[4 : shared + 1].upper()) == second_schedule
    with raises_without_change(store, Ambiguous) as caught:
        store.schedules.get(first_schedule.id[:shared])
    assert caught.value.details["candidates"] == [first_schedule.id, second_schedule.id]


@each_case("verb", ["get", "pause", "resume", "run", "delete"])
def test_unknown_id_is_not_found_and_invalid_id_is_rejected(store: Corral, verb: str) -> None:
    store.schedules.create("agent:ada", 1, every_ms=HOUR)
    call = getattr(store.schedules, verb)
    with raises_without_change(store, NotFound):
        call("sch_zzzz")
    for id in ("", "sch_", "prj_0", "sch_!", "sch_" + "0" * 27, "\0"):
        with raises_without_change(store, Invalid):
            call(id)


# -- pause, resume, delete -------------------------------------------------------------------


def test_paused_schedule_puts_nothing_and_catches_up_nothing(
    store: Corral, clock: ManualClock
) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR, misfire="all")
    paused = store.schedules.pause(schedule.id)
    assert (paused.state, paused.next_at) == (ScheduleState.PAUSED, None)
    clock.advance(10 * HOUR + MINUTE)
    with unchanged(store):
        assert store.schedules.fire_due() == []
    resumed = store.schedules.resume(schedule.id)
    assert resumed.state is ScheduleState.ACTIVE
    assert resumed.next_at == schedule.next_at + 10 * HOUR
    assert store.schedules.fire_due() == []
    assert list_events(store) == ["schedule.create", "schedule.pause", "schedule.resume"]


def test_timer_that_was_due_while_paused_fires_on_resume(store: Corral, clock: ManualClock) -> None:
    schedule = store.timers.set("agent:ada", "tick", delay_ms=HOUR)
    store.schedules.pause(schedule.id)
    clock.advance(2 * HOUR)
    store.schedules.resume(schedule.id)
    assert [letter.body for letter in store.schedules.fire_due()] == ["tick"]
    assert store.schedules.get(schedule.id).state is ScheduleState.FINISHED


def test_deleted_schedule_puts_nothing_and_its_letters_stay(
    store: Corral, clock: ManualClock
) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    clock.advance(HOUR)
    (letter,) = store.schedules.fire_due()
    cancelled = store.schedules.delete(schedule.id)
    assert (cancelled.state, cancelled.next_at) == (ScheduleState.CANCELLED, None)
    clock.advance(HOUR)
    assert store.schedules.fire_due() == []
    assert store.mail.get(letter.id) == letter


def test_paused_schedule_can_be_deleted(store: Corral) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    store.schedules.pause(schedule.id)
    assert store.schedules.delete(schedule.id).state is ScheduleState.CANCELLED


def test_ended_schedule_cannot_be_paused_resumed_run_or_deleted(
    store: Corral, clock: ManualClock
) -> None:
    cancelled = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    store.schedules.delete(cancelled.id)
    finished = store.timers.set("agent:ada", 1, delay_ms=HOUR)
    clock.advance(HOUR)
    store.schedules.fire_due()
    for verb in ("pause", "resume", "run", "delete"):
        for id in (cancelled.id, finished.id):
            with raises_without_change(store, IllegalMove) as caught:
                getattr(store.schedules, verb)(id)
            assert caught.value.details["allowed"] == []


def test_second_pause_and_second_resume_are_rejected(store: Corral) -> None:
    schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    with raises_without_change(store, IllegalMove):
        store.schedules.resume(schedule.id)
    store.schedules.pause(schedule.id)
    with raises_without_change(store, IllegalMove):
        store.schedules.pause(schedule.id)


# -- run now ---------------------------------------------------------------------------------


def test_run_puts_a_letter_now_and_keeps_the_next_time(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", "x", every_ms=HOUR, priority=5, project="prj_1")
    clock.advance(MINUTE)
    letter = store.schedules.run(schedule.id)
    assert (letter.body, letter.priority, letter.project_id) == ("x", 5, "prj_1")
    assert letter.due_at == clock.now()
    assert store.schedules.get(schedule.id).next_at == schedule.next_at
    assert list_events(store) == ["schedule.create", "letter.put", "schedule.run"]


def test_every_run_puts_its_own_letter(store: Corral, clock: ManualClock) -> None:
    schedule = store.schedules.create("agent:ada", "x", every_ms=HOUR)
    first_letter = store.schedules.run(schedule.id)
    second_letter = store.schedules.run(schedule.id)
    assert first_letter.id != second_letter.id


def test_paused_schedule_can_be_run(store: Corral) -> None:
    schedule = store.schedules.create("agent:ada", "x", every_ms=HOUR)
    store.schedules.pause(schedule.id)
    assert store.schedules.run(schedule.id).body == "x"
    assert store.schedules.get(schedule.id).state is ScheduleState.PAUSED


# -- lists -----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_schedules_are_listed_newest_first_without_timers(store: Corral, limit: int) -> None:
    schedules = [store.schedules.create("agent:ada", n, every_ms=HOUR) for n in range(5)]
    timers = [store.timers.set("agent:ada", n, delay_ms=HOUR) for n in range(5)]
    assert walk(store.schedules.list, limit=limit) == schedules[::-1]
    assert walk(store.timers.list, limit=limit) == timers[::-1]


def test_ended_schedules_are_listed_only_with_all(store: Corral, clock: ManualClock) -> None:
    active = store.schedules.create("agent:ada", 1, cron="0 0 * * *")
    paused = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    deleted = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    store.schedules.pause(paused.id)
    store.schedules.delete(deleted.id)
    assert [schedule.id for schedule in store.schedules.list().items] == [paused.id, active.id]
    assert [schedule.id for schedule in walk(store.schedules.list, all=True)] == [
        deleted.id,
        paused.id,
        active.id,
    ]


def test_schedules_created_between_two_pages_do_not_shift_the_list(store: Corral) -> None:
    schedules = [store.schedules.create("agent:ada", n, every_ms=HOUR) for n in range(5)]
    listed = walk(
        store.schedules.list,
        between=lambda: store.schedules.create("agent:ada", "new", every_ms=HOUR),
    )
    assert listed == schedules[::-1]


@each_case("cursor", ["", "x", encode_cursor(1), encode_cursor("a", "b")])
def test_invalid_cursor_is_rejected(store: Corral, cursor: str) -> None:
    for list_records in (store.schedules.list, store.timers.list):
        with raises_without_change(store, Invalid):
            list_records(after=cursor)
        with raises_without_change(store, Invalid):
            list_records(limit=0)


def test_deleting_a_project_cancels_its_schedules(
    store: Corral, clock: ManualClock, tmp_path: Any
) -> None:
    project = store.projects.register(tmp_path)
    project_schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR, project=project.id)
    paused = store.schedules.create("agent:ada", 1, every_ms=HOUR, project=project.id)
    other_schedule = store.schedules.create("agent:ada", 1, every_ms=HOUR)
    store.schedules.pause(paused.id)
    store.projects.delete(project.id)
    states = [
        store.schedules.get(schedule.id).state
        for schedule in (project_schedule, paused, other_schedule)
    ]
    assert states == ["cancelled", "cancelled", "active"]
