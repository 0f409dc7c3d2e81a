"""The event log: pages, filters, cursors and followers."""

import threading
import time

import pytest

from corral.api import Corral
from corral.domain.events.model import Event
from corral.domain.mail import ops as mail
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import Invalid, NotFound
from tests.support.grouped_cases import each_case
from tests.support.store import raises_without_change, rows, unchanged
from tests.support.threads import SECONDS


def list_subjects(events: list[Event]) -> list[str]:
    return [event.subject for event in events]


def test_event_has_actor_verb_subject_and_time(store: Corral, clock: ManualClock) -> None:
    letter = store.mail.put("agent:ada", 1, project="prj_1")
    clock.advance(5)
    store.mail.drop(letter.id, reason="a mistake")
    put_event, drop_event = store.events.after().items
    assert (put_event.kind, put_event.verb, put_event.subject, put_event.data) == (
        "letter",
        "put",
        letter.id,
        None,
    )
    assert (put_event.at, put_event.actor, put_event.project_id) == (
        letter.created_at,
        "user:tester",
        "prj_1",
    )
    assert put_event.id == "evt_1"
    assert (drop_event.verb, drop_event.at, drop_event.data) == (
        "drop",
        clock.now(),
        {"reason": "a mistake"},
    )


def test_empty_log_is_an_empty_page(store: Corral) -> None:
    assert store.events.after().items == []
    assert store.events.newest().items == []


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_feed_is_read_to_its_end_in_order(store: Corral, limit: int) -> None:
    letters = [store.mail.put("agent:ada", n).id for n in range(7)]
    events: list[str] = []
    cursor = None
    while page := store.events.after(cursor, limit=limit):
        if not page.items:
            break
        events += list_subjects(page.items)
        cursor = page.next
    assert events == letters


def test_feed_without_new_events_returns_the_given_cursor(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    end = store.events.after().next
    assert store.events.after(end).next == end
    letter = store.mail.put("agent:ada", 2)
    assert list_subjects(store.events.after(end).items) == [letter.id]


def test_cursor_of_each_event_continues_after_it(store: Corral) -> None:
    letters = [store.mail.put("agent:ada", n).id for n in range(4)]
    events = store.events.after().items
    assert list_subjects(events) == letters
    for n, event in enumerate(events):
        assert list_subjects(store.events.after(event.cursor).items) == letters[n + 1 :]


def test_events_of_one_transaction_keep_their_order(store: Corral) -> None:
    with store.transaction() as tx:
        letters = [mail.put(tx, "agent:ada", n).id for n in range(5)]
    events: list[str] = []
    cursor = None
    for _ in letters:
        page = store.events.after(cursor, limit=1)
        events += list_subjects(page.items)
        cursor = page.next
    assert events == letters


def test_feed_can_be_filtered_by_subject(store: Corral) -> None:
    first_letter = store.mail.put("agent:ada", 1)
    second_letter = store.mail.put("agent:ada", 2)
    store.mail.drop(first_letter.id)
    store.mail.drop(second_letter.id)
    events = store.events.after(subject=first_letter.id).items
    assert [event.verb for event in events] == ["put", "drop"]
    next_events = store.events.after(events[0].cursor, subject=first_letter.id).items
    assert [event.verb for event in next_events] == ["drop"]
    assert store.events.after(subject="unknown").items == []


def test_feed_can_be_filtered_by_project(store: Corral) -> None:
    for n, project in enumerate(("prj_1", "prj_2", None, "prj_1")):
        store.mail.put("agent:ada", n, project=project)
    events = store.events.after(project="prj_1", limit=1)
    next_page = store.events.after(events.next, project="prj_1")
    assert list_subjects(events.items + next_page.items) == ["let_1", "let_4"]


def test_newest_events_are_listed_oldest_first(store: Corral) -> None:
    letters = [store.mail.put("agent:ada", n, project="prj_1").id for n in range(5)]
    page = store.events.newest(limit=2)
    assert list_subjects(page.items) == letters[-2:]
    letter = store.mail.put("agent:ada", 9)
    assert list_subjects(store.events.after(page.next).items) == [letter.id]
    assert list_subjects(store.events.newest(project="prj_1", limit=2).items) == letters[-2:]
    assert list_subjects(store.events.newest(subject=letters[1]).items) == [letters[1]]


def test_subject_and_project_cannot_be_combined(store: Corral) -> None:
    with raises_without_change(store, Invalid):
        store.events.after(subject="a", project="b")
    with raises_without_change(store, Invalid):
        store.events.newest(subject="a", project="b")


@each_case("limit", [0, -1, 1_001])
def test_limit_out_of_range_is_rejected(store: Corral, limit: int) -> None:
    with raises_without_change(store, Invalid):
        store.events.after(limit=limit)
    with raises_without_change(store, Invalid):
        store.events.newest(limit=limit)


@each_case(
    "cursor",
    [
        "x",
        "-1",
        "1-",
        "-",
        "1-2-3",
        " 1",
        "1 ",
        "1.5",
        "evt_1",
        "0x1",
        "1\n",
        "\u0663",
        "\u0663-\u0663",
        "1-" + "9" * 19,
        "9" * 20 + "-1",
        "9" * 21 + "-1",
        "\0",
        "\ud800",
    ],
    ids=ascii,
)
def test_invalid_cursor_is_rejected(store: Corral, cursor: str) -> None:
    with raises_without_change(store, Invalid):
        store.events.after(cursor)


@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=ascii)
def test_invalid_subject_or_project_is_rejected(store: Corral, text: str) -> None:
    for call in (store.events.after, store.events.newest):
        with raises_without_change(store, Invalid):
            call(subject=text)
        with raises_without_change(store, Invalid):
            call(project=text)


