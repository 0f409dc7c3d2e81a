"""Backup and restore of both engines: complete content, continued sequences, invalid files."""

import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import corral
from corral.adapters.channels.contract import IncomingEvent
from corral.adapters.providers.facts import TurnFact, UsageFact
from corral.adapters.transcripts.reader import TranscriptHead, TranscriptItem
from corral.api import Corral
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.db.backup import FENCE_INCREMENT
from corral.db.schema import tables
from corral.db.statement import Statement
from corral.db.write_guard import INTERNAL_TABLES
from corral.domain.checkpoints.model import NewCheckpointWrite
from corral.domain.imports import ops as import_ops
from corral.domain.imports.origins import SourceTable, add_origins
from corral.domain.races import sql as races
from corral.domain.runs.model import ResourceSample
from corral.domain.sandbox_bridge import ingest
from corral.kernel.clock import DAY, HOUR, MINUTE, ManualClock
from corral.kernel.errors import Held, Invalid, NotFound, Refused
from corral.kernel.exit_status import ExitStatus
from corral.services.store.backup import restore_problem
from tests.support.errors import because
from tests.support.grouped_cases import each_case
from tests.support.invariants import check_store
from tests.support.run_factories import add_launch, add_run, held, running
from tests.support.state_rows import insert, state_tables
from tests.support.store import raises_without_change, write

pytestmark = pytest.mark.slow

ENGINES = ["sqlite", "postgres"]
EVERY_ENGINE_PAIR = pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a in ENGINES for b in ENGINES]
)

StoreOpener = Callable[[str], Corral]


@pytest.fixture
def open_on(new_url: Callable[[str], str], clock: ManualClock) -> Iterator[StoreOpener]:
    """Return a function that opens a new store on an engine."""
    with ExitStack() as stack:
        yield lambda engine: stack.enter_context(
            corral.open(new_url(engine), clock=clock, actor="user:tester")
        )


def fill_every_table(store: Corral, clock: ManualClock, folder: Path) -> None:
    """Insert rows into every table, in each state that is easy to reach."""
    project = store.projects.register(folder, command="claude", prompt="ünï ☃")
    store.settings.set("mail.backoff_ms", [MINUTE], scope=f"project:{project.id}")
    store.secrets.set("token", "env:TOKEN")
    store.internal.nodes.join("host", "boot", owner="d", labels=["gpu"])
    store.internal.nodes.acquire_leadership("loop", owner="d")
    store.schedules.create("agent:ada", {"z": 1, "a": [None]}, cron="0 9 * * *", name="daily")
    store.timers.set("agent:ada", "tick", delay_ms=HOUR)
    clock.advance(HOUR)
    store.schedules.fire_due()
    store.mail.put("agent:ada", "open", key="k", priority=5, sender="user:eve")
    store.mail.begin_delivery(store.mail.claim("agent:ada", owner="o")[0])
    for n in range(12):
        store.mail.put("queue:x", {"n": n}, expires_at=clock.now() + DAY, project=project.id)
    store.mail.ack(store.mail.claim("queue:x", owner="o")[0])
    store.mail.refuse(store.mail.claim("queue:x", owner="o")[0], "no")
    store.mail.claim("queue:x", owner="o")
    store.budgets.set("all", 1_000)
    store.internal.charges.reserve("run_1", budget_micros=500)
    for total in (10, 25):
        report = UsageFact(model="m", input=total, cost_micros=total, counter="c")
        store.charges.add(report, run_id="run_1", project_id=project.id)
    store.alerts.add(["crashed"], target_kind="mailbox", target="agent:ada")
    store.internal.outputs.begin("run_1", host="host", folder="/srv/runs/run_1")
    store.internal.outputs.add_chunk("run_1", 0, bytes(range(256)) * 4)
    store.internal.outputs.add_chunk("run_1", 1, b"plain text")
    store.outputs.log("run_1", "warn", "ünï ☃", metadata={"z": 1, "a": [None]})
    fill_sessions(store, project.id)
    run = running(store, project_id=project.id)
    store.internal.runs.add_sample(run, ResourceSample(1, 2, 3, 4))
    fill_imports(store, clock)
    store.checkpoints.put("ünï", "1", "bytes", bytes(range(256)), metadata={"z": 1, "a": [None]})
    store.checkpoints.put_writes(
        "ünï", "1", "task", [NewCheckpointWrite(0, "c", "json", b'{"json": 1}')]
    )
    store.tokens.create("script", scope="read")
    key = IdempotencyKey("tok_1", "k", "f")
    arguments = {"mailbox": "queue:y", "body": "ünï"}
    call_with_key(store.mail, "put", arguments, key=key, encode=msgspec.json.encode)
    fill_chat(store)


