"""Working on a letter: renewing, acknowledging, and what a fence keeps out."""

from collections.abc import Callable

import pytest

from corral.api import Corral
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Held, IllegalMove, Invalid, NotFound
from tests.support.grouped_cases import each_case
from tests.support.store import record, refuses, unchanged

BOTH = pytest.mark.parametrize("box", ["agent:ada", "queue:builds"])

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


def claimed(store: Corral, box: str = "agent:ada", owner: str = "a") -> Letter:
    """A letter that was put and is out."""
    store.mail.put(box, "hello")
    (letter,) = store.mail.claim(box, owner=owner)
    return letter


# -- ack -------------------------------------------------------------------------------------


@BOTH
def test_an_ack_ends_the_letter_and_writes_one_event(
    store: Corral, clock: ManualClock, box: str
) -> None:
    letter = claimed(store, box)
    clock.advance(5)
    done = store.mail.ack(letter)
    assert (done.state, done.ended_at, done.fence) == (LetterState.DONE, clock.now(), letter.fence)
    assert store.mail.get(letter.id) == done
    assert record(store) == ["letter.put", "letter.ack"]


@BOTH
def test_an_acknowledged_letter_never_comes_again(
    store: Corral, clock: ManualClock, box: str
) -> None:
    store.mail.ack(claimed(store, box))
    clock.advance(DAY)
    assert store.mail.claim(box, owner="b") == []


@BOTH
def test_to_acknowledge_twice_is_fine_and_writes_nothing(store: Corral, box: str) -> None:
    letter = claimed(store, box)
    done = store.mail.ack(letter)
    with unchanged(store):
        assert store.mail.ack(letter) == done


@BOTH
def test_an_ack_after_the_lease_ran_out_counts_while_nobody_took_the_letter(
    store: Corral, clock: ManualClock, box: str
) -> None:
    letter = claimed(store, box)
    clock.advance(DAY)
    assert store.mail.ack(letter).state is LetterState.DONE


def test_an_ack_by_id_needs_the_fence(store: Corral) -> None:
    letter = claimed(store)
    with refuses(store, Invalid):
        store.mail.ack(letter.id)
    assert store.mail.ack(letter.id, fence=letter.fence).state is LetterState.DONE


# -- fences ----------------------------------------------------------------------------------


@EACH_VERB
@BOTH
def test_what_an_owner_says_late_is_refused_after_a_take_over(
    store: Corral, clock: ManualClock, box: str, verb: Verb
) -> None:
    late = claimed(store, box, owner="a")
    clock.advance(MINUTE)
    (fresh,) = store.mail.claim(box, owner="b")
    with refuses(store, Held) as caught:
        verb(store, late)
    assert caught.value.details == {
        "fence": fresh.fence,
        "yours": late.fence,
        "owner": "b",
        "reason": "taken_over",
    }
    assert "claim it again" in caught.value.message


@EACH_VERB
def test_what_an_owner_says_late_is_refused_after_the_other_one_was_done(
    store: Corral, clock: ManualClock, verb: Verb
) -> None:
    late = claimed(store, owner="a")
    clock.advance(MINUTE)
    store.mail.ack(store.mail.claim("agent:ada", owner="b")[0])
    with refuses(store, Held):
        verb(store, late)


def test_the_one_who_took_over_may_go_on(store: Corral, clock: ManualClock) -> None:
    claimed(store, owner="a")
    clock.advance(MINUTE)
    (fresh,) = store.mail.claim("agent:ada", owner="b")
    assert store.mail.ack(fresh).owner == "b"


def test_the_same_owner_that_claims_again_has_a_new_fence_too(
    store: Corral, clock: ManualClock
) -> None:
    late = claimed(store, owner="a")
    clock.advance(MINUTE)
    store.mail.claim("agent:ada", owner="a")
    with refuses(store, Held):
        store.mail.ack(late)


def test_a_fence_that_was_never_given_is_refused(store: Corral) -> None:
    letter = claimed(store)
    with refuses(store, Held):
        store.mail.ack(letter.id, fence=letter.fence + 1)


@pytest.mark.parametrize("fence", [0, -1])
def test_a_fence_that_no_claim_has_is_refused(store: Corral, fence: int) -> None:
    letter = claimed(store)
    with refuses(store, Invalid):
        store.mail.ack(letter.id, fence=fence)


@EACH_VERB
def test_nobody_speaks_for_a_letter_that_was_never_claimed(store: Corral, verb: Verb) -> None:
    letter = store.mail.put("agent:ada", 1)
    with refuses(store, Invalid):
        verb(store, letter)


@pytest.mark.parametrize("id", ["let_99", "99"])
def test_an_unknown_letter_is_not_found(store: Corral, id: str) -> None:
    with refuses(store, NotFound):
        store.mail.ack(id, fence=1)
    with refuses(store, NotFound):
        store.mail.renew(id, fence=1)
    with refuses(store, NotFound):
        store.mail.fail(id, "no", fence=1)


@each_case("id", ["", "let_", "let_x", "prj_1", "let_1x", "-1", "let_" + "9" * 19])
def test_a_text_that_is_no_letters_id_is_refused(store: Corral, id: str) -> None:
    with refuses(store, Invalid):
        store.mail.get(id)
    with refuses(store, Invalid):
        store.mail.ack(id, fence=1)
    with refuses(store, Invalid):
        store.mail.resend(id)


# -- renew -----------------------------------------------------------------------------------