def test_reading_events_writes_nothing(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    with unchanged(store):
        store.events.after()
        store.events.newest()


def test_rolled_back_transaction_leaves_no_event(store: Corral) -> None:
    with pytest.raises(NotFound), store.transaction() as tx:
        mail.drop(tx, mail.put(tx, "agent:ada", 1).id + "0")
    assert store.events.after().items == []
    assert rows(store, "SELECT count(*) FROM letters") == [(0,)]


# -- following -------------------------------------------------------------------------------


def test_follow_ends_after_its_timeout(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    began = time.monotonic()
    assert list(store.events.follow(timeout_ms=50)) == []
    assert time.monotonic() - began >= 0.05


def test_follow_from_a_cursor_starts_with_existing_events(store: Corral) -> None:
    letters = [store.mail.put("agent:ada", n).id for n in range(3)]
    cursor = store.events.after(limit=1).next
    assert list_subjects(list(store.events.follow(cursor, timeout_ms=30))) == letters[1:]
    assert list_subjects(list(store.events.follow("0", timeout_ms=30))) == letters


def test_follow_can_be_filtered(store: Corral) -> None:
    letter = store.mail.put("agent:ada", 1, project="prj_1")
    store.mail.put("agent:ada", 2)
    assert list_subjects(list(store.events.follow("0", subject=letter.id, timeout_ms=30))) == [
        letter.id
    ]
    assert list_subjects(list(store.events.follow("0", project="prj_1", timeout_ms=30))) == [
        letter.id
    ]


def test_follow_without_a_cursor_starts_now(store: Corral) -> None:
    store.mail.put("agent:ada", "before")
    received: list[str] = []
    ready = threading.Event()

    def follow() -> None:
        feed = store.events.follow(timeout_ms=HOUR)
        ready.set()
        received.append(next(feed).subject)
        feed.close()

    listener = threading.Thread(target=follow)
    listener.start()
    assert ready.wait(SECONDS)
    # The generator starts to listen at the first `next`, so put letters until one arrives.
    while listener.is_alive():
        store.mail.put("agent:ada", "after")
        listener.join(0.02)
    assert received
    assert received[0] != "let_1"


def test_follow_rejects_a_bad_cursor(store: Corral) -> None:
    with raises_without_change(store, Invalid):
        list(store.events.follow("invalid", timeout_ms=10))


def test_events_can_be_listed_backwards_from_any_cursor(store: Corral) -> None:
    letters = [store.mail.put("agent:ada", n) for n in range(5)]
    newest = store.events.newest().items
    page = store.events.before(newest[-1].cursor, limit=2)
    assert [event.subject for event in page.items] == [letters[3].id, letters[2].id]
    assert page.next is not None
    next_page = store.events.before(page.next, limit=2)
    assert [event.subject for event in next_page.items] == [letters[1].id, letters[0].id]
    assert next_page.next is None
    filtered = store.events.before(newest[-1].cursor, subject=letters[1].id)
    assert [event.subject for event in filtered.items] == [letters[1].id]
    with pytest.raises(Invalid):
        store.events.before("invalid")
