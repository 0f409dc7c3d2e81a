"""A connection to PostgreSQL that breaks at the worst moment, when nobody knows what was kept.

What can be done twice without harm is done again, by itself. For the rest the caller is told that
the outcome is unknown, and never something else.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

import corral
from corral.api import Corral
from corral.domain.mail import ops as mail
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import CorralError, StoreUnavailable
from tests.support.invariants import check_store
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy, When

COMMIT = "COMMIT\0"  # the whole statement, and not the end of READ COMMITTED
BOTH = pytest.mark.parametrize("when", ["before", "after"])


class Line(NamedTuple):
    store: Corral
    """A store whose connection goes through the proxy."""

    proxy: Proxy
    clock: ManualClock


@pytest.fixture
def line(postgres_server: PostgresServer, postgres_template: str) -> Iterator[Line]:
    url = postgres_server.new_database(template=postgres_template)
    clock = ManualClock()
    with Proxy(postgres_server.port) as proxy:
        through = url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with corral.open(through, clock=clock) as store:
            yield Line(store, proxy, clock)
            assert proxy.cuts == 1, "the line was not cut, so nothing was shown"
            check_store(store)
    postgres_server.drop_database(url)


def unknown(caught: pytest.ExceptionInfo[StoreUnavailable]) -> bool:
    return caught.value.reason == "unknown_outcome"


@BOTH
def test_put_without_a_key_may_be_reported_as_unknown(line: Line, when: When) -> None:
    line.proxy.cut("hello", when)
    with pytest.raises(StoreUnavailable) as caught:
        line.store.mail.put("queue:work", "hello")
    assert unknown(caught)
    assert len(line.store.mail.list().items) == (0 if when == "before" else 1)


@BOTH
def test_put_with_a_key_is_retried_and_puts_one_letter(line: Line, when: When) -> None:
    line.proxy.cut("hello", when)
    letter = line.store.mail.put("queue:work", "hello", key="k")
    assert [found.id for found in line.store.mail.list().items] == [letter.id]


@BOTH
def test_ack_is_retried(line: Line, when: When) -> None:
    line.store.mail.put("queue:work", "hello")
    (letter,) = line.store.mail.claim("queue:work", owner="me")
    line.proxy.cut("letter", when)  # the first time, the statement itself is sent along
    assert line.store.mail.ack(letter).state == "done"
    assert [event.verb for event in line.store.events.after().items] == ["put", "ack"]


@BOTH
def test_renewal_is_retried(line: Line, when: When) -> None:
    line.store.mail.put("queue:work", "hello")
    (letter,) = line.store.mail.claim("queue:work", owner="me")
    line.clock.advance(10_000)
    line.store.mail.renew(letter)
    line.proxy.cut("_pg3_", when)
    assert line.store.mail.renew(letter, lease_ms=HOUR).due_at == line.clock.now() + HOUR


@BOTH
def test_queue_claim_is_retried_and_loses_no_letter(line: Line, when: When) -> None:
    for body in (1, 2, 3):
        line.store.mail.put("queue:work", body)
    line.proxy.cut("worker", when)
    (letter,) = line.store.mail.claim("queue:work", owner="worker")
    line.store.mail.ack(letter)
    line.clock.advance(HOUR)
    left = line.store.mail.claim("queue:work", owner="other", limit=10)
    assert sorted([letter.body, *(found.body for found in left)]) == [1, 2, 3]


@BOTH
def test_ordered_claim_is_retried_without_reordering(line: Line, when: When) -> None:
    for body in ("first", "second"):
        line.store.mail.put("agent:ada", body)
    line.proxy.cut(COMMIT, when)
    try:
        letters = line.store.mail.claim("agent:ada", owner="worker")
    except StoreUnavailable:
        line.clock.advance(HOUR)
        letters = line.store.mail.claim("agent:ada", owner="worker")
    assert [letter.body for letter in letters] == ["first"]


@BOTH
def test_failure_may_be_reported_as_unknown_and_counts_once(line: Line, when: When) -> None:
    line.store.mail.put("queue:work", "hello")
    (letter,) = line.store.mail.claim("queue:work", owner="me")
    line.proxy.cut(COMMIT, when)
    try:
        line.store.mail.fail(letter, "broken")
    except StoreUnavailable as error:
        if error.reason != "unknown_outcome":
            raise
    verbs = [event.verb for event in line.store.events.after().items]
    assert verbs in (["put"], ["put", "fail"])


@BOTH
def test_setting_is_retried_until_stored(line: Line, when: When) -> None:
    line.proxy.cut(COMMIT, when)
    line.store.settings.set("mail.max_attempts", 3)
    assert line.store.settings.get("mail.max_attempts").value == 3


@BOTH
def test_retried_firing_puts_one_letter_per_time(line: Line, when: When) -> None:
    timer = line.store.timers.set("queue:due", "tea", delay_ms=5_000)
    line.clock.advance(5_000)
    line.proxy.cut(COMMIT, when)
    line.store.schedules.fire_due()
    (letter,) = line.store.mail.list().items
    assert str(letter.key).startswith(timer.id)


@BOTH
def test_transaction_may_be_reported_as_unknown(line: Line, when: When) -> None:
    def put_two() -> None:
        with line.store.transaction() as tx:
            mail.put(tx, "queue:work", 1)
            mail.put(tx, "queue:work", 2)

    line.proxy.cut(COMMIT, when)
    with pytest.raises(StoreUnavailable) as caught:
        put_two()
    assert unknown(caught)
    assert len(line.store.mail.list().items) == (0 if when == "before" else 2)


@BOTH
def test_transaction_broken_in_the_middle_is_rolled_back(line: Line, when: When) -> None:
    def put_two() -> None:
        with line.store.transaction() as tx:
            mail.put(tx, "queue:work", "first")
            line.proxy.cut("second", when)
            mail.put(tx, "queue:work", "second")

    with pytest.raises(CorralError) as caught:
        put_two()
    assert caught.value.details["reason"] != "unknown_outcome", "nothing can have been kept"
    assert line.store.mail.list().items == []


@BOTH
def test_write_broken_before_its_commit_is_retried(line: Line, when: When) -> None:
    line.proxy.cut("tea", when)
    line.store.timers.set("agent:ada", "tea", delay_ms=5_000)
    assert len(line.store.timers.list().items) == 1


@BOTH
def test_read_is_retried(line: Line, when: When) -> None:
    line.store.mail.put("queue:work", "hello")
    line.proxy.cut("SELECT", when)
    assert [letter.body for letter in line.store.mail.list().items] == ["hello"]
