"""The letters of a mailbox and the events of a subject, whose indexes SQLite fills behind the
writer: whatever is asked, and whenever, nothing is missing and nothing comes twice."""

from collections.abc import Iterator

import apsw
import pytest

from corral.api import Corral
from corral.db.sqlite_deferred_indexes import DEFERRED_INDEXES, FILL_INTERVAL
from corral.domain.mail import ops as mail
from corral.kernel.clock import YEAR, ManualClock
from tests.support.store import rows

BOXES = ("queue:a", "queue:b")
MANY = 2 * FILL_INTERVAL + 90
"""Put by turns into two mailboxes: some of it is filed, some is not."""


@pytest.fixture
def filled(store: Corral) -> Corral:
    for number in range(MANY):
        store.mail.put(BOXES[number % 2], number)
    return store


def all_of(store: Corral, mailbox: str, limit: int) -> Iterator[int]:
    after = None
    while True:
        page = store.mail.list(mailbox=mailbox, all=True, after=after, limit=limit)
        yield from (letter.body for letter in page.items)
        after = page.next
        if after is None:
            return


@pytest.mark.parametrize("limit", [7, 500])
def test_all_letters_of_a_mailbox_are_listed_newest_first(filled: Corral, limit: int) -> None:
    for first, mailbox in enumerate(BOXES):
        expected = list(range(first, MANY, 2))[::-1]
        assert list(all_of(filled, mailbox, limit)) == expected


def test_events_are_found_before_and_after_the_filled_index(filled: Corral) -> None:
    letters = [letter for box in BOXES for letter in filled.mail.list(mailbox=box).items[:1]]
    letters += [filled.mail.list(all=True, mailbox=box).items[0] for box in BOXES]
    for letter in letters:
        filled.mail.drop(letter.id)
        assert [event.verb for event in filled.events.after(subject=letter.id).items] == [
            "put",
            "drop",
        ]
        newest = filled.events.newest(subject=letter.id, limit=1)
        assert [event.verb for event in newest.items] == ["drop"]
        assert newest.next is not None
        before = filled.events.before(newest.next, subject=letter.id).items
        assert [event.verb for event in before] == ["put"]
        put = filled.events.after(subject=letter.id, limit=1)
        assert [event.verb for event in filled.events.after(put.next, subject=letter.id).items] == [
            "drop"
        ]


def test_bulk_inserted_rows_are_found(store: Corral) -> None:
    boxes = [f"queue:{number}" for number in range(60)]
    for number in range(10):
        with store.transaction() as tx:
            mail.broadcast(tx, boxes, number, key=f"post-{number}")
    assert list(all_of(store, boxes[30], 3)) == list(range(10))[::-1]
    letter = store.mail.list(mailbox=boxes[30]).items[0]
    assert [event.verb for event in store.events.after(subject=letter.id).items] == ["put"]


def test_pruned_rows_are_removed_from_the_index(filled: Corral, clock: ManualClock) -> None:
    while letters := filled.mail.claim(BOXES[0], owner="o", limit=100):
        for letter in letters:
            filled.mail.ack(letter)
    clock.advance(3 * YEAR)
    filled.mail.put(BOXES[0], "new")
    filled.db.prune()
    assert list(all_of(filled, BOXES[0], 50)) == ["new"]
    assert list(all_of(filled, BOXES[1], 50)) == list(range(1, MANY, 2))[::-1]
    if filled.db.engine == "sqlite":
        for table, column in DEFERRED_INDEXES.items():
            kept = f"SELECT 1 FROM {table} WHERE {table}.seq = {table}_by_{column}.seq"
            left = f"SELECT seq FROM {table}_by_{column} WHERE NOT EXISTS ({kept})"
            assert rows(filled, left) == []


def test_index_is_filled_in_batches_and_not_by_a_put(filled: Corral) -> None:
    if filled.db.engine == "postgres":
        return  # it has plain indexes
    counts = {
        table: rows(filled, f"SELECT count(*) FROM {table}_by_{column}")
        for table, column in DEFERRED_INDEXES.items()
    }
    assert counts == {"events": [(2 * FILL_INTERVAL,)], "letters": [(2 * FILL_INTERVAL,)]}


@pytest.mark.parametrize("table", DEFERRED_INDEXES)
def test_view_has_all_columns_of_its_table(store: Corral, table: str) -> None:
    if store.db.engine == "postgres":
        return  # it has no views
    columns = "SELECT name FROM pragma_table_info(:name) ORDER BY name"
    view = f"{table}_of_{DEFERRED_INDEXES[table]}"
    assert rows(store, columns, name=view) == rows(store, columns, name=table)


def test_verify_finds_an_index_with_a_missing_row(filled: Corral) -> None:
    assert all(finding.state == "ok" for finding in filled.db.verify())
    if filled.db.engine == "sqlite":
        file = apsw.Connection(filled.db.url.removeprefix("sqlite:///"))
        file.execute("DELETE FROM events_by_subject WHERE seq = 5")
        file.close()
        (broken,) = (finding for finding in filled.db.verify() if finding.state == "broken")
        assert "events_by_subject" in broken.message
