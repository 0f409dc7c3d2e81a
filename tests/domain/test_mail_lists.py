"""Paginated lists of letters, and the next due time."""

from typing import Any

import pytest

from corral.api import Corral
from corral.domain.mail.model import Letter
from corral.kernel.clock import DAY, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.pagination import encode_cursor
from tests.support.grouped_cases import each_case
from tests.support.store import raises_without_change, unchanged, walk

# The arguments of each list of letters.
LIST_ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"mailbox": "agent:a"},
    {"all": True},
    {"state": "dead"},
]


def list_ids(letters: list[Letter]) -> list[str]:
    return [letter.id for letter in letters]


@pytest.fixture
def seven_letters(store: Corral) -> list[Letter]:
    """Put seven letters into three mailboxes in turn."""
    mailboxes = ["agent:b", "agent:a", "queue:c", "agent:a", "agent:b", "agent:a", "queue:c"]
    return [store.mail.put(mailbox, n) for n, mailbox in enumerate(mailboxes)]


@each_case("limit", [1, 2, 3, 7, 50])
def test_waiting_letters_are_listed_by_mailbox_oldest_first(
    store: Corral, seven_letters: list[Letter], limit: int
) -> None:
    letters = walk(store.mail.list, limit=limit)
    assert letters == sorted(seven_letters, key=lambda letter: (letter.mailbox, letter.body))


@each_case("limit", [1, 2, 3, 50])
def test_waiting_letters_of_one_mailbox_are_listed_oldest_first(
    store: Corral, seven_letters: list[Letter], limit: int
) -> None:
    letters = walk(store.mail.list, limit=limit, mailbox="agent:a")
    assert [letter.body for letter in letters] == [1, 3, 5]


