"""Another program's database, opened: which tables and columns it has, and their rows in pieces.

Its rows may be anything: text that is no UTF-8, ids that occur twice or not at all, columns that
are missing or new. All of it is given on as it is; judging it is left to whoever knows the tool.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from corral.importers.source.copy import Unreadable, copy_of, damaged
from corral.scratch_folders import scratch_folder
from corral.untrusted_sqlite import MAX_SECONDS, harden

Value = int | float | bytes | None
# A piece of rows is over when it has so many, or so many bytes: memory does not grow with a source.
PIECE_ROWS = 500
PIECE_BYTES = 1 << 20
# A key goes into an index, which takes no more than some.
LONGEST_KEY = 400
_WIDE = {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}


class Found(NamedTuple):
    """A row: its key, unique in its table, and its values by column; text is still bytes."""

    key: str
    twin: bool
    """Whether a row before it has the same key, or it has none."""
    values: dict[str, Value]


@contextmanager
def opened(path: Path) -> Iterator["Foreign"]:
    """A private copy of a database; it is gone afterwards."""
    with scratch_folder("import") as folder:
        copy = copy_of(path, folder)
        try:
            connection = apsw.Connection(str(copy))
        except apsw.Error as error:
            raise damaged(path, error) from None
        try:
            yield Foreign(path, connection)
        except apsw.InterruptError as error:
            raise Unreadable(
                f"Cannot read {path}: a single row takes longer than {MAX_SECONDS:.0f} s. Copy the "
                "data into a new database without constraints and computed columns.",
                path=str(path),
            ) from error
        except apsw.Error as error:
            raise damaged(path, error) from error
        finally:
            connection.close()


class Foreign:
    """The tables of an open source."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self.path = path
        self._connection = connection
        self._limit = harden(connection)
        self._encoding = _WIDE.get(str(connection.pragma("encoding")))
        self.tables: dict[str, tuple[str, ...]] = {}
        """The columns of each table, under its name in small letters."""
        self.derived: list[str] = []
        """Views, virtual tables with their shadow tables, and generated columns. They are computed
        from other data by code in the schema, and are not read."""
        self._names: dict[str, str] = {}
        # Not pragma_table_list: it compiles every view and connects every virtual table.
        listed = (
            "SELECT name, type, rootpage FROM sqlite_schema"
            " WHERE type IN ('table', 'view') ORDER BY name"
        )
        found = [(str(a), str(b), c) for a, b, c in connection.execute(listed).fetchall()]
        virtual = [name for name, kind, page in found if kind == "table" and not page]
        for name, kind, page in found:
            if name.startswith("sqlite_"):
                continue
            if kind == "view" or not page or _is_shadow(name, virtual):
                self.derived.append(name)
            else:
                self._add_table(name)

    def _add_table(self, name: str) -> None:
        """Check the pages of a table and list its columns, except generated ones."""
        self._limit.restart()
        found = self._connection.execute(f"PRAGMA quick_check({_quoted(name)})").fetchall()
        if found != [("ok",)]:
            raise apsw.CorruptError(str(found[0][0]) if found else "unknown damage")
        self._names[name.lower()] = name
        columns = self._connection.execute(f"PRAGMA table_xinfo({_quoted(name)})").fetchall()
        self.tables[name.lower()] = tuple(str(row[1]) for row in columns if not row[6])
        self.derived += [f"{name}.{row[1]}" for row in columns if row[6]]

    def name_of(self, table: str) -> str:
        """The table's name as the source spells it."""
        return self._names[table]

    def count(self, table: str) -> int:
        self._limit.restart()
        sql = f"SELECT count(*) FROM {_quoted(self._names[table])}"
        found: Any = self._connection.execute(sql).fetchall()
        return int(found[0][0])

    def pieces(self, table: str, key: Sequence[str]) -> Iterator[list[Found]]:
        """All rows, in the order in which they were written, a piece at a time.

        `key` are the columns that name a row; where they do not, its place in the file does.
        """
        columns = self.tables[table]
        by = {column.lower(): column for column in columns}
        named = [by[column] for column in key if column in by]
        whole = len(named) == len(key) and bool(key)
        place = self._place(table)
        twins = self._twins(table, named, place) if whole and place else {}
        keys = [_as_key(column) for column in named] if whole else []
        chosen = ", ".join([*keys, *(_as_bytes(column) for column in columns)])
        first = place or "NULL"
        ordered = place or ", ".join(map(_quoted, named)) or "1"
        sql = f"SELECT {first}, {chosen} FROM {_quoted(self._names[table])} ORDER BY {ordered}"
        lowered = [column.lower() for column in columns]
        piece: dict[str, Found] = {}
        size = 0
        self._limit.restart()
        for row in self._connection.execute(sql):
            self._limit.restart()
            told = [*map(self._in_utf8, row[1:])]
            values = dict(zip(lowered, told[len(keys) :], strict=True))
            found = _found(values, told[: len(keys)], row[0], twins)
            if found.key in piece:  # two keys that are spelled alike, as bytes that are no text
                found = _twin(found.key, row[0], values)
            piece[found.key] = found
            size += sum(len(value) for value in row if isinstance(value, bytes))
            if len(piece) >= PIECE_ROWS or size >= PIECE_BYTES:
                yield [*piece.values()]
                piece, size = {}, 0
        if piece:
            yield [*piece.values()]

    def _in_utf8(self, value: Any) -> Any:
        if self._encoding is None or not isinstance(value, bytes):
            return value
        return value.decode(self._encoding, "replace").encode()

    def _place(self, table: str) -> str | None:
        """The column that tells a row's place in the file, where the table has one."""
        taken = {column.lower() for column in self.tables[table]}
        for name in ("rowid", "_rowid_", "oid"):
            if name in taken:
                continue
            try:
                probe = f"SELECT {name} FROM {_quoted(self._names[table])} LIMIT 0"
                self._connection.execute(probe).fetchall()
            except apsw.SQLError:
                return None
            return name
        return None

    def _twins(self, table: str, key: Sequence[str], place: str) -> dict[str, int]:
        """Keys that several rows have, each with the place of the first one."""
        listed = ", ".join(map(_as_key, key))
        sql = (
            f"SELECT min({place}), {listed} FROM {_quoted(self._names[table])}"
            f" GROUP BY {listed} HAVING count(*) > 1"
        )
        self._limit.restart()
        found: Any = self._connection.execute(sql)
        return {_key_of([*map(self._in_utf8, row[1:])]): int(row[0]) for row in found}


