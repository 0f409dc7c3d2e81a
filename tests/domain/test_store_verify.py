"""Verification of a store: orphans, counts, totals, states, files and the schema."""

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import corral
from corral import config
from corral.adapters.processes import process
from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.db.types import Finding
from corral.domain.insights.integrity_sql import PARENT_REFERENCES
from corral.domain.runs.model import Run
from corral.kernel.clock import DAY, YEAR, ManualClock
from corral.kernel.errors import StoreUnavailable
from corral.services.store import verify
from tests.domain.test_store_backup import fill_every_table, insert_race
from tests.support.cli_runner import Cli
from tests.support.errors import because
from tests.support.fake_channels import Chat, register_adapters
from tests.support.postgres_server import PostgresServer
from tests.support.run_factories import add_launch, add_run
from tests.support.store import rows, unchanged

CHECKS = ["orphans", "counts", "totals", "states"]
FILES = ["outputs", "runs", "attachments", "sandboxes", "worktrees"]


def list_faults(store: Corral, *checks: str) -> list[Finding]:
    return [
        finding
        for finding in store.db.verify()
        if finding.state != "ok" and (not checks or finding.check in checks)
    ]


def execute(store: Corral, *statements: str) -> None:
    """Execute SQL statements directly, to damage the store."""
    with store.transaction() as tx:
        for statement in statements:
            tx.run(Statement(statement))


def fill_project(store: Corral, project: str) -> None:
    """Create records of every kind that verification counts."""
    store.agents.create("ada", command="cat")
    session = store.sessions.open("ada", project=project)
    for n in range(3):
        store.sessions.append(session, "user", f"word {n}")
    store.sessions.append(store.sessions.fork(session, 2), "user", "another way")
    run = add_run(store, "completed", project_id=project)
    add_launch(store, run)
    for cost in (5, None, 7):
        store.charges.add(
            UsageFact(model="m", input=1, cost_micros=cost),
            run_id=run, session_id=session.id, project_id=project,
        )  # fmt: skip
    store.tasks.declare(project, [{"key": "a"}, {"key": "b", "depends_on": ["a"]}])
    store.groups.post(store.groups.create("crew", project=project).id, "hello")
    store.notes.add("a note", project=project)
    store.locks.acquire(project, "src", "ada")
    store.mail.put("agent:ada", "hello", project=project)
    store.search.catch_up()


@pytest.fixture
def project(store: Corral, tmp_path: Path) -> str:
    id = store.projects.register(tmp_path).id
    fill_project(store, id)
    return id


def test_verify_of_a_sound_store_reports_only_ok(
    store: Corral, project: str, clock: ManualClock
) -> None:
    with unchanged(store):
        findings = store.db.verify()
    assert [finding.check for finding in findings if finding.state == "ok"][-9:] == [
        *CHECKS,
        *FILES,
    ]
    assert [finding for finding in findings if finding.state != "ok"] == []
    clock.advance(YEAR + 2 * DAY)
    store.charges.add(UsageFact(model="m", input=1), project_id=project)
    store.db.prune()
    store.projects.delete(project)
    assert list_faults(store) == []


