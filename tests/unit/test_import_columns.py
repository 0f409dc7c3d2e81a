"""No value of another tool's database is lost: a mechanical check of every column.

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
TEXTS += ["0", "levitating", b"\xff", b"\xfe", b"a\0b"]
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
WORDS = {
    "status": ["completed", "running", "pending", "paused", "confirmed", "recorded", "levitating"],
    "dag_status": ["done", "paused", "running", "levitating"],
    "repeat": [0, 1],
    "recurrence": ["0 9 * * *", "often", None],
    "kind": ["chat", "system"],
    "started_at": [1_770_000_000_000],
    "created_at": [1_790_000_000_000],
}


@cache
def schema_of(tool: str) -> dict[str, list[str]]:
    """Return the tables and columns as the tool itself creates them."""
    values: dict[str, list[str]] = {}
    for schema in source_databases.SCHEMAS[tool]:
        file = apsw.Connection(":memory:")
        file.execute(schema)
        listed = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        for (name,) in file.execute(listed).fetchall():
            columns = [row[1] for row in file.execute(f'PRAGMA table_info("{name}")')]
            values[str(name).lower()] = [str(column).lower() for column in columns]
    return {name: values[name] for name in values if "_fts" not in name and "sqlite_" not in name}


class AnyId(dict[tuple[str, str], str]):
    """Every referenced row exists, under an id that contains its key."""

    def get(self, key: tuple[str, str], default: Any = None) -> Any:  # type: ignore[override]
        return f"ref_{key[1]}" if key[1] else default


def as_value(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def outcome_of(tables: list[TableMapping], values: dict[str, Any]) -> list[Any]:
    """Return everything that an import makes of a row, in all passes over its table."""
    whole: list[Any] = []
    for table in tables:
        result = {name: as_value(value) for name, value in values.items()}
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
        things = convert_row(table, row, False)
        hidden = {name for name, home in table.columns.items() if home == NOT_IMPORTED}
        secret = [result[name] for name in hidden]
        whole.append((row.key, things, row.unmapped, row.problems, row.memo, secret))
    return whole


def base_of(tool: str, table: str) -> dict[str, Any]:
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
        for name, listed in source.items():
            if name.lower() == table and listed:
                own = {column.lower() for column in listed[0]}
                if own <= {*schema_of(tool)[table]}:
                    values = {column.lower(): value for column, value in listed[0].items()}
    return {column: values.get(column, "filler") for column in schema_of(tool)[table]}


def contexts(base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield base
    for name, words in WORDS.items():
        if name in base:
            for word in words:
                yield {**base, name: word}


def means_the_same(one: Any, other: Any) -> bool:
    """Return whether values differ only in spelling: the same number, the same time, or empty."""
    if one == other and type(one) is type(other):
        return True
    texts = {str(one), str(other)}
    if {one, other} <= {None, 0, "0"} or len(texts) == 1:
        return True
    if {one, other} <= {None, "[]"} or {one, other} <= {None, "{}"}:
        return True
    truth = {"1", "1.0", "yes", "true", "True"}
    if texts <= truth:
        return True
    return parse_timestamp(one) is not None and parse_timestamp(one) == parse_timestamp(other)


def test_every_source_table_and_column_is_mapped() -> None:
    homeless = []
    for tool in TOOL_NAMES:
        homes: dict[str, set[str]] = {}
        for table in find_tool(tool).tables:
            homes.setdefault(table.name, set()).update(table.columns)
        for table, columns in schema_of(tool).items():
            homeless += [f"{tool}.{table}.{c}" for c in columns if c not in homes.get(table, ())]
    assert homeless == []


@pytest.mark.parametrize("tool", TOOL_NAMES)
def test_distinct_column_values_stay_distinct(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "make_backdated_id", lambda prefix, at: f"{prefix}_new")
    monkeypatch.setattr("os.path.realpath", str)
    lost = [
        f"{table}.{column}: {pair}"
        for table, columns in schema_of(tool).items()
        for column in columns
        for pair in lost_pairs(tool, table, column)
    ]
    assert lost == []


def lost_pairs(tool: str, table: str, column: str) -> list[str]:
    """Return the pairs of different values of a column that have the same result."""
    passes = [item for item in find_tool(tool).tables if item.name == table]
    lost = set()
    for base in contexts(base_of(tool, table)):
        alike: dict[str, list[Any]] = {}
        for value in PROBES:
            alike.setdefault(repr(outcome_of(passes, {**base, column: value})), []).append(value)
        for values in alike.values():
            for one, other in combinations(values, 2):
                if not means_the_same(one, other):
                    lost.add(f"{one!r:.40} and {other!r:.40}")
    return sorted(lost)


@each_case("tool", TOOL_NAMES)
def test_skipped_row_has_a_reason(tool: str) -> None:
    silent = []
    for table in find_tool(tool).tables:
        columns = schema_of(tool)[table.name]
        row = SourceRow(
            RawRow("1", False, dict.fromkeys(columns)), table.refs, {}, RowContext(NOW, "/srv", {})
        )
        if not convert_row(table, row, False) and not table.alias and not row.problems:
            silent.append(table.name)
    assert silent == []
