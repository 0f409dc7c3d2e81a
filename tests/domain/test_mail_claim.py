"""Who gets which letter, and in which order."""

import pytest

from corral.api import Corral
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.clock import DAY, HOUR, SECOND, ManualClock
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case
from tests.support.store import record, refuses, unchanged

BOTH = pytest.mark.parametrize("box", ["agent:ada", "queue:builds"])


def bodies(letters: list[Letter]) -> list[object]:
    return [letter.body for letter in letters]


def claim_all(store: Corral, box: str, owner: str = "o") -> list[object]:
    """Every body in the order in which one owner is given them, one by one."""
    found: list[object] = []
    while taken := store.mail.claim(box, owner=owner):
        found += bodies(taken)
        store.mail.ack(taken[0])
    return found


@BOTH
def test_letters_of_one_priority_come_in_the_order_of_arrival(store: Corral, box: str) -> None:
    for n in range(12):  # past nine: the order is that of numbers, not of text
        store.mail.put(box, n)
    assert bodies(store.mail.claim(box, owner="o", limit=100)) == list(range(12))


@BOTH
def test_the_highest_priority_goes_first_and_then_the_oldest_due(
    store: Corral, clock: ManualClock, box: str
) -> None:
    store.mail.put(box, "low", priority=-5)
    store.mail.put(box, "second", due_at=clock.now() - 1)
    store.mail.put(box, "first", due_at=clock.now() - 2)
    store.mail.put(box, "high", priority=5)
    assert claim_all(store, box) == ["high", "first", "second", "low"]


