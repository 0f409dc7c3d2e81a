"""Imported data and retention: exempt, reported, and restored by a second import."""

from pathlib import Path
from typing import Any

import pytest

from corral.api import Corral
from corral.importers.tools import TOOL_NAMES
from corral.kernel.clock import DAY, ManualClock
from tests.support import source_databases
from tests.support.invariants import check_store
from tests.support.store import contents, rows

EACH_TOOL = pytest.mark.parametrize("tool", TOOL_NAMES)
FIXTURES = Path(__file__).parents[1] / "fixtures"
# Written by Corral itself, by the present clock.
OWN = (
    "events",
    "usage_totals",
    "search_cursors",
    "settings",
    "passages",
    "deferred_indexes",
    "store_options",
)


def imported(store: Corral) -> dict[str, Any]:
    return {name: found for name, found in contents(store).items() if name not in OWN}


def counts(store: Corral) -> dict[str, int]:
    """How many rows there are, without those that only hold the place of a number."""
    holding = {"turns": "session_id", "log_lines": "run_id"}
    counted = {name: len(found) for name, found in imported(store).items()}
    for table, column in holding.items():
        counted[table] = rows(store, f"SELECT count(*) FROM {table} WHERE {column} <> ''")[0][0]
    return counted


def activity(store: Corral) -> list[Any]:
    return rows(store, "SELECT at, actor, verb FROM events WHERE kind = 'activity'")


@EACH_TOOL
def test_retention_skips_imported_rows(
    store: Corral, clock: ManualClock, tool: str, tmp_path: Path
) -> None:
    store.imports.import_database(tool, source_databases.MAKERS[tool](tmp_path))
    before, events = imported(store), activity(store)
    clock.advance(5_000 * DAY)
    store.db.prune()
    assert imported(store) == before
    assert activity(store) == events


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
    expected = {each.table: each.rows for each in report.retention}
    pruned = {each.table: each.rows for each in store.db.prune() if each.rows}
    assert expected.items() <= pruned.items() | {("events", expected.get("events"))}
    assert not store.imports.import_database(tool, path).exempt


@EACH_TOOL
def test_second_import_restores_deleted_records(
    store: Corral, clock: ManualClock, tool: str, tmp_path: Path
) -> None:
    path = source_databases.MAKERS[tool](tmp_path)
    first = store.imports.import_database(tool, path)
    kept = {row.row_id: row.id for row in store.imports.origins(limit=500).items}
    counted = counts(store)
    totals = rows(store, "SELECT scope, charges, cost_micros FROM usage_totals ORDER BY scope, day")
    store.settings.set("imports.apply_retention", True)
    # Origins are kept for three years; without them all rows would be new.
    clock.advance(1_000 * DAY)
    gone = sum(each.rows for each in store.db.prune() if each.table != "events")
    assert gone
    store.settings.set("imports.apply_retention", False)
    again = store.imports.import_database(tool, path)
    assert (again.new, again.changed, again.known) == (0, 0, first.rows)
    assert again.restored
    assert counts(store) == counted
    assert rows(
        store, "SELECT scope, charges, cost_micros FROM usage_totals ORDER BY scope, day"
    ) == (totals)
    now = {row.row_id: row.id for row in store.imports.origins(limit=500).items}
    same = {key for key, id in kept.items() if id and id[4:].isalnum() and not id[4:].isdigit()}
    assert {key: now[key] for key in same} == {key: kept[key] for key in same}
    assert [each for each in store.db.verify() if each.state == "broken"] == []
    assert store.imports.import_database(tool, path).restored == 0


@EACH_TOOL
def test_origins_are_kept_as_long_as_their_records(
    store: Corral, clock: ManualClock, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them the next import takes what exists for new rows."""
    monkeypatch.setattr("corral.services.store.origins_retention.BATCH", 7)
    path = source_databases.MAKERS[tool](tmp_path)
    first = store.imports.import_database(tool, path)
    counted = counts(store)
    store.settings.set("imports.apply_retention", True)
    clock.advance(2_000 * DAY)
    dry = {each.table: each.rows for each in store.db.prune(dry_run=True)}
    assert {each.table: each.rows for each in store.db.prune()}["import_origins"] == dry[
        "import_origins"
    ]
    again = store.imports.import_database(tool, path)
    assert (again.new, again.known) == (0, first.rows)
    assert counts(store) == counted


def test_origins_of_a_database_without_records_are_deleted(
    store: Corral, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.services.store.origins_retention.BATCH", 2)
    store.imports.import_database("agents", source_databases.make_agents(tmp_path))
    (kept,) = rows(store, "SELECT count(*) FROM import_origins")[0]
    rows(store, "UPDATE import_origins SET id = 'agt_gone' WHERE id IS NOT NULL RETURNING 1")
    rows(
        store, "UPDATE import_origins SET record_table = 'agents' WHERE id IS NOT NULL RETURNING 1"
    )
    assert store.db.prune(), "with imports.apply_retention off"
    assert rows(store, "SELECT count(*) FROM import_origins")[0] == (kept,)
    store.settings.set("imports.apply_retention", True)
    clock.advance(2_000 * DAY)
    dry = {each.table: each.rows for each in store.db.prune(dry_run=True)}
    assert dry["import_origins"] == kept > 2
    assert {each.table: each.rows for each in store.db.prune()}["import_origins"] == kept
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
    again = store.imports.import_database("agents", path)
    assert again.restored == 2, "the run and its log line"
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
    brought = store.imports.import_transcripts(source, tmp_path)
    (session,) = store.sessions.list(all=True).items
    store.sessions.close(session.id)
    total = store.charges.total("all")
    clock.advance(1_000 * DAY)
    store.db.prune()
    assert store.sessions.get(session.id).turns == brought.turns
    assert store.imports.import_transcripts(source, tmp_path).turns == 0
    store.settings.set("imports.apply_retention", True)
    store.db.prune()
    store.settings.set("imports.apply_retention", False)
    assert store.sessions.list(all=True).items == []
    again = store.imports.import_transcripts(source, tmp_path)
    assert again.turns == brought.turns
    assert store.charges.total("all") == total