def fill_chat(store: Corral) -> None:
    config = {"owner_place": "office"}
    store.channels.add("ünï", "webhook", secrets={"secret": "token"}, policy="ask", config=config)
    store.wirings.add("ada", channel="ünï")
    store.mail.write("ada", "☃", to="agent:ada")
    store.host_requests.ask("ada", "secret", {"name": "wanted", "reason": "☃"}, key="k")
    store.schedules.run(store.schedules.prompt("ada", "☃", cron="0 9 * * *", script="true").id)
    for sender in ("eve", "mallory"):
        event = IncomingEvent(event_id=sender, place="room", sender=sender, text="☃", files=[])
        if sender == "eve":
            store.senders.approve("ünï/eve", person="eve", role="owner")
        store.messages.receive("ünï", event)
    run = store.runs.list(limit=1).items[0]
    with store.transaction() as tx:
        ingest.reject_message(tx, "ses_1", run.id, "out-1", "ünï", notify=False)


def insert_race(store: Corral) -> None:
    """Insert the rows of a race directly, because a real race needs git and agents."""
    states = state_tables()
    with store.transaction() as tx:
        keys = {
            name: insert(tx, states[name], state)
            for name, state in {
                "races": "active",
                "rounds": "completed",
                "attempts": "completed",
                "verdicts": "given",
            }.items()
        }
        references = {"round_id": keys["rounds"], "attempt_id": keys["attempts"], "now": 1}
        tx.run(
            races.ADD_SELECTION, number=1, verb="select", commit_id="c", ranked_first_id=None,
            reason="☃", selected_by="ünï", **references,
        )  # fmt: skip
        tx.run(
            races.ADD_GRAFT, id="grf_1", files="[]", commit_id=None, kept=0, checks="[]",
            reason="☃", created_by="ünï", **references,
        )  # fmt: skip


def fill_imports(store: Corral, clock: ManualClock) -> None:
    transcript = write(
        store,
        lambda tx: import_ops.begin_transcript(
            tx, "claude", "/srv/a.jsonl", TranscriptHead("conversation", title="ünï")
        ),
    )
    item = TranscriptItem(clock.now(), TurnFact("user", "imported"), 10)
    write(store, lambda tx: import_ops.import_items(tx, transcript, [item], read_bytes=10))
    with store.transaction() as tx:
        origin = {"row_id": "7", "unmapped": '{"ü": 1}', "problems": '["☃"]', "digest": "d"}
        add_origins(tx, SourceTable("agent-yes", "/srv/a.db", "runs"), [origin])


def fill_sessions(store: Corral, project: str) -> None:
    store.agents.create("ada", role="builder", provider="claude", limits={"max_runs": 2})
    store.agents.create("ben", command="cat", admin=True)
    store.agents.grant("ada", "Bash(git *)")
    session = store.sessions.open("ada", project=project, title="ünï ☃", reply_to="user:eve")
    store.sessions.append(session, "user", "find the zebra", key="k", meta={"z": 1, "a": [None]})
    store.sessions.append(session, "tool", "", tool_name="Bash", result={"out": "1"}, is_error=True)
    store.sessions.set_state(session, "branch", "main")
    store.sessions.handoff(session, "ben", "last", "be kind", last=1)
    store.sessions.append(store.sessions.fork(session, 1), "user", "forked turn")
    store.sessions.record_retro(session, {"cost": 1})
    store.sessions.close(store.sessions.open())
    assert store.search.catch_up() == 3
    fill_tasks(store, project)


