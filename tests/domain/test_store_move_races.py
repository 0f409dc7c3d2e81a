"""Moving a store while other processes use it, and after its mover was killed or replaced."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.api.doctor import examine
from corral.db import connect, migrations, store_move
from corral.db.postgres_connection import PostgresConnection
from corral.db.store_move_record import read_store_move
from corral.db.write_guard import MOVED_OFFSET
from corral.kernel.clock import ManualClock
from corral.kernel.errors import CorralError, Refused, StoreUnavailable
from tests.crash.harness import ALL
from tests.domain.test_store_backup import ENGINES, EVERY_ENGINE_PAIR
from tests.domain.test_store_move import UrlFactory, create_url, fill_store, kill_move, open_store
from tests.support.home import wait_until
from tests.support.invariants import check_store
from tests.support.store_urls import wait_until_alone

pytestmark = pytest.mark.slow

__all__ = ["create_url"]


def list_bodies(url: str) -> list[Any]:
    with corral.open(url, clock=ManualClock(), create=False) as store:
        return [letter.body for letter in store.mail.list(limit=100).items]


def put_if_accepted(url: str, body: str, accepted: list[Any]) -> None:
    """Open a store by one of its URLs and put a letter; record the body if it was accepted."""
    with suppress(CorralError), corral.open(url, clock=ManualClock()) as store:
        store.mail.put("agent:ada", body)
        accepted.append(body)


def move_store(url: str, moved_url: str) -> None:
    with corral.open(url, clock=ManualClock()) as store:
        store.db.move(moved_url)


# -- open handles ----------------------------------------------------------------------------------


@EVERY_ENGINE_PAIR
def test_handle_on_the_empty_target_is_rejected_until_arrival(
    create_url: UrlFactory, clock: ManualClock, source: str, target: str
) -> None:
    old_url, moved_url = create_url(source), create_url(target)
    with open_store(old_url, clock) as store, open_store(moved_url, clock) as early_handle:
        store.mail.put("agent:ada", "kept")
        rejected = []

        def put_during_move(table: str, done: int, total: int) -> None:
            with pytest.raises(StoreUnavailable) as caught:
                early_handle.mail.put("agent:ada", "during the move")
            rejected.append(caught.value.reason)

        store.db.move(moved_url, on_progress=put_during_move)
        assert set(rejected) == {"arriving"}
        early_handle.mail.put("agent:ada", "after")
    assert list_bodies(old_url) == ["kept", "after"]


@EVERY_ENGINE_PAIR
def test_handle_from_before_a_round_trip_is_rejected_until_arrival(
    create_url: UrlFactory, clock: ManualClock, source: str, target: str
) -> None:
    old_url, moved_url = create_url(source), create_url(target)
    with open_store(old_url, clock) as early_handle:
        early_handle.mail.put("agent:ada", "first")
        move_store(old_url, moved_url)
        reasons = []

        def write_during_move(*_: Any) -> None:
            for write in (
                lambda: early_handle.mail.put("agent:ada", "x"),
                lambda: open_store(old_url, clock),
            ):
                with pytest.raises(StoreUnavailable) as caught:
                    write()
                reasons.append(caught.value.reason)

        with open_store(old_url, clock) as store:
            store.db.move(old_url, on_progress=write_during_move)
        assert set(reasons) == {"arriving"}
        early_handle.mail.put("agent:ada", "back")
    assert list_bodies(moved_url) == ["first", "back"]


@EVERY_ENGINE_PAIR
def test_handle_from_before_a_move_never_answers_from_the_old_content(
    create_url: UrlFactory, clock: ManualClock, source: str, target: str
) -> None:
    """A claim that finds no letter and an error about a letter would both come from stale rows."""
    old_url, moved_url = create_url(source), create_url(target)
    with open_store(old_url, clock) as early_handle:
        early_handle.mail.put("agent:ada", "first")
        move_store(old_url, moved_url)
        with open_store(moved_url, clock) as store:
            (letter,) = store.mail.claim("agent:ada", owner="worker")
        with pytest.raises(StoreUnavailable) as caught:
            early_handle.mail.ack(letter)  # the old rows say that the letter was never claimed
        assert caught.value.reason == "moved"
        with pytest.raises(StoreUnavailable) as caught, early_handle.transaction():
            pass
        assert caught.value.reason == "moved"
        for call in (
            lambda: early_handle.mail.claim("agent:bob", owner="worker"),
            lambda: early_handle.mail.list(),
            lambda: early_handle.runs.list(),
        ):
            wait_until_moved(call)


def wait_until_moved(call: Callable[[], object]) -> None:
    """Wait until the call is refused; a handle may cache the location for a second."""

    def is_refused() -> bool:
        try:
            call()
        except StoreUnavailable as error:
            return error.reason == "moved"
        return False

    wait_until(is_refused, "the handle refuses the call", seconds=60)


def test_moving_with_a_handle_whose_store_was_moved_is_rejected(
    create_url: UrlFactory, clock: ManualClock, url: str
) -> None:
    moved_url = create_url("sqlite")
    with open_store(url, clock) as late_handle:
        late_handle.mail.put("agent:ada", 1)
        move_store(url, moved_url)
        with pytest.raises(StoreUnavailable) as caught:
            late_handle.db.move(create_url("sqlite"))
    assert caught.value.details["to"] == moved_url
    assert list_bodies(url) == [1]


# -- lost and replaced targets ---------------------------------------------------------------------


def test_following_a_moved_store_never_creates_an_empty_one(
    create_url: UrlFactory, tmp_path: Path, url: str
) -> None:
    moved_url = tmp_path / "new.db"
    move_store(url, f"sqlite:///{moved_url}")
    for file in tmp_path.glob("new.db*"):
        file.unlink()
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(url, clock=ManualClock())
    assert caught.value.reason == "missing"
    assert str(moved_url) in caught.value.message
    (finding,) = [candidate for candidate in examine(url) if candidate.check == "store"]
    assert (finding.state, finding.message) == ("broken", caught.value.message)
    assert not moved_url.exists()


def test_old_store_is_kept_when_its_target_was_replaced(
    create_url: UrlFactory, tmp_path: Path, url: str
) -> None:
    """The target was lost and created again, so the old store has the only copy."""
    moved_url = f"sqlite:///{tmp_path}/new.db"
    with corral.open(url, clock=ManualClock()) as store:
        store.mail.put("agent:ada", "the only copy")
        store.db.move(moved_url)
    for file in tmp_path.glob("new.db*"):
        file.unlink()
    with corral.open(moved_url, clock=ManualClock()) as replacement, pytest.raises(Refused):
        replacement.db.move(url)
    old_database = connect(url, actor="test")
    count = store_move.Statement("SELECT count(*) FROM letters")
    assert old_database.read(lambda tx: tx.value(count)) == 1
    old_database.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_waiting_opener_does_not_get_an_unfinished_store(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both processes find no schema; the mover creates it first."""
    if engine == "sqlite":
        moved_url = f"sqlite:///{tmp_path}/new.db"
    else:
        moved_url = str(request.getfixturevalue("postgres_server").new_database())
    migrate = migrations.migrate

    def migrate_after_mover(database: Any) -> list[int]:
        monkeypatch.undo()
        with corral.open(f"sqlite:///{tmp_path}/old.db", clock=ManualClock()) as store:
            move = store_move.StoreMove(store._database, lambda: connect(moved_url, actor="mover"))
            move.prepare()
            move.close()
        return migrate(database)

    monkeypatch.setattr(migrations, "migrate", migrate_after_mover)
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(moved_url, clock=ManualClock())
    assert caught.value.reason == "arriving"