@pytest.mark.parametrize("limit", [1, 2, 50])
@pytest.mark.parametrize("mailbox", ["agent:a", None])
def test_waiting_letters_are_listed_in_queue_order(
    store: Corral, clock: ManualClock, limit: int, mailbox: str | None
) -> None:
    store.mail.put("agent:a", "low", priority=-1)
    store.mail.put("agent:a", "tomorrow", due_at=clock.now() + DAY)
    store.mail.put("agent:a", "now")
    store.mail.put("agent:a", "early", due_at=clock.now() - DAY)
    store.mail.put("agent:a", "high and later", priority=9, due_at=clock.now() + 1)
    store.mail.put("agent:a", "high", priority=9)
    letters = walk(store.mail.list, limit=limit, mailbox=mailbox)
    assert [letter.body for letter in letters] == [
        "high",
        "high and later",
        "early",
        "now",
        "tomorrow",
        "low",
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_all_letters_are_listed_newest_first(
    store: Corral, seven_letters: list[Letter], limit: int
) -> None:
    store.mail.drop(seven_letters[3].id)
    letters = walk(store.mail.list, limit=limit, all=True)
    assert [letter.body for letter in letters] == [6, 5, 4, 3, 2, 1, 0]
    letters = walk(store.mail.list, limit=limit, all=True, mailbox="agent:a")
    assert [letter.body for letter in letters] == [5, 3, 1]


def test_ended_and_unconfirmed_letters_are_not_listed_as_waiting(
    store: Corral, seven_letters: list[Letter]
) -> None:
    store.mail.ack(store.mail.claim("agent:a", owner="o")[0])
    store.mail.drop(seven_letters[0].id)
    store.mail.begin_delivery(store.mail.claim("agent:b", owner="o")[0])
    assert sorted(letter.body for letter in store.mail.list().items) == [2, 3, 5, 6]


@pytest.mark.parametrize("state", ["dead", "refused", "expired"])
def test_undelivered_letters_are_listed_newest_first(
    store: Corral, clock: ManualClock, state: str
) -> None:
    store.settings.set("mail.max_attempts", 1)
    for n in range(5):
        store.mail.put("queue:x", n, expires_at=clock.now() + MINUTE)
    if state == "expired":
        clock.advance(MINUTE)
        store.internal.mail.expire_due()
    for letter in store.mail.claim("queue:x", owner="o", limit=10):
        end = store.mail.fail if state == "dead" else store.mail.refuse
        end(letter, "no")
    assert [letter.body for letter in walk(store.mail.list, state=state)] == [4, 3, 2, 1, 0]
    other_states = {"dead", "refused", "expired"} - {state}
    assert all(store.mail.list(state=other_state).items == [] for other_state in other_states)
    if state == "dead":
        assert [letter.body for letter in walk(store.mail.dead)] == [4, 3, 2, 1, 0]


def test_letters_put_between_two_pages_do_not_shift_the_list(
    store: Corral, seven_letters: list[Letter]
) -> None:
    letters = walk(store.mail.list, all=True, between=lambda: store.mail.put("agent:a", "new"))
    assert list_ids(letters) == list_ids(seven_letters[::-1])
    expected = list_ids(walk(store.mail.list, limit=100))
    letters = walk(store.mail.list, between=lambda: store.mail.put("agent:0", "sorts before"))
    assert list_ids(letters) == expected


def test_letters_put_behind_a_page_are_on_the_next_one(
    store: Corral, seven_letters: list[Letter]
) -> None:
    page = store.mail.list(mailbox="agent:b", limit=1)
    late_letter = store.mail.put("agent:b", "late")
    store.mail.put("agent:b", "urgent", priority=9)
    next_page = store.mail.list(mailbox="agent:b", limit=5, after=page.next)
    assert [letter.body for letter in next_page.items] == [4, late_letter.body]
    assert next_page.next is None


def test_letter_that_ends_between_two_pages_does_not_shift_the_list(
    store: Corral, seven_letters: list[Letter]
) -> None:
    page = store.mail.list(limit=3)
    for letter in page.items:
        store.mail.drop(letter.id)
    next_page = store.mail.list(limit=10, after=page.next)
    assert [letter.body for letter in next_page.items] == [0, 4, 2, 6]


def test_full_last_page_has_no_next_cursor(store: Corral, seven_letters: list[Letter]) -> None:
    assert store.mail.list(limit=7).next is None
    assert store.mail.list(limit=6).next is not None


@pytest.mark.parametrize(
    "name",
    ["plain", "\U0001f469\u200d\U0001f4bb", "soft\u00adhyphen", "x\x7f", "ü☃", "'\"\\%_"],
    ids=ascii,
)
def test_list_continues_after_a_mailbox_of_any_name(store: Corral, name: str) -> None:
    for n in range(3):
        store.mail.put(f"agent:{name}", n)
    assert [letter.body for letter in walk(store.mail.list, limit=1)] == [0, 1, 2]


def test_empty_list_is_one_empty_page(store: Corral) -> None:
    for page in (store.mail.list(), store.mail.list(all=True), store.mail.dead()):
        assert (page.items, page.next) == ([], None)


@each_case("limit", [0, -1, 1_001])
def test_limit_out_of_bounds_is_rejected(store: Corral, limit: int) -> None:
    for arguments in LIST_ARGUMENTS:
        with raises_without_change(store, Invalid):
            store.mail.list(limit=limit, **arguments)


@each_case(
    "cursor",
    [
        "",
        "invalid",
        "☃",
        "\ud800",
        "\0",
        encode_cursor("agent:a"),
        encode_cursor(1, "agent:a"),
        encode_cursor("agent:a", 0, 0, 2**70),
        encode_cursor("agent:a", -(2**70), 0, 0),
        encode_cursor("agent:\0", 0, 0, 1),
        encode_cursor(2**70),
        encode_cursor(-(2**70)),
    ],
    ids=lambda text: ascii(text)[:16],
)
def test_invalid_cursor_is_rejected(store: Corral, cursor: str) -> None:
    for arguments in LIST_ARGUMENTS:
        with raises_without_change(store, Invalid):
            store.mail.list(after=cursor, **arguments)


def test_cursor_of_another_list_is_rejected(store: Corral, seven_letters: list[Letter]) -> None:
    by_mailbox = store.mail.list(limit=1).next
    by_number = store.mail.list(limit=1, all=True).next
    with raises_without_change(store, Invalid):
        store.mail.list(all=True, after=by_mailbox)
    with raises_without_change(store, Invalid):
        store.mail.list(after=by_number)
    with raises_without_change(store, Invalid):
        store.mail.list(after=by_number, mailbox="agent:a")


def test_cursor_of_another_mailbox_is_rejected(store: Corral, seven_letters: list[Letter]) -> None:
    cursor = store.mail.list(limit=1, mailbox="agent:a").next
    with raises_without_change(store, Invalid):
        store.mail.list(after=cursor, mailbox="agent:b")


def test_list_by_an_unlisted_state_is_rejected(store: Corral) -> None:
    with raises_without_change(store, Invalid):
        store.mail.list(state="waiting")
    with raises_without_change(store, Invalid):
        store.mail.list(state="dead", mailbox="agent:a")
    with raises_without_change(store, Invalid):
        store.mail.list(state="dead", all=True)


def test_get_accepts_an_id_or_a_number(store: Corral, seven_letters: list[Letter]) -> None:
    assert store.mail.get(seven_letters[4].id) == seven_letters[4]
    assert store.mail.get(seven_letters[4].id.removeprefix("let_")) == seven_letters[4]
    with raises_without_change(store, NotFound) as caught:
        store.mail.get("let_999")
    assert caught.value.details == {"kind": "letter", "id": "let_999"}
    assert "`corral mail list`" in caught.value.message


# -- the next due time -----------------------------------------------------------------------


def test_empty_mailbox_has_no_next_due_time(store: Corral) -> None:
    store.mail.put("agent:other", 1)
    with unchanged(store):
        assert store.mail.next_due("agent:ada") is None


def test_next_due_is_the_earliest_due_time(store: Corral, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1, due_at=clock.now() + DAY, priority=9)
    store.mail.put("agent:ada", 2, due_at=clock.now() + MINUTE, priority=-9)
    store.mail.put("agent:ada", 3, due_at=clock.now() + 2 * MINUTE)
    assert store.mail.next_due("agent:ada") == clock.now() + MINUTE


@pytest.mark.parametrize("mailbox", ["agent:ada", "queue:builds"])
def test_next_due_of_a_claimed_letter_is_the_end_of_its_lease(
    store: Corral, clock: ManualClock, mailbox: str
) -> None:
    store.mail.put(mailbox, 1)
    (letter,) = store.mail.claim(mailbox, owner="o", lease_ms=7 * SECOND)
    assert store.mail.next_due(mailbox) == clock.now() + 7 * SECOND
    store.mail.ack(letter)
    assert store.mail.next_due(mailbox) is None