# Suffixes of the shadow tables that FTS and R-Tree create for a virtual table.
_FTS = {"config", "content", "data", "docsize", "idx", "segdir", "segments", "stat"}
_SHADOWS = _FTS | {"node", "parent", "rowid"}


def _is_shadow(name: str, virtual: Sequence[str]) -> bool:
    owner, _, end = name.rpartition("_")
    return end in _SHADOWS and owner in virtual


def _found(
    values: dict[str, Value], parts: Sequence[Value], place: int | None, twins: dict[str, int]
) -> Found:
    if not parts:
        return Found(f"#{place}" if place is not None else _whole(values), False, values)
    name = _key_of(parts)
    if any(part is None for part in parts) or (name in twins and twins[name] != place):
        return _twin(name, place, values)
    return Found(name, False, values)


def _twin(name: str, place: int | None, values: dict[str, Value]) -> Found:
    return Found(f"{name}#{_whole(values) if place is None else place}", True, values)


def _whole(values: dict[str, Value]) -> str:
    """A row that nothing else names is known by all that it says."""
    return sha256(repr(sorted(values.items())).encode()).hexdigest()


def _key_of(parts: Sequence[Any]) -> str:
    """The key of a row as text; several columns are a list."""
    return key_of([_text_of(part) for part in parts])


def key_of(parts: Sequence[str]) -> str:
    """The key of the row whose key columns are these, in their order."""
    whole = parts[0] if len(parts) == 1 else msgspec.json.encode(parts).decode()
    if len(whole) <= LONGEST_KEY:
        return whole
    return f"{whole[:300]}…{sha256(whole.encode()).hexdigest()}"


def _text_of(part: Any) -> str:
    if part is None:
        return ""
    if isinstance(part, bytes):
        return part.decode("utf-8", "backslashreplace").replace("\0", "\\0")
    return str(part)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_key(column: str) -> str:
    # As SQLite spells it, wherever it is asked for: Python writes large numbers in another way.
    return f"CAST({_quoted(column)} AS BLOB)"


def _as_bytes(column: str) -> str:
    # Text may be no UTF-8, and would stop the reading: it is judged value by value instead.
    quoted = _quoted(column)
    return f"CASE typeof({quoted}) WHEN 'text' THEN CAST({quoted} AS BLOB) ELSE {quoted} END"