def fill_tasks(store: Corral, project: str) -> None:
    store.tasks.declare(
        project, [{"key": "ä", "files": ["src"]}, {"key": "b", "depends_on": ["ä"]}]
    )
    store.tasks.delegate("ä", "ben", context="ünï")
    task = store.tasks.claim(project, "ben")
    assert task is not None
    store.tasks.submit(task, {"text": "☃", "commands": [{"command": "make", "exit_code": 0}]})
    store.plans.set(["first", "then"], agent="ada", project_id=project)
    store.progress.report("half done", agent="ben", percent=50, task="ä")
    fill_coordination(store, project)


def fill_coordination(store: Corral, project: str) -> None:
    store.locks.acquire(project, "src/ä.py", "ada")
    store.locks.touch(project, "src/ä.py", "ben")
    store.questions.ask("Which ☃?", options=["a", "b"], asker="agent:ada", project=project)
    store.decisions.record("ünï", alternatives=["x"], author="agent:ada", project=project)
    group = store.groups.create(
        "crew", members=["agent:ada", "user:eve"], roles=["builder"], project=project
    )
    post = store.groups.post(group.id, "hello ☃", author="agent:ada")
    store.groups.react(group.id, post.number, "👍", member="user:eve")
    store.notes.add("a note", project=project, key="fox")


def read_tables(store: Corral) -> dict[str, list[list[Any]]]:
    """Return all rows by table, with the columns that both engines have."""
    contents = {}
    with store.transaction() as tx:
        for table in tables():
            if table.name not in INTERNAL_TABLES:
                names = ", ".join(column.name for column in table.columns)
                rows = tx.run(Statement(f"SELECT {names} FROM {table.name} ORDER BY 1, 2"))
                contents[table.name] = [[decode_cell(cell) for cell in row] for row in rows]
    return contents


def decode_cell(cell: Any) -> Any:
    """Decode JSON, which one engine returns as bytes; binary values stay bytes."""
    try:
        return cell.decode() if isinstance(cell, bytes) else cell
    except UnicodeDecodeError:
        return cell


