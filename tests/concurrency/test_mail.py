"""Concurrent claims from one mailbox: each letter is processed once, in order where required."""

import os
import time
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest

import corral
from corral.api import Corral
from corral.db.tx import Tx
from corral.domain.mail import ops
from corral.kernel.clock import ManualClock
from tests.support.concurrent_transactions import meanwhile
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.threads import race


def put_many(store: Corral, mailbox: str, count: int) -> None:
    with store.transaction() as tx:
        for number in range(count):
            ops.put(tx, mailbox, number)


def test_processes_on_one_queue_ack_every_letter_once(url: str) -> None:
    def work() -> list[int]:
        acked = []
        with corral.open(url) as store:
            while letters := store.mail.claim("queue:work", owner=str(os.getpid()), limit=3):
                for letter in letters:
                    store.mail.ack(letter)
                    acked.append(letter.body)
        return acked

    with corral.open(url) as store:
        put_many(store, "queue:work", 90)
    acked = run_concurrently([work] * 5)
    with corral.open(url) as store:
        assert Counter(body for bodies in acked for body in bodies) == Counter(range(90))
        assert store.mail.list(mailbox="queue:work").items == []
        check_store(store)


class ClaimInterval(NamedTuple):
    """A claimed letter; times are from the clock of the machine, which all processes share."""

    since: int
    until: int
    owner: int
    body: int


def test_ordered_mailbox_has_one_owner_at_a_time_and_keeps_its_order(url: str) -> None:
    letters = 30

    def work() -> list[ClaimInterval]:
        intervals = []
        with corral.open(url) as store:
            while store.mail.list(mailbox="agent:ada", limit=1).items:
                for letter in store.mail.claim("agent:ada", owner=str(os.getpid()), wait_ms=50):
                    since = time.monotonic_ns()
                    time.sleep(0.001)
                    intervals.append(
                        ClaimInterval(since, time.monotonic_ns(), os.getpid(), letter.body)
                    )
                    store.mail.ack(letter)
        return intervals

    with corral.open(url) as store:
        put_many(store, "agent:ada", letters)
    by_worker = run_concurrently([work] * 4)
    with corral.open(url) as store:
        intervals = sorted(interval for worker in by_worker for interval in worker)
        assert [interval.body for interval in intervals] == list(range(letters))
        assert all(interval.until <= following.since for interval, following in pairwise(intervals))
        acks = [
            event.subject for event in store.events.after(limit=1_000).items if event.verb == "ack"
        ]
        assert acks == [f"let_{number + 1}" for number in range(letters)]
        check_store(store)


def test_one_of_eight_concurrent_claims_gets_the_first_letter(
    store: Corral,
) -> None:
    rounds = 15
    put_many(store, "agent:ada", rounds + 1)
    for number in range(rounds):
        racers = race(
            [partial(store.mail.claim, "agent:ada", owner=f"worker {n}") for n in range(8)]
        )
        (claimed,) = [letters for racer in racers if (letters := racer.result())]
        assert [(letter.body, letter.attempts) for letter in claimed] == [(number, 1)]
        store.mail.ack(claimed[0])
    check_store(store)


def test_same_key_from_sixteen_threads_puts_one_letter(store: Corral) -> None:
    racers = race([lambda: store.mail.put("agent:ada", "hello", key="k")] * 16)
    (letter,) = store.mail.list(mailbox="agent:ada").items
    assert {racer.result().id for racer in racers} == {letter.id}
    assert [event.verb for event in store.events.after().items] == ["put"]


def test_same_keys_from_four_processes_put_one_letter_each(url: str) -> None:
    def put_all() -> list[str]:
        with corral.open(url) as store:
            return [store.mail.put("queue:work", n, key=f"k{n}").id for n in range(15)]

    answers = run_concurrently([put_all] * 4)
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert len(set(answers[0])) == 15
    with corral.open(url) as store:
        assert len(store.mail.list(mailbox="queue:work", limit=1_000).items) == 15
        check_store(store)


def test_only_one_of_many_concurrent_answers_to_a_claim_wins(store: Corral) -> None:
    store.mail.put("queue:work", "hello")
    (letter,) = store.mail.claim("queue:work", owner="me")
    racers = race(
        [
            lambda: store.mail.refuse(letter, "no"),
            lambda: store.mail.fail(letter, "broken"),
            lambda: store.mail.refuse(letter, "no"),
            lambda: store.mail.drop(letter.id),
        ]
        * 4
    )
    assert all(
        racer.error is None or isinstance(racer.error, corral.errors.Conflict) for racer in racers
    )
    ends = [e.verb for e in store.events.after().items if e.verb in ("refuse", "drop")]
    assert len(ends) == 1
    check_store(store)


@pytest.mark.parametrize("limit", [1, 5])
def test_letter_acked_by_its_late_owner_is_not_claimed_concurrently(
    store: Corral, clock: ManualClock, limit: int
) -> None:
    store.mail.put("agent:ada", 1)
    (letter,) = store.mail.claim("agent:ada", owner="slow", lease_ms=30_000)
    clock.advance(31_000)
    claim = partial(store.mail.claim, "agent:ada", owner="next", limit=limit)
    assert meanwhile(store, lambda tx: ops.ack(tx, letter), claim).result() == []
    assert store.mail.get(letter.id).owner == "slow"
    check_store(store)


@pytest.mark.parametrize("limit", [1, 5])
def test_letter_renewed_concurrently_blocks_the_mailbox(
    store: Corral, clock: ManualClock, limit: int
) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    (letter,) = store.mail.claim("agent:ada", owner="slow", lease_ms=30_000)
    clock.advance(29_000)

    def renew_slowly(tx: Tx) -> None:
        ops.renew(tx, letter)
        clock.advance(2_000)

    claim = partial(store.mail.claim, "agent:ada", owner="next", limit=limit)
    assert meanwhile(store, renew_slowly, claim).result() == []
    assert store.mail.ack(letter).state == "done"
    assert [letter.body for letter in claim()] == [2]


@pytest.mark.parametrize("limit", [1, 5])
@pytest.mark.parametrize("mailbox", ["agent:ada", "queue:work"])
def test_letter_dropped_concurrently_is_not_claimed(
    store: Corral, mailbox: str, limit: int
) -> None:
    letter = store.mail.put(mailbox, 1)
    claim = partial(store.mail.claim, mailbox, owner="next", limit=limit)
    assert meanwhile(store, lambda tx: ops.drop(tx, letter.id), claim).result() == []
    assert store.mail.get(letter.id).owner is None
    check_store(store)
