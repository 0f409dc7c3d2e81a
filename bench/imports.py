"""Speed and memory of importing another tool's database.

    python -m bench.imports [ROWS]

For each engine: runs of agent-yes and messages of flightdeck, ROWS (default 100,000) rows each; the
first import, the second one (all rows known), and the additional peak memory.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.support import source_databases
from tests.support.postgres_server import PostgresServer

import corral

_RUNS = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
    INSERT INTO runs (pid, project_id, status, exit_code, started_at, ended_at, args)
    SELECT i, 1 + i % 2, 'completed', 0, 1770000000 + i, (1770000060 + i) * 1000, '["--fast"]'
    FROM n
"""
_MESSAGES = """
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
    INSERT INTO messages (conversation_id, sender, content, timestamp)
    SELECT 'c1', 'agent', 'I looked at file ' || i || ' and fixed the error in it; the '
        || 'tests pass again, and I go on with the next one.', '2026-03-01T10:00:00Z' FROM n
"""


def measure(url: str, tool: str, path: Path) -> None:
    engine = url.partition(":")[0]
    with corral.open(url) as store:
        for time_of in ("first", "again"):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.perf_counter()
            report = store.imports.import_database(tool, path)
            elapsed = time.perf_counter() - start
            more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            print(
                f"{engine:10} {tool:10} {time_of}: {report.rows:,} rows, {report.new:,} new, "
                f"{elapsed:.1f} s, {report.rows / elapsed:,.0f} rows/s, {more:.0f} MiB more",
                flush=True,
            )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        runs = source_databases.make_agent_yes(Path(folder) / "runs")
        source_databases.change(runs, _RUNS.format(rows=rows))
        messages = source_databases.make_flightdeck(Path(folder) / "messages")
        source_databases.change(messages, _MESSAGES.format(rows=rows))
        sources = {"agent-yes": runs, "flightdeck": messages}
        for tool, path in sources.items():
            measure(f"sqlite:///{folder}/{tool}.db", tool, path)
        server = PostgresServer(durable=True)
        try:
            for tool, path in sources.items():
                measure(server.new_database(), tool, path)
        finally:
            server.close()


if __name__ == "__main__":
    main()