def test_orphaned_rows_are_reported_for_every_table(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    fill_every_table(store, clock, tmp_path)
    insert_race(store)
    execute(
        store,
        "UPDATE tasks SET conflicts_with_id = 'tsk_gone', blocked_by_id = 'tsk_gone'",
        "UPDATE rounds SET winner_id = 'att_gone'",
        "UPDATE wirings SET place_id = 'plc_gone'",
        "INSERT INTO destinations (id, agent_id, name, place_id, state, created_at, created_by)"
        " VALUES ('dst_1', 'agt_1', 'n', 'plc_1', 'granted', 1, 'x')",
        "INSERT INTO file_touches (project_id, path, owner, count, first_at, last_at)"
        " VALUES ('prj_1', 'a', 'user:eve', 1, 1, 1)",
        *(f"UPDATE {table} SET {column} = '{column}_gone'" for table, column in (
            ("tasks", "project_id"), ("races", "project_id"), ("notes", "project_id"),
            ("locks", "project_id"), ("schedules", "project_id"),
            ("task_dependencies", "depends_on_id"),
        )),
        *(f"DELETE FROM {table}" for table in (
            "runs", "sessions", "agents", "races", "rounds", "attempts", "groups", "channels",
            "places", "schedules", "questions", "outputs",
        )),
        "UPDATE reactions SET post_id = 'pst_gone'",
        "UPDATE task_dependencies SET task_id = 'tsk_gone'",
    )  # fmt: skip
    messages = " ".join(finding.message for finding in list_faults(store, "orphans"))
    # Tables whose own rows were deleted above have no orphans.
    deleted_tables = {"sessions", "outputs", "rounds", "attempts", "races", "places", "schedules"}
    unreported = [
        f"{reference.table}.{reference.column}"
        for reference in PARENT_REFERENCES
        if reference.table not in deleted_tables
        and f"of {reference.table} with a {reference.column} that is not in {reference.parent}"
        not in messages
    ]
    assert unreported == []
    assert "of passages with a subject that is not in sessions" in messages
    assert 'corral db sql "SELECT * FROM' in messages


def test_letters_without_possible_receiver_are_reported(store: Corral) -> None:
    letter = store.mail.put(f"session:{store.sessions.open().id}", "hello")
    rows(store, "DELETE FROM sessions RETURNING 1")
    store.mail.put("agent:unknown", "mailboxes of agents need no row")
    (finding,) = list_faults(store)
    assert (finding.check, finding.state) == ("orphans", "warning")
    assert f"`corral mail drop {letter.id}`" in finding.message
    store.mail.drop(letter.id)
    assert list_faults(store) == []


@pytest.mark.parametrize(
    ("check", "expected", "damage"),
    [
        (
            "counts",
            ["session", "forks", "open task", "group", "agent"],
            [
                "DELETE FROM turns WHERE number = 2",
                "UPDATE tasks SET open_dependencies = 0 WHERE key = 'b'",
                "UPDATE groups SET posts = 0",
                "UPDATE agents SET version = 9",
                "UPDATE sessions SET parent_id = id, parent_turn = 1",
            ],
        ),
        (
            "totals",
            ["run:", "session:", "3 totals"],
            [
                "UPDATE usage_totals SET cost_micros = 13 WHERE scope = 'all' AND day = ''",
                "UPDATE usage_totals SET input = 0 WHERE scope LIKE 'run:%'",
                "DELETE FROM usage_totals WHERE scope LIKE 'project:%' AND day = ''",
                "DELETE FROM usage_totals WHERE scope LIKE 'session:%'",
                "UPDATE usage_totals SET charges = 1 WHERE scope = 'model:m' AND day > ''",
            ],
        ),
        # The charge is part of six sums: all, model and project, each in total and per day.
        ("totals", ["6 totals"], ["UPDATE charges SET cost_micros = 6 WHERE cost_micros = 5"]),
        (
            "states",
            ["led to active", "led to waiting"],
            [
                "UPDATE projects SET state = 'archived'",
                "UPDATE letters SET state = 'dead', ended_at = 1",
            ],
        ),
    ],
    ids=["counts", "totals", "charges", "states"],
)
def test_contradicting_rows_are_reported(
    store: Corral, project: str, check: str, expected: list[str], damage: list[str]
) -> None:
    execute(store, *damage)
    findings = list_faults(store)
    assert {(finding.check, finding.state) for finding in findings} == {(check, "broken")}
    assert all("`corral " in finding.message for finding in findings)
    messages = " ".join(finding.message for finding in findings)
    assert [text for text in expected if text not in messages] == []
    for query in re.findall(r'`corral db sql "(.*?)"`', messages):
        store.db.sql(query)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("UPDATE letters SET body = '{no json'", "letters with invalid JSON in body"),
        ("UPDATE events SET data = 'x'", "events with invalid JSON in data"),
        ("UPDATE turns SET content = CAST(x'ff' AS TEXT)", "not UTF-8, as b'\\xff', in turns"),
    ],
    ids=["body", "data", "text"],
)
def test_undecodable_cells_are_reported(
    store: Corral, engine: str, project: str, damage: str, expected: str, tmp_path: Path
) -> None:
    if engine == "postgres":
        with pytest.raises(StoreUnavailable):  # PostgreSQL does not store invalid values
            execute(store, damage.replace("CAST(x'ff' AS TEXT)", "convert_from('\\xff', 'UTF8')"))
        return
    execute(store, damage)
    (fault,) = list_faults(store)
    assert (fault.check, fault.state) == ("cells", "broken")
    assert expected in fault.message
    if "UTF-8" in expected:
        for read in (
            lambda: store.sessions.turns(store.sessions.list().items[0]),
            lambda: store.projects.export(project, tmp_path / "x.db"),
        ):
            with pytest.raises(StoreUnavailable, check=because("corrupt")):
                read()
        assert not (tmp_path / "x.db").exists()


