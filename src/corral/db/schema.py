"""The schema, parsed from the migrations: tables, columns, indexes and their comments."""

import re
from functools import cache
from typing import NamedTuple

from corral.db.migrations import load_migrations, split_statements
from corral.db.statement import Statement
from corral.db.tx import Tx


class ColumnDoc(NamedTuple):
    """A column and its comment."""

    name: str
    type: str
    doc: str


class TableDoc(NamedTuple):
    """A table, its columns, constraints and indexes, and its comment."""

    name: str
    doc: str
    columns: list[ColumnDoc]
    rules: list[str]
    indexes: list[str]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def key(self) -> str:
        """The columns of the primary key, as a SQL list."""
        for rule in self.rules:
            if rule.startswith("PRIMARY KEY"):
                return rule.partition("(")[2].rstrip(")")
        return next(c.name for c in self.columns if c.type == "serial" or "primary key" in c.type)

    @property
    def is_numbered(self) -> bool:
        """Whether the primary key is a sequence number."""
        return self.columns[0].type == "serial"


_TABLE = re.compile(r"CREATE TABLE (\w+) \(\n(.*)\n\)", re.S)
_COLUMN = re.compile(r"    (\w+) (\{\w+\}|[A-Z]+)([^-]*?)\s*(?:-- (.*))?$")
_ADDED = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+) (\{\w+\}|[A-Z]+)\s*(.*)", re.S)
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX \w+ ON (\w+)")
_DROPPED = re.compile(r"DROP INDEX (\w+)")


@cache
def tables() -> list[TableDoc]:
    """Return all tables, in the order in which the migrations create them."""
    by_name: dict[str, TableDoc] = {}
    for migration in load_migrations():
        for statement in split_statements(migration.text):
            if match := _TABLE.search(statement):
                by_name[match[1]] = _parse_table(match[1], statement[: match.start()], match[2])
            elif match := _ADDED.search(statement):
                by_name[match[1]].columns.append(
                    _parse_added_column(match, statement[: match.start()], by_name)
                )
            elif (match := _INDEX.search(statement)) and match[1] in by_name:
                by_name[match[1]].indexes.append(" ".join(statement[match.start() :].split()))
            elif match := _DROPPED.search(statement):
                for table in by_name.values():
                    table.indexes[:] = [i for i in table.indexes if f" {match[1]} ON " not in i]
    return list(by_name.values())


def list_nonempty_tables(tx: Tx) -> set[str]:
    """Return the names of the tables that hold at least one row.

    One statement for all tables: most tables of most stores are empty, and a caller that reads
    every table would need several round trips for each.
    """
    return {str(name) for (name,) in tx.run(_build_nonempty_statement())}


@cache
def _build_nonempty_statement() -> Statement:
    one = "SELECT '{0}' WHERE EXISTS (SELECT 1 FROM {0})"
    return Statement(" UNION ALL ".join(one.format(table.name) for table in tables()))


def _parse_comment(above: str) -> str:
    paragraph = above.strip().rpartition("\n\n")[2]
    return " ".join(line.removeprefix("-- ") for line in paragraph.splitlines())


def _parse_added_column(match: re.Match[str], above: str, tables: dict[str, TableDoc]) -> ColumnDoc:
    """Describe a column that a later migration added. One comment serves consecutive ALTERs."""
    _, name, type, extra = match.groups()
    known = (column for table in tables.values() for column in table.columns)
    doc = _parse_comment(above) or next((c.doc for c in known if c.name == name and c.doc), "")
    return ColumnDoc(name, f"{type.strip('{}').lower()} {extra.lower()}".strip(), doc)


def _parse_table(name: str, above: str, body: str) -> TableDoc:
    comment = _parse_comment(above)
    columns: list[ColumnDoc] = []
    rules: list[str] = []
    for line in body.splitlines():
        column = _COLUMN.match(line)
        if column and column[1] not in ("CHECK", "PRIMARY", "UNIQUE"):
            extra = column[3].strip().rstrip(",")
            columns.append(
                ColumnDoc(
                    column[1],
                    f"{column[2].strip('{}').lower()} {extra.lower()}".strip(),
                    column[4] or "",
                )
            )
        elif line.strip().startswith(("CHECK", "PRIMARY KEY", "UNIQUE")):
            rules.append(line.strip().rstrip(","))
    return TableDoc(name, comment, columns, rules, [])
