"""`corral import` of other tools' databases."""

import json
import re
from pathlib import Path

import pytest

from corral.importers.mappings.registry import TOOL_NAMES
from tests.support import source_databases
from tests.support.cli_runner import Cli


@pytest.mark.parametrize("tool", TOOL_NAMES)
def test_database_is_imported_and_a_second_import_is_reported(
    cli: Cli, tool: str, tmp_path: Path
) -> None:
    path = source_databases.MAKERS[tool](tmp_path)
    first = cli("import", tool, str(path))
    assert first.code == 0
    assert "BECAME" in first.out
    assert not re.search(r"\b1 (agents|sessions|tasks|turns|notes|runs)\b", first.out)
    assert "Nothing new" in cli("import", tool, str(path)).out
    result = cli.json("import", tool, str(path))
    assert result["new"] == 0
    assert {table["table"] for table in result["tables"]}


def test_folder_of_a_tool_can_be_imported(cli: Cli, tmp_path: Path) -> None:
    for tool in ("agent-yes", "agents", "multishot", "nanoclaw"):
        folder = tmp_path / tool
        path = source_databases.MAKERS[tool](folder)
        assert cli.json("import", tool, str(folder))["source"] == str(path)


def test_invalid_source_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    path = source_databases.make_agent_yes(tmp_path)
    error = cli.error("import", "flightdeck", str(path))
    assert (error["exit_code"], error["details"]["reason"]) == (2, "other_tool")
    assert error["details"]["looks_like"] == "agent-yes"
    missing = cli("import", "multishot", str(tmp_path / "nowhere.db"))
    assert missing.code == 3
    folder = cli.error("import", "flightdeck", str(tmp_path))
    assert folder["details"]["reason"] == "is_a_folder"


def test_invalid_rows_are_reported_and_can_be_listed(cli: Cli, tmp_path: Path) -> None:
    path = source_databases.make_agent_yes(tmp_path)
    source_databases.change(path, "UPDATE runs SET args = '{' WHERE id = 1")
    result = cli("import", "agent-yes", str(path), "--name", "laptop")
    assert "runs: args is not JSON of the expected type (list) (1, as in 1)" in result.out
    value = json.loads(cli("import", "rows", "--json").out)
    assert {row["source"] for row in value} == {"laptop"}
    (broken,) = (row for row in value if row["problems"])
    assert broken["unmapped"] == {"args": "{"}
    (listed,) = json.loads(cli("import", "rows", "--id", broken["id"], "--json").out)
    assert listed == broken
    assert json.loads(cli("import", "rows", "--kept", "--json").out) == []


def test_imported_records_can_be_listed(cli: Cli, tmp_path: Path) -> None:
    for tool in TOOL_NAMES:
        cli("import", tool, str(source_databases.MAKERS[tool](tmp_path / tool)))
    rows = json.loads(cli("import", "rows", "--json", "--limit", "200").out)
    ids = [row["id"] for row in rows if row["id"] and row["id"][:3] not in ("trn", "chg")]
    kinds = {id[:3] for id in ids}
    assert kinds >= {"prj", "run", "agt", "ses", "rac", "tsk", "let", "dec", "nte", "grp"}
    for kind in sorted(kinds):
        id = next(id for id in ids if id.startswith(kind))
        result = cli("show", id)
        assert "Traceback" not in result.err, id
        assert result.code in (0, 2, 3), (id, result.err)
    assert cli("ps", "-a").code == 0
    assert "corral import rows" in cli("import", "list").out
    race = next(id for id in ids if id.startswith("rac"))
    text = cli("race", "show", race).out
    assert "without a repository" in text
    assert not re.search(r"from [ ;]|from$|\(\)", text, re.M), "no empty columns"
    assert json.loads(cli("ps", "--json").out) == [], "no run is active"


def test_report_shows_what_retention_would_delete(cli: Cli, tmp_path: Path) -> None:
    path = source_databases.make_agent_yes(tmp_path)
    source_databases.change(path, "UPDATE runs SET started_at = 1500000000, ended_at = 1500000060")
    first = cli("import", "agent-yes", str(path))
    assert "4 runs" in first.out
    assert "corral setting set imports.apply_retention true" in first.out
    assert cli("setting", "set", "imports.apply_retention", "true").code == 0
    cli("db", "prune")
    second = cli("import", "agent-yes", str(path)).out
    assert "Restored 4 of those" in second
    assert "corral setting set imports.apply_retention false" in second
