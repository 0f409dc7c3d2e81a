"""Moving a store while other processes use it, and after its mover was killed or replaced."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api.doctor import examine
from corral.db import connect, migrations, store_move
from corral.db.store_move_record import read_store_move
from corral.db.write_guard import MOVED_OFFSET
from corral.kernel.clock import ManualClock
from corral.kernel.errors import CorralError, Refused, StoreUnavailable
from tests.crash.harness import ALL
from tests.domain.test_store_backup import EACH_WAY, ENGINES
from tests.domain.test_store_move import Place, filled, killed, opened, place
from tests.support.home import wait_until
from tests.support.invariants import check_store
from tests.support.store_urls import wait_until_alone

pytestmark = pytest.mark.slow

__all__ = ["place"]


def bodies(url: str) -> list[Any]:
    with corral.open(url, clock=ManualClock(), create=False) as store:
        return [letter.body for letter in store.mail.list(limit=100).items]


def put_by_name(url: str, body: str, accepted: list[Any]) -> None:
    """Open a store by one of its names and put a letter; remember it if it was accepted."""
    with suppress(CorralError), corral.open(url, clock=ManualClock()) as store:
        store.mail.put("agent:ada", body)
        accepted.append(body)


def moved(url: str, new: str) -> None:
    with corral.open(url, clock=ManualClock()) as store:
        store.db.move(new)


# -- handles that were open before -----------------------------------------------------------------


@EACH_WAY
def test_handle_on_the_empty_target_is_rejected_until_arrival(
    place: Place, clock: ManualClock, source: str, target: str
) -> None:
    old, new = place(source), place(target)
    with opened(old, clock) as store, opened(new, clock) as early:
        store.mail.put("agent:ada", "kept")
        rejected = []

        def meddle(table: str, done: int, total: int) -> None:
            with pytest.raises(StoreUnavailable) as caught:
                early.mail.put("agent:ada", "in between")
            rejected.append(caught.value.reason)

        store.db.move(new, on_progress=meddle)
        assert set(rejected) == {"arriving"}
        early.mail.put("agent:ada", "after")
    assert bodies(old) == ["kept", "after"]


@EACH_WAY
def test_handle_from_before_a_round_trip_is_rejected_until_arrival(
    place: Place, clock: ManualClock, source: str, target: str
) -> None:
    home, away = place(source), place(target)
    with opened(home, clock) as early:
        early.mail.put("agent:ada", "first")
        moved(home, away)
        reasons = []

        def meddle(*_: Any) -> None:
            for write in (lambda: early.mail.put("agent:ada", "x"), lambda: opened(home, clock)):
                with pytest.raises(StoreUnavailable) as caught:
                    write()
                reasons.append(caught.value.reason)

        with opened(home, clock) as store:
            store.db.move(home, on_progress=meddle)
        assert set(reasons) == {"arriving"}
        early.mail.put("agent:ada", "back")
    assert bodies(away) == ["first", "back"]


@EACH_WAY
def test_handle_from_before_a_move_never_answers_from_the_old_content(
    place: Place, clock: ManualClock, source: str, target: str
) -> None:
    """A claim that finds no letter and an error about a letter would both come from stale rows."""
    home, away = place(source), place(target)
    with opened(home, clock) as early:
        early.mail.put("agent:ada", "first")
        moved(home, away)
        with opened(away, clock) as store:
            (letter,) = store.mail.claim("agent:ada", owner="worker")
        with pytest.raises(StoreUnavailable) as caught:
            early.mail.ack(letter)  # the old content says that it was never claimed
        assert caught.value.reason == "moved"
        with pytest.raises(StoreUnavailable) as caught, early.transaction():
            pass
        assert caught.value.reason == "moved"
        for call in (
            lambda: early.mail.claim("agent:bob", owner="worker"),
            lambda: early.mail.list(),
            lambda: early.runs.list(),
        ):
            until_moved(call)


def until_moved(call: Callable[[], object]) -> None:
    """The check of where the content is may be a second old."""

    def is_refused() -> bool:
        try:
            call()
        except StoreUnavailable as error:
            return error.reason == "moved"
        return False

    wait_until(is_refused, "the handle refuses the call", seconds=60)


def test_moving_with_a_handle_whose_store_was_moved_is_rejected(
    place: Place, clock: ManualClock, url: str
) -> None:
    new = place("sqlite")
    with opened(url, clock) as late:
        late.mail.put("agent:ada", 1)
        moved(url, new)
        with pytest.raises(StoreUnavailable) as caught:
            late.db.move(place("sqlite"))
    assert caught.value.details["to"] == new
    assert bodies(url) == [1]


# -- names -----------------------------------------------------------------------------------------


def test_following_a_moved_store_never_creates_an_empty_one(
    place: Place, tmp_path: Path, url: str
) -> None:
    new = tmp_path / "new.db"
    moved(url, f"sqlite:///{new}")
    for file in tmp_path.glob("new.db*"):
        file.unlink()
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(url, clock=ManualClock())
    assert caught.value.reason == "missing"
    assert str(new) in caught.value.message
    (found,) = [each for each in examine(url) if each.check == "store"]
    assert (found.state, found.message) == ("broken", caught.value.message)
    assert not new.exists()


def test_place_is_not_cleared_by_a_store_that_did_not_receive_its_content(
    place: Place, tmp_path: Path, url: str
) -> None:
    """The store that received it was lost, and a new one has its name: this is the only copy."""
    new = f"sqlite:///{tmp_path}/new.db"
    with corral.open(url, clock=ManualClock()) as store:
        store.mail.put("agent:ada", "the only copy")
        store.db.move(new)
    for file in tmp_path.glob("new.db*"):
        file.unlink()
    with corral.open(new, clock=ManualClock()) as fresh, pytest.raises(Refused):
        fresh.db.move(url)
    left = connect(url, actor="test")
    count = store_move.Statement("SELECT count(*) FROM letters")
    assert left.read(lambda tx: tx.value(count)) == 1
    left.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_opener_that_waited_for_a_mover_does_not_get_an_unfinished_store(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found the place empty; the mover created its schema first."""
    if engine == "sqlite":
        new = f"sqlite:///{tmp_path}/new.db"
    else:
        new = str(request.getfixturevalue("postgres_server").new_database())
    migrating = migrations.migrate

    def come_second(database: Any) -> list[int]:
        monkeypatch.undo()
        with corral.open(f"sqlite:///{tmp_path}/old.db", clock=ManualClock()) as store:
            move = store_move.StoreMove(store._database, lambda: connect(new, actor="mover"))
            move.prepare()
            move.close()
        return migrating(database)

    monkeypatch.setattr(migrations, "migrate", come_second)
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(new, clock=ManualClock())
    assert caught.value.reason == "arriving"


