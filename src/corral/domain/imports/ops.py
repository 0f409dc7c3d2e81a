"""Import transcripts of agent CLIs, in pieces, each piece exactly once.

The rows of other tools' databases are recorded in `origins`.
"""

import os
from collections.abc import Sequence

import msgspec

from corral.adapters.providers.facts import TurnFact, UsageFact
from corral.adapters.redaction import redact_record
from corral.adapters.transcripts.reader import TranscriptHead, TranscriptItem
from corral.db.tx import Tx
from corral.domain.charges import ops as charges
from corral.domain.imports import sql
from corral.domain.imports.model import Import
from corral.domain.projects import ops as projects
from corral.domain.sessions import lookup
from corral.domain.sessions import ops as sessions
from corral.domain.sessions.model import NewTurn, Session
from corral.kernel.errors import Conflict, NotFound
from corral.kernel.pagination import Page
from corral.kernel.validation import MAX_NAME, check_text

RETENTION = sql.RETENTION
MAX_PATH = 4_096


def begin_transcript(tx: Tx, source: str, path: str, head: TranscriptHead) -> Import | None:
    """Begin or continue the import of a file; the first time a session is opened for it.

    None: Corral itself ran the conversation, so its turns are already stored.
    """
    check_text(source, "The source", max_bytes=MAX_NAME)
    check_text(path, "The path", max_bytes=MAX_PATH)
    # Serialized: concurrent imports would each open a session for the conversation.
    tx.serialize(f"provider:{source}:{head.session}")
    existing = tx.first(sql.BY_PATH, source=source, path=path)
    if existing is not None and not _has_session(tx, existing.session_id):
        return _begin_again(tx, existing, head)
    if existing is not None:
        # Once Corral continues the conversation, its turns come from the run.
        latest = sessions.list_latest_turns(tx, existing.session_id).items
        return None if any(turn.run_id for turn in latest) else existing
    if sessions.find_by_provider(tx, source, head.session) is not None:
        return None
    session = _open_session(tx, source, head, tx.new_id("ses"))
    return tx.first(sql.ADD, source=source, path=path, session_id=session.id, now=tx.now)


def _has_session(tx: Tx, session_id: str) -> bool:
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


def _to_turn(item: TranscriptItem) -> NewTurn:
    assert isinstance(item.fact, TurnFact)
    redacted = redact_record(item.fact)
    return NewTurn(**msgspec.structs.asdict(redacted), at=item.at)
