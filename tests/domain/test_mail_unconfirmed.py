"""Unconfirmed deliveries: side effects that must happen at most once, and their resolution."""

import pytest

from corral.api import Corral
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.clock import DAY, MINUTE, ManualClock
from corral.kernel.errors import Held, IllegalMove, Invalid, NotFound
from tests.support.store import list_events, raises_without_change


def put_unconfirmed(store: Corral, mailbox: str = "place:chat") -> Letter:
    store.mail.put(mailbox, "hello", sender="user:eve")
    (letter,) = store.mail.claim(mailbox, owner="alert_sender")
    return store.mail.begin_delivery(letter)


def test_begin_delivery_sets_a_state_and_writes_an_event(store: Corral) -> None:
    letter = put_unconfirmed(store)
    assert letter.state is LetterState.UNCONFIRMED
    assert (letter.ended_at, letter.owner) == (None, "alert_sender")
    assert list_events(store) == ["letter.put", "letter.begin_delivery"]


@pytest.mark.parametrize("mailbox", ["place:chat", "queue:sends"])
def test_unconfirmed_letter_is_never_claimed(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    put_unconfirmed(store, mailbox)
    clock.advance(30 * DAY)
    assert store.mail.claim(mailbox, owner="alert_sender") == []
    assert store.mail.claim(mailbox, owner="other") == []


def test_owner_can_ack_an_unconfirmed_letter(store: Corral) -> None:
    assert store.mail.ack(put_unconfirmed(store)).state is LetterState.DONE


def test_owner_can_fail_an_unconfirmed_letter(store: Corral, clock: ManualClock) -> None:
    failed = store.mail.fail(put_unconfirmed(store), "no route")
    assert failed.state is LetterState.WAITING
    clock.at = failed.due_at
    assert [letter.id for letter in store.mail.claim("place:chat", owner="o")] == [failed.id]


def test_unconfirmed_letter_that_fails_at_the_limit_is_dead(store: Corral) -> None:
    store.settings.set("mail.max_attempts", 1)
    assert store.mail.fail(put_unconfirmed(store), "no").state is LetterState.DEAD


def test_owner_can_refuse_an_unconfirmed_letter(store: Corral) -> None:
    assert store.mail.refuse(put_unconfirmed(store), "blocked").state is LetterState.REFUSED


def test_resolve_as_delivered_ends_the_letter(store: Corral, clock: ManualClock) -> None:
    letter = put_unconfirmed(store)
    clock.advance(DAY)
    resolved = store.mail.resolve(letter.id, delivered=True, reason="seen in the history")
    assert (resolved.state, resolved.ended_at) == (LetterState.DONE, clock.now())
    assert list_events(store) == ["letter.put", "letter.begin_delivery", "letter.confirm"]


def test_resolve_as_not_delivered_retries_the_letter(store: Corral, clock: ManualClock) -> None:
    letter = put_unconfirmed(store)
    clock.advance(DAY)
    resolved = store.mail.resolve(letter.id, delivered=False)
    assert (resolved.state, resolved.due_at) == (LetterState.WAITING, clock.now())
    (retried,) = store.mail.claim("place:chat", owner="other")
    assert retried.id == letter.id
    with raises_without_change(store, Held):
        store.mail.ack(letter)
    assert list_events(store) == ["letter.put", "letter.begin_delivery", "letter.retry"]


@pytest.mark.parametrize("mailbox", ["place:chat", "queue:sends"])
def test_undelivered_letter_is_claimable_immediately(store: Corral, mailbox: str) -> None:
    letter = put_unconfirmed(store, mailbox)
    store.mail.resolve(letter.id, delivered=False)
    assert [claimed.id for claimed in store.mail.claim(mailbox, owner="other")] == [letter.id]


def test_undelivered_letter_keeps_its_queue_position(store: Corral, clock: ManualClock) -> None:
    letter = put_unconfirmed(store)
    store.mail.put("place:chat", "second")
    clock.advance(MINUTE)
    store.mail.resolve(letter.id, delivered=False)
    claimed = store.mail.claim("place:chat", owner="other", limit=2)
    assert [letter.body for letter in claimed] == ["hello", "second"]


@pytest.mark.parametrize("delivered", [True, False])
def test_only_an_unconfirmed_letter_can_be_resolved(store: Corral, delivered: bool) -> None:
    letter = store.mail.put("agent:ada", 1)
    with raises_without_change(store, IllegalMove) as caught:
        store.mail.resolve(letter.id, delivered=delivered)
    assert caught.value.details["required"] == ["unconfirmed"]
    with raises_without_change(store, NotFound):
        store.mail.resolve("let_99", delivered=delivered)


def test_letter_is_resolved_once(store: Corral) -> None:
    letter = put_unconfirmed(store)
    store.mail.resolve(letter.id, delivered=True)
    with raises_without_change(store, IllegalMove):
        store.mail.resolve(letter.id, delivered=False)


@pytest.mark.parametrize("delivered", [True, False])
def test_resolve_rejects_an_invalid_reason(store: Corral, delivered: bool) -> None:
    letter = put_unconfirmed(store)
    with raises_without_change(store, Invalid):
        store.mail.resolve(letter.id, delivered=delivered, reason="a\0b")


def test_second_begin_delivery_is_rejected(store: Corral) -> None:
    letter = put_unconfirmed(store)
    with raises_without_change(store, IllegalMove):
        store.mail.begin_delivery(letter)


def test_begin_delivery_by_id_requires_the_fence(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    (letter,) = store.mail.claim("agent:ada", owner="o")
    with raises_without_change(store, Invalid):
        store.mail.begin_delivery(letter.id)
    assert store.mail.begin_delivery(letter.id, fence=letter.fence).state is LetterState.UNCONFIRMED


def test_unconfirmed_letter_blocks_other_owners_during_its_lease(
    store: Corral, clock: ManualClock
) -> None:
    put_unconfirmed(store)
    store.mail.put("place:chat", "second")
    assert store.mail.claim("place:chat", owner="other") == []
    clock.advance(MINUTE)
    assert [letter.body for letter in store.mail.claim("place:chat", owner="other")] == ["second"]


def test_unconfirmed_letter_is_listed_and_does_not_expire(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", 1, expires_at=clock.now() + MINUTE)
    (letter,) = store.mail.claim("agent:ada", owner="o")
    letter = store.mail.begin_delivery(letter)
    clock.advance(DAY)
    assert store.internal.mail.expire_due() == []
    assert store.mail.list(state="unconfirmed").items == [letter]
    store.mail.resolve(letter.id, delivered=True)
    assert store.mail.list(state="unconfirmed").items == []


def test_unconfirmed_letter_can_be_dropped(store: Corral) -> None:
    assert store.mail.drop(put_unconfirmed(store).id).state is LetterState.REFUSED