def test_totals_above_remaining_charges_are_valid(
    store: Corral, project: str, clock: ManualClock
) -> None:
    execute(store, "DELETE FROM charges WHERE seq = 1")
    assert list_faults(store) == []


def test_verify_allows_concurrent_writes(store: Corral, project: str) -> None:
    """Each write has several statements; verification sees all of them or none."""
    stop = threading.Event()

    def write() -> None:
        session = store.sessions.open(project=project)
        n = 0
        while not stop.is_set():
            n += 1
            store.sessions.append_many(session, [{"role": "user", "content": "x"}] * 3)
            store.charges.add(UsageFact(model="m", input=n, cost_micros=n), project_id=project)
            store.tasks.declare(project, [{"key": f"t{n}", "depends_on": ["a"]}])
            store.sessions.close(session_to_reopen := store.sessions.open(project=project))
            store.mail.ack(
                [store.mail.put("queue:x", n), *store.mail.claim("queue:x", owner="o")][-1]
            )
            store.sessions.reopen(session_to_reopen)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        findings = [finding for _ in range(4) for finding in list_faults(store)]
    finally:
        stop.set()
        writer.join()
    assert findings == []


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def sealed(store: Corral) -> tuple[str, Path]:
    """A completed run and its sealed output on this host."""
    run = add_run(store, "completed")
    add_launch(store, run)
    folder = config.run_folder(run)
    config.make_private_folder(folder)
    (folder / "output").write_bytes(b"some text\n" * 30_000)
    (folder / "stderr").write_bytes(b"an error\n")
    store.internal.outputs.begin(run, host=process.host(), folder=str(folder))
    store.internal.outputs.seal_folder(run)
    assert list_faults(store) == []
    return run, folder / "output.zst"


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def replace_output(path: Path) -> None:
    from corral.adapters.output.seal import seal

    path.unlink()
    (path.parent / "output").write_bytes(b"some other text\n")
    seal(path.parent)
    (path.parent / "output").unlink()


@pytest.mark.parametrize("damage", [flip_bit, truncate, replace_output, Path.unlink])
def test_modified_sealed_output_is_reported(
    store: Corral, engine: str, sealed: tuple[str, Path], damage: Callable[[Path], None]
) -> None:
    run, file = sealed
    damage(file)
    findings = list_faults(store)
    if damage is Path.unlink and engine == "postgres":
        assert findings == [], "the store has a copy"
        assert store.outputs.open(run).size == 300_000
        return
    (fault,) = findings
    assert (fault.check, fault.state) == ("outputs", "broken")
    assert run in fault.message
    (query,) = re.findall(r'`corral db sql "(.+)"`', fault.message)
    ((head, tail),) = store.db.sql(query).rows
    assert (head, tail) == (store.outputs.get(run).head, store.outputs.get(run).tail)
    assert "some text" in head


def test_missing_unsealed_output_is_reported(store: Corral) -> None:
    folder = config.home() / "runs"
    running_run, failed_run = add_run(store, "running"), add_run(store, "failed")
    for run in (running_run, failed_run):
        store.internal.outputs.begin(run, host=process.host(), folder=str(folder / run))
    (fault,) = list_faults(store)
    assert failed_run in fault.message
    assert "`corral recover`" in fault.message


