"""Importing loses no value: a check of every column of other tools' databases.

Two different values of a column must have different results: in the imported record, in its
unmapped values (`rest`) or in the report. Equal results mean that the value was dropped.
"""

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import apsw
import pytest

from corral.importers.conversion import convert_row
from corral.importers.mappings.registry import TOOL_NAMES, find_tool
from corral.importers.mappings.types import NOT_IMPORTED, TableMapping
from corral.importers.source import row as rows
from corral.importers.source.database import RawRow
from corral.importers.source.row import RowContext, SourceRow
from corral.importers.source.timestamps import parse_timestamp
from tests.support import source_databases
from tests.support.grouped_cases import each_case

NOW = 1_800_000_000_000
LONG = "long " * 2_000

TEXTS = ["x", "X", " x", "a b", "a  b", "a-b", "a\nb", "a:b", "a/b", LONG + "1", LONG + "2", None]
TEXTS += ["0", "unmapped", b"\xff", b"\xfe", b"a\0b"]
TIMES = [0, -5, 1_770_000_999, 1_770_000_000_123, 1_500_000_000, 2_000_000_000_000, "soon", None]
TIMES += ["2026-03-01T10:00:07Z", 9_999_999_999_999, "later"]
NUMBERS = [0, 1, 2, -1, 77, 10**12, 10**17, 2.5, "three", None, float("inf")]
FLAGS = [0, 1, 2, "yes", "perhaps"]
JSON = ["[]", "{}", '["a"]', '["b"]', '{"a": ["b"]}', '{"a": ["c"]}', "{broken", '"text"', None]
JSON += ['[{"content": "x", "status": "pending", "priority": "high"}]']
JSON += [f'{{"{"s" * 80}1": ["b"]}}', f'{{"{"s" * 80}2": ["b"]}}', '{"confidence": 0.5}']
JSON += ['[{"content": "x", "status": "pending", "priority": "high", "more": 1}]']
STATES = "completed running initializing selected selecting active queued in_progress pending"
STATES += " ready blocked terminated cancelled delivered expired done idle archived external user"
STATES += " thinking agent system fired confirmed recorded failed processing shared per-thread"
PROBES: list[Any] = [*STATES.split(), *TEXTS, *TIMES, *NUMBERS, *FLAGS, *JSON]

# Contexts in which a mapping treats the other columns of a row differently.
CONTEXT_VALUES = {
    "status": ["completed", "running", "pending", "paused", "confirmed", "recorded", "unmapped"],
    "dag_status": ["done", "paused", "running", "unmapped"],
    "repeat": [0, 1],
    "recurrence": ["0 9 * * *", "often", None],
    "kind": ["chat", "system"],
    "started_at": [1_770_000_000_000],
    "created_at": [1_790_000_000_000],
}


@cache
def read_schema(tool: str) -> dict[str, list[str]]:
    """Return the tables and columns as the tool itself creates them."""
    values: dict[str, list[str]] = {}
    for schema in source_databases.SCHEMAS[tool]:
        file = apsw.Connection(":memory:")
        file.execute(schema)
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        for (name,) in file.execute(query).fetchall():
            columns = [row[1] for row in file.execute(f'PRAGMA table_info("{name}")')]
            values[str(name).lower()] = [str(column).lower() for column in columns]
    return {name: values[name] for name in values if "_fts" not in name and "sqlite_" not in name}


class AnyId(dict[tuple[str, str], str]):
    """Every referenced row exists, under an id that contains its key."""

    def get(self, key: tuple[str, str], default: Any = None) -> Any:  # type: ignore[override]
        return f"ref_{key[1]}" if key[1] else default


