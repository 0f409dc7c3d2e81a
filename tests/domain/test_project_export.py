"""Export of a project: complete rows and outputs, no other data, no partial files."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import corral
from corral import config
from corral.adapters.processes import process
from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.db.write_guard import list_content_tables
from corral.domain.insights.project_scope import EXCLUDED_TABLES, PROJECT_CONDITIONS
from corral.kernel.clock import DAY, YEAR, ManualClock
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.redaction_policy import Policy
from tests.domain.test_store_verify import list_faults
from tests.support.cli_runner import Cli
from tests.support.output_samples import KEY
from tests.support.run_factories import add_launch, add_run
from tests.support.store import raises_without_change, rows, unchanged

pytestmark = pytest.mark.slow

TEXT = b"printed by heron\n" * 20_000


def fill_project(store: Corral, project: str, word: str, *, agent: str) -> str:
    """Insert rows with `word` into most tables; return a run with sealed output."""
    store.agents.create(agent, role="builder", command="cat", instructions=f"{word} instructions")
    session = store.sessions.open(agent, project=project, title=f"{word} session")
    for n in range(3):
        store.sessions.append(session, "user", f"{word} turn {n}")
    store.sessions.set_state(session, "branch", f"{word} branch")
    store.sessions.append(store.sessions.fork(session, 1), "user", f"{word} fork")
    store.mail.put(f"session:{session.id}", f"{word} for the session")
    store.mail.put("agent:all", f"{word} letter", project=project)
    store.search.catch_up()
    store.sessions.append(session, "user", f"{word} after the index")
    run = add_run(store, "completed", project_id=project, title=f"{word} run")
    add_launch(store, run)
    folder = config.run_folder(run)
    config.make_private_folder(folder)
    (folder / "output").write_bytes(TEXT.replace(b"heron", word.encode()))
    (folder / "stderr").write_bytes(f"{word} error\n".encode())
    store.internal.outputs.begin(run, host=process.host(), folder=str(folder))
    store.outputs.log(run, "warn", f"{word} line")
    store.internal.outputs.seal_folder(run)
    for cost in (5, 7):
        usage = UsageFact(model="m", input=1, cost_micros=cost)
        store.charges.add(
            usage, run_id=run, session_id=session.id, project_id=project,
            agent_id=store.agents.get(agent).id,
        )  # fmt: skip
    store.schedules.create("agent:all", f"{word} schedule", every_ms=DAY, project=project)
    store.settings.set("runs.retention_ms", DAY, scope=f"project:{project}")
    store.budgets.set(f"project:{project}", 1_000_000)
    store.notes.add(f"{word} note", project=project)
    store.questions.ask(f"Which {word}?", asker="agent:all", project=project)
    store.decisions.record(f"{word} decision", author="agent:all", project=project)
    store.tasks.declare(project, [{"key": "a", "title": f"{word} a"},
                                  {"key": "b", "depends_on": ["a"]}])  # fmt: skip
    group = store.groups.create(f"{word}-crew", members=["user:eve"], project=project)
    post = store.groups.post(group.id, f"{word} post", author="user:eve")
    store.groups.react(group.id, post.number, "up", member="user:eve")
    store.locks.acquire(project, f"src/{word}", "user:eve")
    store.locks.touch(project, f"src/{word}", "user:eve")
    return run


@pytest.fixture
def heron_project(store: Corral, tmp_path: Path) -> tuple[str, str]:
    """Create a project and its run, next to another project and rows without a project."""
    ids = []
    for word, agent in (("heron", "ada"), ("osprey", "ben")):
        (tmp_path / word).mkdir()
        project = store.projects.register(tmp_path / word, prompt=f"{word} prompt").id
        ids.append((project, fill_project(store, project, word, agent=agent)))
    store.mail.put("agent:all", "osprey without a project")
    store.notes.add("osprey for everyone")
    store.secrets.set("osprey", "env:OSPREY_TOKEN")
    store.tokens.create("osprey", scope="read")
    store.alerts.add(["crashed"], target_kind="webhook", target="http://127.0.0.1/osprey")
    store.settings.set("mail.retention_ms", 40 * DAY)
    return ids[0]


def test_every_table_is_exported_or_left_out_for_a_reason() -> None:
    assert {*PROJECT_CONDITIONS} | {*EXCLUDED_TABLES} == {
        table.name for table in list_content_tables()
    }
    assert not {*PROJECT_CONDITIONS} & {*EXCLUDED_TABLES}


def test_export_is_a_store_with_the_whole_project(
    store: Corral, clock: ManualClock, heron_project: tuple[str, str], tmp_path: Path
) -> None:
    project, run = heron_project
    with unchanged(store):
        export = store.projects.export(project, tmp_path / "heron.db")
    assert (export.project_id, export.outputs, export.outputs_missing) == (project, 1, 0)
    for table, condition in PROJECT_CONDITIONS.items():
        if table not in ("usage_totals", "output_chunks"):
            clause = condition.format(project=project)
            expected = rows(store, f"SELECT count(*) FROM {table} WHERE {clause}")[0][0]
            assert export.rows.get(table, 0) == expected, table
    sent_file = (
        config.home() / "channels" / "sent" / store.agents.get("ada").id / "1" / "report.txt"
    )
    config.make_private_folder(sent_file.parent)
    sent_file.write_text("the report")
    os.utime(sent_file, (0, 0))
    assert {*export.rows} >= {
        "turns",
        "task_dependencies",
        "reactions",
        "passages",
        "log_lines",
        "events",
    }
    with corral.open(Path(export.file), clock=clock) as copy:
        for table in PROJECT_CONDITIONS:
            assert rows(copy, f"SELECT count(*) FROM {table}") == [(export.rows.get(table, 0),)]
        assert [listed.id for listed in copy.projects.list().items] == [project]
        assert copy.runs.get(run) == store.runs.get(run)
        assert [a.name for a in copy.agents.list().items] == ["ada"]
        assert copy.outputs.open(run).size == len(TEXT)
        errors = copy.outputs.open(run, stream="stderr")
        assert errors.bytes(0, 100) == b"heron error\n"
        assert len(copy.search.find("heron").items) == len(
            store.search.find("heron", project=project).items
        )
        for scope in ("all", f"project:{project}", "model:m", f"run:{run}"):
            assert copy.charges.total(scope).cost_micros == 12, scope
        assert list_faults(copy) == []
        # The export can be written and pruned; the files of the source store stay.
        copy.sessions.append(copy.sessions.list().items[0], "user", "kingfisher")
        assert len(copy.search.find("kingfisher").items) == 1
        clock.advance(YEAR)
        copy.db.prune()
        assert copy.mail.put("agent:ada", "new").body == "new"
        assert (config.run_folder(run) / "output.zst").exists()
        assert sent_file.exists()


def test_export_has_no_bytes_of_other_projects(
    store: Corral, heron_project: tuple[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    export = store.projects.export(heron_project[0], folder / "heron.db")
    assert os.listdir(folder) == ["heron.db"]
    assert stat.S_IMODE(Path(export.file).stat().st_mode) == 0o600
    data = Path(export.file).read_bytes()
    assert b"heron turn" in data
    other_project = next(
        candidate for candidate in store.projects.list().items if candidate.id != heron_project[0]
    )
    assert b"osprey" not in data.lower().replace(str(tmp_path).encode(), b"")
    assert other_project.id.encode() not in data


def test_export_has_no_secrets(
    store: Corral, heron_project: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets that were stored before they were known are redacted too."""
    project, _ = heron_project
    monkeypatch.setenv("HERON", "hunter2-heron")
    store.secrets.set("heron", "env:HERON")
    key = KEY.decode()
    store.mail.put("agent:all", {"deep": ["it is hunter2-heron"]}, project=project)
    with store.transaction() as tx:
        from corral.db.statement import Statement

        # Write the key without redaction, as before it was known.
        policies = {"reason": Policy.EXEMPT}
        update = Statement("UPDATE runs SET reason = :reason", policies=policies)
        tx.run(update, reason=f"because of {key}")
    data = Path(store.projects.export(project, tmp_path / "x.db").file).read_bytes()
    assert KEY not in data
    assert b"hunter2-heron" not in data
    with corral.open(tmp_path / "x.db") as copy:
        assert copy.runs.list().items[0].reason == "because of [redacted]"
        bodies = [letter.body for letter in copy.mail.list().items]
        assert {"deep": ["it is [redacted]"]} in bodies


