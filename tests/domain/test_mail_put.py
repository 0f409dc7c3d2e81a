"""Put: stored fields, idempotency keys, and input validation."""

from typing import Any

import msgspec
import pytest

from corral.api import Corral
from corral.db.tx import Tx
from corral.domain.mail import sql
from corral.domain.mail.model import LetterState
from corral.kernel.clock import DAY, YEAR, ManualClock
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, rows, unchanged


def test_letter_pruned_between_insert_and_select_is_put_again(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = store.mail.put("queue:q", 1, key="k")
    first = Tx.first
    reads = []

    def miss_once(tx: Tx, query: Any, **params: Any) -> Any:
        if query is sql.BY_KEY:
            reads.append(params)
            if len(reads) == 1:
                return None
        return first(tx, query, **params)

    monkeypatch.setattr(Tx, "first", miss_once)
    assert store.mail.put("queue:q", 2, key="k") == letter
    assert len(reads) == 2


def test_put_returns_the_letter(store: Corral, clock: ManualClock) -> None:
    letter = store.mail.put(
        "agent:ada",
        {"text": "hello", "n": [1, 2.5, None, True]},
        key="k1",
        due_at=clock.now() + 5,
        priority=7,
        sender="user:eve",
        expires_at=clock.now() + 10,
        project="prj_1",
    )
    assert msgspec.structs.asdict(letter) == {
        "id": "let_1",
        "mailbox": "agent:ada",
        "sender": "user:eve",
        "project_id": "prj_1",
        "key": "k1",
        "body": {"text": "hello", "n": [1, 2.5, None, True]},
        "priority": 7,
        "state": LetterState.WAITING,
        "due_at": clock.now() + 5,
        "queue_at": clock.now() + 5,
        "expires_at": clock.now() + 10,
        "owner": None,
        "fence": 0,
        "attempts": 0,
        "last_error": None,
        "created_at": clock.now(),
        "ended_at": None,
    }
    assert store.mail.get(letter.id) == letter


def test_put_writes_one_event_with_letter_project_and_actor(store: Corral) -> None:
    letter = store.mail.put("agent:ada", "hello", project="prj_1")
    events = rows(store, "SELECT kind, verb, subject, project_id, actor, at FROM events")
    assert events == [("letter", "put", letter.id, "prj_1", "user:tester", letter.created_at)]


def test_repeated_key_returns_the_first_letter(store: Corral) -> None:
    letter = store.mail.put("agent:ada", "hello", key="k")
    with unchanged(store):
        repeated = store.mail.put("agent:ada", "changed", key="k", priority=9)
    assert repeated == letter


def test_repeated_key_returns_an_ended_letter(store: Corral) -> None:
    store.mail.put("agent:ada", "hello", key="k")
    done = store.mail.ack(store.mail.claim("agent:ada", owner="o")[0])
    with unchanged(store):
        assert store.mail.put("agent:ada", "hello", key="k") == done
    assert store.mail.claim("agent:ada", owner="o") == []


def test_same_key_in_another_mailbox_puts_another_letter(store: Corral) -> None:
    first_letter = store.mail.put("agent:ada", "hello", key="k")
    other_letter = store.mail.put("agent:bob", "hello", key="k")
    assert other_letter.id != first_letter.id


def test_letters_without_a_key_are_never_deduplicated(store: Corral) -> None:
    letter = store.mail.put("agent:ada", "hello")
    assert store.mail.put("agent:ada", "hello").id != letter.id


@each_case(
    "body",
    [
        None,
        "",
        0,
        False,
        [],
        {},
        "snowman ☃ and 🐎",
        "the six characters \\u0000 spelled out",
        'quotes " and \\ and \n',
        {"z": 1, "a": {"nested": [None]}},
        18446744073709551615,
        -9223372036854775808,
        1e300,
        2**70,
    ],
    ids=repr,
)
def test_body_can_be_any_json_value(store: Corral, body: Any) -> None:
    letter = store.mail.put("agent:ada", body)
    (claimed,) = store.mail.claim("agent:ada", owner="o")
    assert letter.body == claimed.body == store.mail.get(letter.id).body == body
    assert type(claimed.body) is type(body)


def test_order_of_keys_in_a_body_is_kept(store: Corral) -> None:
    letter = store.mail.put("agent:ada", {"z": 1, "a": 2, "m": 3})
    assert list(store.mail.get(letter.id).body) == ["z", "a", "m"]


def test_letter_due_in_the_past_has_that_queue_position(store: Corral, clock: ManualClock) -> None:
    later = store.mail.put("agent:ada", "b")
    earlier = store.mail.put("agent:ada", "a", due_at=clock.now() - DAY)
    claimed = store.mail.claim("agent:ada", owner="o", limit=2)
    assert [letter.id for letter in claimed] == [earlier.id, later.id]


def test_due_time_is_at_most_a_year_ahead(store: Corral, clock: ManualClock) -> None:
    assert store.mail.put("agent:ada", 1, due_at=clock.now() + YEAR).due_at == clock.now() + YEAR
    with raises_without_change(store, Invalid):
        store.mail.put("agent:ada", 1, due_at=clock.now() + YEAR + 1)


@each_case("priority", [-100, 0, 100])
def test_priorities_go_from_minus_100_to_100(store: Corral, priority: int) -> None:
    assert store.mail.put("agent:ada", 1, priority=priority).priority == priority


@each_case(
    "mailbox",
    [
        "",
        "ada",
        "agent:",
        "robot:ada",
        "agent:a b",
        "agent:a\n",
        "agent:a\0",
        "agent:" + "x" * 201,
        "Agent:ada",
        " agent:ada",
        "agent:\ud800",
    ],
    ids=lambda text: ascii(text)[:16],
)
def test_invalid_mailbox_is_rejected_everywhere(store: Corral, mailbox: str) -> None:
    with raises_without_change(store, Invalid):
        store.mail.put(mailbox, 1)
    with raises_without_change(store, Invalid):
        store.mail.claim(mailbox, owner="o")
    if mailbox:
        with raises_without_change(store, Invalid):
            store.mail.put("agent:ada", 1, sender=mailbox)
        with raises_without_change(store, Invalid):
            store.mail.list(mailbox=mailbox)
        with raises_without_change(store, Invalid):
            store.mail.list(mailbox=mailbox, all=True)


@each_case("mailbox", ["", "ada", "robot:ada", "agent:a\0", "agent:\ud800"], ids=ascii)
def test_next_due_rejects_an_invalid_mailbox(store: Corral, mailbox: str) -> None:
    with raises_without_change(store, Invalid):
        store.mail.next_due(mailbox)


@each_case(
    "arguments",
    [
        {"priority": 101},
        {"priority": -101},
        {"key": "a\0b"},
        {"key": "x" * 201},
        {"key": "\ud800"},
        {"expires_at": 1_800_000_000_000},
        {"expires_at": 1_800_000_000_005, "due_at": 1_800_000_000_005},
        {"project": "prj\0"},
        {"project": "\ud800"},
        {"due_at": -(2**63) - 1},
        {"expires_at": 2**63},
    ],
    ids=lambda arguments: ascii(arguments)[:24],
)
def test_put_rejects_invalid_arguments(store: Corral, arguments: dict[str, Any]) -> None:
    with raises_without_change(store, Invalid):
        store.mail.put("agent:ada", "hello", **arguments)


@each_case(
    "body",
    [
        "a\0b",
        ["a\0b"],
        {"a\0": 1},
        {"deep": [{"er": "\0"}]},
        "\ud800",
        {"\udcff": 1},
        len,
        {1: len},
    ],
    ids=[
        "nul",
        "nul in a list",
        "nul in a key",
        "nul deep inside",
        "lone surrogate",
        "lone surrogate in a key",
        "not JSON",
        "not JSON inside",
    ],
)
def test_put_rejects_a_body_that_is_not_json(store: Corral, body: Any) -> None:
    with raises_without_change(store, Invalid):
        store.mail.put("agent:ada", body)


def test_put_rejects_a_deeply_nested_body(store: Corral) -> None:
    body: list[Any] = []
    for _ in range(100_000):
        body = [body]
    with raises_without_change(store, Invalid):
        store.mail.put("agent:ada", body)


def test_put_rejects_a_body_of_ten_megabytes(store: Corral) -> None:
    with raises_without_change(store, Invalid) as caught:
        store.mail.put("agent:ada", "x" * 10_000_000)
    assert "in a file" in str(caught.value)
    assert caught.value.details["limit"] == 1024 * 1024


def test_put_accepts_a_body_of_the_maximum_size(store: Corral) -> None:
    body = "x" * (1024 * 1024 - 2)
    assert store.mail.get(store.mail.put("agent:ada", body).id).body == body
    with raises_without_change(store, Invalid):
        store.mail.put("agent:ada", body + "x")


def test_rejected_put_does_not_use_its_key(store: Corral) -> None:
    with raises_without_change(store, Invalid):
        store.mail.put("agent:ada", "\0", key="k")
    assert store.mail.put("agent:ada", "fine", key="k").body == "fine"
    assert list_events(store) == ["letter.put"]
