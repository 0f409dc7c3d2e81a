"""The event feed while writers commit out of order: every event is read exactly once."""

import random
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

import corral
from corral.api import Corral
from corral.domain.events.model import Event
from corral.domain.mail import ops as mail
from tests.support.listeners import HOUR, disable_safety_polls
from tests.support.postgres_server import PostgresServer
from tests.support.processes import Signal
from tests.support.threads import Racer

WRITERS = 6
TRANSACTIONS = 12


class Rollback(Exception):
    pass


def write_transactions(store: Corral, seed: int) -> int:
    """Write slow transactions that commit out of order; return the number of committed events."""
    rng = random.Random(seed)
    count = 0
    for _ in range(TRANSACTIONS):
        events = rng.randint(1, 3)
        try:
            with store.transaction() as tx:
                for number in range(events):
                    mail.put(tx, "queue:work", [seed, number])
                    time.sleep(rng.random() * 0.003)
                if rng.random() < 0.2:
                    raise Rollback
        except Rollback:
            continue
        count += events
    return count


def follow_events(store: Corral, cursor: str | None, finished: threading.Event) -> list[Event]:
    """Read small pages until the writers are done and no event is left."""
    events: list[Event] = []
    while True:
        is_last_page = finished.is_set()
        page = store.events.after(cursor, limit=7)
        events += page.items
        cursor = page.next
        if is_last_page and not page.items:
            return events


def parse_cursor(cursor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cursor.split("-"))


def test_followers_see_every_event_once_in_any_commit_order(url: str) -> None:
    with corral.open(url) as store:
        finished = threading.Event()
        writers = [Racer(partial(write_transactions, store, seed)) for seed in range(WRITERS)]
        early = Racer(partial(follow_events, store, None, finished))
        time.sleep(0.1)
        begin = store.events.newest(limit=1).next
        late = Racer(partial(follow_events, store, begin, finished))
        count = sum(writer.result() for writer in writers)
        finished.set()
        events = early.result()
        print(f"{count} events of {WRITERS} writers")
        assert len(events) == count
        assert len({event.id for event in events}) == count
        positions = [parse_cursor(event.cursor) for event in events]
        assert positions == sorted(positions)
        # The late follower has every event after its first cursor.
        assert late.result() == [
            event
            for event in events
            if begin is None or parse_cursor(event.cursor) > parse_cursor(begin)
        ]


def test_postgres_feed_holds_back_events_behind_an_open_transaction(
    postgres_server: PostgresServer, postgres_template: str
) -> None:
    """Numbers are assigned before the commit, and the feed must not show 2 before 1."""
    url = postgres_server.new_database(template=postgres_template)
    with corral.open(url) as store, corral.open(url) as other:
        with store.transaction() as tx:
            mail.put(tx, "queue:work", "number 1, late")
            other.mail.put("queue:work", "number 2, early")
            page = other.events.after()
            assert page.items == []
        assert [event.id for event in other.events.after(page.next).items] == ["evt_1", "evt_2"]
    postgres_server.drop_database(url)


def test_postgres_feed_shows_a_held_back_event_promptly(
    postgres_server: PostgresServer, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open transaction may roll back, and then it sends no notification."""
    disable_safety_polls(monkeypatch)
    url = postgres_server.new_database(template=postgres_template)
    rounds = 40
    received = Signal()

    def follow() -> None:
        with corral.open(url) as follower:
            events = follower.events.follow("0-0", timeout_ms=int(HOUR * 1_000))
            for _ in range(rounds):
                next(events)
                received.send()
            events.close()

    with corral.open(url) as store, corral.open(url) as other:
        following = Racer(follow)
        for number in range(rounds):
            with suppress(Rollback), store.transaction() as tx:
                mail.put(tx, "queue:work", "rolled back")
                Racer(partial(other.mail.put, "queue:work", number)).result()
                time.sleep(0.01 + number * 0.0002)  # different moments of the follower's poll
                raise Rollback
            received.wait()  # otherwise the next event would wake the follower
        following.result()
    postgres_server.drop_database(url)
