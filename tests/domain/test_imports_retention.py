"""Retention of imported data: exempt rows, reports, and records restored by a second import."""

from pathlib import Path
from typing import Any

import pytest

from corral.api import Corral
from corral.importers.mappings.registry import TOOL_NAMES
from corral.kernel.clock import DAY, ManualClock
from tests.support import source_databases
from tests.support.invariants import check_store
from tests.support.store import contents, rows

EACH_TOOL = pytest.mark.parametrize("tool", TOOL_NAMES)
FIXTURES = Path(__file__).parents[1] / "fixtures"
# Tables that Corral itself writes, with the current time.
OWN_TABLES = (
    "events",
    "usage_totals",
    "search_cursors",
    "settings",
    "passages",
    "deferred_indexes",
    "store_options",
)


def read_imported_rows(store: Corral) -> dict[str, Any]:
    return {
        name: table_rows for name, table_rows in contents(store).items() if name not in OWN_TABLES
    }


def count_imported_rows(store: Corral) -> dict[str, int]:
    """Count the imported rows without placeholders of deleted rows."""
    placeholder_columns = {"turns": "session_id", "log_lines": "run_id"}
    row_counts = {name: len(table_rows) for name, table_rows in read_imported_rows(store).items()}
    for table, column in placeholder_columns.items():
        row_counts[table] = rows(store, f"SELECT count(*) FROM {table} WHERE {column} <> ''")[0][0]
    return row_counts


def list_activity(store: Corral) -> list[Any]:
    return rows(store, "SELECT at, actor, verb FROM events WHERE kind = 'activity'")


@EACH_TOOL
def test_retention_skips_imported_rows(
    store: Corral, clock: ManualClock, tool: str, tmp_path: Path
) -> None:
    store.imports.import_database(tool, source_databases.MAKERS[tool](tmp_path))
    imported_rows, events = read_imported_rows(store), list_activity(store)
    clock.advance(5_000 * DAY)
    store.db.prune()
    assert read_imported_rows(store) == imported_rows
    assert list_activity(store) == events


@EACH_TOOL
def test_report_counts_rows_that_retention_would_delete(
    store: Corral, clock: ManualClock, tool: str, tmp_path: Path
) -> None:
    path = source_databases.MAKERS[tool](tmp_path)
    store.imports.import_database(tool, path)
    clock.advance(5_000 * DAY)
    report = store.imports.import_database(tool, path)
    assert report.exempt
    assert report.retention
    store.settings.set("imports.apply_retention", True)
    expected = {result.table: result.rows for result in report.retention}
    pruned = {result.table: result.rows for result in store.db.prune() if result.rows}
    assert expected.items() <= pruned.items() | {("events", expected.get("events"))}
    assert not store.imports.import_database(tool, path).exempt


@EACH_TOOL
def test_second_import_restores_deleted_records(
    store: Corral, clock: ManualClock, tool: str, tmp_path: Path
) -> None:
    path = source_databases.MAKERS[tool](tmp_path)
    first_report = store.imports.import_database(tool, path)
    origins = {row.row_id: row.id for row in store.imports.origins(limit=500).items}
    row_counts = count_imported_rows(store)
    totals = rows(store, "SELECT scope, charges, cost_micros FROM usage_totals ORDER BY scope, day")
    store.settings.set("imports.apply_retention", True)
    # Origins are kept for three years; without them all rows would be new.
    clock.advance(1_000 * DAY)
    pruned = sum(result.rows for result in store.db.prune() if result.table != "events")
    assert pruned
    store.settings.set("imports.apply_retention", False)
    second_report = store.imports.import_database(tool, path)
    assert (second_report.new, second_report.changed, second_report.known) == (
        0,
        0,
        first_report.rows,
    )
    assert second_report.restored
    assert count_imported_rows(store) == row_counts
    assert rows(
        store, "SELECT scope, charges, cost_micros FROM usage_totals ORDER BY scope, day"
    ) == (totals)
    restored_origins = {row.row_id: row.id for row in store.imports.origins(limit=500).items}
    stable_keys = {
        key for key, id in origins.items() if id and id[4:].isalnum() and not id[4:].isdigit()
    }
    assert {key: restored_origins[key] for key in stable_keys} == {
        key: origins[key] for key in stable_keys
    }
    assert [finding for finding in store.db.verify() if finding.state == "broken"] == []
    assert store.imports.import_database(tool, path).restored == 0


