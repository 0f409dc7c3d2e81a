"""SQLite files with code in their schema: no reader executes it."""

import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pytest

from corral.db.sqlite_maintenance import check_file
from corral.importers.source import private_copy
from corral.importers.source.database import open_source
from corral.importers.source.private_copy import Unreadable
from corral.kernel.errors import Refused
from corral.untrusted_sqlite import TimeLimit, harden
from tests.support import source_databases

# Counts to 10^12, so a reader that evaluates it hangs.
ENDLESS = """(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e12)
    SELECT count(*) FROM n)"""
# Gigabytes in one expression, for places where subqueries are not allowed.
LARGE = "length(hex(zeroblob(500000000))) + length(hex(zeroblob(500000000))) > 0"
COLUMNS = "pid, project_id, status, exit_code, started_at, ended_at, args"
RUNS = f"runs (id INTEGER PRIMARY KEY, {COLUMNS}"

SCHEMAS = {
    "check": f"CREATE TABLE {RUNS}, CHECK ({LARGE}))",
    "column check": f"CREATE TABLE {RUNS}, extra TEXT CHECK ({LARGE}))",
    "virtual generated column": f"CREATE TABLE {RUNS}, extra AS ({LARGE}) VIRTUAL NOT NULL)",
    "expression index": f"CREATE TABLE {RUNS}); CREATE INDEX slow ON runs (pid, ({LARGE}))",
    "partial index": f"CREATE TABLE {RUNS}); CREATE INDEX slow ON runs (pid) WHERE {LARGE}",
    "view": f"CREATE TABLE {RUNS}); CREATE VIEW slow AS SELECT {ENDLESS} AS n",
    "trigger": f"CREATE TABLE {RUNS}); CREATE TRIGGER slow AFTER INSERT ON runs WHEN {LARGE}"
    " BEGIN SELECT 1; END",
    "virtual table": f"CREATE TABLE {RUNS}); CREATE VIRTUAL TABLE slow USING fts5 (words)",
}


def make_hostile(path: Path, schema: str) -> Path:
    """Create an agent-yes database with code in its schema, without running that code."""
    file = apsw.Connection(str(path))
    projects = "CREATE TABLE projects (id INTEGER PRIMARY KEY, dir, cmd, prompt, created_at)"
    file.execute(projects)
    before, _, after = schema.partition("); CREATE ")
    file.execute(before + (")" if after else ""))
    file.execute("INSERT INTO projects VALUES (1, '/srv/x', 'claude', 'go', 1770000000)")
    file.pragma("ignore_check_constraints", True)
    if "NOT NULL" not in schema:
        values = "7, 1, 1, 'completed', 0, 1770000000, 1770000001, '[]'"
        file.execute(f"INSERT INTO runs (id, {COLUMNS}) VALUES ({values})")
    if after:
        file.pragma("writable_schema", True)
        file.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        kind, name = ("index", "slow") if "INDEX" in after else ("view", "slow")
        if "TRIGGER" in after:
            kind = "trigger"
        if "VIRTUAL" in after:
            file.execute(f"CREATE {after}")
        else:
            page = 0
            if kind == "index":
                file.execute("CREATE INDEX other ON runs (pid)")
                page = file.execute(
                    "SELECT rootpage FROM sqlite_schema WHERE name = 'other'"
                ).fetchall()[0][0]
                file.execute("DELETE FROM sqlite_schema WHERE name = 'other'")
            table = "runs" if kind != "view" else "slow"
            file.execute(
                "INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)",
                (kind, name, table, page, f"CREATE {after}"),
            )
    file.close()
    return path


READ = """
    import resource, sys
    from pathlib import Path
    limit = 700 * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (8, 8))
    from corral.importers.source.database import open_source
    with open_source(Path(sys.argv[1])) as file:
        pieces = [batch for table in file.tables for batch in file.read_batches(table, ("id",))]
        rows = [row for piece in pieces for row in piece]
        print(len(rows), *sorted(file.derived))
"""


@pytest.mark.parametrize("name", SCHEMAS)
def test_code_in_a_schema_does_not_run(name: str, tmp_path: Path) -> None:
    path = make_hostile(tmp_path / "s.db", SCHEMAS[name])
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ), str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    rows, *derived = result.stdout.split()
    assert int(rows) == (1 if "NOT NULL" in SCHEMAS[name] else 2)
    if name == "virtual generated column":
        assert derived == ["runs.extra"]
    if name in ("view", "virtual table"):
        assert "slow" in derived


def test_only_tables_can_be_read(tmp_path: Path) -> None:
    path = make_hostile(tmp_path / "s.db", SCHEMAS["view"])
    file = apsw.Connection(str(path))
    harden(file)
    for statement in (
        "SELECT * FROM slow",
        "ATTACH ':memory:' AS other",
        "PRAGMA writable_schema = 1",
        "DELETE FROM runs",
        "SELECT hex(zeroblob(10))",
        f"SELECT {ENDLESS}",
    ):
        with pytest.raises(apsw.Error):
            file.execute(statement).fetchall()


def test_statement_that_takes_too_long_is_interrupted() -> None:
    file = apsw.Connection(":memory:")
    TimeLimit(file, seconds=0.05)
    with pytest.raises(apsw.InterruptError):
        file.execute(f"SELECT {ENDLESS}").fetchall()


def test_value_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source_databases.make_agent_yes(tmp_path)
    source_databases.change(path, "UPDATE projects SET prompt = hex(zeroblob(2000000))")
    monkeypatch.setitem(
        sys.modules["corral.untrusted_sqlite"].__dict__["_LIMITS"],
        apsw.SQLITE_LIMIT_LENGTH,
        1_000_000,
    )
    with pytest.raises(Unreadable), open_source(path) as file:
        list(file.read_batches("projects", ("id",)))


def test_source_that_does_not_fit_on_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source_databases.make_multishot(tmp_path)
    with path.open("r+b") as file:
        file.truncate(1 << 43)  # a sparse file; ext4 allows up to 1 << 44
    with pytest.raises(Refused) as caught, open_source(path):
        pass
    assert "free" in caught.value.message
    assert private_copy._SPARE_BYTES


def test_check_of_a_store_with_a_foreign_schema_does_not_run_its_code(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    import corral

    corral.open(f"sqlite:///{path}").close()
    file = apsw.Connection(str(path))
    file.execute(f"CREATE TABLE beside (x CHECK ({LARGE}), y CHECK (y > 0))")
    file.pragma("ignore_check_constraints", True)
    file.execute("INSERT INTO beside VALUES (1, 2)")
    file.pragma("ignore_check_constraints", False)
    steps = []
    file.limit(apsw.SQLITE_LIMIT_LENGTH, 1_000_000)  # the CHECK constraint would fail
    for thorough in (False, True):
        (finding,) = check_file(file, thorough=thorough)
        steps.append(finding.state)
        assert "schema was changed" in finding.message
    assert steps == ["ok", "ok"]
    file.close()