# -- a mover that lost its lock --------------------------------------------------------------------


@contextmanager
def without_lock(*_: Any) -> Iterator[None]:
    yield


@EACH_WAY
@pytest.mark.parametrize("moment", [0, -1])
def test_mover_that_was_cancelled_cannot_switch(
    place: Place,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    moment: int,
) -> None:
    """The lock of a move on a server is lost with its connection, and the mover goes on."""
    monkeypatch.setattr(store_move, "require_move_lock", without_lock)
    monkeypatch.setattr("corral.services.store.move.require_move_lock", without_lock)
    old, new = place(source), place(target)
    with opened(old, clock) as store, opened(old, clock) as other:
        store.mail.put("agent:ada", "first")
        calls: list[int] = []

        def meddle(table: str, done: int, total: int) -> None:
            calls.append(done)
            if len(calls) == 1 if moment == 0 else done == total and calls.count(done) == 1:
                assert other.db.cancel_move() is True
                other.mail.put("agent:ada", "accepted")

        with pytest.raises(Refused):
            store.db.move(new, on_progress=meddle)
        other.mail.put("agent:ada", "also accepted")
        with pytest.raises(StoreUnavailable) as caught:
            opened(new, clock)
        assert caught.value.reason == "arriving"
        monkeypatch.undo()
        store.db.move(new)
    assert bodies(old) == ["first", "accepted", "also accepted"]


@EACH_WAY
def test_one_of_two_movers_without_a_lock_completes_the_move(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    monkeypatch.setattr(store_move, "require_move_lock", without_lock)
    old, new = place(source), place(target)
    filled(old, monkeypatch)
    with opened(old, clock) as store, opened(old, clock) as other:
        calls: list[int] = []

        def meddle(table: str, done: int, total: int) -> None:
            calls.append(done)
            if table == "letters" and calls.count(done) == 1 and len(calls) > 1 and other_moves:
                other_moves.pop()
                other.db.move(new)

        other_moves = [True]
        with suppress(CorralError):
            store.db.move(new, on_progress=meddle)
        assert not other_moves
    with opened(old, clock) as store:
        assert store.address == new
        assert [letter.body for letter in store.mail.list(limit=100).items] == list(range(7))
        check_store(store, schema=True)


# -- killed on the way back ------------------------------------------------------------------------


def round_trip(place: Place, source: str, target: str) -> tuple[str, str]:
    """The store was moved from `home` to `away`; `home` is what was left."""
    home, away = place(source), place(target)
    moved(home, away)
    return home, away


@EACH_WAY
def test_kill_while_moving_back_loses_no_accepted_write(
    place: Place, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    """At each commit of the mover: writers that open either name are rejected or kept."""
    home, away = round_trip(place, source, target)
    filled(home, monkeypatch)
    moments = len(killed(away, home, None))
    # Odd, so that it is now before a commit and now after one; two of each are followed by a retry,
    # the next two by a cancellation.
    stride = 5 if (source, target) == ("sqlite", "sqlite") else 11
    cases = [
        (moment, "cancel" if number & 2 else "retry")
        for number, moment in enumerate(range(0, moments, stride))
    ]
    if ALL:
        cases = [(moment, then) for moment in range(moments) for then in ("retry", "cancel")]
    for moment, then in cases:
        home, away = round_trip(place, source, target)
        filled(home, monkeypatch)
        accepted: list[Any] = list(range(7))
        killed(away, home, moment)
        for place_of_move in (home, away):
            wait_until_alone(place_of_move)
        put_by_name(home, "by old name", accepted)
        put_by_name(away, "by new name", accepted)
        in_use_at = home
        with corral.open(away, clock=ManualClock()) as store:
            if store.address == away:
                if then == "cancel":
                    try:
                        store.db.cancel_move()
                        in_use_at = away
                    except Refused:  # it was switched already
                        store.db.move(home)
                else:
                    store.db.move(home)
        put_by_name(away, "afterwards", accepted)
        assert accepted[-1] == "afterwards"
        if in_use_at == away:  # what was cancelled can be done later
            assert bodies(away) == accepted, moment
            moved(away, home)
        with corral.open(away, clock=ManualClock()) as store:
            assert store.address == home
            check_store(store, schema=True)
        assert bodies(home) == accepted, moment
        left = connect(away, actor="test")
        found = read_store_move(left)
        assert found is not None
        assert found.phase == "gone"
        assert left.schema_version() > MOVED_OFFSET
        left.close()
