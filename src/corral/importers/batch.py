"""Bringing another tool's database in: one transaction, a piece at a time, each row once.

What a row became stands in `origins`, under the tool, the source, the table and the row's own key
there. A row that stands there is not brought in again, so a second import changes nothing, one of a
source that has grown takes what is new, and what was deleted here since is restored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from corral.adapters.redaction import Redaction, clean_of_secrets
from corral.db.bulk_insert import Placed
from corral.db.tx import Tx
from corral.domain.imports import ops as imports
from corral.domain.projects import ops as projects_here
from corral.domain.sessions import ops as sessions
from corral.importers.attached_files import FileCopies
from corral.importers.mapping import KEPT, KEY, NOT_TAKEN, SAME, Member, Table, Thing, Tool
from corral.importers.placement import Made, Placement
from corral.importers.report import Notes, TableTaken, Taken
from corral.importers.restoration import Restoration
from corral.importers.row import Row, plain
from corral.importers.rows.sessions import order_turns
from corral.importers.source.database import Foreign, Found
from corral.kernel.errors import CorralError

MOST_IDS = 20_000
_BETWEEN = "\n\n"
_REDACTION = Redaction()


class Part(NamedTuple):
    """A database of the source, opened."""

    foreign: Foreign
    member: Member

    @property
    def inside(self) -> str:
        return self.member.inside


class Taking:
    """One import, in an open transaction."""

    def __init__(
        self,
        tx: Tx,
        tool: Tool,
        source: str,
        *,
        on_rows: Callable[[int], object],
        files: FileCopies | None = None,
    ) -> None:
        self._files = files
        self._tx = tx
        self._tool = tool
        self._source = source
        self._on_rows = on_rows
        self._ids: dict[tuple[str, str], str] = {}
        self._notes = Notes()
        self._tables: dict[str, TableTaken] = {}
        self._report = Taken(tool.name, source)
        self._home_id: str | None = None
        self._again: set[str] = set()
        self._inside = ""
        self._session: tuple[str, int] | None = None
        self._memo: dict[tuple[str, str], Any] = {}
        self._placement = Placement(tx)
        self._restoration = Restoration(tx)
        # Two imports of one source at the same time would each find the other's rows missing.
        tx.serialize(f"import:{tool.name}:{source}")

    def take(self, part: Part) -> None:
        """All tables of a database of the source."""
        tables = part.member.tables
        if part.inside != self._inside:
            self._end_session()
            self._inside = part.inside
            self._memo.clear()
        if part.member.owner is not None:
            self._stand_in(part, part.member.owner)
            self._begin_session(part)
        known = {*(table.name for table in tables), *part.member.also}
        for table in tables:
            if table.name in part.foreign.tables:
                self._tell_columns(part, table)
                self._take_table(part, table)
            elif not part.inside:
                self._report.missing.append(table.name)
        if part.member.partly:
            return
        for name in sorted({*part.foreign.tables} - known):
            self._unknown(part.foreign.name_of(name))
            self._take_table(part, Table(name, (), {}, why="the table is not known here"))
        self._report.left_out += part.foreign.derived

    def skip(self, path: Path, error: CorralError) -> None:
        """Report a file that could not be read, or not to its end."""
        self._report.skipped.append(f"{path}: {error.message}")

    def _begin_session(self, part: Part) -> None:
        """Record how many turns the session of a database has before the import."""
        if self._session is not None:
            return
        place = imports.Part(self._tool.name, self._source, "sessions")
        known = imports.known(self._tx, place, [part.inside]).get(part.inside)
        if known is not None and known.id is not None:
            self._session = (known.id, sessions.get(self._tx, known.id).turns)

    def _end_session(self) -> None:
        """Merge the turns of a session's two files by time."""
        if self._session is not None:
            order_turns(self._tx, self._session[0], after=self._session[1])
            self._session = None

    def report(self) -> Taken:
        self._end_session()
        report = self._report
        report.tables = list(self._tables.values())
        report.troubles = self._notes.all()
        for table in report.tables:
            if table.table in self._again:
                continue  # its rows were counted once
            report.rows += table.rows
            report.new += table.new
            report.known += table.known
            report.changed += table.changed
            report.restored += table.restored
            report.kept += table.kept
        if report.new or report.changed or report.restored:
            data = {"source": self._source, "new": report.new, "changed": report.changed}
            data |= {"restored": report.restored} if report.restored else {}
            self._tx.note("import", "bring", self._tool.name, data=data)
        return report

    def _tell_columns(self, part: Part, table: Table) -> None:
        found = {column.lower() for column in part.foreign.tables[table.name]}
        for column in table.homes:
            told = f"{table.name}.{column}"
            if column not in found and told not in self._report.missing:
                self._report.missing.append(told)
        if not table.part:
            for column in sorted(found - {*table.homes}):
                self._unknown(f"{table.name}.{column}")

    def _unknown(self, name: str) -> None:
        if name not in self._report.unknown:
            self._report.unknown.append(name)

    # -- a table ----------------------------------------------------------------------------------

    def _take_table(self, part: Part, table: Table) -> None:
        told = self._tables.setdefault(table.origin, TableTaken(table.origin, became={}))
        if table.part:
            self._again.add(table.part)
        for piece in part.foreign.pieces(table.name, table.key):
            self._take_piece(part, table, piece, told)
            if not table.part:
                self._on_rows(len(piece))

    def _take_piece(
        self, part: Part, table: Table, piece: Sequence[Found], told: TableTaken
    ) -> None:
        place = imports.Part(self._tool.name, self._source, table.origin)
        keyed = [(_inside(part, found.key), found) for found in piece]
        known = imports.known(self._tx, place, [key for key, _ in keyed])
        told.rows += len(piece)
        told.known += len(known)
        gone = self._gone(part, table, keyed, known)
        new = []
        for key, found in keyed:
            digest = _digest(found)
            if key not in known or key in gone:
                new.append((key, found, digest))
            elif known[key].digest != digest:
                self._change(place, key, found, digest)
                told.changed += 1
        if not new:
            return
        rows = [
            (key, self._row(part, table, found, known.get(key)), digest, found.twin)
            for key, found, digest in new
        ]
        self._look_up(table, [row for _, row, _, _ in rows])
        made = [
            Made(key, row, make_things(table, row, twin), digest, key in gone)
            for key, row, digest, twin in rows
        ]
        if table.part:
            made = [each for each in made if each.things or each.row.troubles]
        if gone:
            imports.forget_origins(self._tx, place, sorted(gone))
        told.restored += sum(each.restored for each in made)
        told.new += sum(not each.restored for each in made)
        self._blank_secrets(made)
        self._write(place, table, made, told)

    def _gone(
        self,
        part: Part,
        table: Table,
        keyed: Sequence[tuple[str, Found]],
        known: Mapping[str, imports.Known],
    ) -> set[str]:
        """Return the keys of known rows to import again, because their object was deleted."""
        gone = self._restoration.missing(known)
        if not self._restoration.restored:
            return gone
        rows = {
            key: self._row(part, table, found)
            for key, found in keyed
            if key in known and key not in gone
        }
        self._look_up(table, [*rows.values()])
        for key, row in rows.items():
            parents = (self._ids.get(each, "") for each in _parents(table, row))
            if self._restoration.goes_with(known[key], parents):
                gone.add(key)
        return gone

    def _row(
        self, part: Part, table: Table, found: Found, known: imports.Known | None = None
    ) -> Row:
        return Row(
            found,
            table.refs,
            self._ids,
            now=self._tx.now,
            folder=str(part.foreign.path.absolute().parent),
            inside=part.inside,
            around=part.member.owner_values,
            home=lambda: self._home(part),
            memo=self._memo,
            known_id=known.id if known else None,
            files=self._files,
        )

    def _home(self, part: Part) -> str:
        if self._home_id is None:
            folder = part.foreign.path.absolute().parent
            self._home_id = projects_here.register(self._tx, folder, must_exist=False).id
        return self._home_id

    def _stand_in(self, part: Part, owner: Table) -> None:
        """Make sure that what a database belongs to is there, though nothing else tells of it."""
        values = part.member.owner_values
        key = values[owner.key[0]]
        place = imports.Part(self._tool.name, self._source, owner.origin)
        known = imports.known(self._tx, place, [key])
        if key not in known or self._restoration.missing(known):
            told = self._tables.setdefault(owner.origin, TableTaken(owner.origin, became={}))
            found = Found(key, False, {name: text.encode() for name, text in values.items()})
            self._take_piece(Part(part.foreign, Member(*part.member[:3])), owner, [found], told)

    def _look_up(self, table: Table, rows: Sequence[Row]) -> None:
        """The ids here of all rows that these name, in one question for each table."""
        wanted: dict[str, set[str]] = {}
        for row in rows:
            for other, key in _parents(table, row):
                wanted.setdefault(other, set()).add(key)
        if len(self._ids) > MOST_IDS:
            self._ids.clear()
        for other, keys in wanted.items():
            place = imports.Part(self._tool.name, self._source, other)
            asked = sorted(key for key in keys if (other, key) not in self._ids)
            for key, found in imports.known(self._tx, place, asked).items() if asked else ():
                if found.id is not None:
                    self._ids[other, key] = found.id

    def _change(self, place: imports.Part, key: str, found: Found, digest: str) -> None:
        whole = {name: plain(value) for name, value in found.values.items() if value is not None}
        for table in self._tool.tables:
            if table.origin == place.part:
                hidden = {name for name, home in table.homes.items() if home == NOT_TAKEN}
                whole = {name: value for name, value in whole.items() if name not in hidden}
        rest = _encoded(clean_of_secrets(whole))
        imports.change_origin(self._tx, place, key, rest=rest, digest=digest)
        what = "was changed since it was imported; what it became stays, the row is kept beside"
        self._notes.add(place.part, what, key)

    # -- writing ----------------------------------------------------------------------------------

    def _blank_secrets(self, made: Sequence[Made]) -> None:
        """Take out what looks like a secret. One look at all texts together tells mostly that
        there is none, and costs a tenth of a look at each."""
        joined = _BETWEEN.join(_texts(made))
        if clean_of_secrets(joined) == joined:
            return
        for each in made:
            before = _BETWEEN.join(_texts([each]))
            for thing in each.things:
                for name, value in thing.values.items():
                    if isinstance(value, str):
                        thing.values[name] = _REDACTION.clean(value)
            clean = clean_of_secrets(each.row.rest)
            each.row.rest.clear()
            each.row.rest.update(clean)
            if _BETWEEN.join(_texts([each])) != before:
                self._report.secrets += 1

    def _write(
        self, place: imports.Part, of: Table, made: Sequence[Made], told: TableTaken
    ) -> None:
        ids: dict[str, str | None] = {}
        # What a row becomes first of all, then what belongs to that.
        for table, group in _grouped((each, each.things[0]) for each in made if each.things):
            for (each, _), placed in zip(group, self._placement.put(table, group), strict=True):
                ids[each.key] = placed.id
                self._tell_first(each, table, placed, told)
        further = ((each, thing) for each in made for thing in each.things[1:])
        for table, group in _grouped(pair for pair in further if ids[pair[0].key] is not None):
            for (each, _), placed in zip(group, self._placement.put(table, group), strict=True):
                if placed.id is not None:
                    told.became[table] = told.became.get(table, 0) + 1
                elif not each.restored:
                    each.row.keep_columns(_columns_in(of, table))
                    taken = f"a second place among the {table} here is taken"
                    each.row.troubles.append(placed.why or taken)
        origins = []
        for each in made:
            id = ids.get(each.key)
            if id is None:
                told.kept += 1
            else:
                self._ids[place.part, each.key] = id
            for what in each.row.troubles:
                self._notes.add(place.part, what, each.key)
            origins.append(_origin(each, id))
        imports.add_origins(self._tx, place, origins)

    def _tell_first(self, each: Made, table: str, placed: Placed, told: TableTaken) -> None:
        """Report how the first thing of a row was stored."""
        if placed.id is None:
            each.row.keep_all()
            each.row.troubles.append(f"its place among the {table} here is taken")
            return
        if table != SAME:
            told.became[table] = told.became.get(table, 0) + 1
        if placed.why:
            each.row.keep_all()
            each.row.troubles.append(placed.why)
        if each.restored and placed.id:
            self._restoration.restored.add(placed.id)


