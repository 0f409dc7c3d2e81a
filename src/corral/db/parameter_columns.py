"""Which column each parameter of a writing statement is stored in, derived from the SQL text.

Redaction is declared on columns (`db/column_policies.py`), and a transaction sees parameters. The
position of a parameter shows its column: in the VALUES or the SELECT behind the column list of an
INSERT, or behind `SET column =`. A parameter in a condition (WHERE, ON, LIMIT, CASE WHEN) is not
stored. Any other position is unknown, and the statement must declare a policy.
"""

import re
from typing import NamedTuple

from corral.db.dialect import TOKENS

_SQL = re.compile(
    r"each\.value ->> (?:'(?P<key>\w+)'|(?P<place>\d+))"
    r"|'(?:[^']|'')*'|::"
    r"|:(?P<parameter>[a-z_][a-z0-9_]*)"
    r"|\{(?P<token>[a-z_]+)\}"
    r"|(?P<word>[A-Za-z_][\w.]*)"
    r"|(?P<sign>[(),])"
)
_PARAMETER = re.compile(r":([a-z_][a-z0-9_]*)")
_CONDITIONS = frozenset({"WHERE", "ON", "HAVING", "LIMIT", "OFFSET", "ORDER", "GROUP"})
_SOURCES = frozenset({"FROM", "JOIN", "RETURNING"})

# Positions that are not a column.
_CONDITION = "condition"
_UNKNOWN = "unknown"

# The dialect token that turns a parameter with a JSON array into rows, and that parameter.
_ROWS_TOKEN = "each_of_rows"  # noqa: S105
_ROWS = "rows"


class ParameterColumns(NamedTuple):
    """Columns are written `table.column`; a parameter may be stored in several."""

    columns: dict[str, set[str]]
    """By parameter."""
    row_columns: dict[str | int, set[str]]
    """By the name or the index of a value in the rows that `:rows` holds as a JSON array."""
    unknown: set[str]
    """Parameters whose column cannot be derived."""


def find_parameter_columns(text: str) -> ParameterColumns:
    """Parse a statement with `{tokens}` and `:name` parameters."""
    reader = _Reader()
    before = ""
    for match in _SQL.finditer(text):
        reader.read(match, before)
        before = match[0]
    return reader.result


class _Scope:
    """One level of parentheses: its clause, and the position of a parameter in it."""

    __slots__ = ("around", "clause", "columns", "index", "outside_when", "position", "table")

    def __init__(self, around: str) -> None:
        self.around = around
        """The position of the opening parenthesis."""
        self.table = ""
        self.columns: list[str] = []
        """The column list of an INSERT."""
        self.index = 0
        self.enter("", around)

    def enter(self, clause: str, position: str) -> None:
        # Nothing in a condition is stored, subqueries included.
        self.position = _CONDITION if self.around == _CONDITION else position
        self.outside_when = self.position
        self.clause = clause

    def enter_column(self, index: int) -> None:
        """Enter the value of one column in the VALUES or the SELECT of an INSERT."""
        listed = index < len(self.columns)
        self.index = index
        self.enter("stored", f"{self.table}.{self.columns[index]}" if listed else _UNKNOWN)

    def read_word(self, word: str, before: str) -> None:
        if self.clause == "columns":
            self.columns.append(word)
        elif before in ("INTO", "UPDATE") and word.islower():
            self.table, self.columns = word, []
            self.enter("into" if before == "INTO" else "update", _UNKNOWN)
        elif self.clause == "set":
            self.enter("assigned", f"{self.table}.{word}")
        elif word.isupper():
            self._read_keyword(word, before)

    def _read_keyword(self, word: str, before: str) -> None:
        if word == "SELECT" and self.columns:
            self.enter_column(0)
        elif word == "SELECT":
            self.enter("select", self.around)
        elif word == "VALUES":
            self.enter("values" if self.columns else "select", _UNKNOWN)
        elif word == "SET":
            self.enter("set", _UNKNOWN)
        elif word in _CONDITIONS:
            self.enter("condition", _CONDITION)
        elif word in _SOURCES and before != "DISTINCT":  # `IS DISTINCT FROM` compares
            self.enter("source", _UNKNOWN)
        elif word == "WHEN":
            self.position = _CONDITION
        elif word == "THEN":
            self.position = self.outside_when


class _Reader:
    def __init__(self) -> None:
        self.result = ParameterColumns({}, {}, set())
        self._scopes = [_Scope(_UNKNOWN)]

    def read(self, match: re.Match[str], before: str) -> None:
        scope = self._scopes[-1]
        kind = match.lastgroup
        if kind == "word":
            scope.read_word(match[0], before)
            if match[0] == "each.value" and scope.position != _CONDITION:
                self.result.unknown.add(_ROWS)
        elif kind == "sign":
            self._read_sign(match[0], scope)
        elif kind == "parameter":
            self._add(match[kind], scope.position)
        elif kind == "token" and match[kind] != _ROWS_TOKEN:
            for name in _PARAMETER.findall(" ".join(TOKENS[match[kind]].values())):
                self._add(name, scope.position)
        elif kind in ("key", "place"):
            self._add_row_value(match["key"] or int(match["place"]), scope.position)

    def _read_sign(self, sign: str, scope: _Scope) -> None:
        if sign == "(":
            self._scopes.append(self._enter_scope(scope))
        elif sign == ")" and len(self._scopes) > 1:
            self._scopes.pop()
            if scope.clause == "columns":
                self._scopes[-1].columns = scope.columns
                self._scopes[-1].enter("listed", _UNKNOWN)
        elif scope.clause == "stored":
            scope.enter_column(scope.index + 1)
        elif scope.clause == "assigned":
            scope.enter("set", _UNKNOWN)

    def _enter_scope(self, scope: _Scope) -> _Scope:
        inner = _Scope(scope.position)
        if scope.clause == "into":
            inner.clause = "columns"
        elif scope.clause == "values":
            inner.table, inner.columns = scope.table, scope.columns
            inner.enter_column(0)
        return inner

    def _add(self, name: str, position: str) -> None:
        if position == _UNKNOWN:
            self.result.unknown.add(name)
        elif position != _CONDITION:
            self.result.columns.setdefault(name, set()).add(position)

    def _add_row_value(self, key: str | int, position: str) -> None:
        if position == _UNKNOWN:
            self.result.unknown.add(_ROWS)
        elif position != _CONDITION:
            self.result.row_columns.setdefault(key, set()).add(position)