def encode_text(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def import_row(tables: list[TableMapping], values: dict[str, Any]) -> list[Any]:
    """Return all results of importing a row, in all passes over its table."""
    outcomes: list[Any] = []
    for table in tables:
        result = {name: encode_text(value) for name, value in values.items()}
        parts = [str(values.get(name)) for name in table.key]
        row = SourceRow(
            RawRow("|".join(parts), False, result),
            table.refs,
            AnyId(),
            RowContext(
                NOW,
                "/srv/source",
                {},
                owner_key="sess-1",
                owner_values={"agent_group_id": "ag-1"},
                source_project=lambda: "prj_home",
            ),
        )
        records = convert_row(table, row, False)
        hidden = {name for name, home in table.columns.items() if home == NOT_IMPORTED}
        secret = [result[name] for name in hidden]
        outcomes.append((row.key, records, row.unmapped, row.problems, row.memo, secret))
    return outcomes


def sample_row(tool: str, table: str) -> dict[str, Any]:
    """Return a row in which every column has a value."""
    values: dict[str, Any] = {}
    for source in (
        source_databases.AGENT_YES_ROWS,
        source_databases.AGENTS_ROWS,
        source_databases.FLIGHTDECK_ROWS,
        source_databases.MULTISHOT_ROWS,
        source_databases.NANOCLAW_ROWS,
        source_databases.NANOCLAW_INBOUND_ROWS,
        source_databases.NANOCLAW_OUTBOUND_ROWS,
    ):
        for name, records in source.items():
            if name.lower() == table and records:
                columns = {column.lower() for column in records[0]}
                if columns <= {*read_schema(tool)[table]}:
                    values = {column.lower(): value for column, value in records[0].items()}
    return {column: values.get(column, "filler") for column in read_schema(tool)[table]}


def list_contexts(base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield base
    for name, options in CONTEXT_VALUES.items():
        if name in base:
            for option in options:
                yield {**base, name: option}


def are_equivalent(first: Any, second: Any) -> bool:
    """Return whether values differ only in spelling: the same number, the same time, or empty."""
    if first == second and type(first) is type(second):
        return True
    texts = {str(first), str(second)}
    if {first, second} <= {None, 0, "0"} or len(texts) == 1:
        return True
    if {first, second} <= {None, "[]"} or {first, second} <= {None, "{}"}:
        return True
    truth = {"1", "1.0", "yes", "true", "True"}
    if texts <= truth:
        return True
    return parse_timestamp(first) is not None and parse_timestamp(first) == parse_timestamp(second)


def test_every_source_table_and_column_is_mapped() -> None:
    unmapped = []
    for tool in TOOL_NAMES:
        mapped: dict[str, set[str]] = {}
        for table in find_tool(tool).tables:
            mapped.setdefault(table.name, set()).update(table.columns)
        for table, columns in read_schema(tool).items():
            unmapped += [f"{tool}.{table}.{c}" for c in columns if c not in mapped.get(table, ())]
    assert unmapped == []


@pytest.mark.parametrize("tool", TOOL_NAMES)
def test_distinct_column_values_stay_distinct(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "make_backdated_id", lambda prefix, at: f"{prefix}_new")
    monkeypatch.setattr("os.path.realpath", str)
    lost = [
        f"{table}.{column}: {pair}"
        for table, columns in read_schema(tool).items()
        for column in columns
        for pair in find_lost_pairs(tool, table, column)
    ]
    assert lost == []


def find_lost_pairs(tool: str, table: str, column: str) -> list[str]:
    """Return the pairs of different values of a column that have the same result."""
    passes = [item for item in find_tool(tool).tables if item.name == table]
    lost = set()
    for base in list_contexts(sample_row(tool, table)):
        by_outcome: dict[str, list[Any]] = {}
        for value in PROBES:
            by_outcome.setdefault(repr(import_row(passes, {**base, column: value})), []).append(
                value
            )
        for values in by_outcome.values():
            for first, second in combinations(values, 2):
                if not are_equivalent(first, second):
                    lost.add(f"{first!r:.40} and {second!r:.40}")
    return sorted(lost)


@each_case("tool", TOOL_NAMES)
def test_skipped_row_has_a_reason(tool: str) -> None:
    without_reason = []
    for table in find_tool(tool).tables:
        columns = read_schema(tool)[table.name]
        row = SourceRow(
            RawRow("1", False, dict.fromkeys(columns)), table.refs, {}, RowContext(NOW, "/srv", {})
        )
        if not convert_row(table, row, False) and not table.alias and not row.problems:
            without_reason.append(table.name)
    assert without_reason == []
