"""The feed of events while writers commit out of order: each event once, none left out."""

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


class TakeBack(Exception):
    pass


def write_slowly(store: Corral, seed: int) -> int:
    """Transactions that linger before they commit, so that later numbers commit first; some never
    do. Gives back how many events there are of it."""
    chance = random.Random(seed)
    made = 0
    for _ in range(TRANSACTIONS):
        events = chance.randint(1, 3)
        try:
            with store.transaction() as tx:
                for number in range(events):
                    mail.put(tx, "queue:work", [seed, number])
                    time.sleep(chance.random() * 0.003)
                if chance.random() < 0.2:
                    raise TakeBack
        except TakeBack:
            continue
        made += events
    return made


def read_on(store: Corral, cursor: str | None, done: threading.Event) -> list[Event]:
    """A follower that reads small pages behind its own cursor until nothing can come any more."""
    seen: list[Event] = []
    while True:
        nothing_more_can_come = done.is_set()
        page = store.events.after(cursor, limit=7)
        seen += page.items
        cursor = page.next
        if nothing_more_can_come and not page.items:
            return seen


def place(cursor: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cursor.split("-"))


def test_followers_see_every_event_once_in_any_commit_order(url: str) -> None:
    with corral.open(url) as store:
        done = threading.Event()
        writers = [Racer(partial(write_slowly, store, seed)) for seed in range(WRITERS)]
        early = Racer(partial(read_on, store, None, done))
        time.sleep(0.1)
        begin = store.events.newest(limit=1).next
        late = Racer(partial(read_on, store, begin, done))
        made = sum(writer.result() for writer in writers)
        done.set()
        seen = early.result()
        print(f"{made} events of {WRITERS} writers")
        assert len(seen) == made
        assert len({event.id for event in seen}) == made
        places = [place(event.cursor) for event in seen]
        assert places == sorted(places)
        # Who came later missed nothing behind the place where it began.
        assert late.result() == [
            event for event in seen if begin is None or place(event.cursor) > place(begin)
        ]


def test_postgres_feed_holds_back_events_behind_an_open_transaction(
    postgres_server: PostgresServer, postgres_template: str
) -> None:
    """There, numbers are given before the commit, and the feed must not show 2 before 1."""
    url = postgres_server.new_database(template=postgres_template)
    with corral.open(url) as store, corral.open(url) as other:
        with store.transaction() as tx:
            mail.put(tx, "queue:work", "number 1, late")
            other.mail.put("queue:work", "number 2, early")
            shown = other.events.after()
            assert shown.items == []
        assert [event.id for event in other.events.after(shown.next).items] == ["evt_1", "evt_2"]
    postgres_server.drop_database(url)


def test_postgres_feed_shows_a_held_back_event_promptly(
    postgres_server: PostgresServer, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What held it back need not be an event itself, and then rings no bell at its end."""
    disable_safety_polls(monkeypatch)
    url = postgres_server.new_database(template=postgres_template)
    rounds = 40
    shown = Signal()

    def follow() -> None:
        with corral.open(url) as follower:
            events = follower.events.follow("0-0", timeout_ms=int(HOUR * 1_000))
            for _ in range(rounds):
                next(events)
                shown.send()
            events.close()

    with corral.open(url) as store, corral.open(url) as other:
        following = Racer(follow)
        for number in range(rounds):
            with suppress(TakeBack), store.transaction() as tx:
                mail.put(tx, "queue:work", "taken back")
                Racer(partial(other.mail.put, "queue:work", number)).result()
                time.sleep(0.01 + number * 0.0002)  # at ever other moments of the follower's round
                raise TakeBack
            shown.wait()  # else the next event would wake the follower
        following.result()
    postgres_server.drop_database(url)
