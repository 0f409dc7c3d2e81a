"""Schedules after crashes: every scheduled time is put exactly once."""

from collections import Counter
from pathlib import Path

from corral.api import Corral
from corral.domain.mail.model import Letter
from corral.domain.schedules.model import Schedule
from corral.kernel.clock import DAY, HOUR, MINUTE
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

BOX = "queue:due"


def fire_for_an_hour(store: Corral, world: World) -> None:
    """Fire what is due every twenty minutes, as the daemon does."""
    for _ in range(3):
        world.clock.advance(20 * MINUTE)
        while store.schedules.fire_due():
            pass


def catch_up(store: Corral, world: World) -> None:
    while store.schedules.fire_due():
        pass


def list_letters(store: Corral, schedule: Schedule) -> list[Letter]:
    letters = store.mail.list(mailbox=BOX, all=True, limit=1_000).items
    return [letter for letter in letters if str(letter.key).startswith(schedule.id)]


def list_put_times(store: Corral, schedule: Schedule) -> list[int]:
    return sorted(
        int(str(letter.key).partition("@")[2]) for letter in list_letters(store, schedule)
    )


def count_event_times(store: Corral, schedule: Schedule) -> Counter[int]:
    """Count how often each scheduled time is in the events."""
    events = store.events.after(subject=schedule.id, limit=1_000).items
    return Counter(time for event in events if event.data for time in event.data["scheduled_times"])


def get_schedule(store: Corral) -> Schedule:
    (schedule,) = [*store.schedules.list(all=True).items, *store.timers.list(all=True).items]
    return schedule


def test_timer_is_put_exactly_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def set_timer(store: Corral, world: World) -> None:
        store.timers.set(BOX, "tea", delay_ms=25 * MINUTE)

    def check(store: Corral, world: World) -> None:
        timer = get_schedule(store)
        assert list_put_times(store, timer) == [timer.created_at + 25 * MINUTE]
        assert timer.state == "finished"

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(fire_for_an_hour, prepare=set_timer, recover=catch_up, check=check),
    )


def test_accepted_timer_survives_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def set_two(store: Corral, world: World) -> None:
        for body in ("tea", "cake"):
            world.record(store.timers.set(BOX, body, delay_ms=25 * MINUTE).id)

    def check(store: Corral, world: World) -> None:
        timers = store.timers.list(all=True).items
        assert {timer.id for timer in timers} >= set(world.records)
        assert all(len(list_letters(store, timer)) == 1 for timer in timers)

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(set_two, recover=catch_up, check=check, later_ms=DAY)
    )


def test_every_scheduled_time_is_put_exactly_once(fresh_url: FreshUrl, tmp_path: Path) -> None:
    step = 4 * MINUTE

    def create(store: Corral, world: World) -> None:
        store.schedules.create(BOX, "tick", every_ms=step, misfire="all")
        store.schedules.create(BOX, "cron tick", cron="*/4 * * * *", misfire="all")

    def check(store: Corral, world: World) -> None:
        for series in store.schedules.list().items:
            on_the_clock = (series.created_at // step + 1) * step
            first = on_the_clock if series.kind == "cron" else series.anchor_at
            expected = list(range(first, world.clock.now() + 1, step))
            assert len(expected) >= 15
            assert list_put_times(store, series) == expected
            assert count_event_times(store, series) == Counter(expected)
            assert series.next_at == expected[-1] + step

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(fire_for_an_hour, prepare=create, recover=catch_up, check=check),
    )


def test_catch_up_in_batches_puts_no_time_twice(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def create(store: Corral, world: World) -> None:
        store.schedules.create(BOX, "tick", every_ms=MINUTE, misfire="all")

    def sleep_and_catch_up(store: Corral, world: World) -> None:
        world.clock.advance(4 * HOUR)
        catch_up(store, world)

    def check(store: Corral, world: World) -> None:
        series = get_schedule(store)
        expected = list(range(series.anchor_at, world.clock.now() + 1, MINUTE))
        assert len(expected) > 200, "more than one transaction"
        assert list_put_times(store, series) == expected

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(
            sleep_and_catch_up,
            prepare=create,
            recover=sleep_and_catch_up,
            check=check,
            later_ms=0,
        ),
    )


def test_overlap_policy_holds_after_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def create(store: Corral, world: World) -> None:
        for overlap in ("skip", "replace"):
            store.schedules.create(
                f"queue:{overlap}", "tick", every_ms=15 * MINUTE, misfire="all", overlap=overlap
            )

    def check(store: Corral, world: World) -> None:
        assert len(store.mail.list(mailbox="queue:skip").items) == 1
        (series,) = [
            schedule for schedule in store.schedules.list().items if schedule.overlap == "replace"
        ]
        (letter,) = store.mail.list(mailbox="queue:replace").items
        assert letter.id == series.last_letter_id
        assert letter.key == f"{series.id}@{series.last_at}"

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(fire_for_an_hour, prepare=create, recover=catch_up, check=check),
    )


def test_pause_resume_and_cancel_are_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def create(store: Corral, world: World) -> None:
        store.schedules.create(BOX, "tick", every_ms=10 * MINUTE)

    def change(store: Corral, world: World) -> None:
        series = get_schedule(store)
        for verb in (store.schedules.pause, store.schedules.resume, store.schedules.delete):
            world.record(verb(series.id).state)

    def check(store: Corral, world: World) -> None:
        # The last recorded state, or the one that the crashed process was about to record.
        order = ["active", "paused", "active", "cancelled"]
        count = len(world.records)
        assert get_schedule(store).state in order[count : count + 2]

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(change, prepare=create, recover=lambda store, world: None, check=check),
    )


def fire_and_run_scripts(store: Corral, world: World) -> None:
    world.clock.advance(20 * MINUTE)
    store.schedules.fire_due()
    while store.schedules.run_script(owner="checker") is not None:
        pass


def run_scripts_again(store: Corral, world: World) -> None:
    world.clock.advance(15 * MINUTE)  # the lease of a crashed process has expired
    catch_up(store, world)
    while store.schedules.run_script(owner="next") is not None:
        pass


def test_occurrence_with_a_script_is_put_or_skipped_exactly_once(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def create(store: Corral, world: World) -> None:
        store.agents.create("ada", provider="scripted")
        for name, script in (("put", "echo new mail"), ("skipped", "exit 77")):
            store.schedules.prompt(
                "ada", name, every_ms=20 * MINUTE, script=script, overlap="allow"
            )

    def check(store: Corral, world: World) -> None:
        for task in store.schedules.list().items:
            history = store.schedules.history(task.id).items
            fired = [occurrence.scheduled_at for occurrence in history]
            assert len({*fired}) == len(fired) >= 1
            expected = "skipped" if task.script == "exit 77" else "put"
            assert {occurrence.state for occurrence in history} == {expected}
            put = store.mail.list(mailbox=task.mailbox, all=True).items
            keys = sorted(str(letter.key) for letter in put if str(letter.key).startswith(task.id))
            assert keys == (
                sorted(f"{task.id}@{time}" for time in fired) if expected == "put" else []
            )

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(fire_and_run_scripts, prepare=create, recover=run_scripts_again, check=check),
    )
