"""Deferred indexes of SQLite: lists of letters and events are complete while they are filled."""

from collections.abc import Iterator

import apsw
import pytest

from corral.api import Corral
from corral.db.sqlite_deferred_indexes import DEFERRED_INDEXES, FILL_INTERVAL
from corral.domain.mail import ops as mail
from corral.kernel.clock import YEAR, ManualClock
from tests.support.store import rows

MAILBOXES = ("queue:a", "queue:b")
LETTERS = 2 * FILL_INTERVAL + 90
"""Enough letters that a part is in the index and a part is not."""


@pytest.fixture
def filled_store(store: Corral) -> Corral:
    for number in range(LETTERS):
        store.mail.put(MAILBOXES[number % 2], number)
    return store


def iterate_bodies(store: Corral, mailbox: str, limit: int) -> Iterator[int]:
    after = None
    while True:
        page = store.mail.list(mailbox=mailbox, all=True, after=after, limit=limit)
        yield from (letter.body for letter in page.items)
        after = page.next
        if after is None:
            return


@pytest.mark.parametrize("limit", [7, 500])
def test_all_letters_of_a_mailbox_are_listed_newest_first(filled_store: Corral, limit: int) -> None:
    for offset, mailbox in enumerate(MAILBOXES):
        expected = list(range(offset, LETTERS, 2))[::-1]
        assert list(iterate_bodies(filled_store, mailbox, limit)) == expected


def test_events_are_found_before_and_after_the_filled_index(filled_store: Corral) -> None:
    letters = [
        letter
        for mailbox in MAILBOXES
        for letter in filled_store.mail.list(mailbox=mailbox).items[:1]
    ]
    letters += [filled_store.mail.list(all=True, mailbox=mailbox).items[0] for mailbox in MAILBOXES]
    for letter in letters:
        filled_store.mail.drop(letter.id)
        assert [event.verb for event in filled_store.events.after(subject=letter.id).items] == [
            "put",
            "drop",
        ]
        newest = filled_store.events.newest(subject=letter.id, limit=1)
        assert [event.verb for event in newest.items] == ["drop"]
        assert newest.next is not None
        earlier = filled_store.events.before(newest.next, subject=letter.id).items
        assert [event.verb for event in earlier] == ["put"]
        put = filled_store.events.after(subject=letter.id, limit=1)
        assert [
            event.verb for event in filled_store.events.after(put.next, subject=letter.id).items
        ] == ["drop"]


def test_bulk_inserted_rows_are_found(store: Corral) -> None:
    mailboxes = [f"queue:{number}" for number in range(60)]
    for number in range(10):
        with store.transaction() as tx:
            mail.broadcast(tx, mailboxes, number, key=f"post-{number}")
    assert list(iterate_bodies(store, mailboxes[30], 3)) == list(range(10))[::-1]
    letter = store.mail.list(mailbox=mailboxes[30]).items[0]
    assert [event.verb for event in store.events.after(subject=letter.id).items] == ["put"]


def test_pruned_rows_are_removed_from_the_index(filled_store: Corral, clock: ManualClock) -> None:
    while letters := filled_store.mail.claim(MAILBOXES[0], owner="o", limit=100):
        for letter in letters:
            filled_store.mail.ack(letter)
    clock.advance(3 * YEAR)
    filled_store.mail.put(MAILBOXES[0], "new")
    filled_store.db.prune()
    assert list(iterate_bodies(filled_store, MAILBOXES[0], 50)) == ["new"]
    assert list(iterate_bodies(filled_store, MAILBOXES[1], 50)) == list(range(1, LETTERS, 2))[::-1]
    if filled_store.db.engine == "sqlite":
        for table, column in DEFERRED_INDEXES.items():
            existing = f"SELECT 1 FROM {table} WHERE {table}.seq = {table}_by_{column}.seq"
            orphans = f"SELECT seq FROM {table}_by_{column} WHERE NOT EXISTS ({existing})"
            assert rows(filled_store, orphans) == []


def test_index_is_filled_in_batches_and_not_by_a_put(filled_store: Corral) -> None:
    if filled_store.db.engine == "postgres":
        return  # PostgreSQL has ordinary indexes
    counts = {
        table: rows(filled_store, f"SELECT count(*) FROM {table}_by_{column}")
        for table, column in DEFERRED_INDEXES.items()
    }
    assert counts == {"events": [(2 * FILL_INTERVAL,)], "letters": [(2 * FILL_INTERVAL,)]}


@pytest.mark.parametrize("table", DEFERRED_INDEXES)
def test_view_has_all_columns_of_its_table(store: Corral, table: str) -> None:
    if store.db.engine == "postgres":
        return  # PostgreSQL has no such views
    columns = "SELECT name FROM pragma_table_info(:name) ORDER BY name"
    view = f"{table}_of_{DEFERRED_INDEXES[table]}"
    assert rows(store, columns, name=view) == rows(store, columns, name=table)


def test_verify_finds_an_index_with_a_missing_row(filled_store: Corral) -> None:
    assert all(finding.state == "ok" for finding in filled_store.db.verify())
    if filled_store.db.engine == "sqlite":
        connection = apsw.Connection(filled_store.db.url.removeprefix("sqlite:///"))
        connection.execute("DELETE FROM events_by_subject WHERE seq = 5")
        connection.close()
        (finding,) = (finding for finding in filled_store.db.verify() if finding.state == "broken")
        assert "events_by_subject" in finding.message
