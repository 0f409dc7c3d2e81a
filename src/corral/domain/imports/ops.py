"""Taking in what other programs recorded, a piece at a time, each piece once."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from corral.adapters.providers.facts import Said, Used
from corral.adapters.redaction import without_secrets
from corral.adapters.transcripts.transcript import Head, Item
from corral.db.bulk_insert import put_many
from corral.db.bulk_transitions import encode_rows
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.imports import sql
from corral.domain.imports.model import Import, Origin
from corral.domain.projects import ops as projects
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import NewTurn, Session
from corral.kernel.errors import Conflict, NotFound
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text

KEPT = sql.KEPT
MAX_PATH = 4_096


def begin(tx: Tx, source: str, path: str, head: Head) -> Import | None:
    """How far a file was read; at first a session is opened for it.

    None when the conversation is one that Corral ran itself: it has its turns already.
    """
    clean_text(source, "The source", most=MAX_NAME)
    clean_text(path, "The path", most=MAX_PATH)
    # Two that begin with one conversation would both open a session for it.
    tx.serialize(f"provider:{source}:{head.session}")
    found = tx.one(sql.BY_PATH, source=source, path=path)
    if found is not None and not _exists(tx, found.session_id):
        return _begin_again(tx, found, head)
    if found is not None:
        # Once Corral itself goes on with it, its turns come from the run, and not a second time.
        latest = sessions.last(tx, found.session_id).items
        return None if any(turn.run_id for turn in latest) else found
    if sessions.by_provider(tx, source, head.session) is not None:
        return None
    session = _open_session(tx, source, head, tx.new_id("ses"))
    return tx.one(sql.ADD, source=source, path=path, session_id=session.id, now=tx.now)


def _exists(tx: Tx, session_id: str) -> bool:
    try:
        sessions.get(tx, session_id)
    except NotFound:
        return False
    return True


def _begin_again(tx: Tx, known: Import, head: Head) -> Import | None:
    """Restore a session that was deleted, under its own id. Its usage is not charged twice: the
    totals still count it."""
    tx.run(sql.FORGET_FILE, source=known.source, path=known.path)
    session = _open_session(tx, known.source, head, known.session_id)
    added = tx.one(sql.ADD, source=known.source, path=known.path, session_id=session.id, now=tx.now)
    if added is None:
        return None
    return msgspec.structs.replace(added, charged_until=known.read_bytes)


def _open_session(tx: Tx, source: str, head: Head, id: str) -> Session:
    there = head.cwd is not None and os.path.isdir(head.cwd)
    project = projects.register(tx, head.cwd) if head.cwd and there else None
    return sessions.begin(
        tx,
        id=id,
        agent_id=None,
        project_id=project.id if project else None,
        title=head.title,
        provider=source,
        provider_session=head.session,
        created_at=head.started_at or tx.now,
        imported_at=tx.now,
    )


def take(tx: Tx, imported: Import, items: Sequence[Item], *, read_bytes: int) -> Import:
    """Keep what was said and used in a further piece of a file; Conflict when another did."""
    turns = [_turn(item) for item in items if isinstance(item.fact, Said)]
    if turns:
        sessions.append_many(tx, imported.session_id, turns)
    session = sessions.get(tx, imported.session_id)
    charged_ids = []
    for item in items:
        if isinstance(item.fact, Used) and item.offset > imported.charged_until:
            at = None if item.at is None else min(item.at, tx.now)
            charged = charges.add(
                tx,
                item.fact,
                session_id=session.id,
                project_id=session.project_id,
                provider=imported.source,
                at=at,
            )
            if charged is not None:
                charged_ids.append(charged.id)
    charges.mark_imported(tx, charged_ids)
    count = len(charged_ids)
    advanced = tx.one(
        sql.ADVANCE,
        source=imported.source,
        path=imported.path,
        from_bytes=imported.read_bytes,
        read_bytes=read_bytes,
        turns=len(turns),
        charges=count,
        now=tx.now,
    )
    if advanced is None:
        raise Conflict(f"{imported.path} is being imported by another; nothing was taken twice.")
    tx.note(
        "import",
        "take",
        session.id,
        project_id=session.project_id,
        data={"source": imported.source, "turns": len(turns), "charges": count},
    )
    return msgspec.structs.replace(advanced, charged_until=imported.charged_until)


def list_imports(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Import]:
    """The files that were brought in."""
    source, path = decode_cursor(after, "", "")
    rows = tx.all(sql.LIST, source=source, path=path, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda row: (row.source, row.path))


class Known(NamedTuple):
    """A row that was brought in before."""

    id: str | None
    digest: str
    became: str | None
    """The table of the object that the row became; None: the row is only kept."""


class Part(NamedTuple):
    """A table of one database of another tool."""

    tool: str
    source: str
    part: str


def known(tx: Tx, part: Part, keys: Sequence[str]) -> dict[str, Known]:
    """Which of these rows were brought in before, by their keys."""
    found = tx.run(sql.KNOWN, **part._asdict(), keys_=encode_rows(keys))
    return {key: Known(id, digest, became) for key, id, digest, became in found}


class Source(NamedTuple):
    """One database of another tool."""

    tool: str
    source: str


def next_source(tx: Tx, after: Source) -> Source | None:
    """Return the next database that rows were imported from, in the order of names."""
    rows = tx.run(sql.NEXT_SOURCE, **after._asdict())
    return Source(*rows[0]) if rows else None


def last_news(tx: Tx, source: Source) -> int:
    """Return the time at which a row of a database was last imported or found changed."""
    return int(tx.value(sql.LAST_NEWS, **source._asdict()) or 0)


def known_of(tx: Tx, source: Source, *, limit: int = 1_000) -> Iterator[dict[str, Known]]:
    """Yield all rows that were imported from a database, a piece at a time."""
    part = row_id = ""
    given = {**source._asdict(), "limit": limit}
    while rows := tx.run(sql.OF_SOURCE, part=part, row_id=row_id, **given):
        part, row_id = rows[-1][:2]
        yield {f"{row[0]}:{row[1]}": Known(*row[2:]) for row in rows}


def count_source(tx: Tx, source: Source) -> int:
    """Return the number of rows that were imported from a database."""
    return int(tx.value(sql.COUNT_OF_SOURCE, **source._asdict()))


def forget_source(tx: Tx, source: Source, *, limit: int) -> int:
    """Delete up to `limit` origins of a database; returns how many there were."""
    return len(tx.run(sql.FORGET_SOURCE, **source._asdict(), limit=limit))


def forget_origins(tx: Tx, part: Part, keys: Sequence[str]) -> None:
    """Delete the origins of rows that are imported again."""
    tx.run(sql.FORGET_ORIGINS, **part._asdict(), keys_=encode_rows(keys))


def existing(tx: Tx, table: str, column: str, keys: Sequence[str | int]) -> set[Any]:
    """Return the keys of the rows that exist in one of Corral's tables."""
    numbered = bool(keys) and isinstance(keys[0], int)
    found = tx.run(sql.existing(table, column, numbered), keys_=encode_rows(keys))
    return {key for (key,) in found}