def make_things(table: Table, row: Row, twin: bool) -> list[Thing]:
    """Convert a row to things. Values that the things do not hold are kept in `row.rest`."""
    if twin and not table.part:
        row.troubles.append("the row has no key, or one that another row has too")
    things = list(table.make(row)) if table.make else []
    if not things and not table.part:
        row.keep_all()
        row.explain(table.why or "required values are missing")
    for name, home in table.homes.items():
        if home == NOT_TAKEN:
            row.rest.pop(name, None)
            if row.has(name):
                row.troubles.append(f"{name} is not taken: it may be a secret")
        elif home == KEPT and not table.part:
            row.keep(name)
    if not table.part:
        row.keep_unread(
            {
                name
                for name, home in table.homes.items()
                if home == NOT_TAKEN or (home == KEY and row.plain_text(name) == row.key)
            }
        )
    return things


def _parents(table: Table, row: Row) -> Iterator[tuple[str, str]]:
    """Yield the rows of other tables that a row refers to: their table and key."""
    for name, other in table.refs.items():
        if (key := row.names(name)) is not None:
            yield other, key
    if table.links is not None:
        yield from table.links(row)


def _columns_in(table: Table, home: str) -> set[str]:
    """Return the columns of a foreign table that are stored in one of Corral's tables."""
    return {name for name, homes in table.homes.items() if f"{home}." in homes}


