"""The database of another program: its tables and columns, and its rows in batches.

Rows may contain anything: invalid UTF-8, missing or duplicate ids, missing or new columns. They are
returned as they are; the mapping of the tool validates them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from corral.importers.source.private_copy import Unreadable, build_damaged, copy_database
from corral.scratch_folders import scratch_folder
from corral.untrusted_sqlite import MAX_SECONDS, harden

Value = int | float | bytes | None
# Limits of a batch, so that memory use does not grow with the source.
BATCH_ROWS = 500
BATCH_BYTES = 1 << 20
# Characters; a key is indexed, and index entries are limited in size.
MAX_KEY = 400
_WIDE = {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}


class RawRow(NamedTuple):
    """A row: its key, which is unique in its table, and its values by column. Text is bytes."""

    key: str
    is_duplicate: bool
    """Whether an earlier row has the same key, or the row has no key."""
    values: dict[str, Value]


@contextmanager
def open_source(path: Path) -> Iterator["SourceDatabase"]:
    """Open a private copy of a database, which is removed afterwards; raises Unreadable."""
    with scratch_folder("import") as folder:
        copy = copy_database(path, folder)
        try:
            connection = apsw.Connection(str(copy))
        except apsw.Error as error:
            raise build_damaged(path, error) from None
        try:
            yield SourceDatabase(path, connection)
        except apsw.InterruptError as error:
            raise Unreadable(
                f"Cannot read {path}: a single row takes longer than {MAX_SECONDS:.0f} s. Copy the "
                "data into a new database without constraints and computed columns.",
                path=str(path),
            ) from error
        except apsw.Error as error:
            raise build_damaged(path, error) from error
        finally:
            connection.close()


class SourceDatabase:
    """An open copy of a source database."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self.path = path
        self._connection = connection
        self._limit = harden(connection)
        self._encoding = _WIDE.get(str(connection.pragma("encoding")))
        self.tables: dict[str, tuple[str, ...]] = {}
        """The columns of each table by its lower-case name."""
        self.derived: list[str] = []
        """Views, virtual tables with their shadow tables, and generated columns. They are computed
        from other data by code in the schema, and are not read."""
        self._names: dict[str, str] = {}
        # Not pragma_table_list: it compiles every view and connects every virtual table.
        listed = (
            "SELECT name, type, rootpage FROM sqlite_schema"
            " WHERE type IN ('table', 'view') ORDER BY name"
        )
        entries = [(str(a), str(b), c) for a, b, c in connection.execute(listed).fetchall()]
        virtual = [name for name, kind, page in entries if kind == "table" and not page]
        for name, kind, page in entries:
            if name.startswith("sqlite_"):
                continue
            if kind == "view" or not page or _is_shadow(name, virtual):
                self.derived.append(name)
            else:
                self._add_table(name)

    def _add_table(self, name: str) -> None:
        """Check the pages of a table and list its columns, except generated ones."""
        self._limit.restart()
        result = self._connection.execute(f"PRAGMA quick_check({_quote_name(name)})").fetchall()
        if result != [("ok",)]:
            raise apsw.CorruptError(str(result[0][0]) if result else "unknown damage")
        self._names[name.lower()] = name
        columns = self._connection.execute(f"PRAGMA table_xinfo({_quote_name(name)})").fetchall()
        self.tables[name.lower()] = tuple(str(row[1]) for row in columns if not row[6])
        self.derived += [f"{name}.{row[1]}" for row in columns if row[6]]

    def get_original_name(self, table: str) -> str:
        """Return the name of a table as the source spells it."""
        return self._names[table]

    def count_rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        self._limit.restart()
        sql = f"SELECT count(*) FROM {_quote_name(self._names[table])}"
        rows: Any = self._connection.execute(sql).fetchall()
        return int(rows[0][0])

    def read_batches(self, table: str, key: Sequence[str]) -> Iterator[list[RawRow]]:
        """Yield all rows in batches, in the order in which they were inserted.

        `key` are the columns that identify a row. The rowid identifies rows without a unique key.
        """
        columns = self.tables[table]
        by = {column.lower(): column for column in columns}
        named = [by[column] for column in key if column in by]
        is_complete = len(named) == len(key) and bool(key)
        rowid = self._find_rowid(table)
        duplicates = self._find_duplicates(table, named, rowid) if is_complete and rowid else {}
        keys = [_select_key(column) for column in named] if is_complete else []
        chosen = ", ".join([*keys, *(_select_bytes(column) for column in columns)])
        first = rowid or "NULL"
        ordered = rowid or ", ".join(map(_quote_name, named)) or "1"
        sql = f"SELECT {first}, {chosen} FROM {_quote_name(self._names[table])} ORDER BY {ordered}"
        lowered = [column.lower() for column in columns]
        batch: dict[str, RawRow] = {}
        size = 0
        self._limit.restart()
        for row in self._connection.execute(sql):
            self._limit.restart()
            cells = [*map(self._to_utf8, row[1:])]
            values = dict(zip(lowered, cells[len(keys) :], strict=True))
            raw = _build_row(values, cells[: len(keys)], row[0], duplicates)
            if raw.key in batch:  # different bytes that become the same text
                raw = _build_duplicate(raw.key, row[0], values)
            batch[raw.key] = raw
            size += sum(len(value) for value in row if isinstance(value, bytes))
            if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield [*batch.values()]
                batch, size = {}, 0
        if batch:
            yield [*batch.values()]

    def _to_utf8(self, value: Any) -> Any:
        if self._encoding is None or not isinstance(value, bytes):
            return value
        return value.decode(self._encoding, "replace").encode()

    def _find_rowid(self, table: str) -> str | None:
        """Return a name of the rowid column; None for a table without rowid."""
        taken = {column.lower() for column in self.tables[table]}
        for name in ("rowid", "_rowid_", "oid"):
            if name in taken:
                continue
            try:
                probe = f"SELECT {name} FROM {_quote_name(self._names[table])} LIMIT 0"
                self._connection.execute(probe).fetchall()
            except apsw.SQLError:
                return None
            return name
        return None

    def _find_duplicates(self, table: str, key: Sequence[str], rowid: str) -> dict[str, int]:
        """Return the keys that several rows have, with the rowid of the first row."""
        listed = ", ".join(map(_select_key, key))
        sql = (
            f"SELECT min({rowid}), {listed} FROM {_quote_name(self._names[table])}"
            f" GROUP BY {listed} HAVING count(*) > 1"
        )
        self._limit.restart()
        rows: Any = self._connection.execute(sql)
        return {_build_key([*map(self._to_utf8, row[1:])]): int(row[0]) for row in rows}


