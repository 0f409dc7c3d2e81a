"""Imports of invalid data: original values are kept, and problems are reported."""

import base64
from pathlib import Path
from typing import Any

import apsw
import pytest

from corral.api import Corral
from corral.importers.report import ImportReport
from tests.support import source_databases
from tests.support.fake_keys import KEY
from tests.support.invariants import check_store
from tests.support.store import contents, rows

RUN = {"pid": 1, "project_id": 1, "status": "completed", "started_at": 1_770_000_000}


def make_agent_yes(
    folder: Path, *runs: dict[str, Any], schema: str = source_databases.AGENT_YES
) -> Path:
    projects = source_databases.AGENT_YES_ROWS["projects"][:1]
    rows_with_ids = [{"id": number, **RUN, **run} for number, run in enumerate(runs, 1)]
    return source_databases.make(
        folder / "s.db", schema, {"projects": projects, "runs": rows_with_ids}
    )


def count_problems(report: ImportReport) -> dict[str, int]:
    return {f"{problem.table}: {problem.what}": problem.rows for problem in report.problems}


def get_unmapped(store: Corral, key: str) -> Any:
    origins = [row for row in store.imports.origins(limit=1_000).items if row.row_id == key]
    return origins[0].unmapped


def test_seconds_milliseconds_and_texts_in_one_column_are_times(
    store: Corral, tmp_path: Path
) -> None:
    equal_times = (1_770_000_000, 1_770_000_000_000, "2026-02-02T02:40:00Z", "2026-02-02 02:40:00")
    path = make_agent_yes(tmp_path, *({"started_at": time} for time in equal_times))
    assert store.imports.import_database("agent-yes", path).problems == []
    assert {row[0] for row in rows(store, "SELECT started_at FROM runs")} == {1_770_000_000_000}


def test_invalid_values_are_kept_and_reported(store: Corral, tmp_path: Path) -> None:
    path = make_agent_yes(
        tmp_path,
        {"args": "{broken"},
        {"status": "unknown"},
        {"project_id": 99},
        {"started_at": "soon"},
        {"exit_code": "three"},
        {"started_at": 9_999_999_999_999},
        {"exit_code": b"1.0e999"},
    )
    report = store.imports.import_database("agent-yes", path)
    assert count_problems(report) == {
        "runs: args is not JSON of the expected type (list)": 1,
        "runs: status has an unknown value": 1,
        "runs: project_id refers to a missing row": 1,
        "runs: started_at is not a timestamp": 1,
        "runs: exit_code is not a valid number": 2,
        "runs: started_at is in the future": 1,
    }
    assert rows(store, "SELECT count(*) FROM runs") == [(7,)]
    assert get_unmapped(store, "2") == {"status": "unknown"}
    assert get_unmapped(store, "4") == {"started_at": "soon"}
    assert {problem.example for problem in report.problems} == set("123456")
    check_store(store)


def test_nul_bytes_invalid_utf8_and_long_texts_are_kept_exactly(
    store: Corral, tmp_path: Path
) -> None:
    long_text = "word " * 1_000_000
    path = source_databases.make_agents(tmp_path)
    message = {"sessionId": "s1", "role": "user", "createdAt": 1_770_000_002_000}
    source_databases.grow(
        path,
        {
            "Message": [
                {**message, "id": "nul", "content": "a\0b"},
                {**message, "id": "long", "content": long_text},
                {**message, "id": "utf8", "content": "x"},
            ]
        },
    )
    source_databases.change(
        path, "UPDATE Message SET content = CAST(x'61ff62' AS TEXT) WHERE id = 'utf8'"
    )
    report = store.imports.import_database("agents", path)
    assert sorted(count_problems(report)) == [
        "message: content contains NUL bytes",
        "message: content is longer than 4,194,304 bytes; it was cut, and the original is kept",
        "message: content is not valid UTF-8",
        "setting: settings of the tool are not imported",
    ]
    turns = dict(rows(store, "SELECT number, content FROM turns"))
    assert (turns[3], turns[5]) == ("a\N{REPLACEMENT CHARACTER}b", "a\N{REPLACEMENT CHARACTER}b")
    assert len(turns[4].encode()) <= 4 * 1024 * 1024
    assert base64.b64decode(get_unmapped(store, "nul")["content"]["base64"]) == b"a\0b"
    assert base64.b64decode(get_unmapped(store, "utf8")["content"]["base64"]) == b"a\xffb"
    assert get_unmapped(store, "long")["content"] == long_text


def test_rows_with_duplicate_or_missing_keys_are_all_kept(store: Corral, tmp_path: Path) -> None:
    schema = source_databases.AGENT_YES.replace(
        "id INTEGER PRIMARY KEY AUTOINCREMENT, pid", "id, pid"
    )
    path = make_agent_yes(tmp_path, {"id": 7}, {"id": 7, "pid": 2}, {"id": None}, schema=schema)
    report = store.imports.import_database("agent-yes", path)
    assert count_problems(report) == {
        "runs: the row has no key, or a key that another row has too": 2
    }
    assert rows(store, "SELECT count(*) FROM runs") == [(3,)]
    second_report = store.imports.import_database("agent-yes", path)
    assert (second_report.new, second_report.changed) == (0, 0)


