"""Changes of notes together with the search index, in the caller's transaction."""

from corral.db.tx import Tx
from corral.domain.notes import ops
from corral.domain.notes.model import Note


def add(
    tx: Tx,
    text: str,
    *,
    agent: str | None = None,
    project: str | None = None,
    category: str = "general",
    key: str | None = None,
    confidence: int = 100,
    ttl_ms: int | None = None,
    source: str | None = None,
) -> Note:
    """Add a note for an agent, for a project or for everyone. Secrets are redacted.

    A note with a `key` supersedes the current note with this key; the same text again changes
    nothing. Raises Refused when the scope has `notes.max_notes` notes.
    """
    note = ops.add(
        tx,
        text,
        agent=agent,
        project=project,
        category=category,
        key=key,
        confidence=confidence,
        ttl_ms=ttl_ms,
        source=source,
    )
    _update_index(tx, note)
    return note


def supersede(
    tx: Tx, note: str, text: str, *, confidence: int | None = None, source: str | None = None
) -> Note:
    """Replace a note by a new text; the old note stays readable as superseded."""
    replacement = ops.supersede(tx, note, text, confidence=confidence, source=source)
    _update_index(tx, replacement)
    return replacement


def _update_index(tx: Tx, note: Note) -> None:
    from corral.domain.search import ops as search

    for id in filter(None, (note.id, note.supersedes)):
        search.remove_subject(tx, "note", id)
    search.add(tx, "note", note.id, 0, note.project_id, note.created_at, note.text)
