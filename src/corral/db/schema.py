"""The schema as the migrations tell it: tables, columns, indexes, and the comments beside them."""

import re
from functools import cache
from typing import NamedTuple

from corral.db.migrate import migrations, split_statements


class ColumnDoc(NamedTuple):
    name: str
    type: str
    doc: str


class TableDoc(NamedTuple):
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
        """The columns that tell its rows apart and order them, as SQL lists them."""
        for rule in self.rules:
            if rule.startswith("PRIMARY KEY"):
                return rule.partition("(")[2].rstrip(")")
        return next(c.name for c in self.columns if c.type == "serial" or "primary key" in c.type)

    @property
    def is_numbered(self) -> bool:
        """Whether its rows are numbered in the order of their arrival."""
        return self.columns[0].type == "serial"


_TABLE = re.compile(r"CREATE TABLE (\w+) \(\n(.*)\n\)", re.S)
_COLUMN = re.compile(r"    (\w+) (\{\w+\}|[A-Z]+)([^-]*?)\s*(?:-- (.*))?$")
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX \w+ ON (\w+)")
# SQLite keeps a comment behind an added column in its schema and cannot read it again, so the
# comment stands above: `-- NAME: what it is`.
_ADDED = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+) (\{\w+\}|[A-Z]+)(.*)")
_DROPPED = re.compile(r"DROP INDEX (\w+)")


@cache
def tables() -> list[TableDoc]:
    """Every table, in the order in which the migrations make them."""
    found: dict[str, TableDoc] = {}
    for migration in migrations():
        for statement in split_statements(migration.text):
            if match := _TABLE.search(statement):
                found[match[1]] = _table(match[1], statement[: match.start()], match[2])
            elif (match := _INDEX.search(statement)) and match[1] in found:
                found[match[1]].indexes.append(" ".join(statement[match.start() :].split()))
            elif match := _ADDED.search(statement):
                above = re.search(rf"^-- {match[2]}: (.*)$", statement, re.M)
                comment = above[1] if above else None
                found[match[1]].columns.append(_column(match[2], match[3], match[4], comment))
            elif match := _DROPPED.search(statement):
                for table in found.values():
                    table.indexes[:] = [i for i in table.indexes if f" {match[1]} ON " not in i]
    return list(found.values())


def _table(name: str, above: str, body: str) -> TableDoc:
    paragraph = above.strip().rpartition("\n\n")[2]
    comment = " ".join(line.removeprefix("-- ") for line in paragraph.splitlines())
    columns: list[ColumnDoc] = []
    rules: list[str] = []
    for line in body.splitlines():
        column = _COLUMN.match(line)
        if column and column[1] not in ("CHECK", "PRIMARY", "UNIQUE"):
            columns.append(_column(column[1], column[2], column[3], column[4]))
        elif line.strip().startswith(("CHECK", "PRIMARY KEY", "UNIQUE")):
            rules.append(line.strip().rstrip(","))
    return TableDoc(name, comment, columns, rules, [])


def _column(name: str, kind: str, rest: str, comment: str | None) -> ColumnDoc:
    extra = rest.strip().rstrip(",")
    return ColumnDoc(name, f"{kind.strip('{}').lower()} {extra.lower()}".strip(), comment or "")