def test_unavailable_store_is_not_reported_as_missing_output(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(store, "running")
    store.internal.outputs.begin(run, host=process.host(), folder=str(config.home() / "runs" / run))

    def fail(tx: Tx, id: str) -> Run:
        raise StoreUnavailable("The store is unreachable.", reason="unreachable")

    monkeypatch.setattr(verify.runs, "get", fail)
    with pytest.raises(StoreUnavailable):
        store.db.verify()


def test_unavailable_store_is_not_reported_as_damaged_output(
    store: Corral, sealed: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tx: Tx, run_id: str) -> None:
        raise StoreUnavailable("The store is unreachable.", reason="unreachable")

    monkeypatch.setattr(verify.outputs, "get_index", fail)
    with pytest.raises(StoreUnavailable):
        store.db.verify()


def test_output_of_another_machine_is_not_checked(store: Corral) -> None:
    run = add_run(store, "failed")
    store.internal.outputs.begin(run, host="other-host", folder=f"/srv/{run}")
    assert list_faults(store) == []


def test_missing_output_chunk_is_reported(
    store: Corral, engine: str, sealed: tuple[str, Path]
) -> None:
    execute(store, "DELETE FROM output_chunks WHERE stream = 'output'")
    assert list_faults(store) == [], "the file is complete"
    store.internal.outputs.begin(
        run := add_run(store, "failed"), host="other-host", folder="/srv/x"
    )
    store.internal.outputs.add_chunk(run, 0, b"text")
    execute(
        store,
        "UPDATE outputs SET state = 'sealed', sha256 = '0', sealed_bytes = 5"
        f" WHERE run_id = '{run}'",
    )
    assert "counts" in [finding.check for finding in list_faults(store)]


def test_unowned_files_and_folders_are_reported(store: Corral, clock: ManualClock) -> None:
    run_directory = config.home() / "runs" / "run_00000000000000000000000000"
    config.make_private_folder(run_directory)
    ada = store.agents.create("ada", command="cat")
    old_file = config.home() / "channels" / "sent" / ada.id / "event" / "1-a.txt"
    config.make_private_folder(old_file.parent)
    old_file.write_text("unowned")
    new_file = old_file.with_name("2-b.txt")
    new_file.write_text("message not stored yet")
    seconds = clock.now() // 1_000
    os.utime(old_file, (seconds - 400 * 86_400,) * 2)
    os.utime(new_file, (seconds, seconds))
    foreign_file = config.home() / "channels" / "chn_of_another_store" / "event" / "1-a.txt"
    config.make_private_folder(foreign_file.parent)
    foreign_file.write_text("of another store")
    os.utime(foreign_file, (seconds - 400 * 86_400,) * 2)
    worktree = config.home() / "worktrees" / "prj_x" / "tsk_x"
    config.make_private_folder(worktree)
    findings = {finding.check: finding for finding in list_faults(store)}
    assert {*findings} == {"runs", "attachments", "worktrees"}
    assert {finding.state for finding in findings.values()} == {"warning"}
    assert str(run_directory) in findings["runs"].message
    assert str(old_file) in findings["attachments"].message
    assert "`corral db prune`" in findings["attachments"].message
    store.db.prune()
    assert "attachments" not in [finding.check for finding in list_faults(store)]
    assert (old_file.exists(), new_file.exists(), foreign_file.exists()) == (False, True, True)


def test_changed_or_missing_sent_file_is_reported(
    store: Corral, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_adapters(monkeypatch)
    (tmp_path / "report.txt").write_text("the report")
    store.agents.create("ada", provider="scripted", workspace=str(tmp_path))
    chat = Chat(store)
    chat.says("hello")
    store.destinations.grant("ada", chat.place(), name="room")
    store.messages.send_files([str(tmp_path / "report.txt")], agent="ada", to="room")
    (sent_file,) = (config.home() / "channels" / "sent").rglob("report.txt")
    assert list_faults(store) == []
    sent_file.write_text("the record")
    (fault,) = list_faults(store)
    assert (fault.check, fault.state) == ("attachments", "broken")
    assert str(sent_file) in fault.message
    sent_file.unlink()
    # On PostgreSQL another host may have the file.
    assert len(list_faults(store)) == (engine == "sqlite")


# -- the verify command ----------------------------------------------------------------------------


def test_verify_command_prints_findings_and_fails_on_errors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/corral.db"
    cli = Cli(capsys, url)
    import corral

    with corral.open(url) as store:
        store.mail.put(f"session:{store.sessions.open().id}", "hello")
        assert rows(store, "DELETE FROM sessions RETURNING 1")
    findings = cli.json("db", "verify")
    assert [finding["check"] for finding in findings if finding["state"] == "warning"] == [
        "orphans"
    ]
    with corral.open(url) as store:
        assert rows(store, "UPDATE letters SET state = 'done', ended_at = 1 RETURNING 1")
    result = cli("db", "verify")
    assert result.code == 1
    assert "its last event led to waiting" in " ".join(result.out.split())


# -- the schema ------------------------------------------------------------------------------------

TABLE_DAMAGE = {
    "trigger": (
        {
            "sqlite": ["CREATE TRIGGER spy AFTER INSERT ON letters BEGIN DELETE FROM tokens; END"],
            "postgres": [
                "CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RETURN NULL; END $$",
                "CREATE TRIGGER spy AFTER INSERT ON letters EXECUTE FUNCTION spy()",
            ],
        },
        "trigger spy on letters does not belong to Corral",
    ),
    "index": (
        ["CREATE INDEX spy ON letters (sender)"],
        "index spy on letters does not belong to Corral",
    ),
    "column": (["ALTER TABLE letters ADD COLUMN spy TEXT"], "table letters was changed"),
    "no column": (
        ["ALTER TABLE letters DROP COLUMN last_error"], "table letters was changed",
    ),
    "no index": (["DROP INDEX runs_live"], "index runs_live on runs is missing"),
    "another index": (
        ["DROP INDEX runs_live", "CREATE INDEX runs_live ON runs (id)"],
        "index runs_live on runs was changed",
    ),
    "no table": (["DROP TABLE file_touches"], "table file_touches is missing"),
}  # fmt: skip


@pytest.mark.parametrize("damage", TABLE_DAMAGE)
def test_tables_that_differ_from_migrations_are_reported(
    store: Corral, engine: str, project: str, damage: str
) -> None:
    statements, expected = TABLE_DAMAGE[damage]
    if damage == "no column" and engine == "sqlite":
        execute(store, "DROP VIEW letters_of_mailbox")
    execute(store, *(statements[engine] if isinstance(statements, dict) else statements))
    (finding,) = list_faults(store, "schema")
    assert finding.state == "broken"
    assert expected in finding.message
    assert "`corral db move`" in finding.message


@pytest.mark.parametrize(
    ("statement", "name"),
    [("CREATE VIEW report AS SELECT * FROM letters", "view report"),
     ("CREATE TABLE report (a INTEGER)", "table report")],
)  # fmt: skip
def test_foreign_schema_objects_are_reported(
    store: Corral, project: str, statement: str, name: str
) -> None:
    execute(store, statement)
    (finding,) = list_faults(store)
    assert (finding.check, finding.state) == ("schema", "warning")
    assert f"{name} does not belong to Corral" in finding.message


def test_move_does_not_copy_foreign_schema_objects(
    store: Corral, project: str, tmp_path: Path
) -> None:
    execute(store, "CREATE VIEW report AS SELECT * FROM letters", "DROP INDEX runs_live")
    assert list_faults(store, "schema") != []
    moved = store.db.move(f"sqlite:///{tmp_path}/new.db")
    with corral.open(moved.url) as moved_store:
        assert list_faults(moved_store) == []


def test_moving_store_passes_the_schema_check(store: Corral, project: str, tmp_path: Path) -> None:
    from corral.db import write_guard
    from corral.db.store_move_record import UPSERT

    with store.transaction() as tx:
        write_guard.install(
            tx, write_guard.build_departure_statements(tx.engine, "sqlite:///it's/e.db")
        )
        tx.run(UPSERT, phase="leaving", url="sqlite:///x", move_id="mov_1", now=tx.now)
    assert list_faults(store) == []
    store.db.cancel_move()
    assert list_faults(store) == []
    with store.transaction() as tx:
        write_guard.install(
            tx, write_guard.build_departure_statements(tx.engine, "sqlite:///other.db")
        )
    assert [finding.check for finding in list_faults(store)] == ["schema"]


def test_verify_works_without_temporary_tables(
    postgres_server: PostgresServer, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from corral.db import postgres_maintenance

    monkeypatch.setattr(postgres_maintenance, "_expected", {})
    url = postgres_server.new_database(template=postgres_template)
    with corral.open(url) as store:
        execute(
            store,
            "DO $$ BEGIN EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC',"
            " current_database()); END $$",
            "CREATE ROLE modest LOGIN",
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO modest",
        )
    try:
        parts = urlsplit(url)
        with corral.open(
            parts._replace(netloc=f"modest@{parts.netloc.rpartition('@')[2]}").geturl()
        ) as store:
            (finding,) = list_faults(store)
        assert (finding.check, finding.state) == ("schema", "warning")
        assert "GRANT TEMPORARY ON DATABASE" in finding.message
    finally:
        with corral.open(url) as store:
            execute(store, "DROP OWNED BY modest", "DROP ROLE modest")
        postgres_server.drop_database(url)