@EACH_TOOL
def test_origins_are_kept_as_long_as_their_records(
    store: Corral, clock: ManualClock, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its origins, the next import would treat existing rows as new."""
    monkeypatch.setattr("corral.services.store.origins_retention.BATCH", 7)
    path = source_databases.MAKERS[tool](tmp_path)
    first_report = store.imports.import_database(tool, path)
    row_counts = count_imported_rows(store)
    store.settings.set("imports.apply_retention", True)
    clock.advance(2_000 * DAY)
    dry_run_counts = {result.table: result.rows for result in store.db.prune(dry_run=True)}
    assert {result.table: result.rows for result in store.db.prune()}[
        "import_origins"
    ] == dry_run_counts["import_origins"]
    second_report = store.imports.import_database(tool, path)
    assert (second_report.new, second_report.known) == (0, first_report.rows)
    assert count_imported_rows(store) == row_counts


def test_origins_of_a_database_without_records_are_deleted(
    store: Corral, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.services.store.origins_retention.BATCH", 2)
    store.imports.import_database("agents", source_databases.make_agents(tmp_path))
    (count,) = rows(store, "SELECT count(*) FROM import_origins")[0]
    rows(store, "UPDATE import_origins SET id = 'agt_gone' WHERE id IS NOT NULL RETURNING 1")
    rows(
        store, "UPDATE import_origins SET record_table = 'agents' WHERE id IS NOT NULL RETURNING 1"
    )
    assert store.db.prune(), "imports.apply_retention is off"
    assert rows(store, "SELECT count(*) FROM import_origins")[0] == (count,)
    store.settings.set("imports.apply_retention", True)
    clock.advance(2_000 * DAY)
    dry_run_counts = {result.table: result.rows for result in store.db.prune(dry_run=True)}
    assert dry_run_counts["import_origins"] == count > 2
    assert {result.table: result.rows for result in store.db.prune()}["import_origins"] == count
    assert rows(store, "SELECT count(*) FROM import_origins")[0] == (0,)


def test_import_of_a_file_is_kept_as_long_as_its_session(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "rollout.jsonl").write_bytes(
        (FIXTURES / "transcripts" / "claude.jsonl").read_bytes()
    )
    store.imports.import_transcripts("claude", tmp_path)
    (session,) = store.sessions.list(all=True).items
    store.settings.set("imports.apply_retention", True)
    clock.advance(2_000 * DAY)
    store.db.prune()
    store.imports.import_transcripts("claude", tmp_path)
    assert store.sessions.list(all=True).items == [session]


def test_deleted_run_is_restored_with_its_log(store: Corral, tmp_path: Path) -> None:
    path = source_databases.make_agents(tmp_path)
    store.imports.import_database("agents", path)
    (run,) = rows(
        store, "SELECT id FROM import_origins WHERE source_table = 'run' AND row_id = 'u1'"
    )[0]
    cost = store.charges.total("all").cost_micros
    store.runs.delete(run)
    report = store.imports.import_database("agents", path)
    assert report.restored == 2, "the run and its log line"
    assert store.runs.get(run).tokens == 1_500
    assert [line.message for line in store.outputs.log_lines(run).items] == ["slow"]
    assert store.charges.total("all").cost_micros == cost
    assert len(store.charges.list(run=run).items) == 1
    check_store(store)


def test_revoked_tool_grant_is_not_restored(store: Corral, tmp_path: Path) -> None:
    path = source_databases.make_agents(tmp_path)
    store.imports.import_database("agents", path)
    store.agents.revoke("Builder", "Bash")
    assert store.imports.import_database("agents", path).restored == 0
    assert [grant.tool for grant in store.agents.grants("Builder").items] == ["WebFetch"]


@pytest.mark.parametrize("source", ["claude", "codex"])
def test_transcripts_are_exempt_from_retention_and_restored(
    store: Corral, clock: ManualClock, source: str, tmp_path: Path
) -> None:
    name = f"rollout-{source}.jsonl"
    (tmp_path / name).write_bytes((FIXTURES / "transcripts" / f"{source}.jsonl").read_bytes())
    first_report = store.imports.import_transcripts(source, tmp_path)
    (session,) = store.sessions.list(all=True).items
    store.sessions.close(session.id)
    total = store.charges.total("all")
    clock.advance(1_000 * DAY)
    store.db.prune()
    assert store.sessions.get(session.id).turns == first_report.turns
    assert store.imports.import_transcripts(source, tmp_path).turns == 0
    store.settings.set("imports.apply_retention", True)
    store.db.prune()
    store.settings.set("imports.apply_retention", False)
    assert store.sessions.list(all=True).items == []
    second_report = store.imports.import_transcripts(source, tmp_path)
    assert second_report.turns == first_report.turns
    assert store.charges.total("all") == total
