"""PostgreSQL connections that break when it is unknown whether the commit succeeded.

Idempotent operations are retried automatically. For others the caller gets an error that says that
the outcome is unknown, and no other error.
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

COMMIT = "COMMIT\0"  # the whole statement, not the end of READ COMMITTED
BEFORE_AND_AFTER = pytest.mark.parametrize("when", ["before", "after"])


class ProxiedStore(NamedTuple):
    store: Corral
    """A store whose connection goes through the proxy."""

    proxy: Proxy
    clock: ManualClock


@pytest.fixture
def proxied(postgres_server: PostgresServer, postgres_template: str) -> Iterator[ProxiedStore]:
    url = postgres_server.new_database(template=postgres_template)
    clock = ManualClock()
    with Proxy(postgres_server.port) as proxy:
        proxy_url = url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
        with corral.open(proxy_url, clock=clock) as store:
            yield ProxiedStore(store, proxy, clock)
            assert proxy.cuts == 1, "the connection was not cut"
            check_store(store)
    postgres_server.drop_database(url)


def is_unknown_outcome(caught: pytest.ExceptionInfo[StoreUnavailable]) -> bool:
    return caught.value.reason == "unknown_outcome"


@BEFORE_AND_AFTER
def test_put_without_a_key_may_be_reported_as_unknown(proxied: ProxiedStore, when: When) -> None:
    proxied.proxy.cut("hello", when)
    with pytest.raises(StoreUnavailable) as caught:
        proxied.store.mail.put("queue:work", "hello")
    assert is_unknown_outcome(caught)
    assert len(proxied.store.mail.list().items) == (0 if when == "before" else 1)


@BEFORE_AND_AFTER
def test_put_with_a_key_is_retried_and_puts_one_letter(proxied: ProxiedStore, when: When) -> None:
    proxied.proxy.cut("hello", when)
    letter = proxied.store.mail.put("queue:work", "hello", key="k")
    assert [item.id for item in proxied.store.mail.list().items] == [letter.id]


@BEFORE_AND_AFTER
def test_ack_is_retried(proxied: ProxiedStore, when: When) -> None:
    proxied.store.mail.put("queue:work", "hello")
    (letter,) = proxied.store.mail.claim("queue:work", owner="me")
    proxied.proxy.cut("letter", when)  # the first call also sends the statement itself
    assert proxied.store.mail.ack(letter).state == "done"
    assert [event.verb for event in proxied.store.events.after().items] == ["put", "ack"]


@BEFORE_AND_AFTER
def test_renewal_is_retried(proxied: ProxiedStore, when: When) -> None:
    proxied.store.mail.put("queue:work", "hello")
    (letter,) = proxied.store.mail.claim("queue:work", owner="me")
    proxied.clock.advance(10_000)
    proxied.store.mail.renew(letter)
    proxied.proxy.cut("_pg3_", when)
    assert proxied.store.mail.renew(letter, lease_ms=HOUR).due_at == proxied.clock.now() + HOUR


@BEFORE_AND_AFTER
def test_queue_claim_is_retried_and_loses_no_letter(proxied: ProxiedStore, when: When) -> None:
    for body in (1, 2, 3):
        proxied.store.mail.put("queue:work", body)
    proxied.proxy.cut("worker", when)
    (letter,) = proxied.store.mail.claim("queue:work", owner="worker")
    proxied.store.mail.ack(letter)
    proxied.clock.advance(HOUR)
    remaining = proxied.store.mail.claim("queue:work", owner="other", limit=10)
    assert sorted([letter.body, *(item.body for item in remaining)]) == [1, 2, 3]


@BEFORE_AND_AFTER
def test_ordered_claim_is_retried_without_reordering(proxied: ProxiedStore, when: When) -> None:
    for body in ("first", "second"):
        proxied.store.mail.put("agent:ada", body)
    proxied.proxy.cut(COMMIT, when)
    try:
        letters = proxied.store.mail.claim("agent:ada", owner="worker")
    except StoreUnavailable:
        proxied.clock.advance(HOUR)
        letters = proxied.store.mail.claim("agent:ada", owner="worker")
    assert [letter.body for letter in letters] == ["first"]


@BEFORE_AND_AFTER
def test_failure_may_be_reported_as_unknown_and_counts_once(
    proxied: ProxiedStore, when: When
) -> None:
    proxied.store.mail.put("queue:work", "hello")
    (letter,) = proxied.store.mail.claim("queue:work", owner="me")
    proxied.proxy.cut(COMMIT, when)
    try:
        proxied.store.mail.fail(letter, "broken")
    except StoreUnavailable as error:
        if error.reason != "unknown_outcome":
            raise
    verbs = [event.verb for event in proxied.store.events.after().items]
    assert verbs in (["put"], ["put", "fail"])


@BEFORE_AND_AFTER
def test_setting_is_retried_until_stored(proxied: ProxiedStore, when: When) -> None:
    proxied.proxy.cut(COMMIT, when)
    proxied.store.settings.set("mail.max_attempts", 3)
    assert proxied.store.settings.get("mail.max_attempts").value == 3


@BEFORE_AND_AFTER
def test_retried_firing_puts_one_letter_per_time(proxied: ProxiedStore, when: When) -> None:
    timer = proxied.store.timers.set("queue:due", "body", delay_ms=5_000)
    proxied.clock.advance(5_000)
    proxied.proxy.cut(COMMIT, when)
    proxied.store.schedules.fire_due()
    (letter,) = proxied.store.mail.list().items
    assert str(letter.key).startswith(timer.id)


@BEFORE_AND_AFTER
def test_transaction_may_be_reported_as_unknown(proxied: ProxiedStore, when: When) -> None:
    def put_two() -> None:
        with proxied.store.transaction() as tx:
            mail.put(tx, "queue:work", 1)
            mail.put(tx, "queue:work", 2)

    proxied.proxy.cut(COMMIT, when)
    with pytest.raises(StoreUnavailable) as caught:
        put_two()
    assert is_unknown_outcome(caught)
    assert len(proxied.store.mail.list().items) == (0 if when == "before" else 2)


@BEFORE_AND_AFTER
def test_transaction_broken_in_the_middle_is_rolled_back(proxied: ProxiedStore, when: When) -> None:
    def put_two() -> None:
        with proxied.store.transaction() as tx:
            mail.put(tx, "queue:work", "first")
            proxied.proxy.cut("second", when)
            mail.put(tx, "queue:work", "second")

    with pytest.raises(CorralError) as caught:
        put_two()
    assert caught.value.details["reason"] != "unknown_outcome", "nothing can have been stored"
    assert proxied.store.mail.list().items == []


@BEFORE_AND_AFTER
def test_write_broken_before_its_commit_is_retried(proxied: ProxiedStore, when: When) -> None:
    proxied.proxy.cut("body", when)
    proxied.store.timers.set("agent:ada", "body", delay_ms=5_000)
    assert len(proxied.store.timers.list().items) == 1


@BEFORE_AND_AFTER
def test_read_is_retried(proxied: ProxiedStore, when: When) -> None:
    proxied.store.mail.put("queue:work", "hello")
    proxied.proxy.cut("SELECT", when)
    assert [letter.body for letter in proxied.store.mail.list().items] == ["hello"]