# Suffixes of the shadow tables that FTS and R-Tree create for a virtual table.
_FTS = {"config", "content", "data", "docsize", "idx", "segdir", "segments", "stat"}
_SHADOWS = _FTS | {"node", "parent", "rowid"}


def _is_shadow(name: str, virtual: Sequence[str]) -> bool:
    owner, _, end = name.rpartition("_")
    return end in _SHADOWS and owner in virtual


def _build_row(
    values: dict[str, Value], parts: Sequence[Value], rowid: int | None, duplicates: dict[str, int]
) -> RawRow:
    if not parts:
        return RawRow(f"#{rowid}" if rowid is not None else _hash_content(values), False, values)
    key = _build_key(parts)
    if any(part is None for part in parts) or (key in duplicates and duplicates[key] != rowid):
        return _build_duplicate(key, rowid, values)
    return RawRow(key, False, values)


def _build_duplicate(key: str, rowid: int | None, values: dict[str, Value]) -> RawRow:
    return RawRow(f"{key}#{_hash_content(values) if rowid is None else rowid}", True, values)


def _hash_content(values: dict[str, Value]) -> str:
    """Return a hash that identifies a row without key and rowid by its content."""
    return sha256(repr(sorted(values.items())).encode()).hexdigest()


def _build_key(parts: Sequence[Any]) -> str:
    """Return the key of a row as text; several columns become a JSON list."""
    return encode_key([_decode_part(part) for part in parts])


def encode_key(parts: Sequence[str]) -> str:
    """Return the key of a row with these values in its key columns."""
    key = parts[0] if len(parts) == 1 else msgspec.json.encode(parts).decode()
    if len(key) <= MAX_KEY:
        return key
    return f"{key[:300]}…{sha256(key.encode()).hexdigest()}"


def _decode_part(part: Any) -> str:
    if part is None:
        return ""
    if isinstance(part, bytes):
        return part.decode("utf-8", "backslashreplace").replace("\0", "\\0")
    return str(part)


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _select_key(column: str) -> str:
    # SQLite formats the number, because Python formats large numbers differently.
    return f"CAST({_quote_name(column)} AS BLOB)"


def _select_bytes(column: str) -> str:
    # As bytes, because invalid UTF-8 would raise an error; each value is decoded separately.
    quoted = _quote_name(column)
    return f"CASE typeof({quoted}) WHEN 'text' THEN CAST({quoted} AS BLOB) ELSE {quoted} END"
