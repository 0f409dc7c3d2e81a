"""Claims: which owner gets which letter, and in which order."""

import pytest

from corral.api import Corral
from corral.domain.mail.model import Letter, LetterState
from corral.kernel.clock import DAY, HOUR, SECOND, ManualClock
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, unchanged

EACH_MAILBOX_KIND = pytest.mark.parametrize("mailbox", ["agent:ada", "queue:builds"])


def list_bodies(letters: list[Letter]) -> list[object]:
    return [letter.body for letter in letters]


def claim_all(store: Corral, mailbox: str, owner: str = "o") -> list[object]:
    """Return all bodies in the order in which one owner claims the letters."""
    claimed_bodies: list[object] = []
    while claimed := store.mail.claim(mailbox, owner=owner):
        claimed_bodies += list_bodies(claimed)
        store.mail.ack(claimed[0])
    return claimed_bodies


@EACH_MAILBOX_KIND
def test_claim_returns_letters_of_one_priority_in_arrival_order(
    store: Corral, mailbox: str
) -> None:
    for n in range(12):  # more than nine: ids are ordered as numbers, not as text
        store.mail.put(mailbox, n)
    assert list_bodies(store.mail.claim(mailbox, owner="o", limit=100)) == list(range(12))


@EACH_MAILBOX_KIND
def test_claim_orders_by_priority_then_due_time(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, "low", priority=-5)
    store.mail.put(mailbox, "second", due_at=clock.now() - 1)
    store.mail.put(mailbox, "first", due_at=clock.now() - 2)
    store.mail.put(mailbox, "high", priority=5)
    assert claim_all(store, mailbox) == ["high", "first", "second", "low"]