# -- movers without their lock ---------------------------------------------------------------------


@contextmanager
def without_lock(*_: Any) -> Iterator[None]:
    yield


def test_failed_mover_releases_its_lock(store: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has not yet noticed a closed connection keeps no lock of it."""

    def fail_to_move() -> None:
        with store._database.move_lock() as is_held:
            assert is_held
            raise RuntimeError

    unnoticed: list[PostgresConnection] = []
    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "close", lambda connection: unnoticed.append(connection))
        for _ in range(2):
            with pytest.raises(RuntimeError):
                fail_to_move()
    for connection in unnoticed:
        connection.close()


@EVERY_ENGINE_PAIR
@pytest.mark.parametrize("moment", [0, -1])
def test_mover_that_was_cancelled_cannot_switch(
    create_url: UrlFactory,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    moment: int,
) -> None:
    """A mover loses its lock with its server connection, and continues."""
    monkeypatch.setattr(store_move, "require_move_lock", without_lock)
    monkeypatch.setattr("corral.services.store.move.require_move_lock", without_lock)
    old_url, moved_url = create_url(source), create_url(target)
    with open_store(old_url, clock) as store, open_store(old_url, clock) as second_store:
        store.mail.put("agent:ada", "first")
        calls: list[int] = []

        def cancel_move(table: str, done: int, total: int) -> None:
            calls.append(done)
            if len(calls) == 1 if moment == 0 else done == total and calls.count(done) == 1:
                assert second_store.db.cancel_move() is True
                second_store.mail.put("agent:ada", "accepted")

        with pytest.raises(Refused):
            store.db.move(moved_url, on_progress=cancel_move)
        second_store.mail.put("agent:ada", "also accepted")
        with pytest.raises(StoreUnavailable) as caught:
            open_store(moved_url, clock)
        assert caught.value.reason == "arriving"
        monkeypatch.undo()
        store.db.move(moved_url)
    assert list_bodies(old_url) == ["first", "accepted", "also accepted"]


@EVERY_ENGINE_PAIR
def test_one_of_two_movers_without_a_lock_completes_the_move(
    create_url: UrlFactory,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
) -> None:
    monkeypatch.setattr(store_move, "require_move_lock", without_lock)
    old_url, moved_url = create_url(source), create_url(target)
    fill_store(old_url, monkeypatch)
    with open_store(old_url, clock) as store, open_store(old_url, clock) as second_store:
        calls: list[int] = []

        def move_concurrently(table: str, done: int, total: int) -> None:
            calls.append(done)
            if table == "letters" and calls.count(done) == 1 and len(calls) > 1 and other_moves:
                other_moves.pop()
                second_store.db.move(moved_url)

        other_moves = [True]
        with suppress(CorralError):
            store.db.move(moved_url, on_progress=move_concurrently)
        assert not other_moves
    with open_store(old_url, clock) as store:
        assert store.address == moved_url
        assert [letter.body for letter in store.mail.list(limit=100).items] == list(range(7))
        check_store(store, schema=True)


# -- crashes while moving back ---------------------------------------------------------------------


def create_moved_store(create_url: UrlFactory, source: str, target: str) -> tuple[str, str]:
    """Create a store and move it from `first_url` to `second_url`."""
    first_url, second_url = create_url(source), create_url(target)
    move_store(first_url, second_url)
    return first_url, second_url


@EVERY_ENGINE_PAIR
def test_kill_while_moving_back_loses_no_accepted_write(
    create_url: UrlFactory, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    """At each commit of the mover, a write to either URL is rejected or kept."""
    first_url, second_url = create_moved_store(create_url, source, target)
    fill_store(first_url, monkeypatch)
    moments = len(kill_move(second_url, first_url, None))
    # An odd stride, so that moments before and after a commit are tested; the cases alternate in
    # pairs between a retry and a cancellation.
    stride = 5 if (source, target) == ("sqlite", "sqlite") else 11
    cases = [
        (moment, "cancel" if number & 2 else "retry")
        for number, moment in enumerate(range(0, moments, stride))
    ]
    if ALL:
        cases = [
            (moment, next_step) for moment in range(moments) for next_step in ("retry", "cancel")
        ]
    for moment, next_step in cases:
        first_url, second_url = create_moved_store(create_url, source, target)
        fill_store(first_url, monkeypatch)
        accepted: list[Any] = list(range(7))
        kill_move(second_url, first_url, moment)
        for database_url in (first_url, second_url):
            wait_until_alone(database_url)
        put_if_accepted(first_url, "by old URL", accepted)
        put_if_accepted(second_url, "by new URL", accepted)
        in_use_at = first_url
        with corral.open(second_url, clock=ManualClock()) as store:
            if store.address == second_url:
                if next_step == "cancel":
                    try:
                        store.db.cancel_move()
                        in_use_at = second_url
                    except Refused:  # the move was already switched
                        store.db.move(first_url)
                else:
                    store.db.move(first_url)
        put_if_accepted(second_url, "afterwards", accepted)
        assert accepted[-1] == "afterwards"
        if in_use_at == second_url:  # a cancelled move can be repeated
            assert list_bodies(second_url) == accepted, moment
            move_store(second_url, first_url)
        with corral.open(second_url, clock=ManualClock()) as store:
            assert store.address == first_url
            check_store(store, schema=True)
        assert list_bodies(first_url) == accepted, moment
        old_database = connect(second_url, actor="test")
        move_record = read_store_move(old_database)
        assert move_record is not None
        assert move_record.phase == "gone"
        assert old_database.schema_version() > MOVED_OFFSET
        old_database.close()