def add_origins(tx: Tx, part: Part, rows: Sequence[Mapping[str, Any]]) -> None:
    """Remember what rows became."""
    whole = [{**part._asdict(), **row, "imported_at": tx.now} for row in rows]
    put_many(tx, "origins", whole)


def change_origin(tx: Tx, part: Part, key: str, *, rest: str, digest: str) -> None:
    """A row was found changed since it was brought in: it is kept as it is there now."""
    tx.run(sql.CHANGED, **part._asdict(), row_id=key, rest=rest, digest=digest, now=tx.now)


def origins(
    tx: Tx,
    *,
    id: str | None = None,
    kept: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Origin]:
    """Rows of other programs' databases: all, those that became nothing (`kept`), or those that
    became the thing with this id."""
    if id is not None:
        return Page(tx.all(sql.ORIGINS_OF, id=clean_text(id, "The id", most=MAX_NAME)))
    tool, source, part, row_id = decode_cursor(after, "", "", "", "")
    rows = tx.all(
        sql.ORIGINS[kept],
        tool=tool,
        source=source,
        part=part,
        row_id=row_id,
        limit=check_limit(limit) + 1,
    )
    return page_of(rows, limit, lambda row: (row.tool, row.source, row.part, row.row_id))


def _turn(item: Item) -> NewTurn:
    assert isinstance(item.fact, Said)
    said = without_secrets(item.fact)
    return NewTurn(**msgspec.structs.asdict(said), at=item.at)