def test_batch_claim_starts_with_the_oldest_due_letter(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", "second", due_at=clock.now() - 1)
    store.mail.put("agent:ada", "third")
    store.mail.put("agent:ada", "first", due_at=clock.now() - 2)
    claimed = store.mail.claim("agent:ada", owner="o", limit=3)
    assert list_bodies(claimed) == ["first", "second", "third"]


def test_batch_claim_from_a_queue_returns_oldest_due_in_put_order(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("queue:builds", "second", due_at=clock.now() - 1)
    store.mail.put("queue:builds", "third")
    store.mail.put("queue:builds", "first", due_at=clock.now() - 2)
    assert list_bodies(store.mail.claim("queue:builds", owner="o", limit=2)) == ["second", "first"]
    assert list_bodies(store.mail.claim("queue:builds", owner="o", limit=2)) == ["third"]


@EACH_MAILBOX_KIND
def test_batch_claim_returns_letters_of_one_priority(store: Corral, mailbox: str) -> None:
    for body, priority in (("a", 0), ("b", 3), ("c", 0), ("d", 3)):
        store.mail.put(mailbox, body, priority=priority)
    assert list_bodies(store.mail.claim(mailbox, owner="o", limit=10)) == ["b", "d"]
    assert list_bodies(store.mail.claim(mailbox, owner="o", limit=10)) == ["a", "c"]


@EACH_MAILBOX_KIND
def test_letter_that_is_not_due_is_not_claimed(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, "later", due_at=clock.now() + 1)
    with unchanged(store):
        assert store.mail.claim(mailbox, owner="o") == []
    clock.advance(1)
    assert list_bodies(store.mail.claim(mailbox, owner="o")) == ["later"]


@EACH_MAILBOX_KIND
def test_high_priority_letter_not_due_does_not_block_low_priority(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    for priority in (9, 7, 5):
        store.mail.put(mailbox, "tomorrow", priority=priority, due_at=clock.now() + DAY)
    store.mail.put(mailbox, "today")
    assert claim_all(store, mailbox) == ["today"]


@EACH_MAILBOX_KIND
def test_claim_increments_fence_and_attempts_and_sets_lease_end(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    letter = store.mail.put(mailbox, "hello")
    (claimed,) = store.mail.claim(mailbox, owner="o", lease_ms=7 * SECOND)
    assert (claimed.id, claimed.state, claimed.owner) == (letter.id, LetterState.WAITING, "o")
    assert (claimed.fence, claimed.attempts) == (1, 1)
    assert claimed.due_at == clock.now() + 7 * SECOND
    assert store.mail.get(letter.id) == claimed


@EACH_MAILBOX_KIND
def test_claim_writes_no_event(store: Corral, mailbox: str) -> None:
    store.mail.put(mailbox, "hello")
    store.mail.claim(mailbox, owner="o")
    assert list_events(store) == ["letter.put"]


@EACH_MAILBOX_KIND
def test_claimed_letter_is_not_given_to_another_owner(store: Corral, mailbox: str) -> None:
    store.mail.put(mailbox, "hello")
    store.mail.claim(mailbox, owner="a")
    with unchanged(store):
        assert store.mail.claim(mailbox, owner="b") == []
        assert store.mail.claim(mailbox, owner="a") == []


@EACH_MAILBOX_KIND
def test_letter_with_expired_lease_is_claimable_without_a_sweep(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, "hello")
    store.mail.claim(mailbox, owner="a", lease_ms=10 * SECOND)
    clock.advance(10 * SECOND - 1)
    assert store.mail.claim(mailbox, owner="b") == []
    clock.advance(1)
    (claimed,) = store.mail.claim(mailbox, owner="b")
    assert (claimed.owner, claimed.fence, claimed.attempts) == ("b", 2, 2)


@EACH_MAILBOX_KIND
def test_claim_ignores_other_mailboxes(store: Corral, mailbox: str) -> None:
    store.mail.put(mailbox + "2", "other")
    assert store.mail.claim(mailbox, owner="o") == []


@EACH_MAILBOX_KIND
def test_claim_returns_at_most_limit_letters(store: Corral, mailbox: str) -> None:
    for n in range(5):
        store.mail.put(mailbox, n)
    assert list_bodies(store.mail.claim(mailbox, owner="o", limit=3)) == [0, 1, 2]
    assert list_bodies(store.mail.claim(mailbox, owner="o", limit=3)) == [3, 4]


@EACH_MAILBOX_KIND
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
def test_invalid_claim_claims_nothing(
    store: Corral, mailbox: str, arguments: dict[str, object]
) -> None:
    store.mail.put(mailbox, "hello")
    with raises_without_change(store, Invalid):
        store.mail.claim(mailbox, **{"owner": "o", **arguments})


@EACH_MAILBOX_KIND
def test_shortest_and_longest_lease_are_accepted(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, 1)
    store.mail.put(mailbox, 2)
    (short_lease,) = store.mail.claim(mailbox, owner="o", lease_ms=SECOND)
    (long_lease,) = store.mail.claim(mailbox, owner="o", lease_ms=DAY)
    assert (short_lease.due_at, long_lease.due_at) == (clock.now() + SECOND, clock.now() + DAY)


# -- ordered mailboxes -----------------------------------------------------------------------


def test_ordered_mailbox_is_blocked_while_a_letter_is_claimed(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    store.mail.put("agent:ada", "urgent", priority=9)
    store.mail.claim("agent:ada", owner="a")
    with unchanged(store):
        assert store.mail.claim("agent:ada", owner="b", limit=10) == []


def test_owner_of_a_claimed_letter_may_claim_the_next(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    assert list_bodies(store.mail.claim("agent:ada", owner="a")) == [1]
    assert list_bodies(store.mail.claim("agent:ada", owner="a")) == [2]


def test_ack_lets_another_owner_claim_the_next(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    (letter,) = store.mail.claim("agent:ada", owner="a")
    store.mail.ack(letter)
    assert list_bodies(store.mail.claim("agent:ada", owner="b")) == [2]


def test_all_claimed_letters_must_end_before_another_owner_claims(
    store: Corral,
) -> None:
    for n in (1, 2, 3):
        store.mail.put("agent:ada", n)
    first_letter, second_letter = store.mail.claim("agent:ada", owner="a", limit=2)
    store.mail.ack(second_letter)
    assert store.mail.claim("agent:ada", owner="b") == []
    store.mail.ack(first_letter)
    assert list_bodies(store.mail.claim("agent:ada", owner="b")) == [3]


def test_after_lease_expiry_another_owner_claims_that_letter_first(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.claim("agent:ada", owner="a", lease_ms=SECOND)
    store.mail.put("agent:ada", 2)
    clock.advance(SECOND)
    assert list_bodies(store.mail.claim("agent:ada", owner="b", limit=2)) == [1, 2]


def test_letter_in_back_off_keeps_its_queue_position(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.put("agent:ada", 2)
    failed = store.mail.fail(store.mail.claim("agent:ada", owner="a")[0], "no")
    with unchanged(store):
        assert store.mail.claim("agent:ada", owner="a") == []
        assert store.mail.claim("agent:ada", owner="b") == []
    clock.at = failed.due_at
    assert list_bodies(store.mail.claim("agent:ada", owner="b", limit=2)) == [1, 2]


def test_letter_in_back_off_does_not_block_a_higher_priority(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    store.mail.fail(store.mail.claim("agent:ada", owner="a")[0], "no")
    store.mail.put("agent:ada", "urgent", priority=1)
    assert list_bodies(store.mail.claim("agent:ada", owner="b")) == ["urgent"]


def test_letter_in_back_off_does_not_block_letters_before_it(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("agent:ada", "urgent", priority=1)
    store.mail.fail(store.mail.claim("agent:ada", owner="a")[0], "no")
    store.mail.put("agent:ada", "older", due_at=clock.now() - HOUR)
    assert list_bodies(store.mail.claim("agent:ada", owner="a")) == ["older"]


def test_letter_due_later_blocks_nothing(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", "tomorrow", due_at=clock.now() + DAY)
    store.mail.put("agent:ada", "today")
    assert list_bodies(store.mail.claim("agent:ada", owner="a")) == ["today"]


@each_case("kind", ["agent", "hook", "place", "session", "user"])
def test_all_mailbox_kinds_except_queue_are_ordered(store: Corral, kind: str) -> None:
    mailbox = f"{kind}:{store.sessions.open().id if kind == 'session' else 'x'}"
    store.mail.put(mailbox, 1)
    store.mail.put(mailbox, 2)
    store.mail.claim(mailbox, owner="a")
    assert store.mail.claim(mailbox, owner="b") == []


# -- work queues -----------------------------------------------------------------------------


def test_queue_gives_letters_to_several_owners_at_once(store: Corral) -> None:
    for n in (1, 2, 3):
        store.mail.put("queue:builds", n)
    claims = [list_bodies(store.mail.claim("queue:builds", owner=owner)) for owner in "abcd"]
    assert claims == [[1], [2], [3], []]


def test_queue_letter_in_back_off_blocks_nothing(store: Corral, clock: ManualClock) -> None:
    store.mail.put("queue:builds", 1)
    store.mail.put("queue:builds", 2)
    failed = store.mail.fail(store.mail.claim("queue:builds", owner="a")[0], "no")
    assert list_bodies(store.mail.claim("queue:builds", owner="a")) == [2]
    clock.at = failed.due_at
    assert list_bodies(store.mail.claim("queue:builds", owner="a")) == [1]


def test_queue_letter_with_expired_lease_is_behind_waiting_letters(
    store: Corral, clock: ManualClock
) -> None:
    store.mail.put("queue:builds", 1)
    store.mail.claim("queue:builds", owner="a", lease_ms=SECOND)
    store.mail.put("queue:builds", 2)
    clock.advance(SECOND)
    assert list_bodies(store.mail.claim("queue:builds", owner="b")) == [2]
    assert list_bodies(store.mail.claim("queue:builds", owner="b")) == [1]


# -- waiting for a letter --------------------------------------------------------------------


def test_waiting_claim_times_out(store: Corral) -> None:
    assert store.mail.claim("agent:ada", owner="o", wait_ms=30) == []


def test_waiting_claim_returns_available_letters_immediately(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    assert list_bodies(store.mail.claim("agent:ada", owner="o", wait_ms=60_000)) == [1]
