"""Order of the event feed on PostgreSQL: a late commit is never skipped."""

import psycopg
import pytest

import corral
from corral.api import Corral
from corral.api import events as library_events
from corral.api.events import MAX_PAUSE, MIN_PAUSE
from corral.db import postgres_maintenance
from corral.db.types import Finding
from corral.domain.mail import ops as mail
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import CorralError

pytestmark = pytest.mark.slow  # PostgreSQL only
INSERT = "INSERT INTO events (at, actor, kind, verb, subject) VALUES (1, 'x', 'k', 'v', %s)"


@pytest.fixture
def engine() -> str:
    """PostgreSQL only: SQLite assigns the number under the lock that commits."""
    return "postgres"


def read_subjects(store: Corral, cursor: str | None = None) -> tuple[list[str], str | None]:
    page = store.events.after(cursor)
    return [event.subject for event in page.items], page.next


def test_event_that_commits_late_is_not_skipped(store: Corral, url: str) -> None:
    with psycopg.connect(url) as slow, psycopg.connect(url) as fast:
        slow.execute(INSERT, ["slow"])  # number 1, not committed
        fast.execute(INSERT, ["fast"])  # number 2
        fast.commit()
        subjects_before, cursor = read_subjects(store)
        assert subjects_before == [], "event 2 is held back until transaction 1 ends"
        slow.commit()
        subjects_after, _ = read_subjects(store, cursor)
    assert subjects_after == ["slow", "fast"]


def test_reader_sees_every_event_once_in_any_commit_order(store: Corral, url: str) -> None:
    subjects: list[str] = []
    cursor: str | None = None

    def read() -> None:
        nonlocal cursor
        page_subjects, cursor = read_subjects(store, cursor)
        subjects.extend(page_subjects)

    writers = [psycopg.connect(url) for _ in range(4)]
    try:
        for n, writer in enumerate(writers):
            writer.execute(INSERT, [f"w{n}"])
            read()
        for n in (2, 0, 3, 1):
            writers[n].commit()
            read()
    finally:
        for writer in writers:
            writer.close()
    assert sorted(subjects) == ["w0", "w1", "w2", "w3"]
    assert len(subjects) == 4


def test_rolled_back_number_does_not_hold_back_the_feed(store: Corral, url: str) -> None:
    with psycopg.connect(url) as slow:
        slow.execute(INSERT, ["never"])
        store.mail.put("agent:ada", 1)
        assert read_subjects(store)[0] == []
        slow.rollback()
    assert read_subjects(store)[0] == ["let_1"]


def test_transaction_with_a_late_second_event_appears_whole(store: Corral, url: str) -> None:
    with psycopg.connect(url) as slow:
        slow.execute(INSERT, ["slow 1"])
        store.mail.put("agent:ada", 1)
        slow.execute(INSERT, ["slow 2"])  # a number behind that of the letter
        slow.commit()
    subjects, _ = read_subjects(store)
    assert sorted(subjects) == ["let_1", "slow 1", "slow 2"]
    paginated, cursor = [], None
    for _ in range(3):
        page = store.events.after(cursor, limit=1)
        paginated += [event.subject for event in page.items]
        cursor = page.next
    assert paginated == subjects, "pages of one event have the same order"


def test_newest_events_wait_for_a_slow_transaction(store: Corral, url: str) -> None:
    with psycopg.connect(url) as slow:
        slow.execute(INSERT, ["slow"])
        store.mail.put("agent:ada", 1)
        end = store.events.newest().next
        slow.commit()
    assert sorted(read_subjects(store, end)[0]) == ["let_1", "slow"]


def test_transactions_of_the_same_store_are_held_back_too(
    store: Corral, url: str, clock: ManualClock
) -> None:
    with corral.open(url, clock=clock) as other_store, other_store.transaction() as tx:
        slow = mail.put(tx, "agent:ada", "slow")
        fast = store.mail.put("queue:x", "fast")
        assert read_subjects(store)[0] == []
    assert read_subjects(store)[0] == [slow.id, fast.id]


def test_read_only_transaction_does_not_hold_back_the_feed(store: Corral, url: str) -> None:
    with psycopg.connect(url) as reader:
        reader.execute("SELECT count(*) FROM events")
        store.mail.put("agent:ada", 1)
        assert read_subjects(store)[0] == ["let_1"]


def test_rejected_operation_does_not_hold_back_the_feed(store: Corral) -> None:
    with pytest.raises(CorralError):
        store.mail.drop("let_9")
    store.mail.put("agent:ada", 1)
    assert read_subjects(store)[0] == ["let_1"]


def test_check_names_the_transaction_that_holds_back_the_feed(
    store: Corral, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_feed() -> Finding:
        return next(finding for finding in store.db.check() if finding.check == "feed")

    with psycopg.connect(url, application_name="report") as slow:
        slow.execute("SELECT 1")  # a transaction that only reads does not hold back the feed
        monkeypatch.setattr(postgres_maintenance, "LONG_TRANSACTION_MS", 0)
        assert "report" not in check_feed().message
        slow.execute(INSERT, ["slow"])
        process = slow.info.backend_pid
        warning = check_feed()
        assert warning.state == "warning"
        assert f"process {process} (report, database {slow.info.dbname})" in warning.message
        assert f"pg_terminate_backend({process})" in warning.message
        monkeypatch.undo()
        assert check_feed().state == "ok", "the transaction is not open for long"


def test_follower_backs_off_while_the_feed_is_held_back(
    store: Corral, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    with psycopg.connect(url) as slow, monkeypatch.context() as patch:
        patch.setattr(library_events, "_sleep", lambda _, seconds, __: pauses.append(seconds))
        slow.execute(INSERT, ["slow"])
        store.mail.put("agent:ada", 1)
        stops = iter([False] * 9 + [True])
        assert list(store.events.follow("0-0", is_finished=lambda: next(stops))) == []
        assert pauses == sorted(pauses)
        assert (len(pauses), pauses[0], pauses[-1]) == (10, MIN_PAUSE, MAX_PAUSE)
        slow.commit()
    feed = store.events.follow("0-0", timeout_ms=HOUR)
    assert [next(feed).subject for _ in range(2)] == ["slow", "let_1"]
    feed.close()  # type: ignore[attr-defined]