@BOTH
def test_a_renewed_letter_stays_out_for_another_term(
    store: Corral, clock: ManualClock, box: str
) -> None:
    letter = claimed(store, box)
    clock.advance(20 * SECOND)
    renewed = store.mail.renew(letter, lease_ms=30 * SECOND)
    assert renewed.due_at == clock.now() + 30 * SECOND
    assert (renewed.fence, renewed.attempts) == (letter.fence, letter.attempts)
    clock.advance(30 * SECOND - 1)
    assert store.mail.claim(box, owner="b") == []
    clock.advance(1)
    assert [taken.id for taken in store.mail.claim(box, owner="b")] == [letter.id]


def test_a_renewal_is_no_event(store: Corral) -> None:
    store.mail.renew(claimed(store))
    assert record(store) == ["letter.put"]


def test_a_renewed_letter_keeps_its_place_in_line(store: Corral, clock: ManualClock) -> None:
    letter = claimed(store)
    store.mail.put("agent:ada", "second")
    store.mail.renew(letter, lease_ms=SECOND)
    clock.advance(SECOND)
    taken = store.mail.claim("agent:ada", owner="b", limit=2)
    assert [letter.body for letter in taken] == ["hello", "second"]


def test_in_a_queue_a_lease_that_ran_out_may_be_renewed_while_nobody_took_the_letter(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("queue:builds", "hello")
    (letter,) = store.mail.claim("queue:builds", owner="a")
    clock.advance(MINUTE)
    store.mail.renew(letter)
    assert store.mail.claim("queue:builds", owner="b") == []


def test_where_order_matters_a_lease_that_ran_out_is_not_renewed(
    store: Corral, clock: ManualClock
) -> None:
    """Another owner may have gone on with the mailbox since; two must not have letters out."""
    letter = claimed(store)
    clock.advance(MINUTE)
    store.mail.put("agent:ada", "urgent", priority=5)
    (urgent,) = store.mail.claim("agent:ada", owner="b")
    with refuses(store, Held):
        store.mail.renew(letter)
    assert store.mail.ack(urgent).state == "done"


def test_a_letter_that_ended_is_not_renewed(store: Corral) -> None:
    letter = claimed(store)
    store.mail.ack(letter)
    with refuses(store, Held) as caught:
        store.mail.renew(letter)
    assert caught.value.details["state"] == "done"


def test_a_letter_that_was_given_back_is_not_renewed(store: Corral) -> None:
    letter = claimed(store)
    store.mail.fail(letter, "no")
    with refuses(store, Held):
        store.mail.renew(letter)


def test_a_letter_that_is_in_doubt_is_renewed_too(store: Corral, clock: ManualClock) -> None:
    letter = store.mail.begin_delivery(claimed(store))
    assert store.mail.renew(letter, lease_ms=DAY).due_at == clock.now() + DAY


@each_case("lease_ms", [0, 999, DAY + 1, -1])
def test_a_term_out_of_bounds_is_refused(store: Corral, lease_ms: int) -> None:
    letter = claimed(store)
    with refuses(store, Invalid):
        store.mail.renew(letter, lease_ms=lease_ms)


# -- ack and claim ---------------------------------------------------------------------------


@BOTH
def test_ack_and_claim_ends_one_letter_and_takes_the_next(store: Corral, box: str) -> None:
    letter = claimed(store, box)
    store.mail.put(box, "second")
    (second,) = store.mail.ack_and_claim(letter, owner="a", lease_ms=MINUTE)
    assert (second.body, second.owner, second.fence) == ("second", "a", 1)
    assert store.mail.get(letter.id).state is LetterState.DONE
    assert record(store) == ["letter.put", "letter.put", "letter.ack"]


@BOTH
def test_ack_and_claim_gives_nothing_when_nothing_is_left(store: Corral, box: str) -> None:
    letter = claimed(store, box)
    assert store.mail.ack_and_claim(letter, owner="a") == []
    assert store.mail.get(letter.id).state is LetterState.DONE


@BOTH
def test_ack_and_claim_gives_the_next_to_another_owner_as_well(store: Corral, box: str) -> None:
    letter = claimed(store, box, owner="a")
    store.mail.put(box, "second")
    (second,) = store.mail.ack_and_claim(letter, owner="b")
    assert second.owner == "b"


@each_case("arguments", [{"limit": 0}, {"lease_ms": 1}, {"owner": ""}, {"owner": "\0"}], ids=ascii)
@BOTH
def test_a_claim_that_cannot_work_takes_the_ack_back_with_it(
    store: Corral, box: str, arguments: dict[str, object]
) -> None:
    letter = claimed(store, box)
    with refuses(store, Invalid):
        store.mail.ack_and_claim(letter, **{"owner": "a", **arguments})
    assert store.mail.get(letter.id).state is LetterState.WAITING


def test_a_letter_that_was_turned_away_cannot_be_acknowledged(store: Corral) -> None:
    letter = claimed(store)
    store.mail.drop(letter.id)
    with refuses(store, IllegalMove) as caught:
        store.mail.ack(letter)
    assert caught.value.details["state"] == "refused"
    assert caught.value.details["allowed"] == ["resend"]


def test_an_ack_gives_back_the_letter_as_it_is_and_not_as_it_was_claimed(
    store: Corral, clock: ManualClock
) -> None:
    """Nothing of it is read again: what may have changed under the same fence ends with it."""
    for box in ("queue:work", "agent:ada"):
        store.mail.put(box, {"long": "body"}, sender="user:me", expires_at=clock.now() + HOUR)
        (claimed,) = store.mail.claim(box, owner="me", lease_ms=SECOND)
        clock.advance(SECOND // 2)
        store.mail.renew(claimed)
        store.mail.begin_delivery(claimed)
        done = store.mail.ack(claimed)
        assert done == store.mail.get(claimed.id)
        assert (done.due_at, done.queue_at, done.ended_at) == (clock.now(),) * 3
        clock.advance(SECOND)
        assert store.mail.ack(claimed) == done
        assert store.mail.ack(claimed.id, fence=claimed.fence) == done