def _grouped(
    pairs: Iterator[tuple[Made, Thing]],
) -> Iterator[tuple[str, list[tuple[Made, Thing]]]]:
    groups: dict[str, list[tuple[Made, Thing]]] = {}
    for each, thing in pairs:
        groups.setdefault(thing.table, []).append((each, thing))
    return iter(groups.items())


def _origin(each: Made, id: str | None) -> dict[str, Any]:
    return {
        "row_id": each.key,
        "became": None if id is None else _table_of(each),
        "id": id or None,
        "rest": _encoded(each.row.rest) if each.row.rest else None,
        "trouble": _encoded(each.row.troubles) if each.row.troubles else None,
        "digest": each.digest,
    }


def _table_of(each: Made) -> str:
    first = each.things[0]
    return str(first.values["table"]) if first.table == SAME else first.table


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _inside(part: Part, key: str) -> str:
    return f"{part.inside}/{key}" if part.inside else key


def _digest(found: Found) -> str:
    """A hash of all values of a row."""
    return blake2b(repr(found.values).encode(), digest_size=8).hexdigest()


def _texts(made: Sequence[Made]) -> Iterator[str]:
    for each in made:
        for thing in each.things:
            yield from (value for value in thing.values.values() if isinstance(value, str))
        if each.row.rest:
            yield _encoded(each.row.rest)