@pytest.mark.parametrize(
    "ids",
    [
        [float("inf"), float("inf"), 1e20, 1e20],
        [b"\xff", "\\xff", b"\xff", "\\0", "\0"],
        [1, "1", 1.0, b"1"],
        [None, None, "", ""],
    ],
)
@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16"])
def test_keys_of_different_types_with_the_same_text_are_all_kept(
    store: Corral, tmp_path: Path, ids: list[Any], encoding: str
) -> None:
    connection = apsw.Connection(str(tmp_path / "s.db"))
    connection.pragma("encoding", encoding)
    schema = source_databases.AGENT_YES.replace(
        "id INTEGER PRIMARY KEY AUTOINCREMENT, pid", "id, pid"
    )
    connection.execute(schema)
    run_rows = [{**RUN, "id": id} for id in ids]
    source_databases.fill(
        connection, {"projects": source_databases.AGENT_YES_ROWS["projects"][:1], "runs": run_rows}
    )
    connection.close()
    report = store.imports.import_database("agent-yes", tmp_path / "s.db")
    assert (report.new, rows(store, "SELECT count(*) FROM runs")) == (len(ids) + 1, [(len(ids),)])
    assert store.imports.import_database("agent-yes", tmp_path / "s.db").new == 0


def test_token_counts_out_of_range_are_kept_unmapped(store: Corral, tmp_path: Path) -> None:
    path = source_databases.MAKERS["agents"](tmp_path)
    source_databases.change(path, 'UPDATE "Run" SET "tokensUsed" = 253402300800000')
    assert count_problems(store.imports.import_database("agents", path))[
        "run: tokensused is not a valid number"
    ]


def test_row_with_a_missing_parent_is_kept_unmapped(store: Corral, tmp_path: Path) -> None:
    path = source_databases.make_agents(tmp_path)
    source_databases.change(path, "DELETE FROM Session")
    report = store.imports.import_database("agents", path)
    tables = {table_report.table: table_report for table_report in report.tables}
    assert (tables["message"].kept, tables["message"].created) == (2, {})
    assert tables["run"].created["runs"] == 3, "runs without a session are imported"
    unmapped_rows = [
        row for row in store.imports.origins(kept=True).items if row.source_table == "message"
    ]
    assert unmapped_rows[0].unmapped["content"] == "hello"
    assert unmapped_rows[0].problems == ["sessionid refers to a missing row"]


def test_unknown_tables_are_kept_and_missing_columns_reported(
    store: Corral, tmp_path: Path
) -> None:
    path = source_databases.make_agent_yes(tmp_path)
    source_databases.change(
        path,
        "ALTER TABLE runs ADD COLUMN colour TEXT DEFAULT 'red';"
        "ALTER TABLE projects DROP COLUMN prompt;"
        "CREATE TABLE labels (id TEXT, name TEXT); INSERT INTO labels VALUES ('m', 'fine')",
    )
    report = store.imports.import_database("agent-yes", path)
    assert report.missing == ["projects.prompt"]
    assert sorted(report.unknown) == ["labels", "runs.colour"]
    unmapped_values = {str(row.unmapped) for row in store.imports.origins().items}
    assert str({"colour": "red"}) in unmapped_values
    assert str({"id": "m", "name": "fine"}) in unmapped_values


def test_missing_table_is_reported_and_the_others_are_imported(
    store: Corral, tmp_path: Path
) -> None:
    path = source_databases.make_flightdeck(tmp_path)
    source_databases.change(path, "DROP TABLE timers; DROP TABLE knowledge_fts")
    report = store.imports.import_database("flightdeck", path)
    assert report.missing == ["timers"]
    assert rows(store, "SELECT count(*) FROM tasks") == [(2,)]


def test_secrets_are_redacted_in_every_column(store: Corral, tmp_path: Path) -> None:
    secret = "sk-ant-api03-" + "A1b2C3d4" * 6
    path = source_databases.make_agents(tmp_path)
    source_databases.change(path, f"UPDATE Message SET content = 'take {secret}' WHERE id = 'm1'")
    source_databases.change(path, f"UPDATE Setting SET value = '{secret}'")
    report = store.imports.import_database("agents", path)
    assert report.secrets == 2
    assert secret not in str(contents(store))


def test_secret_in_deeply_nested_json_is_redacted(store: Corral, tmp_path: Path) -> None:
    path = source_databases.MAKERS["agents"](tmp_path)
    nested = "[" * 5_000 + f'"{KEY}"' + "]" * 5_000
    source_databases.change(path, f"UPDATE \"Message\" SET content = '{nested}'")
    assert store.imports.import_database("agents", path).secrets
    assert KEY not in str(contents(store))


