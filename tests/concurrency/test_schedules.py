"""Concurrent schedules: no scheduled time is put twice, and the timer limit holds."""

from collections import Counter
from functools import partial

import corral
from corral.api import Corral
from corral.kernel.clock import HOUR, MINUTE, ManualClock
from corral.kernel.errors import Refused
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.threads import race


def test_concurrent_firing_puts_each_scheduled_time_once(url: str) -> None:
    step, series = 10 * MINUTE, 30
    clock = ManualClock()
    with corral.open(url, clock=clock) as store:
        for _ in range(series):
            store.schedules.create("queue:due", "tick", every_ms=step, misfire="all")

    def fire() -> int:
        put = 0
        with corral.open(url, clock=ManualClock(clock.now() + HOUR)) as store:
            while letters := store.schedules.fire_due(limit=3):
                put += len(letters)
        return put

    put = run_concurrently([fire] * 2)
    print("put by each process:", put)
    assert sum(put) == series * (HOUR // step)
    with corral.open(url, clock=clock) as store:
        fired = Counter(
            (event.subject, time)
            for event in store.events.after(limit=1_000).items
            if event.verb == "fire"
            for time in event.data["scheduled_times"]
        )
        assert len(fired) == series * (HOUR // step)
        assert set(fired.values()) == {1}
        check_store(store)


def test_concurrent_sets_do_not_exceed_the_timer_limit(url: str) -> None:
    def set_many() -> int:
        with corral.open(url) as store:

            def set_one() -> int:
                try:
                    store.timers.set("agent:ada", "body", delay_ms=HOUR)
                except Refused:
                    return 0
                return 1

            return sum(racer.result() for racer in race([set_one] * 8))

    accepted = run_concurrently([set_many] * 4)
    with corral.open(url) as store:
        assert len(store.timers.list(limit=100).items) == 20
        assert sum(accepted) == 20
        check_store(store)


def test_one_of_many_concurrent_sets_gets_the_twentieth_timer(store: Corral) -> None:
    for _ in range(19):
        store.timers.set("agent:ada", "body", delay_ms=HOUR)
    for _ in range(8):
        racers = race([partial(store.timers.set, "agent:ada", "body", delay_ms=HOUR)] * 8)
        (twentieth,) = [racer.value for racer in racers if racer.error is None]
        assert {type(racer.error) for racer in racers if racer.error} == {Refused}
        store.timers.cancel(twentieth.id)
    check_store(store)


def test_timer_cancelled_while_firing_does_one_or_the_other(
    store: Corral, clock: ManualClock
) -> None:
    for number in range(20):
        mailbox = f"queue:due{number}"
        timer = store.timers.set(mailbox, "body", delay_ms=MINUTE)
        clock.advance(MINUTE)
        race([partial(store.timers.cancel, timer.id), store.schedules.fire_due])
        put = store.mail.list(mailbox=mailbox).items
        assert (store.timers.get(timer.id).state, len(put)) in [("cancelled", 0), ("finished", 1)]
    check_store(store)
