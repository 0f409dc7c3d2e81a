"""Moving a store: complete copy, write fence, crashes, cancellation and concurrent moves."""

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
from tests.domain.test_outputs import RUN, begin_output
from tests.domain.test_store_backup import (
    ENGINES,
    EVERY_ENGINE_PAIR,
    fill_every_table,
    insert_race,
    read_tables,
)
from tests.support.cli_runner import Cli
from tests.support.daemon_nodes import on_machine
from tests.support.errors import because
from tests.support.invariants import check_store
from tests.support.processes import Child
from tests.support.run_factories import running
from tests.support.store_urls import wait_until_alone

pytestmark = pytest.mark.slow

UrlFactory = Callable[[str], str]


@pytest.fixture
def create_url(new_url: UrlFactory) -> UrlFactory:
    """Return a function that creates the URL of an empty store on an engine."""
    return new_url


def open_store(url: str, clock: ManualClock, **options: Any) -> Corral:
    return corral.open(url, clock=clock, actor="user:tester", **options)


def without_move_events(tables: dict[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    tables["events"] = [row for row in tables["events"] if "store" not in row]
    return tables


@EVERY_ENGINE_PAIR
def test_moved_store_is_complete_and_old_one_redirects(
    create_url: UrlFactory, clock: ManualClock, tmp_path: Path, source: str, target: str
) -> None:
    old_url, moved_url = create_url(source), create_url(target)
    progress: list[tuple[int, int]] = []
    with open_store(old_url, clock) as store:
        fill_every_table(store, clock, tmp_path)
        insert_race(store)
        run = store.runs.list(live=True).items[0]
        store.internal.runs.end_orphaned(run, verb="crash", reason="gone")
        store.internal.nodes.leave(store.nodes.list().items[0])
        before = read_tables(store)
        moved = store.db.move(
            moved_url, on_progress=lambda table, done, total: progress.append((done, total))
        )
    assert (moved.rows, moved.tables) == (sum(map(len, before.values())), len(before))
    assert progress == sorted(progress)
    assert progress[-1] == (2 * moved.rows, 2 * moved.rows)
    for url in (old_url, moved_url):
        with open_store(url, clock) as store:
            assert store.db.url == moved.url
            assert without_move_events(read_tables(store)) == before
            assert "broken" not in [finding.state for finding in store.db.verify()]
    with open_store(old_url, clock) as store:
        assert [hit.location for hit in store.search.find("zebra").items] == [1]


@EVERY_ENGINE_PAIR
def test_sequences_fences_leases_and_events_continue_after_move(
    create_url: UrlFactory, clock: ManualClock, source: str, target: str
) -> None:
    old_url, moved_url = create_url(source), create_url(target)
    with open_store(old_url, clock) as store:
        for n in range(3):
            store.mail.put("agent:ada", n)
        (letter,) = store.mail.claim("agent:ada", owner="me")
        lock = store.locks.acquire(store.projects.register(Path.cwd()).id, "a", "user:eve")
        events = store.events.after().items
        cursors = [None, *(event.cursor for event in events)]
        store.db.move(moved_url)
    with open_store(old_url, clock) as store:
        (_, letter_after) = (store.mail.ack(letter), store.mail.put("agent:ada", "new"))
        assert letter_after.id == "let_4"
        assert store.locks.release(lock).id == lock.id
        next_lock = store.locks.acquire(lock.project_id, "b", "user:eve")
        assert int(next_lock.id.removeprefix("lck_")) == int(lock.id.removeprefix("lck_")) + 1
        event_ids = [event.id for event in store.events.after().items]
        assert event_ids[: len(events)] == [event.id for event in events]
        for count, cursor in enumerate(cursors):
            assert [event.id for event in store.events.after(cursor).items] == event_ids[count:]
            if cursor:
                older = [event.id for event in store.events.before(cursor).items]
                assert older == event_ids[: count - 1][::-1]


def test_round_trip_move_keeps_every_table(
    create_url: UrlFactory, clock: ManualClock, tmp_path: Path
) -> None:
    sqlite_url, postgres_url = create_url("sqlite"), create_url("postgres")
    with open_store(sqlite_url, clock) as store:
        fill_every_table(store, clock, tmp_path)
        insert_race(store)
        run = store.runs.list(live=True).items[0]
        store.internal.runs.end_orphaned(run, verb="crash", reason="gone")
        store.internal.nodes.leave(store.nodes.list().items[0])
        before = read_tables(store)
        store.db.move(postgres_url)
    with open_store(sqlite_url, clock) as store:
        assert store.db.engine == "postgres"
        store.db.move(sqlite_url)
    with open_store(postgres_url, clock) as store:
        assert store.db.engine == "sqlite"
        assert without_move_events(read_tables(store)) == before
        assert store.db.path is not None
        assert stat.S_IMODE(store.db.path.stat().st_mode) == 0o600
        assert store.db.durability() == "full", "durability stays at the level of PostgreSQL"
        assert "broken" not in [finding.state for finding in store.db.verify()]
        store.db.move(postgres_url)
    with open_store(sqlite_url, clock) as store:
        assert store.db.engine == "postgres"
        assert without_move_events(read_tables(store)) == before


def test_output_stored_in_the_server_is_moved(create_url: UrlFactory, clock: ManualClock) -> None:
    postgres_url = create_url("postgres")
    with open_store(postgres_url, clock) as store:
        folder = begin_output(store, b"printed on another machine\n")
        store.internal.outputs.seal_folder(RUN)
        shutil.rmtree(folder)
        store.db.move(create_url("sqlite"))
    with open_store(postgres_url, clock) as store:
        assert store.db.engine == "sqlite"
        assert store.outputs.open(RUN).tail(1) == [b"printed on another machine"]
        assert store.internal.outputs.seal_folder(RUN).state == "sealed"


def test_local_output_is_moved_to_a_shared_store(
    create_url: UrlFactory, clock: ManualClock
) -> None:
    sqlite_url, postgres_url = create_url("sqlite"), create_url("postgres")
    with open_store(sqlite_url, clock) as store:
        folder = begin_output(store, b"printed on this machine\n" * 20_000)
        (folder / "stderr").write_bytes(b"error\n")
        store.internal.outputs.seal_folder(RUN)
        store.db.move(postgres_url)
    with open_store(postgres_url, clock) as store, on_machine("another-machine"):
        assert store.db.engine == "postgres"
        assert store.outputs.open(RUN).tail(1) == [b"printed on this machine"]
        assert store.outputs.open(RUN, stream="stderr").tail(1) == [b"error"]
        shutil.rmtree(folder)
        assert "broken" not in [finding.state for finding in store.db.verify()]


@pytest.mark.parametrize("source", ENGINES)
def test_open_handles_of_the_old_store_are_rejected(
    create_url: UrlFactory, clock: ManualClock, source: str
) -> None:
    old_url, moved_url = create_url(source), create_url("sqlite")
    with open_store(old_url, clock) as store, open_store(old_url, clock) as second_store:
        second_store.mail.put("agent:ada", 1)
        store.db.move(moved_url)
        for handle in (store, second_store):
            with pytest.raises(StoreUnavailable) as caught:
                handle.mail.put("agent:ada", "late")
            assert caught.value.reason == "moved"
            assert caught.value.details["to"] == moved_url
            with pytest.raises(StoreUnavailable), handle.transaction() as tx:
                tx.emit("letter", "put", "let_9")
    with open_store(moved_url, clock) as store:
        assert [letter.body for letter in store.mail.list().items] == [1]


@pytest.mark.parametrize("target", ENGINES)
def test_non_empty_target_is_rejected_unchanged(
    store: Corral, create_url: UrlFactory, clock: ManualClock, target: str
) -> None:
    target_url = create_url(target)
    with open_store(target_url, clock) as target_store:
        target_store.mail.put("agent:ada", "existing")
    with pytest.raises(Refused, check=because("not_empty")):
        store.db.move(target_url)
    store.mail.put("agent:ada", "new")
    with open_store(target_url, clock) as target_store:
        assert [letter.body for letter in target_store.mail.list().items] == ["existing"]


def test_rejected_move_leaves_the_store_in_use(
    store: Corral, create_url: UrlFactory, clock: ManualClock, tmp_path: Path
) -> None:
    moved_url = create_url("sqlite")
    with pytest.raises(Invalid, match="store is already at"):
        store.db.move(store.address)
    with pytest.raises(Invalid, match="target of a move"):
        store.db.move("http://127.0.0.1:7717")
    node = store.internal.nodes.join("host", "boot", owner="d")
    with pytest.raises(Refused, check=because("daemon_running", nodes=["host"])):
        store.db.move(moved_url)
    store.internal.nodes.leave(node)
    run = running(store)
    with pytest.raises(Refused, match=f"still write.*: {run.id}.*corral stop"):
        store.db.move(moved_url)
    store.internal.runs.end_orphaned(run, verb="crash", reason="gone")
    assert store.db.cancel_move() is False
    store.db.move(moved_url)


def test_run_started_before_the_fence_prevents_the_move(
    store: Corral, create_url: UrlFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = store_move.StoreMove.prepare

    def start_run_after_prepare(move: store_move.StoreMove) -> None:
        prepare(move)
        running(store)

    monkeypatch.setattr(store_move.StoreMove, "prepare", start_run_after_prepare)
    with pytest.raises(Refused, match="still write"):
        store.db.move(create_url("sqlite"))
    store.mail.put("agent:ada", "accepted")


def test_differing_copy_is_not_switched_to(
    store: Corral, create_url: UrlFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.mail.put("agent:ada", "original")
    moved_url = create_url("sqlite")

    def change_copy(table: str, done: int, total: int) -> None:
        if done == total // 2:
            target = connect(moved_url, actor="test")
            target.write(write_guard.remove)
            target.write(lambda tx: tx.run(store_move.Statement("UPDATE letters SET body = '1'")))
            target.close()

    with pytest.raises(Conflict, match=r"copy of letters differs: 1 rows .* not switched"):
        store.db.move(moved_url, on_progress=change_copy)
    with pytest.raises(StoreUnavailable, check=because("moved")):
        store.mail.put("agent:ada", 2)
    with pytest.raises(StoreUnavailable, check=because("arriving")):
        open_store(moved_url, clock)
    assert store.db.cancel_move() is True
    store.mail.put("agent:ada", "later")
    store.db.move(moved_url)
    with open_store(moved_url, clock) as moved:
        assert [letter.body for letter in moved.mail.list().items] == ["original", "later"]


def test_failed_move_reports_that_the_store_is_fenced(
    store: Corral, create_url: UrlFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.mail.put("agent:ada", "before")
    copy_rows, moved_url = store_move.copy_rows, create_url("sqlite")

    def fail(*_: Any) -> None:
        raise StoreUnavailable("There is no room left. Nothing was changed.", reason="full")

    monkeypatch.setattr(store_move, "copy_rows", fail)
    with pytest.raises(StoreUnavailable, match=r"no room left\. Writes to .* --cancel") as caught:
        store.db.move(moved_url)
    assert caught.value.reason == "full"
    monkeypatch.setattr(store_move, "copy_rows", copy_rows)
    assert store.db.move(moved_url).rows


@pytest.mark.parametrize("target", ENGINES)
def test_old_store_of_a_move_can_be_restored(
    create_url: UrlFactory, clock: ManualClock, target: str
) -> None:
    old_url, moved_url, other_url = create_url("sqlite"), create_url(target), create_url(target)
    with open_store(old_url, clock) as store:
        store.mail.put("agent:ada", "kept")
        store.db.move(moved_url)
    with open_store(other_url, clock) as store:
        store.db.restore(old_url.removeprefix("sqlite:///"))
        assert [letter.body for letter in store.mail.list().items] == ["kept"]
        store.mail.put("agent:ada", "accepted")
        check_store(store, schema=True)


def test_unfinished_target_cannot_be_restored(store: Corral, create_url: UrlFactory) -> None:
    moved_url = create_url("sqlite")

    def restore_target(*_: Any) -> None:
        with pytest.raises(Invalid, match="is incomplete"):
            store.db.restore(moved_url.removeprefix("sqlite:///"))

    store.db.move(moved_url, on_progress=restore_target)


# -- crashes ---------------------------------------------------------------------------------------


def kill_move(url: str, moved_url: str, moment: int | None) -> list[str]:
    """Move a store in a process that is killed at a commit; return the commits of a full move."""

    def move() -> list[str]:
        probe = Probe(kill_at=moment)
        with corral.open(url, clock=ManualClock(), probe=probe) as store:
            store.db.move(moved_url)
        return probe.moments

    with Child(move) as child:
        if moment is None:
            return list(child.result())
        assert child.ended_by() is signal.SIGKILL, "the process was not killed"
    wait_until_alone(url)
    return []


def fill_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_move, "COPY_BATCH", 3)
    with corral.open(url, clock=ManualClock()) as store:
        for n in range(7):
            store.mail.put("agent:ada", n)
        store.sessions.append(store.sessions.open(), "user", "text")


MOMENTS = 24


@EVERY_ENGINE_PAIR
def test_move_killed_at_any_commit_resumes(
    create_url: UrlFactory, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    complete_source = create_url(source)
    fill_store(complete_source, monkeypatch)
    moments = kill_move(complete_source, create_url(target), None)
    assert len(moments) == MOMENTS
    # An odd stride, so that both moments before and after a commit are tested.
    stride = 1 if ALL else 5 if (source, target) == ("sqlite", "sqlite") else 7
    for moment in range(0, len(moments), stride):
        old_url, moved_url = create_url(source), create_url(target)
        fill_store(old_url, monkeypatch)
        kill_move(old_url, moved_url, moment)
        wait_until_alone(moved_url)
        bodies: list[Any] = list(range(7))
        with corral.open(old_url, clock=ManualClock()) as store:
            with suppress(StoreUnavailable):
                store.mail.put("agent:ada", "meanwhile")
                bodies.append("meanwhile")  # an accepted letter must not be lost
            if store.address != moved_url:
                store.db.move(moved_url)
        with corral.open(old_url, clock=ManualClock()) as store:
            assert store.address == moved_url
            assert [letter.body for letter in store.mail.list(limit=100).items] == bodies, moment
            assert store.mail.put("agent:ada", "more").id == f"let_{len(bodies) + 1}"
            check_store(store, schema=True)


@pytest.mark.parametrize("target", ENGINES)
def test_killed_move_can_be_cancelled_before_the_switch(
    create_url: UrlFactory, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    old_url, moved_url = create_url("sqlite"), create_url(target)
    fill_store(old_url, monkeypatch)
    kill_move(old_url, moved_url, MOMENTS - 6)
    with corral.open(old_url, clock=ManualClock()) as store:
        with pytest.raises(Refused, match=r"being moved to .* --cancel"):
            store.db.move(create_url("sqlite"))
        assert store.db.cancel_move() is True
        store.mail.put("agent:ada", "accepted")
        store.db.move(moved_url)
    with corral.open(moved_url, clock=ManualClock()) as store:
        assert [letter.body for letter in store.mail.list().items][-1] == "accepted"


def test_move_cannot_be_cancelled_during_the_switch(
    create_url: UrlFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_url, moved_url = create_url("sqlite"), create_url("sqlite")
    fill_store(old_url, monkeypatch)
    kill_move(old_url, moved_url, MOMENTS - 2)
    with corral.open(moved_url, clock=ManualClock()) as store:
        store.mail.put("agent:ada", "in use")
    with corral.open(old_url, clock=ManualClock()) as store:
        assert store.db.url == old_url
        with pytest.raises(CorralError, check=because("already_moved")):
            store.db.cancel_move()
        store.db.move(moved_url)
    with corral.open(old_url, clock=ManualClock()) as store:
        assert [letter.body for letter in store.mail.list().items][-1] == "in use"
    old_database = connect(old_url, actor="test")
    move_record = read_store_move(old_database)
    assert move_record is not None
    assert move_record.phase == "gone"
    old_database.close()


def test_completed_move_cannot_be_cancelled(
    create_url: UrlFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that seems active does not matter: another host cannot know that it ended."""
    old_url, moved_url = create_url("sqlite"), create_url("sqlite")
    fill_store(old_url, monkeypatch)
    kill_move(old_url, moved_url, MOMENTS - 2)

    def refuse(database: object) -> None:
        raise Refused("a run is active")

    monkeypatch.setattr("corral.services.store.move._refuse_while_used", refuse)
    with corral.open(old_url, clock=ManualClock()) as store:
        store.db.move(moved_url)
        with pytest.raises(StoreUnavailable):
            store.mail.put("agent:ada", "lost")


# -- the move command -----------------------------------------------------------------------------


def test_db_move_command_moves_reports_and_cancels(
    create_url: UrlFactory, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    old_url, moved_url = create_url("sqlite"), create_url("sqlite")
    with open_store(old_url, clock) as store:
        store.timers.set("agent:ada", "tick", delay_ms=HOUR)
    cli = Cli(capsys, old_url)
    error = cli.error("db", "move", moved_url)
    assert (error["exit_code"], error["details"]["reason"]) == (4, "not_confirmed")
    moved = cli.json("db", "move", moved_url, "--yes")
    assert moved["url"] == moved_url
    assert moved["rows"] > 0
    assert cli.json("timer", "list") == Cli(capsys, moved_url).json("timer", "list")
    assert cli.json("db", "move", "--cancel") == {"url": moved_url}
    assert cli("db", "move").code == 2
    assert cli("db", "move", moved_url, "--yes").code == 2


def test_move_creates_a_missing_target(store: Corral, tmp_path: Path, clock: ManualClock) -> None:
    store.mail.put("agent:ada", 1)
    store.db.move(f"sqlite:///{tmp_path}/created/new.db")
    assert stat.S_IMODE((tmp_path / "created" / "new.db").stat().st_mode) == 0o600
    with open_store(store.address, clock) as moved:
        assert len(moved.mail.list().items) == 1


# -- concurrent moves ------------------------------------------------------------------------------


@EVERY_ENGINE_PAIR
def test_move_and_cancel_exclude_each_other(
    create_url: UrlFactory, clock: ManualClock, source: str, target: str
) -> None:
    """Concurrent moves would clear each other's copy and lose accepted letters."""
    old_url, moved_url, third_url = create_url(source), create_url(target), create_url("sqlite")
    with open_store(old_url, clock) as store, open_store(old_url, clock) as second_store:
        store.mail.put("agent:ada", "kept")
        refused_tables = []

        def move_and_cancel(table: str, done: int, total: int) -> None:
            for operation in (second_store.db.cancel_move, lambda: second_store.db.move(moved_url)):
                with pytest.raises(Refused, match="Another process is moving"):
                    operation()
                refused_tables.append(table)
            with pytest.raises(StoreUnavailable, check=because("moved")):
                second_store.mail.put("agent:ada", "lost")

        store.db.move(moved_url, on_progress=move_and_cancel)
        assert refused_tables
    with open_store(moved_url, clock) as store:
        assert [letter.body for letter in store.mail.list().items] == ["kept"]
        store.db.move(third_url)  # the finished move released its lock


def test_restore_into_a_moving_store_is_rejected(
    create_url: UrlFactory, clock: ManualClock, url: str, tmp_path: Path
) -> None:
    """The restored rows would stay in the old store and be lost."""
    moved_url, backup = create_url("sqlite"), tmp_path / "backup.db"
    with open_store(url, clock) as store, open_store(url, clock) as second_store:
        store.mail.put("agent:ada", "first")
        store.db.backup(backup)
        store.mail.put("agent:ada", "second")

        def restore(table: str, done: int, total: int) -> None:
            with pytest.raises(Refused, match="Another process is moving"):
                second_store.db.restore(backup)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.db.move(moved_url, on_progress=restore)
        with pytest.raises(Refused, match=r"being moved to .* --cancel"):
            second_store.db.restore(backup)
        store.db.move(moved_url)
    with open_store(url, clock) as store:
        assert [letter.body for letter in store.mail.list().items] == ["first", "second"]


@pytest.mark.parametrize("target", ENGINES)
def test_second_store_moving_to_one_target_is_rejected(
    create_url: UrlFactory, clock: ManualClock, target: str
) -> None:
    old_url, other_url, moved_url = create_url("sqlite"), create_url("sqlite"), create_url(target)
    with open_store(old_url, clock) as store, open_store(other_url, clock) as second_store:
        store.mail.put("agent:ada", "original")

        def move_to_same_target(table: str, done: int, total: int) -> None:
            with pytest.raises(Refused, match="Another process is moving"):
                second_store.db.move(moved_url)

        store.db.move(moved_url, on_progress=move_to_same_target)
        second_store.mail.put("agent:ada", "accepted")
    with open_store(moved_url, clock) as moved:
        assert [letter.body for letter in moved.mail.list().items] == ["original"]


@pytest.mark.parametrize("name", ["link", "hard link"])
def test_sqlite_file_cannot_move_to_itself_by_another_path(
    create_url: UrlFactory, clock: ManualClock, tmp_path: Path, name: str
) -> None:
    old_url, link = Path(create_url("sqlite").removeprefix("sqlite:///")), tmp_path / "link.db"
    with open_store(f"sqlite:///{old_url}", clock) as store:
        link.symlink_to(old_url) if name == "link" else link.hardlink_to(old_url)
        with pytest.raises(Invalid, match="store is already at"):
            store.db.move(f"sqlite:///{link}")
        store.mail.put("agent:ada", "accepted")


def test_database_cannot_move_to_itself_by_another_host_name(
    create_url: UrlFactory, clock: ManualClock
) -> None:
    old_url = create_url("postgres")
    with open_store(old_url, clock) as store:
        with pytest.raises(Refused, match="this store is already there"):
            store.db.move(old_url.replace("127.0.0.1", "localhost"))
        store.mail.put("agent:ada", "accepted")


def test_deleted_target_is_not_switched_to(create_url: UrlFactory, clock: ManualClock) -> None:
    old_url, moved_url = create_url("sqlite"), create_url("sqlite")
    with open_store(old_url, clock) as store:
        store.mail.put("agent:ada", "kept")

        def delete_target(table: str, done: int, total: int) -> None:
            if done == total:
                Path(moved_url.removeprefix("sqlite:///")).unlink(missing_ok=True)

        with pytest.raises(StoreUnavailable) as caught:
            store.db.move(moved_url, on_progress=delete_target)
        assert caught.value.details["reason"] == "replaced"
        assert store.db.cancel_move() is True
        assert [letter.body for letter in store.mail.list().items] == ["kept"]