def test_export_is_a_consistent_snapshot(
    store: Corral, heron_project: tuple[str, str], tmp_path: Path
) -> None:
    project, _ = heron_project
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            session = store.sessions.open(project=project)
            store.sessions.append_many(session, [{"role": "user", "content": "x"}] * 5)
            store.charges.add(UsageFact(model="m", input=1), project_id=project)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(3):
            export = store.projects.export(project, tmp_path / f"{n}.db")
            with corral.open(Path(export.file)) as copy:
                assert list_faults(copy) == []
    finally:
        stop.set()
        writer.join()


def test_export_reports_missing_output(
    store: Corral, engine: str, heron_project: tuple[str, str], tmp_path: Path
) -> None:
    (config.run_folder(heron_project[1]) / "output.zst").unlink()
    export = store.projects.export(heron_project[0], tmp_path / "x.db")
    # PostgreSQL also has the output in the store.
    assert (export.outputs, export.outputs_missing) == ((0, 1) if engine == "sqlite" else (1, 0))


def test_export_includes_totals_of_pruned_charges(
    store: Corral, clock: ManualClock, heron_project: tuple[str, str], tmp_path: Path
) -> None:
    clock.advance(YEAR + DAY)
    store.charges.add(UsageFact(model="m", input=1, cost_micros=1), project_id=heron_project[0])
    store.db.prune()
    export = store.projects.export(heron_project[0], tmp_path / "x.db")
    with corral.open(Path(export.file), clock=clock) as copy:
        assert copy.charges.total("all").cost_micros == 13
        assert copy.charges.total("model:m").cost_micros == 1, (
            "the sum of the charges that were not pruned"
        )
        assert list_faults(copy) == []


