"""Leases: renew, acknowledge, and the rejection of stale fences."""

from collections.abc import Callable

import pytest

from corral.api import Corral
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Held, IllegalMove, Invalid, NotFound
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, unchanged

EACH_MAILBOX_KIND = pytest.mark.parametrize("mailbox", ["agent:ada", "queue:builds"])

Verb = Callable[[Corral, Letter], object]
VERBS: dict[str, Verb] = {
    "ack": lambda store, letter: store.mail.ack(letter),
    "fail": lambda store, letter: store.mail.fail(letter, "no"),
    "renew": lambda store, letter: store.mail.renew(letter),
    "refuse": lambda store, letter: store.mail.refuse(letter, "no"),
    "begin_delivery": lambda store, letter: store.mail.begin_delivery(letter),
    "ack_and_claim": lambda store, letter: store.mail.ack_and_claim(letter, owner="a"),
}
EACH_VERB = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


def put_and_claim(store: Corral, mailbox: str = "agent:ada", owner: str = "a") -> Letter:
    """Put a letter and claim it."""
    store.mail.put(mailbox, "hello")
    (letter,) = store.mail.claim(mailbox, owner=owner)
    return letter


# -- ack -------------------------------------------------------------------------------------


@EACH_MAILBOX_KIND
def test_ack_ends_the_letter_and_writes_one_event(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    letter = put_and_claim(store, mailbox)
    clock.advance(5)
    done = store.mail.ack(letter)
    assert (done.state, done.ended_at, done.fence) == (LetterState.DONE, clock.now(), letter.fence)
    assert store.mail.get(letter.id) == done
    assert list_events(store) == ["letter.put", "letter.ack"]


@EACH_MAILBOX_KIND
def test_acknowledged_letter_is_not_claimed_again(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.ack(put_and_claim(store, mailbox))
    clock.advance(DAY)
    assert store.mail.claim(mailbox, owner="b") == []


@EACH_MAILBOX_KIND
def test_second_ack_is_idempotent_and_writes_nothing(store: Corral, mailbox: str) -> None:
    letter = put_and_claim(store, mailbox)
    done = store.mail.ack(letter)
    with unchanged(store):
        assert store.mail.ack(letter) == done


@EACH_MAILBOX_KIND
def test_ack_after_lease_expiry_succeeds_if_not_reclaimed(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    letter = put_and_claim(store, mailbox)
    clock.advance(DAY)
    assert store.mail.ack(letter).state is LetterState.DONE


def test_ack_by_id_requires_the_fence(store: Corral) -> None:
    letter = put_and_claim(store)
    with raises_without_change(store, Invalid):
        store.mail.ack(letter.id)
    assert store.mail.ack(letter.id, fence=letter.fence).state is LetterState.DONE


# -- fences ----------------------------------------------------------------------------------


@EACH_VERB
@EACH_MAILBOX_KIND
def test_stale_fence_is_rejected_after_a_new_claim(
    store: Corral, clock: ManualClock, mailbox: str, verb: Verb
) -> None:
    stale = put_and_claim(store, mailbox, owner="a")
    clock.advance(MINUTE)
    (current,) = store.mail.claim(mailbox, owner="b")
    with raises_without_change(store, Held) as caught:
        verb(store, stale)
    assert caught.value.details == {
        "fence": current.fence,
        "yours": stale.fence,
        "owner": "b",
        "reason": "taken_over",
    }
    assert "claim it again" in caught.value.message


@EACH_VERB
def test_stale_fence_is_rejected_after_the_new_owner_acked(
    store: Corral, clock: ManualClock, verb: Verb
) -> None:
    stale = put_and_claim(store, owner="a")
    clock.advance(MINUTE)
    store.mail.ack(store.mail.claim("agent:ada", owner="b")[0])
    with raises_without_change(store, Held):
        verb(store, stale)


def test_new_owner_can_act_after_a_takeover(store: Corral, clock: ManualClock) -> None:
    put_and_claim(store, owner="a")
    clock.advance(MINUTE)
    (current,) = store.mail.claim("agent:ada", owner="b")
    assert store.mail.ack(current).owner == "b"


def test_second_claim_by_the_same_owner_has_a_new_fence(store: Corral, clock: ManualClock) -> None:
    stale = put_and_claim(store, owner="a")
    clock.advance(MINUTE)
    store.mail.claim("agent:ada", owner="a")
    with raises_without_change(store, Held):
        store.mail.ack(stale)


def test_future_fence_is_rejected(store: Corral) -> None:
    letter = put_and_claim(store)
    with raises_without_change(store, Held):
        store.mail.ack(letter.id, fence=letter.fence + 1)


@pytest.mark.parametrize("fence", [0, -1])
def test_invalid_fence_is_rejected(store: Corral, fence: int) -> None:
    letter = put_and_claim(store)
    with raises_without_change(store, Invalid):
        store.mail.ack(letter.id, fence=fence)


@EACH_VERB
def test_unclaimed_letter_accepts_no_owner_operation(store: Corral, verb: Verb) -> None:
    letter = store.mail.put("agent:ada", 1)
    with raises_without_change(store, Invalid):
        verb(store, letter)


@pytest.mark.parametrize("id", ["let_99", "99"])
def test_unknown_letter_raises_not_found(store: Corral, id: str) -> None:
    with raises_without_change(store, NotFound):
        store.mail.ack(id, fence=1)
    with raises_without_change(store, NotFound):
        store.mail.renew(id, fence=1)
    with raises_without_change(store, NotFound):
        store.mail.fail(id, "no", fence=1)


@each_case("id", ["", "let_", "let_x", "prj_1", "let_1x", "-1", "let_" + "9" * 19])
def test_invalid_letter_id_is_rejected(store: Corral, id: str) -> None:
    with raises_without_change(store, Invalid):
        store.mail.get(id)
    with raises_without_change(store, Invalid):
        store.mail.ack(id, fence=1)
    with raises_without_change(store, Invalid):
        store.mail.resend(id)


# -- renew -----------------------------------------------------------------------------------


@EACH_MAILBOX_KIND
def test_renew_extends_the_lease(store: Corral, clock: ManualClock, mailbox: str) -> None:
    letter = put_and_claim(store, mailbox)
    clock.advance(20 * SECOND)
    renewed = store.mail.renew(letter, lease_ms=30 * SECOND)
    assert renewed.due_at == clock.now() + 30 * SECOND
    assert (renewed.fence, renewed.attempts) == (letter.fence, letter.attempts)
    clock.advance(30 * SECOND - 1)
    assert store.mail.claim(mailbox, owner="b") == []
    clock.advance(1)
    assert [claimed.id for claimed in store.mail.claim(mailbox, owner="b")] == [letter.id]


def test_renew_writes_no_event(store: Corral) -> None:
    store.mail.renew(put_and_claim(store))
    assert list_events(store) == ["letter.put"]


def test_renew_keeps_the_queue_position(store: Corral, clock: ManualClock) -> None:
    letter = put_and_claim(store)
    store.mail.put("agent:ada", "second")
    store.mail.renew(letter, lease_ms=SECOND)
    clock.advance(SECOND)
    claimed = store.mail.claim("agent:ada", owner="b", limit=2)
    assert [letter.body for letter in claimed] == ["hello", "second"]


def test_expired_lease_in_a_queue_can_be_renewed_if_not_reclaimed(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("queue:builds", "hello")
    (letter,) = store.mail.claim("queue:builds", owner="a")
    clock.advance(MINUTE)
    store.mail.renew(letter)
    assert store.mail.claim("queue:builds", owner="b") == []


def test_expired_lease_in_an_ordered_mailbox_cannot_be_renewed(
    store: Corral, clock: ManualClock
) -> None:
    """Another owner may have claimed later letters since; two owners must not hold leases."""
    letter = put_and_claim(store)
    clock.advance(MINUTE)
    store.mail.put("agent:ada", "urgent", priority=5)
    (urgent,) = store.mail.claim("agent:ada", owner="b")
    with raises_without_change(store, Held):
        store.mail.renew(letter)
    assert store.mail.ack(urgent).state == "done"


def test_ended_letter_cannot_be_renewed(store: Corral) -> None:
    letter = put_and_claim(store)
    store.mail.ack(letter)
    with raises_without_change(store, Held) as caught:
        store.mail.renew(letter)
    assert caught.value.details["state"] == "done"


def test_failed_letter_cannot_be_renewed(store: Corral) -> None:
    letter = put_and_claim(store)
    store.mail.fail(letter, "no")
    with raises_without_change(store, Held):
        store.mail.renew(letter)


def test_unconfirmed_letter_can_be_renewed(store: Corral, clock: ManualClock) -> None:
    letter = store.mail.begin_delivery(put_and_claim(store))
    assert store.mail.renew(letter, lease_ms=DAY).due_at == clock.now() + DAY


@each_case("lease_ms", [0, 999, DAY + 1, -1])
def test_lease_out_of_bounds_is_rejected(store: Corral, lease_ms: int) -> None:
    letter = put_and_claim(store)
    with raises_without_change(store, Invalid):
        store.mail.renew(letter, lease_ms=lease_ms)


# -- ack and claim ---------------------------------------------------------------------------


@EACH_MAILBOX_KIND
def test_ack_and_claim_ends_one_letter_and_claims_the_next(store: Corral, mailbox: str) -> None:
    letter = put_and_claim(store, mailbox)
    store.mail.put(mailbox, "second")
    (next_letter,) = store.mail.ack_and_claim(letter, owner="a", lease_ms=MINUTE)
    assert (next_letter.body, next_letter.owner, next_letter.fence) == ("second", "a", 1)
    assert store.mail.get(letter.id).state is LetterState.DONE
    assert list_events(store) == ["letter.put", "letter.put", "letter.ack"]


@EACH_MAILBOX_KIND
def test_ack_and_claim_returns_nothing_from_an_empty_mailbox(store: Corral, mailbox: str) -> None:
    letter = put_and_claim(store, mailbox)
    assert store.mail.ack_and_claim(letter, owner="a") == []
    assert store.mail.get(letter.id).state is LetterState.DONE


@EACH_MAILBOX_KIND
def test_ack_and_claim_can_claim_for_another_owner(store: Corral, mailbox: str) -> None:
    letter = put_and_claim(store, mailbox, owner="a")
    store.mail.put(mailbox, "second")
    (next_letter,) = store.mail.ack_and_claim(letter, owner="b")
    assert next_letter.owner == "b"


@each_case("arguments", [{"limit": 0}, {"lease_ms": 1}, {"owner": ""}, {"owner": "\0"}], ids=ascii)
@EACH_MAILBOX_KIND
def test_ack_is_rolled_back_when_the_claim_is_invalid(
    store: Corral, mailbox: str, arguments: dict[str, object]
) -> None:
    letter = put_and_claim(store, mailbox)
    with raises_without_change(store, Invalid):
        store.mail.ack_and_claim(letter, **{"owner": "a", **arguments})
    assert store.mail.get(letter.id).state is LetterState.WAITING


def test_refused_letter_cannot_be_acknowledged(store: Corral) -> None:
    letter = put_and_claim(store)
    store.mail.drop(letter.id)
    with raises_without_change(store, IllegalMove) as caught:
        store.mail.ack(letter)
    assert caught.value.details["state"] == "refused"
    assert caught.value.details["allowed"] == ["resend"]


def test_ack_returns_the_stored_letter_not_the_claimed_one(
    store: Corral, clock: ManualClock
) -> None:
    """The row is not read back, so all columns that a renewal changes are set by the ack."""
    for mailbox in ("queue:work", "agent:ada"):
        store.mail.put(mailbox, {"long": "body"}, sender="user:me", expires_at=clock.now() + HOUR)
        (claimed,) = store.mail.claim(mailbox, owner="me", lease_ms=SECOND)
        clock.advance(SECOND // 2)
        store.mail.renew(claimed)
        store.mail.begin_delivery(claimed)
        done = store.mail.ack(claimed)
        assert done == store.mail.get(claimed.id)
        assert (done.due_at, done.queue_at, done.ended_at) == (clock.now(),) * 3
        clock.advance(SECOND)
        assert store.mail.ack(claimed) == done
        assert store.mail.ack(claimed.id, fence=claimed.fence) == done
