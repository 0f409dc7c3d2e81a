"""Import what other programs recorded, in pieces, each piece exactly once."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from corral.adapters.providers.facts import TurnFact, UsageFact
from corral.adapters.redaction import redact_record
from corral.adapters.transcripts.reader import TranscriptHead, TranscriptItem
from corral.db.bulk_insert import insert_many
from corral.db.transitions import encode_rows
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.imports import sql
from corral.domain.imports.model import Import, Origin
from corral.domain.projects import ops as projects
from corral.domain.sessions import lookup
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import NewTurn, Session
from corral.kernel.errors import Conflict, NotFound
from corral.kernel.pagination import Page
from corral.kernel.text import MAX_NAME, check_text

RETENTION = sql.RETENTION
MAX_PATH = 4_096


def begin(tx: Tx, source: str, path: str, head: TranscriptHead) -> Import | None:
    """Begin or continue the import of a file; the first time a session is opened for it.

    None: Corral itself ran the conversation, so its turns are already stored.
    """
    check_text(source, "The source", max_bytes=MAX_NAME)
    check_text(path, "The path", max_bytes=MAX_PATH)
    # Serialized: concurrent imports would each open a session for the conversation.
    tx.serialize(f"provider:{source}:{head.session}")
    existing = tx.first(sql.BY_PATH, source=source, path=path)
    if existing is not None and not _exists(tx, existing.session_id):
        return _begin_again(tx, existing, head)
    if existing is not None:
        # Once Corral continues the conversation, its turns come from the run.
        latest = sessions.list_latest_turns(tx, existing.session_id).items
        return None if any(turn.run_id for turn in latest) else existing
    if sessions.find_by_provider(tx, source, head.session) is not None:
        return None
    session = _open_session(tx, source, head, tx.new_id("ses"))
    return tx.first(sql.ADD, source=source, path=path, session_id=session.id, now=tx.now)


def _exists(tx: Tx, session_id: str) -> bool:
    try:
        sessions.get(tx, session_id)
    except NotFound:
        return False
    return True


def _begin_again(tx: Tx, existing: Import, head: TranscriptHead) -> Import | None:
    """Restore a deleted session under its own id.

    Its usage is not charged again: the totals still contain it.
    """
    tx.run(sql.DELETE_FILE, source=existing.source, path=existing.path)
    session = _open_session(tx, existing.source, head, existing.session_id)
    added = tx.first(
        sql.ADD, source=existing.source, path=existing.path, session_id=session.id, now=tx.now
    )
    if added is None:
        return None
    return msgspec.structs.replace(added, charged_until=existing.read_bytes)


def _open_session(tx: Tx, source: str, head: TranscriptHead, id: str) -> Session:
    exists = head.cwd is not None and os.path.isdir(head.cwd)
    project = projects.register(tx, head.cwd) if head.cwd and exists else None
    return lookup.insert_session(
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


def import_items(
    tx: Tx, imported: Import, items: Sequence[TranscriptItem], *, read_bytes: int
) -> Import:
    """Store the turns and usage of the next piece of a file; raises Conflict on a race."""
    turns = [_to_turn(item) for item in items if isinstance(item.fact, TurnFact)]
    if turns:
        sessions.append_many(tx, imported.session_id, turns)
    session = sessions.get(tx, imported.session_id)
    charged_ids = []
    for item in items:
        if isinstance(item.fact, UsageFact) and item.offset > imported.charged_until:
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
    advanced = tx.first(
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
        raise Conflict(
            f"{imported.path} is being imported by another process. Nothing was imported twice."
        )
    tx.emit(
        "import",
        "append",
        session.id,
        project_id=session.project_id,
        data={"source": imported.source, "turns": len(turns), "charges": count},
    )
    return msgspec.structs.replace(advanced, charged_until=imported.charged_until)


def list_imports(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Import]:
    """List the imported files."""
    return sql.LIST.page(tx, after=after, limit=limit)


class ImportedRow(NamedTuple):
    """A row that was imported before."""

    id: str | None
    digest: str
    record_table: str | None
    """The table of the object that was created; None: only the row itself is stored."""


class SourceTable(NamedTuple):
    """A table of another tool's database."""

    tool: str
    source: str
    source_table: str