# -- no partial files ------------------------------------------------------------------------------


def test_export_to_existing_or_unwritable_path_is_rejected(
    store: Corral, heron_project: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "existing").write_text("existing")
    for name in ("existing", "missing/x.db", "heron"):
        with raises_without_change(store, Invalid):
            store.projects.export(heron_project[0], tmp_path / name)
    assert (tmp_path / "existing").read_text() == "existing"
    with raises_without_change(store, NotFound):
        store.projects.export("prj_00", tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_export_works_without_hard_links(
    store: Corral, heron_project: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems, such as FAT, do not support hard links."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = tmp_path / "out"
    folder.mkdir()
    export = store.projects.export(heron_project[0], folder / "x.db")
    assert os.listdir(folder) == ["x.db"]
    assert stat.S_IMODE(Path(export.file).stat().st_mode) == 0o600
    with corral.open(Path(export.file)) as copy:
        assert list_faults(copy) == []
    with raises_without_change(store, Invalid):
        store.projects.export(heron_project[0], folder / "x.db")


def test_file_name_with_glob_characters_removes_no_other_files(
    store: Corral, heron_project: tuple[str, str], tmp_path: Path
) -> None:
    (other_directory := tmp_path / ".x.db.part-1").mkdir()
    store.projects.export(heron_project[0], tmp_path / "*")
    assert other_directory.is_dir()


def test_interrupted_export_leaves_no_partial_file(
    store: Corral, heron_project: tuple[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    def interrupt(part: str, done: int, total: int) -> None:
        if part == "turns":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.projects.export(heron_project[0], folder / "x.db", on_progress=interrupt)
    assert os.listdir(folder) == []


def test_killed_export_is_cleaned_up_by_the_next_one(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path}/corral.db", tmp_path / "out"
    folder.mkdir()
    with corral.open(url) as store:
        project = store.projects.register(tmp_path).id
        store.mail.put("agent:ada", 1, project=project)
    program = f"""
import os, signal, corral
def die(part, done, total):
    if part == "runs":
        os.kill(os.getpid(), signal.SIGKILL)
corral.open({url!r}).projects.export({project!r}, {str(folder / "x.db")!r}, on_progress=die)
"""
    process_result = subprocess.run([sys.executable, "-c", program], check=False)
    assert process_result.returncode == -9
    assert not (folder / "x.db").exists()
    assert [name.startswith(".x.db.part-") for name in os.listdir(folder)] == [True]
    with corral.open(url) as store:
        store.projects.export(project, folder / "x.db")
    assert os.listdir(folder) == ["x.db"]


# -- the export command ----------------------------------------------------------------------------


def test_exported_file_can_be_read_but_not_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli = Cli(capsys, f"sqlite:///{tmp_path}/corral.db")
    project = cli.json("project", "register", str(tmp_path))
    file = tmp_path / "x.db"
    result = cli("project", "export", str(tmp_path), str(file))
    assert (result.code, result.err) == (0, "")
    assert f"corral --store sqlite:///{file} ps -a" in result.out
    export_cli = Cli(capsys, f"sqlite:///{file}")
    assert export_cli.json("project", "list") == [project]
    assert {finding["state"] for finding in export_cli.json("db", "verify")} == {"ok"}
    error = export_cli.error("up")
    assert error["exit_code"] == 4
    assert "export of a project" in error["message"]
    assert cli.error("project", "export", str(tmp_path), str(file))["exit_code"] == 2
    other_cli = Cli(capsys, f"sqlite:///{tmp_path}/other.db")
    assert other_cli("db", "restore", str(file)).code == 0
    with corral.open(f"sqlite:///{tmp_path}/other.db") as restored:
        assert restored.db.part_of is None