def without_restore_changes(contents: dict[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    """Remove what a restore adds: its event and the increment of the fences."""
    columns = {table.name: [column.name for column in table.columns] for table in tables()}
    contents["events"] = [row for row in contents["events"] if "store" not in row]
    for name, rows in contents.items():
        if "fence" in columns[name]:
            index = columns[name].index("fence")
            for row in rows:
                assert row[index] >= FENCE_INCREMENT
                row[index] -= FENCE_INCREMENT
    return contents


@EVERY_ENGINE_PAIR
def test_backup_restores_everything_on_either_engine(
    open_on: StoreOpener, clock: ManualClock, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    fill_every_table(old_store, clock, tmp_path)
    insert_race(old_store)
    contents = read_tables(old_store)
    assert [name for name, rows in contents.items() if not rows] == [], "every table has rows"
    new_store.mail.put("agent:other", "is replaced")
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    assert without_restore_changes(read_tables(new_store)) == contents
    assert read_tables(old_store) == contents
    assert [hit.location for hit in new_store.search.find("zebra").items] == [1]
    (ada, _) = new_store.agents.list().items
    assert (ada.limits.max_runs, new_store.agents.allows("ada", "Bash(rm x)")) == (2, False)


@EVERY_ENGINE_PAIR
def test_binary_values_survive_backup_and_restore(
    open_on: StoreOpener, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    old_store.internal.outputs.begin("run_1", host="host", folder="/srv/runs/run_1")
    chunks = [bytes(range(256)) * 4, b"plain text", b'{"json": 1}', b"\\x00"]
    for number, data in enumerate(chunks):
        old_store.internal.outputs.add_chunk("run_1", number, data)
    old_store.outputs.log("run_1", "info", "before")
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    assert [
        new_store.internal.outputs.chunk("run_1", number) for number in range(len(chunks))
    ] == chunks
    assert new_store.outputs.log("run_1", "info", "after").id == "log_2"


@EVERY_ENGINE_PAIR
def test_rows_after_restore_get_new_numbers(
    open_on: StoreOpener, clock: ManualClock, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    for n in range(5):
        old_store.mail.put("agent:ada", n)
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    assert new_store.mail.put("agent:ada", "new").id == "let_6"
    events = new_store.events.after().items
    assert [event.id for event in events] == [f"evt_{n}" for n in range(1, 8)]
    assert (events[5].kind, events[5].verb) == ("store", "restore")


@EVERY_ENGINE_PAIR
def test_sequences_continue_after_restore(
    open_on: StoreOpener, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    project = old_store.projects.register(tmp_path).id
    lock = old_store.locks.acquire(project, "a", "user:eve")
    old_store.locks.touch(project, "a", "user:eve")
    old_store.checkpoints.put("t", "1", "json", b"{}")
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    assert new_store.locks.acquire(project, "b", "user:eve").id > lock.id
    new_store.locks.touch(project, "b", "user:eve")
    new_store.checkpoints.put("t", "2", "json", b"{}")
    assert [checkpoint.seq for checkpoint in new_store.checkpoints.list().items] == [2, 1]


@EVERY_ENGINE_PAIR
def test_totals_continue_after_restore(
    open_on: StoreOpener, clock: ManualClock, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    fill_every_table(old_store, clock, tmp_path)
    new_store.charges.add(UsageFact(model="other", input=1), run_id="run_9")
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    assert new_store.charges.list().items == old_store.charges.list().items
    assert new_store.budgets.list().items == old_store.budgets.list().items
    assert new_store.alerts.list().items == old_store.alerts.list().items
    charge = new_store.charges.add(
        UsageFact(model="m", input=30, cost_micros=30, counter="c"), run_id="run_1"
    )
    assert charge is not None
    assert (charge.id, charge.input) == ("chg_3", 5)
    assert new_store.charges.total("run:run_1").cost_micros == 30
    check_store(new_store, schema=True)


@EVERY_ENGINE_PAIR
def test_pruned_numbers_are_not_reused_after_restore(
    open_on: StoreOpener, clock: ManualClock, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    for n in range(3):
        old_store.mail.put("queue:x", n)
    for letter in old_store.mail.claim("queue:x", owner="o", limit=3):
        old_store.mail.ack(letter)
    clock.advance(31 * DAY)
    old_store.db.prune()
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    assert new_store.mail.put("agent:ada", "new").id == "let_4"


@EVERY_ENGINE_PAIR
def test_restored_store_accepts_writes(
    open_on: StoreOpener, clock: ManualClock, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    old_store.mail.put("agent:ada", 1, key="k")
    (letter,) = old_store.mail.claim("agent:ada", owner="o")
    timer = old_store.timers.set("agent:ada", "tick", delay_ms=HOUR)
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    assert new_store.mail.put("agent:ada", 2, key="k").body == 1
    with raises_without_change(new_store, Held):
        new_store.mail.ack(letter)  # the restore revoked leases
    clock.advance(HOUR)
    (next_letter,) = new_store.mail.claim("agent:ada", owner="o")
    assert new_store.mail.ack(next_letter).state == "done"
    assert [fired.body for fired in new_store.schedules.fire_due()] == ["tick"]
    assert new_store.timers.get(timer.id).state == "finished"
    assert all(finding.state == "ok" for finding in new_store.db.verify())


@EVERY_ENGINE_PAIR
def test_turns_and_search_continue_after_restore(
    open_on: StoreOpener, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    session = old_store.sessions.open()
    old_store.sessions.append(session, "user", "found before")
    old_store.search.catch_up()
    old_store.sessions.append(session, "user", "found later")
    replaced_session = new_store.sessions.open()
    for n in range(5):
        new_store.sessions.append(replaced_session, "user", f"replaced {n}")
    new_store.search.catch_up()
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    assert new_store.search.find("replaced").items == []
    assert new_store.sessions.append(session, "user", "found last").id == "trn_6"
    assert [turn.number for turn in new_store.sessions.turns(session).items] == [1, 2, 3]
    assert [hit.location for hit in new_store.search.find("found").items] == [3, 2, 1]
    assert all(finding.state == "ok" for finding in new_store.db.verify())


@EVERY_ENGINE_PAIR
def test_event_cursor_stays_valid_after_restore(
    open_on: StoreOpener, tmp_path: Path, source: str, target: str
) -> None:
    old_store, new_store = open_on(source), open_on(target)
    old_store.mail.put("agent:ada", 1)
    new_store.db.restore(old_store.db.backup(tmp_path / "backup.db"))
    cursor = new_store.events.after().next
    letter = new_store.mail.put("agent:ada", 2)
    assert [event.subject for event in new_store.events.after(cursor).items] == [letter.id]


# -- the file --------------------------------------------------------------------------------


def test_backup_is_one_private_sqlite_file(store: Corral, tmp_path: Path) -> None:
    store.mail.put("agent:ada", 1)
    folder = tmp_path / "backups"
    folder.mkdir()
    file = store.db.backup(str(folder / "b.db"))
    assert [path.name for path in folder.iterdir()] == ["b.db"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.execute("SELECT body FROM letters").fetchall() == [("1",)]
    assert connection.pragma("journal_mode") == "delete"
    connection.close()


def test_backup_opens_as_a_store(store: Corral, tmp_path: Path) -> None:
    letter = store.mail.put("agent:ada", 1)
    file = store.db.backup(tmp_path / "b.db")
    with corral.open(file) as copy:
        assert copy.mail.get(letter.id) == letter


def test_restore_into_empty_store_keeps_no_previous_file(
    open_on: StoreOpener, tmp_path: Path
) -> None:
    with open_on("sqlite") as source:
        source.mail.put("agent:ada", 1)
        file = source.db.backup(tmp_path / "b.db")
    with open_on("sqlite") as target:
        assert target.db.restore(file) is None
        assert not list(tmp_path.glob("*.before-restore*"))
        target.mail.put("agent:ada", 2)
        previous = target.db.restore(file)
    assert previous is not None
    with corral.open(previous) as previous_store:
        assert len(previous_store.mail.list().items) == 2


def test_backup_does_not_overwrite_an_existing_file(store: Corral, tmp_path: Path) -> None:
    (tmp_path / "b.db").write_text("original")
    with raises_without_change(store, Invalid):
        store.db.backup(tmp_path / "b.db")
    assert (tmp_path / "b.db").read_text() == "original"


@each_case("name", ["missing/b.db", ".", "file/b.db"])
def test_backup_to_unwritable_path_is_rejected(store: Corral, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with raises_without_change(store, Invalid):
        store.db.backup(tmp_path / name)


def test_file_that_is_not_a_backup_is_rejected_unchanged(store: Corral, tmp_path: Path) -> None:
    store.mail.put("agent:ada", 1)
    (tmp_path / "text").write_text("not a database, but longer than a header " * 40)
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    connection = apsw.Connection(str(tmp_path / "other.db"))
    connection.execute("CREATE TABLE a (b)")
    connection.close()
    for name in ("missing", "text", "empty", "folder", "other.db"):
        with raises_without_change(store, Invalid):
            store.db.restore(tmp_path / name)


def test_damaged_backup_is_rejected_unchanged(store: Corral, tmp_path: Path) -> None:
    for n in range(300):
        store.mail.put("agent:ada", "x" * 200 + str(n))
    file = store.db.backup(tmp_path / "b.db")
    data = bytearray(file.read_bytes())
    data[4096 * 5 : 4096 * 30] = bytes(4096 * 25)
    file.write_bytes(data)
    with raises_without_change(store, Invalid):
        store.db.restore(file)


def test_backup_with_newer_schema_is_rejected(store: Corral, tmp_path: Path) -> None:
    file = store.db.backup(tmp_path / "b.db")
    newer = apsw.Connection(str(file))
    newer.execute("PRAGMA user_version = 999")
    newer.close()
    with raises_without_change(store, Invalid) as caught:
        store.db.restore(file)
    assert "newer" in caught.value.message


def test_restore_keeps_the_previous_sqlite_file(open_on: StoreOpener, tmp_path: Path) -> None:
    store = open_on("sqlite")
    file = store.db.backup(tmp_path / "empty.db")
    store.mail.put("agent:ada", "before")
    previous = store.db.restore(file)
    assert previous is not None
    assert stat.S_IMODE(previous.stat().st_mode) == 0o600
    assert store.mail.list().items == []
    store.db.restore(previous)
    assert [letter.body for letter in store.mail.list().items] == ["before"]


def test_open_handles_see_restored_content(
    store: Corral, url: str, clock: ManualClock, tmp_path: Path
) -> None:
    store.mail.put("agent:ada", "restored")
    file = store.db.backup(tmp_path / "b.db")
    with corral.open(url, clock=clock) as second_store:
        second_store.mail.put("agent:ada", "replaced")
        store.db.restore(file)
        assert [letter.body for letter in second_store.mail.list().items] == ["restored"]
        assert (
            second_store.mail.put("agent:ada", "later").id == "let_3"
        )  # let_2 was used before the restore
    assert [letter.body for letter in store.mail.list().items] == ["restored", "later"]


@pytest.mark.parametrize("target", ENGINES)
def test_restoring_from_a_live_store_includes_committed_rows(
    open_on: StoreOpener, target: str
) -> None:
    source, store = open_on("sqlite"), open_on(target)
    source.mail.put("agent:ada", "in the write-ahead log")
    assert source.db.path is not None
    store.db.restore(source.db.path)
    assert [letter.body for letter in store.mail.list().items] == ["in the write-ahead log"]


def test_durability_of_a_backup_applies_after_restore(open_on: StoreOpener, tmp_path: Path) -> None:
    store = open_on("sqlite")
    store.db.durability("full")
    file = store.db.backup(tmp_path / "full.db")
    store.db.durability("normal")
    store.db.restore(file)
    assert store.db.durability() == "full"
    store.mail.put("agent:ada", 1)
    writer: Any = store._database._shared.writer
    assert writer.connection.pragma("synchronous") == 2


def test_backup_without_a_live_run_is_rejected(store: Corral, tmp_path: Path) -> None:
    known_run = running(store, 1)
    backup = store.db.backup(tmp_path / "old.db")
    unknown_run = running(store, 2)
    with pytest.raises(Refused, check=because("runs_active", runs=[unknown_run.id])) as caught:
        store.db.restore(backup)
    assert caught.value.details["runs"] == [unknown_run.id]
    assert [run.id for run in store.runs.list(live=True).items] == [unknown_run.id, known_run.id]
    assert not list(tmp_path.glob("*.before-restore*"))
    store.internal.runs.record_end(unknown_run, ExitStatus(exit_code=0))
    store.db.restore(backup)
    assert [run.id for run in store.runs.list().items] == [known_run.id]


def test_backup_with_an_earlier_attempt_of_a_run_is_rejected(store: Corral, tmp_path: Path) -> None:
    run = running(store, 1, max_restarts=1)
    backup = store.db.backup(tmp_path / "old.db")
    store.internal.runs.restart(run, held(2), ExitStatus(exit_code=1), quick_failures=0)
    with pytest.raises(Refused, check=because("runs_active", runs=[run.id])):
        store.db.restore(backup)


def test_published_numbers_are_not_reused_after_restore(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path).id
    store.channels.add("web", "web", policy="public")
    store.places.register("web", "room")
    run = add_run(store, "completed")
    add_launch(store, run)
    store.internal.outputs.begin(run, host="other-host", folder=f"/srv/{run}")
    store.outputs.log(run, "info", "before")
    kept_charge = store.charges.add(UsageFact(model="m", input=1, cost_micros=1), run_id=run)
    backup = store.db.backup(tmp_path / "backup.db")
    lost_lock = store.locks.acquire(project, "a", "user:ann")
    message_ids = [store.messages.send_as_system("web/room", text)[0].id for text in ("one", "two")]
    log_ids = [store.outputs.log(run, "info", text).id for text in ("one", "two")]
    charges = [
        store.charges.add(UsageFact(model="m", input=n, cost_micros=n), run_id=run) for n in (1, 2)
    ]
    for _ in range(2):  # a second restore of the same backup must not reuse them either
        store.db.restore(backup)
    lock = store.locks.acquire(project, "b", "user:eve")
    assert lock.fence > lost_lock.fence
    with raises_without_change(store, Held):
        store.locks.renew(lost_lock)
    assert store.locks.holders(project, "b") == [lock]
    assert store.messages.send_as_system("web/room", "three")[0].id not in message_ids
    assert store.outputs.log(run, "info", "three").id not in log_ids
    charge = store.charges.add(UsageFact(model="m", input=3, cost_micros=3), run_id=run)
    assert charge is not None
    assert charge.id not in [
        charge_after_backup.id for charge_after_backup in charges if charge_after_backup is not None
    ]
    assert [line.message for line in store.outputs.log_lines(run).items] == ["before", "three"]
    assert store.charges.list().items == [charge, kept_charge]  # placeholder rows are not listed
    with raises_without_change(store, NotFound):
        store.charges.get("chg_3")
    total = store.charges.total("all")
    assert (total.charges, total.unpriced, total.cost_micros) == (2, 0, 4)
    store.projects.export(project, tmp_path / "export.db")
    assert {finding.state for finding in store.db.verify()} == {"ok"}


# -- foreign schema objects in a backup ------------------------------------------------------


def change_file(file: Path, *statements: str) -> None:
    connection = apsw.Connection(str(file))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def rewrite_schema(file: Path, statement: str) -> None:
    """Change the schema table directly, which SQL statements cannot do."""
    change_file(file, "PRAGMA writable_schema = ON", statement)


SCHEMA_DAMAGE = {
    "a trigger": "CREATE TRIGGER spy AFTER INSERT ON letters BEGIN DELETE FROM tokens; END",
    "a view": "CREATE VIEW spy AS SELECT * FROM letters",
    "a table": "CREATE TABLE spy (a)",
    "an index": "CREATE UNIQUE INDEX spy ON letters (body)",
    "a virtual table": "CREATE VIRTUAL TABLE spy USING fts5(a)",
    "a column": "ALTER TABLE letters ADD COLUMN spy TEXT DEFAULT 'x'",
    "no index": "DROP INDEX runs_live",
    "no trigger": "DROP TRIGGER events_by_subject_delete",
    "no table": "DROP TABLE checkpoint_writes",
    "a false write guard": "CREATE TRIGGER write_guard_letters_insert BEFORE INSERT ON letters"
    " BEGIN DELETE FROM tokens; SELECT RAISE(ABORT, 'corral: moving to nowhere'); END",
    "a view for a table": (
        "DROP TABLE resource_samples; CREATE VIEW resource_samples AS SELECT * FROM letters"
    ),
}


@each_case("damage", SCHEMA_DAMAGE)
def test_backup_with_foreign_schema_is_rejected(store: Corral, tmp_path: Path, damage: str) -> None:
    if not store.mail.list().items:
        store.mail.put("agent:ada", 1)
    file = store.db.backup(tmp_path / "b.db")
    change_file(file, SCHEMA_DAMAGE[damage])
    with raises_without_change(store, Invalid) as caught:
        store.db.restore(file)
    assert "another backup" in caught.value.message
    assert not list(tmp_path.glob("*.before-restore*"))


@pytest.mark.parametrize(
    "statements",
    [
        [SCHEMA_DAMAGE["a trigger"]],
        [SCHEMA_DAMAGE["a view"], 'CREATE VIEW "it\'s ""mine""; --" AS SELECT 1'],
        ["CREATE TABLE spy (a PRIMARY KEY)", "CREATE INDEX spies ON spy (a)", "ANALYZE"],
        [SCHEMA_DAMAGE["an index"]],
        [SCHEMA_DAMAGE["a virtual table"]],
    ],
    ids=["a trigger", "views", "a table", "an index", "a virtual table"],
)
def test_foreign_objects_are_removed_from_a_backup(
    store: Corral, tmp_path: Path, statements: list[str]
) -> None:
    store.mail.put("agent:ada", 1)
    file = store.db.backup(tmp_path / "b.db")
    assert restore_problem(file) is None
    change_file(file, *statements)
    problem = restore_problem(file)
    assert problem is not None
    with raises_without_change(store, Invalid) as caught:
        store.db.restore(file)
    assert caught.value.message == problem
    program, path, statement = shlex.split(problem.split("`")[1])
    assert (program, path) == ("sqlite3", str(file))
    change_file(file, statement)
    assert restore_problem(file) is None
    store.db.restore(file)


@each_case(
    "statement",
    [
        "INSERT INTO sqlite_schema VALUES ('trigger', 'sqlite_spy', 'letters', 0,"
        " 'CREATE TRIGGER sqlite_spy AFTER INSERT ON letters BEGIN DELETE FROM tokens; END')",
        "UPDATE sqlite_schema SET sql = replace(sql, 'waiting', 'wai--\n  ting')"
        " WHERE name = 'letters' AND type = 'table'",
        "UPDATE sqlite_schema SET sql = 'no sql' WHERE name = 'runs_live'",
    ],
    ids=["a reserved name", "a changed literal", "no sql"],
)
def test_backup_with_forged_schema_is_rejected(
    store: Corral, tmp_path: Path, statement: str
) -> None:
    file = store.db.backup(tmp_path / "b.db")
    rewrite_schema(file, statement)
    with raises_without_change(store, Invalid) as caught:
        store.db.restore(file)
    assert "another backup" in caught.value.message


def test_backup_changed_after_the_check_is_rejected(
    store: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corral.services.store import backup

    file = store.db.backup(tmp_path / "b.db")
    check_backup_file = backup.check_backup_file

    def check_then_change(path: str | Path) -> Path:
        checked = check_backup_file(path)
        change_file(file, SCHEMA_DAMAGE["a trigger"])
        return checked

    monkeypatch.setattr(backup, "check_backup_file", check_then_change)
    with raises_without_change(store, Invalid):
        store.db.restore(file)


def test_write_guard_in_a_backup_is_removed(store: Corral, tmp_path: Path) -> None:
    file = store.db.backup(tmp_path / "b.db")
    change_file(
        file,
        "CREATE TRIGGER write_guard_letters_insert BEFORE INSERT ON letters"
        " BEGIN SELECT RAISE(ABORT, 'corral: moving to nowhere'); END",
    )
    store.db.restore(file)
    assert store.mail.put("agent:ada", 1).body == 1


def test_comments_in_a_backup_schema_may_differ(store: Corral, tmp_path: Path) -> None:
    """Comments have no effect, and a later release may change those of a migration."""
    file = store.db.backup(tmp_path / "b.db")
    rewrite_schema(
        file,
        "UPDATE sqlite_schema SET sql = replace(sql, '-- ', '--  changed: ') WHERE type = 'table'",
    )
    store.db.restore(file)
    assert {finding.state for finding in store.db.verify()} == {"ok"}


@pytest.mark.parametrize("target", ENGINES)
def test_older_backup_is_compared_with_its_own_schema_version(
    open_on: StoreOpener, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corral.db import migrations

    file = tmp_path / "old.db"
    all_migrations = migrations.load_migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "load_migrations", lambda: all_migrations[:-1])
        patch.setattr(migrations, "latest_version", lambda: len(all_migrations) - 1)
        with corral.open(file) as old_store, old_store.transaction() as tx:
            # Written by SQL, because today's operations need today's columns.
            tx.run(
                Statement(
                    "INSERT INTO settings (scope, name, value, updated_at, updated_by)"
                    " VALUES ('global', 'mail.max_attempts', '3', 1, 'user:tester')"
                )
            )
    store = open_on(target)
    store.db.restore(file)
    assert store.settings.get("mail.max_attempts").value == 3
    assert {finding.state for finding in store.db.verify()} == {"ok"}
    change_file(file, SCHEMA_DAMAGE["a view"])
    with raises_without_change(store, Invalid) as caught:
        store.db.restore(file)
    assert caught.value.details["reason"] == "foreign_schema"
