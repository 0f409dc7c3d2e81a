"""Moving a store: everything arrives, nobody writes meanwhile, any death is made good."""

import shutil
import signal
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.db import connect, store_move, write_guard
from corral.db.store_move_record import read_store_move
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import Conflict, CorralError, Invalid, Refused, StoreUnavailable
from tests.crash.harness import ALL, Probe
from tests.domain.test_outputs import RUN, begun
from tests.domain.test_store_backup import EACH_WAY, ENGINES, content, live, race
from tests.support.cli_runner import Cli
from tests.support.daemon_nodes import on_machine
from tests.support.errors import because
from tests.support.invariants import check_store
from tests.support.processes import Child
from tests.support.run_factories import running
from tests.support.store_urls import wait_until_alone

pytestmark = pytest.mark.slow

Place = Callable[[str], str]


@pytest.fixture
def place(new_url: Place) -> Place:
    """A function that gives the URL of an empty store, on an engine."""
    return new_url


def opened(url: str, clock: ManualClock, **options: Any) -> Corral:
    return corral.open(url, clock=clock, actor="user:tester", **options)


def without_moves(found: dict[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    found["events"] = [row for row in found["events"] if "store" not in row]
    return found


@EACH_WAY
def test_moved_store_is_complete_and_old_one_redirects(
    place: Place, clock: ManualClock, tmp_path: Path, source: str, target: str
) -> None:
    old, new = place(source), place(target)
    told: list[tuple[int, int]] = []
    with opened(old, clock) as store:
        live(store, clock, tmp_path)
        race(store)
        store.runs.lose(store.runs.list(live=True).items[0].id, reason="gone")
        store.nodes.leave(store.nodes.list().items[0])
        before = content(store)
        moved = store.db.move(
            new, on_progress=lambda table, done, total: told.append((done, total))
        )
    assert (moved.rows, moved.tables) == (sum(map(len, before.values())), len(before))
    assert told == sorted(told)
    assert told[-1] == (2 * moved.rows, 2 * moved.rows)
    for url in (old, new):
        with opened(url, clock) as store:
            assert store.db.url == moved.url
            assert without_moves(content(store)) == before
            assert "broken" not in [finding.state for finding in store.db.verify()]
    with opened(old, clock) as store:
        assert [hit.location for hit in store.search.find("zebra").items] == [1]


@EACH_WAY
def test_sequences_fences_leases_and_events_continue_after_move(
    place: Place, clock: ManualClock, source: str, target: str
) -> None:
    old, new = place(source), place(target)
    with opened(old, clock) as store:
        for n in range(3):
            store.mail.put("agent:ada", n)
        (letter,) = store.mail.claim("agent:ada", owner="me")
        lock = store.locks.acquire(store.projects.register(Path.cwd()).id, "a", "user:eve")
        events = store.events.after().items
        cursors = [None, *(event.cursor for event in events)]
        store.db.move(new)
    with opened(old, clock) as store:
        (_, said) = (store.mail.ack(letter), store.mail.put("agent:ada", "new"))
        assert said.id == "let_4"
        assert store.locks.release(lock).id == lock.id
        taken = store.locks.acquire(lock.project_id, "b", "user:eve")
        assert int(taken.id.removeprefix("lck_")) == int(lock.id.removeprefix("lck_")) + 1
        everything = [event.id for event in store.events.after().items]
        assert everything[: len(events)] == [event.id for event in events]
        for seen, cursor in enumerate(cursors):
            assert [event.id for event in store.events.after(cursor).items] == everything[seen:]
            if cursor:
                older = [event.id for event in store.events.before(cursor).items]
                assert older == everything[: seen - 1][::-1]


def test_round_trip_move_keeps_every_table(
    place: Place, clock: ManualClock, tmp_path: Path
) -> None:
    home, server = place("sqlite"), place("postgres")
    with opened(home, clock) as store:
        live(store, clock, tmp_path)
        race(store)
        store.runs.lose(store.runs.list(live=True).items[0].id, reason="gone")
        store.nodes.leave(store.nodes.list().items[0])
        before = content(store)
        store.db.move(server)
    with opened(home, clock) as store:
        assert store.db.engine == "postgres"
        store.db.move(home)
    with opened(server, clock) as store:
        assert store.db.engine == "sqlite"
        assert without_moves(content(store)) == before
        assert store.db.path is not None
        assert stat.S_IMODE(store.db.path.stat().st_mode) == 0o600
        assert store.db.durability() == "full", "PostgreSQL's promise is not lowered"
        assert "broken" not in [finding.state for finding in store.db.verify()]
        store.db.move(server)
    with opened(home, clock) as store:
        assert store.db.engine == "postgres"
        assert without_moves(content(store)) == before


def test_output_stored_in_the_server_is_moved(place: Place, clock: ManualClock) -> None:
    server = place("postgres")
    with opened(server, clock) as store:
        folder = begun(store, b"said on another machine\n")
        store.outputs.seal_folder(RUN)
        shutil.rmtree(folder)
        store.db.move(place("sqlite"))
    with opened(server, clock) as store:
        assert store.db.engine == "sqlite"
        assert store.outputs.open(RUN).tail(1) == [b"said on another machine"]
        assert store.outputs.seal_folder(RUN).state == "sealed"


def test_local_output_is_moved_to_a_shared_store(place: Place, clock: ManualClock) -> None:
    home, server = place("sqlite"), place("postgres")
    with opened(home, clock) as store:
        folder = begun(store, b"said on this machine\n" * 20_000)
        (folder / "stderr").write_bytes(b"and complained\n")
        store.outputs.seal_folder(RUN)
        store.db.move(server)
    with opened(server, clock) as store, on_machine("another-machine"):
        assert store.db.engine == "postgres"
        assert store.outputs.open(RUN).tail(1) == [b"said on this machine"]
        assert store.outputs.open(RUN, stream="stderr").tail(1) == [b"and complained"]
        shutil.rmtree(folder)
        assert "broken" not in [finding.state for finding in store.db.verify()]


@pytest.mark.parametrize("source", ENGINES)
def test_open_handles_of_the_old_store_are_rejected(
    place: Place, clock: ManualClock, source: str
) -> None:
    old, new = place(source), place("sqlite")
    with opened(old, clock) as store, opened(old, clock) as other:
        other.mail.put("agent:ada", 1)
        store.db.move(new)
        for late in (store, other):
            with pytest.raises(StoreUnavailable) as caught:
                late.mail.put("agent:ada", "late")
            assert caught.value.reason == "moved"
            assert caught.value.details["to"] == new
            with pytest.raises(StoreUnavailable), late.transaction() as tx:
                tx.emit("letter", "put", "let_9")
    with opened(new, clock) as store:
        assert [letter.body for letter in store.mail.list().items] == [1]


@pytest.mark.parametrize("target", ENGINES)
def test_non_empty_target_is_rejected_unchanged(
    store: Corral, place: Place, clock: ManualClock, target: str
) -> None:
    taken = place(target)
    with opened(taken, clock) as other:
        other.mail.put("agent:ada", "theirs")
    with pytest.raises(Refused, check=because("not_empty")):
        store.db.move(taken)
    store.mail.put("agent:ada", "ours")
    with opened(taken, clock) as other:
        assert [letter.body for letter in other.mail.list().items] == ["theirs"]


def test_rejected_move_leaves_the_store_in_use(
    store: Corral, place: Place, clock: ManualClock, tmp_path: Path
) -> None:
    new = place("sqlite")
    with pytest.raises(Invalid, match="store is already at"):
        store.db.move(store.address)
    with pytest.raises(Invalid, match="target of a move"):
        store.db.move("http://127.0.0.1:7717")
    node = store.nodes.join("host", "boot", owner="d")
    with pytest.raises(Refused, check=because("daemon_running", nodes=["host"])):
        store.db.move(new)
    store.nodes.leave(node)
    run = running(store)
    with pytest.raises(Refused, match=f"still write.*: {run.id}.*corral stop"):
        store.db.move(new)
    store.runs.lose(run.id, reason="gone")
    assert store.db.cancel_move() is False
    store.db.move(new)


def test_run_started_before_the_fence_prevents_the_move(
    store: Corral, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = store_move.StoreMove.prepare

    def start_meanwhile(move: store_move.StoreMove) -> None:
        prepare(move)
        running(store)

    monkeypatch.setattr(store_move.StoreMove, "prepare", start_meanwhile)
    with pytest.raises(Refused, match="still write"):
        store.db.move(place("sqlite"))
    store.mail.put("agent:ada", "it goes on here")


def test_differing_copy_is_not_switched_to(
    store: Corral, place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.mail.put("agent:ada", "true")
    new = place("sqlite")

    def lie(table: str, done: int, total: int) -> None:
        if done == total // 2:
            other = connect(new, actor="liar")
            other.write(write_guard.remove)
            other.write(lambda tx: tx.run(store_move.Statement("UPDATE letters SET body = '1'")))
            other.close()

    with pytest.raises(Conflict, match=r"copy of letters differs: 1 rows .* not switched"):
        store.db.move(new, on_progress=lie)
    with pytest.raises(StoreUnavailable, check=because("moved")):
        store.mail.put("agent:ada", 2)
    with pytest.raises(StoreUnavailable, check=because("arriving")):
        opened(new, clock)
    assert store.db.cancel_move() is True
    store.mail.put("agent:ada", "again")
    store.db.move(new)
    with opened(new, clock) as moved:
        assert [letter.body for letter in moved.mail.list().items] == ["true", "again"]


def test_failed_move_reports_that_the_store_is_fenced(
    store: Corral, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.mail.put("agent:ada", "before")
    pour, new = store_move.copy_rows, place("sqlite")

    def fail(*_: Any) -> None:
        raise StoreUnavailable("There is no room left. Nothing was changed.", reason="full")

    monkeypatch.setattr(store_move, "copy_rows", fail)
    with pytest.raises(StoreUnavailable, match=r"no room left\. Writes to .* --cancel") as told:
        store.db.move(new)
    assert told.value.reason == "full"
    monkeypatch.setattr(store_move, "copy_rows", pour)
    assert store.db.move(new).rows


@pytest.mark.parametrize("target", ENGINES)
def test_old_store_of_a_move_can_be_restored(place: Place, clock: ManualClock, target: str) -> None:
    old, new, other = place("sqlite"), place(target), place(target)
    with opened(old, clock) as store:
        store.mail.put("agent:ada", "kept")
        store.db.move(new)
    with opened(other, clock) as store:
        store.db.restore(old.removeprefix("sqlite:///"))
        assert [letter.body for letter in store.mail.list().items] == ["kept"]
        store.mail.put("agent:ada", "it goes on")
        check_store(store, schema=True)


def test_unfinished_target_cannot_be_restored(store: Corral, place: Place) -> None:
    new = place("sqlite")

    def look(*_: Any) -> None:
        with pytest.raises(Invalid, match="is incomplete"):
            store.db.restore(new.removeprefix("sqlite:///"))

    store.db.move(new, on_progress=look)


# -- killed ----------------------------------------------------------------------------------------


def killed(url: str, new: str, moment: int | None) -> list[str]:
    """Move a store in a process that is killed at a moment; gives back the moments it had."""

    def move() -> list[str]:
        probe = Probe(kill_at=moment)
        with corral.open(url, clock=ManualClock(), probe=probe) as store:
            store.db.move(new)
        return probe.moments

    with Child(move) as child:
        if moment is None:
            return list(child.result())
        assert child.ended_by() is signal.SIGKILL, "the process got away"
    wait_until_alone(url)
    return []


def filled(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_move, "COPY_BATCH", 3)
    with corral.open(url, clock=ManualClock()) as store:
        for n in range(7):
            store.mail.put("agent:ada", n)
        store.sessions.append(store.sessions.open(), "user", "words")


MOMENTS = 24


@EACH_WAY
def test_move_killed_at_any_commit_resumes(
    place: Place, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    first = place(source)
    filled(first, monkeypatch)
    moments = killed(first, place(target), None)
    assert len(moments) == MOMENTS
    # Odd, so that it is now before a commit and now after one.
    stride = 1 if ALL else 5 if (source, target) == ("sqlite", "sqlite") else 7
    for moment in range(0, len(moments), stride):
        old, new = place(source), place(target)
        filled(old, monkeypatch)
        killed(old, new, moment)
        wait_until_alone(new)
        bodies: list[Any] = list(range(7))
        with corral.open(old, clock=ManualClock()) as store:
            with suppress(StoreUnavailable):
                store.mail.put("agent:ada", "meanwhile")
                bodies.append("meanwhile")  # accepted: then it must not be lost
            if store.address != new:
                store.db.move(new)
        with corral.open(old, clock=ManualClock()) as store:
            assert store.address == new
            assert [letter.body for letter in store.mail.list(limit=100).items] == bodies, moment
            assert store.mail.put("agent:ada", "more").id == f"let_{len(bodies) + 1}"
            check_store(store, schema=True)


@pytest.mark.parametrize("target", ENGINES)
def test_killed_move_can_be_cancelled_before_the_switch(
    place: Place, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    old, new = place("sqlite"), place(target)
    filled(old, monkeypatch)
    killed(old, new, MOMENTS - 6)
    with corral.open(old, clock=ManualClock()) as store:
        with pytest.raises(Refused, match=r"being moved to .* --cancel"):
            store.db.move(place("sqlite"))
        assert store.db.cancel_move() is True
        store.mail.put("agent:ada", "stayed")
        store.db.move(new)
    with corral.open(new, clock=ManualClock()) as store:
        assert [letter.body for letter in store.mail.list().items][-1] == "stayed"


def test_move_cannot_be_cancelled_during_the_switch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = place("sqlite"), place("sqlite")
    filled(old, monkeypatch)
    killed(old, new, MOMENTS - 2)
    with corral.open(new, clock=ManualClock()) as store:
        store.mail.put("agent:ada", "in use")
    with corral.open(old, clock=ManualClock()) as store:
        assert store.db.url == old
        with pytest.raises(CorralError, check=because("already_moved")):
            store.db.cancel_move()
        store.db.move(new)
    with corral.open(old, clock=ManualClock()) as store:
        assert [letter.body for letter in store.mail.list().items][-1] == "in use"
    gone = connect(old, actor="test")
    found = read_store_move(gone)
    assert found is not None
    assert found.phase == "gone"
    gone.close()


def test_completed_move_cannot_be_cancelled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when a run seems to go on there: another machine cannot tell that it is over."""
    old, new = place("sqlite"), place("sqlite")
    filled(old, monkeypatch)
    killed(old, new, MOMENTS - 2)

    def seems_used(database: object) -> None:
        raise Refused("a run goes on")

    monkeypatch.setattr("corral.services.store.move._refuse_while_used", seems_used)
    with corral.open(old, clock=ManualClock()) as store:
        store.db.move(new)
        with pytest.raises(StoreUnavailable):
            store.mail.put("agent:ada", "lost")


# -- by hand --------------------------------------------------------------------------------------


def test_db_move_command_moves_reports_and_cancels(
    place: Place, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = place("sqlite"), place("sqlite")
    with opened(old, clock) as store:
        store.timers.set("agent:ada", "tick", delay_ms=HOUR)
    cli = Cli(capsys, old)
    error = cli.error("db", "move", new)
    assert (error["exit_code"], error["details"]["reason"]) == (4, "not_confirmed")
    moved = cli.json("db", "move", new, "--yes")
    assert moved["url"] == new
    assert moved["rows"] > 0
    assert cli.json("timer", "list") == Cli(capsys, new).json("timer", "list")
    assert cli.json("db", "move", "--cancel") == {"url": new}
    assert cli("db", "move").code == 2
    assert cli("db", "move", new, "--yes").code == 2


def test_move_creates_a_missing_target(store: Corral, tmp_path: Path, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1)
    store.db.move(f"sqlite:///{tmp_path}/made/new.db")
    assert stat.S_IMODE((tmp_path / "made" / "new.db").stat().st_mode) == 0o600
    with opened(store.address, clock) as moved:
        assert len(moved.mail.list().items) == 1


# -- several at once -------------------------------------------------------------------------------


@EACH_WAY
def test_move_and_cancel_exclude_each_other(
    place: Place, clock: ManualClock, source: str, target: str
) -> None:
    """Two would fill and clear one another's copy, and leave behind what was accepted."""
    old, new, elsewhere = place(source), place(target), place("sqlite")
    with opened(old, clock) as store, opened(old, clock) as other:
        store.mail.put("agent:ada", "kept")
        refused = []

        def meddle(table: str, done: int, total: int) -> None:
            for step in (other.db.cancel_move, lambda: other.db.move(new)):
                with pytest.raises(Refused, match="Another process is moving"):
                    step()
                refused.append(table)
            with pytest.raises(StoreUnavailable, check=because("moved")):
                other.mail.put("agent:ada", "left behind")

        store.db.move(new, on_progress=meddle)
        assert refused
    with opened(new, clock) as store:
        assert [letter.body for letter in store.mail.list().items] == ["kept"]
        store.db.move(elsewhere)  # whoever is done lets go of it


def test_restore_into_a_moving_store_is_rejected(
    place: Place, clock: ManualClock, url: str, tmp_path: Path
) -> None:
    """What was restored would be left behind, with nothing that says where the rest went."""
    new, kept = place("sqlite"), tmp_path / "kept.db"
    with opened(url, clock) as store, opened(url, clock) as other:
        store.mail.put("agent:ada", "first")
        store.db.backup(kept)
        store.mail.put("agent:ada", "second")

        def restore(table: str, done: int, total: int) -> None:
            with pytest.raises(Refused, match="Another process is moving"):
                other.db.restore(kept)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.db.move(new, on_progress=restore)
        with pytest.raises(Refused, match=r"being moved to .* --cancel"):
            other.db.restore(kept)
        store.db.move(new)
    with opened(url, clock) as store:
        assert [letter.body for letter in store.mail.list().items] == ["first", "second"]


@pytest.mark.parametrize("target", ENGINES)
def test_second_store_moving_to_one_target_is_rejected(
    place: Place, clock: ManualClock, target: str
) -> None:
    old, rival, new = place("sqlite"), place("sqlite"), place(target)
    with opened(old, clock) as store, opened(rival, clock) as other:
        store.mail.put("agent:ada", "ours")

        def meddle(table: str, done: int, total: int) -> None:
            with pytest.raises(Refused, match="Another process is moving"):
                other.db.move(new)

        store.db.move(new, on_progress=meddle)
        other.mail.put("agent:ada", "it goes on here")
    with opened(new, clock) as moved:
        assert [letter.body for letter in moved.mail.list().items] == ["ours"]


@pytest.mark.parametrize("name", ["link", "hard link"])
def test_sqlite_file_cannot_move_to_itself_by_another_path(
    place: Place, clock: ManualClock, tmp_path: Path, name: str
) -> None:
    old, link = Path(place("sqlite").removeprefix("sqlite:///")), tmp_path / "link.db"
    with opened(f"sqlite:///{old}", clock) as store:
        link.symlink_to(old) if name == "link" else link.hardlink_to(old)
        with pytest.raises(Invalid, match="store is already at"):
            store.db.move(f"sqlite:///{link}")
        store.mail.put("agent:ada", "it goes on")


def test_database_cannot_move_to_itself_by_another_host_name(
    place: Place, clock: ManualClock
) -> None:
    old = place("postgres")
    with opened(old, clock) as store:
        with pytest.raises(Refused, match="this store is already there"):
            store.db.move(old.replace("127.0.0.1", "localhost"))
        store.mail.put("agent:ada", "it goes on")


def test_deleted_target_is_not_switched_to(place: Place, clock: ManualClock) -> None:
    old, new = place("sqlite"), place("sqlite")
    with opened(old, clock) as store:
        store.mail.put("agent:ada", "kept")

        def take_away(table: str, done: int, total: int) -> None:
            if done == total:
                Path(new.removeprefix("sqlite:///")).unlink(missing_ok=True)

        with pytest.raises(StoreUnavailable) as caught:
            store.db.move(new, on_progress=take_away)
        assert caught.value.details["reason"] == "replaced"
        assert store.db.cancel_move() is True
        assert [letter.body for letter in store.mail.list().items] == ["kept"]