def find_imported(tx: Tx, source_table: SourceTable, keys: Sequence[str]) -> dict[str, ImportedRow]:
    """Return the rows among these that were imported before, by key."""
    rows = tx.run(sql.IMPORTED_ROWS, **source_table._asdict(), keys_=encode_rows(keys))
    return {key: ImportedRow(id, digest, record_table) for key, id, digest, record_table in rows}


class SourceDatabase(NamedTuple):
    """A database of another tool."""

    tool: str
    source: str


def next_source(tx: Tx, after: SourceDatabase) -> SourceDatabase | None:
    """Return the next database that rows were imported from, in the order of names."""
    rows = tx.run(sql.NEXT_SOURCE, **after._asdict())
    return SourceDatabase(*rows[0]) if rows else None


def last_change_at(tx: Tx, source: SourceDatabase) -> int:
    """Return the time at which a row of a database was last imported or found changed."""
    return int(tx.value(sql.LAST_CHANGE_AT, **source._asdict()) or 0)


def iter_imported(
    tx: Tx, source: SourceDatabase, *, limit: int = 1_000
) -> Iterator[dict[str, ImportedRow]]:
    """Yield all rows that were imported from a database, a piece at a time."""
    source_table = row_id = ""
    while rows := tx.run(
        sql.OF_SOURCE,
        **source._asdict(),
        source_table=source_table,
        row_id=row_id,
        limit=limit,
    ):
        source_table, row_id = rows[-1][:2]
        yield {f"{row[0]}:{row[1]}": ImportedRow(*row[2:]) for row in rows}


def count_source(tx: Tx, source: SourceDatabase) -> int:
    """Return the number of rows that were imported from a database."""
    return int(tx.value(sql.COUNT_OF_SOURCE, **source._asdict()))


def delete_source(tx: Tx, source: SourceDatabase, *, limit: int) -> int:
    """Delete up to `limit` origins of a database; returns how many there were."""
    return len(tx.run(sql.DELETE_SOURCE, **source._asdict(), limit=limit))


def delete_origins(tx: Tx, source_table: SourceTable, keys: Sequence[str]) -> None:
    """Delete the origins of rows that are imported again."""
    tx.run(sql.DELETE_ORIGINS, **source_table._asdict(), keys_=encode_rows(keys))


def find_existing(tx: Tx, table: str, column: str, keys: Sequence[str | int]) -> set[Any]:
    """Return the keys of the rows that exist in one of Corral's tables."""
    numbered = bool(keys) and isinstance(keys[0], int)
    rows = tx.run(sql.existing(table, column, numbered), keys_=encode_rows(keys))
    return {key for (key,) in rows}


def add_origins(tx: Tx, source_table: SourceTable, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store the origins of imported rows."""
    origins = [{**source_table._asdict(), **row, "imported_at": tx.now} for row in rows]
    insert_many(tx, "import_origins", origins)


def update_origin(
    tx: Tx, source_table: SourceTable, key: str, *, unmapped: str, digest: str
) -> None:
    """Store the current content of a row that changed after it was imported."""
    tx.run(
        sql.UPDATE_ORIGIN,
        **source_table._asdict(),
        row_id=key,
        unmapped=unmapped,
        digest=digest,
        now=tx.now,
    )


def list_origins(
    tx: Tx,
    *,
    id: str | None = None,
    kept: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Origin]:
    """List the origins of imported rows: all, or those of the object with an id.

    `kept`: only rows from which no object was created.
    """
    if id is not None:
        return Page(tx.all(sql.ORIGINS_OF, id=check_text(id, "The id", max_bytes=MAX_NAME)))
    listing = sql.ORIGINS_WITHOUT_RECORD if kept else sql.ORIGINS
    return listing.page(tx, after=after, limit=limit)


def _to_turn(item: TranscriptItem) -> NewTurn:
    assert isinstance(item.fact, TurnFact)
    redacted = redact_record(item.fact)
    return NewTurn(**msgspec.structs.asdict(redacted), at=item.at)