def test_row_whose_key_is_in_use_is_kept_and_reported(store: Corral, tmp_path: Path) -> None:
    path = source_databases.make_multishot(tmp_path)
    source_databases.change(path, "UPDATE agents SET agent_number = 2 WHERE id = 'a1'")
    report = store.imports.import_database("multishot", path)
    assert count_problems(report)["agents: attempts has a row with the same key already"] == 1
    (origin,) = (
        row for row in store.imports.origins(kept=True).items if row.source_table == "agents"
    )
    assert origin.unmapped["variation_prompt"] == "bold"
    check_store(store)


@pytest.mark.parametrize("tool", ["flightdeck", "nanoclaw"])
def test_import_succeeds_when_every_text_is_invalid(
    store: Corral, tool: str, tmp_path: Path
) -> None:
    path = source_databases.MAKERS[tool](tmp_path)
    connection = apsw.Connection(str(path))
    for table, (key, *names) in _columns(connection).items():
        for name in names:
            if name not in ("id", "lead_id", key):
                connection.execute(f"UPDATE {table} SET {name} = CAST(x'7bff00' AS TEXT)")
    connection.close()
    report = store.imports.import_database(tool, path)
    assert report.new == report.rows
    assert report.problems
    check_store(store)
    assert store.imports.import_database(tool, path).new == 0


def _columns(connection: Any) -> dict[str, list[str]]:
    names = [
        name
        for (name,) in connection.execute(
            "SELECT name FROM pragma_table_list WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
    ]
    return {
        name: [
            column
            for column, unique in connection.execute(
                "SELECT name, pk FROM pragma_table_info(?) WHERE type <> 'INTEGER'", (name,)
            ).fetchall()
            if unique == 0
        ]
        for name in names
        if name not in ("messaging_groups", "agent_groups")
    }


def project_row(**columns: Any) -> dict[str, Any]:
    return source_databases.AGENT_YES_ROWS["projects"][0] | columns


def test_values_of_an_existing_project_are_kept_and_reported(store: Corral, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    store.projects.register(tmp_path / "shop", command="own")
    row = project_row(dir=str(tmp_path / "shop"), cmd="imported", prompt="imported prompt")
    path = source_databases.make(tmp_path / "s.db", source_databases.AGENT_YES, {"projects": [row]})
    report = store.imports.import_database("agent-yes", path)
    unmapped = get_unmapped(store, "1")
    assert (unmapped["cmd"], unmapped["prompt"], unmapped["last_run_at"]) == (
        "imported",
        "imported prompt",
        row["last_run_at"],
    )
    assert any("registered already" in problem for problem in count_problems(report))


def test_duplicate_directory_keeps_the_values_of_both_rows(store: Corral, tmp_path: Path) -> None:
    schema = source_databases.AGENT_YES.replace("dir TEXT NOT NULL UNIQUE", "dir TEXT NOT NULL")
    project_rows = [project_row(id=1, cmd="first"), project_row(id=2, cmd="second", prompt="other")]
    path = source_databases.make(tmp_path / "s.db", schema, {"projects": project_rows})
    store.imports.import_database("agent-yes", path)
    assert store.projects.by_dir(project_rows[0]["dir"]).command == "first"
    assert (get_unmapped(store, "2")["cmd"], get_unmapped(store, "2")["prompt"]) == (
        "second",
        "other",
    )


def test_original_of_a_changed_name_is_kept(store: Corral, tmp_path: Path) -> None:
    store.agents.create("Taken", command="cat")
    path = source_databases.make_agents(tmp_path)
    base = source_databases.AGENTS_ROWS["Agent"][0]
    spaced_name, used_name = {"id": "g2", "name": "My Agent"}, {"id": "g3", "name": "Taken"}
    source_databases.grow(path, {"Agent": [base | spaced_name, base | used_name]})
    report = store.imports.import_database("agents", path)
    assert {agent.name for agent in store.agents.list().items} >= {"My-Agent", "Taken-2"}
    assert get_unmapped(store, "g2")["name"] == "My Agent"
    assert get_unmapped(store, "g3")["name"] == "Taken"
    assert any("a number was added" in problem for problem in count_problems(report))


def test_end_before_start_and_zero_times_are_kept_and_reported(
    store: Corral, tmp_path: Path
) -> None:
    path = make_agent_yes(tmp_path, {"ended_at": 1_500_000_000}, {"ended_at": 0})
    report = store.imports.import_database("agent-yes", path)
    unmapped_values = [
        row.unmapped for row in store.imports.origins().items if row.source_table == "runs"
    ]
    assert unmapped_values == [{"ended_at": 1_500_000_000}, {"ended_at": 0}]
    assert count_problems(report) == {
        "runs: ended_at is before its start; the start counts as its end": 1,
        "runs: ended_at is not a timestamp": 1,
    }


def test_original_state_is_kept_when_it_is_mapped_to_another(store: Corral, tmp_path: Path) -> None:
    path = source_databases.make_multishot(tmp_path)
    source_databases.change(path, "UPDATE rounds SET status = 'selecting'")
    store.imports.import_database("multishot", path)
    assert get_unmapped(store, "o1")["status"] == "selecting"
