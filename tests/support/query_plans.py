"""Query plans: the indexes that an engine uses, and operations that it should avoid."""

import json
import re
from typing import Any, NamedTuple

import apsw
import psycopg
from psycopg import sql

from corral.db.postgres_pool import SESSION_SETTINGS
from corral.db.statement import Params, Statement


class Plan(NamedTuple):
    indexes: set[str]
    """The used indexes, by their names on PostgreSQL."""
    faults: list[str]
    """Full scans and sorts."""
    text: str


def sqlite_plan(connection: apsw.Connection, statement: Statement, params: Params) -> Plan:
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # like the store's own connections
    text, _, values = statement.sqlite
    result = connection.execute(f"EXPLAIN QUERY PLAN {text}", values(params)).fetchall()
    lines = [str(row[3]) for row in result]
    indexes: set[str] = set()
    faults: list[str] = []
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema").fetchall()}
    aliases = dict(re.findall(r"(?:FROM|JOIN) (\w+) AS (\w+)", text))
    named = {alias: table for table, alias in aliases.items()}
    for line in lines:
        match = re.match(r"(SCAN|SEARCH) (\w+)(?:.* USING (?:COVERING )?INDEX (\w+))?", line)
        if match:
            table = named.get(match[2], match[2])
            if "INTEGER PRIMARY KEY" in line:
                indexes.add(f"{table}_pkey")
            elif "USING PRIMARY KEY" in line:
                indexes.add(table)  # a table in primary-key order is an index
            elif match[3]:
                indexes.add(_known_as(connection, match[3]))
            elif "VIRTUAL TABLE INDEX" in line and table in tables:
                indexes.add(table)  # a full-text index
                continue
            if match[1] == "SCAN" and table in tables:
                faults.append(line)
        if "TEMP B-TREE" in line or "AUTOMATIC" in line:
            faults.append(line)
    return Plan(indexes, faults, "\n".join(lines))


def _known_as(connection: apsw.Connection, index: str) -> str:
    """Return PostgreSQL's name of an index that SQLite created for a constraint."""
    match = re.fullmatch(r"sqlite_autoindex_(\w+)_\d+", index)
    if match is None:
        return index
    table = match[1]
    indexes = connection.execute("SELECT name, origin FROM pragma_index_list(?)", (table,))
    if (index, "pk") in indexes.fetchall():
        return f"{table}_pkey"
    columns = connection.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
    return "_".join([table, *(str(column[0]) for column in columns), "key"])


def postgres_plan(
    connection: "psycopg.Connection[Any]", statement: Statement, params: Params
) -> Plan:
    """Return the generic plan, which a store's connections use from the first call."""
    text, names, _ = statement.postgres
    connection.execute(SESSION_SETTINGS.encode())  # like the store's own connections
    connection.execute(f"PREPARE looked_at AS {text}".encode())
    values = sql.SQL(", ").join(sql.Literal(params[name]) for name in names)
    arguments = sql.SQL("({})").format(values) if names else sql.SQL("")
    explain = sql.SQL("EXPLAIN (FORMAT JSON) EXECUTE looked_at") + arguments
    try:
        result = connection.execute(explain).fetchone()
    finally:
        connection.execute("DEALLOCATE looked_at")
    assert result is not None
    return _postgres_plan(result[0])


def _postgres_plan(explained: Any) -> Plan:
    tree = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
    indexes: set[str] = set()
    faults: list[str] = []
    lines: list[str] = []

    def visit(node: dict[str, Any], depth: int) -> None:
        kind = node["Node Type"]
        on = node.get("Index Name") or node.get("Relation Name") or node.get("CTE Name") or ""
        lines.append(f"{'  ' * depth}{kind} {on}")
        if "Index Name" in node:
            indexes.add(node["Index Name"])
        if kind == "Seq Scan" or kind.endswith("Sort"):
            faults.append(f"{kind} {on}")
        for child in node.get("Plans", ()):
            visit(child, depth + 1)

    visit(tree, 0)
    return Plan(indexes, faults, "\n".join(lines))