def test_one_answer_of_several_letters_begins_with_the_oldest_due(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", "second", due_at=clock.now() - 1)
    store.mail.put("agent:ada", "third")
    store.mail.put("agent:ada", "first", due_at=clock.now() - 2)
    taken = store.mail.claim("agent:ada", owner="o", limit=3)
    assert bodies(taken) == ["first", "second", "third"]


def test_one_answer_of_a_queue_holds_the_oldest_due_in_the_order_in_which_they_were_put(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("queue:builds", "second", due_at=clock.now() - 1)
    store.mail.put("queue:builds", "third")
    store.mail.put("queue:builds", "first", due_at=clock.now() - 2)
    assert bodies(store.mail.claim("queue:builds", owner="o", limit=2)) == ["second", "first"]
    assert bodies(store.mail.claim("queue:builds", owner="o", limit=2)) == ["third"]


@BOTH
def test_one_answer_holds_letters_of_one_priority(store: Corral, box: str) -> None:
    for body, priority in (("a", 0), ("b", 3), ("c", 0), ("d", 3)):
        store.mail.put(box, body, priority=priority)
    assert bodies(store.mail.claim(box, owner="o", limit=10)) == ["b", "d"]
    assert bodies(store.mail.claim(box, owner="o", limit=10)) == ["a", "c"]


@BOTH
def test_a_letter_that_is_not_due_is_given_to_nobody(
    store: Corral, clock: ManualClock, box: str
) -> None:
    store.mail.put(box, "later", due_at=clock.now() + 1)
    with unchanged(store):
        assert store.mail.claim(box, owner="o") == []
    clock.advance(1)
    assert bodies(store.mail.claim(box, owner="o")) == ["later"]


@BOTH
def test_a_high_priority_that_is_not_due_does_not_hold_up_the_low_one(
    store: Corral, clock: ManualClock, box: str
) -> None:
    for priority in (9, 7, 5):
        store.mail.put(box, "tomorrow", priority=priority, due_at=clock.now() + DAY)
    store.mail.put(box, "today")
    assert claim_all(store, box) == ["today"]


@BOTH
def test_a_claim_raises_fence_and_attempts_and_moves_the_due_time_to_the_leases_end(
    store: Corral, clock: ManualClock, box: str
) -> None:
    put = store.mail.put(box, "hello")
    (taken,) = store.mail.claim(box, owner="o", lease_ms=7 * SECOND)
    assert (taken.id, taken.state, taken.owner) == (put.id, LetterState.WAITING, "o")
    assert (taken.fence, taken.attempts) == (1, 1)
    assert taken.due_at == clock.now() + 7 * SECOND
    assert store.mail.get(put.id) == taken


@BOTH
def test_a_claim_is_no_event(store: Corral, box: str) -> None:
    store.mail.put(box, "hello")
    store.mail.claim(box, owner="o")
    assert record(store) == ["letter.put"]


@BOTH
def test_a_letter_that_is_out_is_given_to_nobody_else(store: Corral, box: str) -> None:
    store.mail.put(box, "hello")
    store.mail.claim(box, owner="a")
    with unchanged(store):
        assert store.mail.claim(box, owner="b") == []
        assert store.mail.claim(box, owner="a") == []


@BOTH
def test_an_expired_lease_is_due_again_without_any_sweep(
    store: Corral, clock: ManualClock, box: str
) -> None:
    store.mail.put(box, "hello")
    store.mail.claim(box, owner="a", lease_ms=10 * SECOND)
    clock.advance(10 * SECOND - 1)
    assert store.mail.claim(box, owner="b") == []
    clock.advance(1)
    (taken,) = store.mail.claim(box, owner="b")
    assert (taken.owner, taken.fence, taken.attempts) == ("b", 2, 2)


@BOTH
def test_a_claim_takes_no_letter_of_another_mailbox(store: Corral, box: str) -> None:
    store.mail.put(box + "2", "other")
    assert store.mail.claim(box, owner="o") == []


@BOTH
def test_a_claim_takes_at_most_the_limit(store: Corral, box: str) -> None:
    for n in range(5):
        store.mail.put(box, n)
    assert bodies(store.mail.claim(box, owner="o", limit=3)) == [0, 1, 2]
    assert bodies(store.mail.claim(box, owner="o", limit=3)) == [3, 4]


@BOTH
@each_case(
    "arguments",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": 1_001},
        {"lease_ms": 999},
        {"lease_ms": DAY + 1},
        {"owner": ""},
        {"owner": "a\0b"},
        {"owner": "\ud800"},
        {"owner": "x" * 201},
    ],
    ids=lambda arguments: ascii(arguments)[:24],
)
def test_a_claim_that_cannot_work_takes_nothing(
    store: Corral, box: str, arguments: dict[str, object]
) -> None:
    store.mail.put(box, "hello")
    with refuses(store, Invalid):
        store.mail.claim(box, **{"owner": "o", **arguments})


@BOTH
def test_the_shortest_and_the_longest_lease_are_given(
    store: Corral, clock: ManualClock, box: str
) -> None:
    store.mail.put(box, 1)
    store.mail.put(box, 2)
    (short,) = store.mail.claim(box, owner="o", lease_ms=SECOND)
    (long,) = store.mail.claim(box, owner="o", lease_ms=DAY)
    assert (short.due_at, long.due_at) == (clock.now() + SECOND, clock.now() + DAY)


# -- mailboxes that keep order ---------------------------------------------------------------


def test_while_one_letter_is_out_no_other_goes_to_another_owner(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    store.mail.put("agent:ada", "urgent", priority=9)
    store.mail.claim("agent:ada", owner="a")
    with unchanged(store):
        assert store.mail.claim("agent:ada", owner="b", limit=10) == []


def test_the_owner_of_a_letter_that_is_out_may_take_the_next(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    assert bodies(store.mail.claim("agent:ada", owner="a")) == [1]
    assert bodies(store.mail.claim("agent:ada", owner="a")) == [2]


def test_an_ack_lets_another_owner_have_the_next(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    (first,) = store.mail.claim("agent:ada", owner="a")
    store.mail.ack(first)
    assert bodies(store.mail.claim("agent:ada", owner="b")) == [2]


def test_all_letters_that_are_out_must_be_settled_before_another_owner_is_served(
    store: Corral,
) -> None:
    for n in (1, 2, 3):
        store.mail.put("agent:ada", n)
    first, second = store.mail.claim("agent:ada", owner="a", limit=2)
    store.mail.ack(second)
    assert store.mail.claim("agent:ada", owner="b") == []
    store.mail.ack(first)
    assert bodies(store.mail.claim("agent:ada", owner="b")) == [3]


def test_an_expired_lease_lets_another_owner_have_that_letter_first(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.claim("agent:ada", owner="a", lease_ms=SECOND)
    store.mail.put("agent:ada", 2)
    clock.advance(SECOND)
    assert bodies(store.mail.claim("agent:ada", owner="b", limit=2)) == [1, 2]


def test_a_letter_between_two_attempts_holds_its_place_in_line(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    failed = store.mail.fail(store.mail.claim("agent:ada", owner="a")[0], "no")
    with unchanged(store):
        assert store.mail.claim("agent:ada", owner="a") == []
        assert store.mail.claim("agent:ada", owner="b") == []
    clock.at = failed.due_at
    assert bodies(store.mail.claim("agent:ada", owner="b", limit=2)) == [1, 2]


def test_a_letter_between_two_attempts_does_not_hold_up_a_higher_priority(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.fail(store.mail.claim("agent:ada", owner="a")[0], "no")
    store.mail.put("agent:ada", "urgent", priority=1)
    assert bodies(store.mail.claim("agent:ada", owner="b")) == ["urgent"]


def test_a_letter_between_two_attempts_does_not_hold_up_what_stood_before_it(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", "urgent", priority=1)
    store.mail.fail(store.mail.claim("agent:ada", owner="a")[0], "no")
    store.mail.put("agent:ada", "older", due_at=clock.now() - HOUR)
    assert bodies(store.mail.claim("agent:ada", owner="a")) == ["older"]


def test_a_letter_due_tomorrow_holds_up_nothing(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", "tomorrow", due_at=clock.now() + DAY)
    store.mail.put("agent:ada", "today")
    assert bodies(store.mail.claim("agent:ada", owner="a")) == ["today"]


@each_case("kind", ["agent", "hook", "place", "session", "user"])
def test_every_kind_of_mailbox_but_the_queue_keeps_order(store: Corral, kind: str) -> None:
    mailbox = f"{kind}:{store.sessions.open().id if kind == 'session' else 'x'}"
    store.mail.put(mailbox, 1)
    store.mail.put(mailbox, 2)
    store.mail.claim(mailbox, owner="a")
    assert store.mail.claim(mailbox, owner="b") == []


# -- plain work queues -----------------------------------------------------------------------


def test_a_queue_gives_letters_to_many_owners_at_once(store: Corral) -> None:
    for n in (1, 2, 3):
        store.mail.put("queue:builds", n)
    given = [bodies(store.mail.claim("queue:builds", owner=owner)) for owner in "abcd"]
    assert given == [[1], [2], [3], []]


def test_in_a_queue_a_letter_between_two_attempts_holds_up_nothing(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("queue:builds", 1)
    store.mail.put("queue:builds", 2)
    failed = store.mail.fail(store.mail.claim("queue:builds", owner="a")[0], "no")
    assert bodies(store.mail.claim("queue:builds", owner="a")) == [2]
    clock.at = failed.due_at
    assert bodies(store.mail.claim("queue:builds", owner="a")) == [1]


def test_in_a_queue_a_letter_whose_lease_ran_out_stands_behind_those_that_waited(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("queue:builds", 1)
    store.mail.claim("queue:builds", owner="a", lease_ms=SECOND)
    store.mail.put("queue:builds", 2)
    clock.advance(SECOND)
    assert bodies(store.mail.claim("queue:builds", owner="b")) == [2]
    assert bodies(store.mail.claim("queue:builds", owner="b")) == [1]


# -- waiting for a letter --------------------------------------------------------------------


def test_a_claim_that_waits_gives_up_when_its_time_is_over(store: Corral) -> None:
    assert store.mail.claim("agent:ada", owner="o", wait_ms=30) == []


def test_a_claim_that_waits_takes_what_is_there_at_once(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    assert bodies(store.mail.claim("agent:ada", owner="o", wait_ms=60_000)) == [1]
