"""Add, replace, search and delete notes, and build the notes section of a prompt."""

from collections.abc import Sequence
from typing import Any

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.mail.model import agent_name_of, mailbox_kind
from corral.domain.notes import sql
from corral.domain.notes.model import EVERYONE, Note, NoteState, PromptSection, RankedNote
from corral.domain.notes.ranking import rank_notes, render_section
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.kernel.clock import YEAR
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import (
    MAX_NAME,
    check_category,
    check_int,
    check_optional_text,
    check_text,
    encode_json,
)

PRUNABLE = sql.PRUNABLE
CATEGORIES = "core, gotcha, pattern or decision"
MAX_NOTE = 4 * 1024
MAX_QUERY = 64 * 1024
MAX_TOKENS = 100_000
MAX_TTL_MS = 10 * YEAR
MAX_VISIBLE = 10_000


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
    scope, project_id = _resolve_scope(tx, agent, project)
    values = _build_values(text, category, key, confidence, source or tx.actor)
    if ttl_ms is not None and not 1 <= check_int(ttl_ms, "The time to live") <= MAX_TTL_MS:
        raise Invalid("The time to live must be between 1 ms and 10 years.", ttl_ms=ttl_ms)
    _check_source(values["source"], scope)
    # Serialized: unique keys and the limit are rules over several notes.
    tx.serialize(f"notes:{scope}")
    before = tx.first(sql.BY_KEY, scope=scope, key=key) if key else None
    if before is not None and _is_same(tx, before, values) and ttl_ms is None:
        return before
    values |= {
        "scope": scope,
        "project_id": project_id,
        "expires_at": None if ttl_ms is None else tx.now + ttl_ms,
    }
    return _insert(tx, values, before)


def supersede(
    tx: Tx, note: str, text: str, *, confidence: int | None = None, source: str | None = None
) -> Note:
    """Replace a note by a new text; the old note stays readable as superseded."""
    before = get(tx, note)
    if before.state is not NoteState.CURRENT:
        raise Conflict(f"{before.id} was superseded already. Use the current note.", id=before.id)
    certainty = before.confidence if confidence is None else confidence
    values = _build_values(text, before.category, before.key, certainty, source or tx.actor)
    _check_source(values["source"], before.scope)
    tx.serialize(f"notes:{before.scope}")
    values |= {
        "scope": before.scope,
        "project_id": before.project_id,
        "expires_at": before.expires_at,
    }
    return _insert(tx, values, before)


def forget(tx: Tx, note: str) -> Note:
    """Delete a note and its text from the store."""
    deleted = tx.first(sql.DELETE_NOTE, id=sql.IDS.resolve(tx, note))
    if deleted is None:
        raise sql.IDS.not_found(note)
    tx.emit(
        "note", "forget", deleted.id, project_id=deleted.project_id, data={"scope": deleted.scope}
    )
    return deleted


def get(tx: Tx, note: str) -> Note:
    """Return a note by its id or a unique prefix of it."""
    return sql.NOTES.get(tx, sql.IDS.resolve(tx, note))


def list_notes(
    tx: Tx,
    *,
    agent: str | None = None,
    project: str | None = None,
    everyone: bool = False,
    category: str | None = None,
    all: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Note]:
    """List valid notes, newest first: all, or those of an agent, of a project or for everyone.

    With `all`, include superseded and expired notes.
    """
    listing = sql.LIST_ALL if all else sql.LIST
    filters: dict[str, Any] = {
        "category": check_category(category, CATEGORIES) if category else None,
        "now": tx.now,
    }
    if agent or project or everyone:
        listing = sql.LIST_ALL_OF_SCOPE if all else sql.LIST_OF_SCOPE
        filters["scope"] = _resolve_scope(tx, agent, project)[0]
    return listing.page(tx, after=after, limit=limit, **filters)


def search(
    tx: Tx,
    text: str,
    *,
    agent: str | None = None,
    project: str | None = None,
    limit: int = 10,
) -> list[RankedNote]:
    """Return the best matching notes among those for everyone, the agent and the project.

    A note matches if it shares a word with the text; more and rarer words score higher.
    """
    check_text(text, "The query", max_bytes=MAX_QUERY)
    return rank_notes(_list_visible(tx, agent, project), text, tx.now)[: check_limit(limit)]


def build_prompt_section(
    tx: Tx,
    *,
    about: str | None = None,
    agent: str | None = None,
    project: str | None = None,
    tokens: int = 1_200,
) -> PromptSection:
    """Build the notes section of an agent's prompt, with at most `tokens` tokens.

    Notes of the category `core` come first, then the best matches for `about`. The notes are quoted
    as data; no text of a note can break out of the quote.
    """
    if not 1 <= check_int(tokens, "The tokens") <= MAX_TOKENS:
        raise Invalid(f"The section must have between 1 and {MAX_TOKENS:,} tokens.", tokens=tokens)
    if about is not None:
        check_text(about, "The topic", max_bytes=MAX_QUERY)
    return render_section(_list_visible(tx, agent, project), about, tx.now, tokens)


def record_use(tx: Tx, notes: Sequence[str]) -> None:
    """Count that an agent was given these notes; deleted notes are ignored."""
    tx.run(sql.RECORD_USE, keys_=encode_json(list(notes), "The notes"), now=tx.now)


def list_ids_of_project(tx: Tx, project_id: str, *, limit: int = 100) -> list[str]:
    """Return the ids of a project's notes, for deletion with the project."""
    return [id for (id,) in tx.run(sql.IDS_OF_SCOPE, scope=f"project:{project_id}", limit=limit)]


def _insert(tx: Tx, values: dict[str, object], before: Note | None) -> Note:
    id = tx.new_id("nte")
    if before is None:
        _check_limit(tx, str(values["scope"]), values["project_id"])
    else:
        transition(tx, sql.NOTES, "supersede", before.id, ended_at=tx.now, event_data={"by": id})
    return create(
        tx,
        sql.NOTES,
        values
        | {
            "id": id,
            "uses": 0,
            "supersedes": before.id if before else None,
            "created_at": tx.now,
        },
        event_data={"scope": values["scope"], "category": values["category"]},
    )


def _list_visible(tx: Tx, agent: str | None, project: str | None) -> list[Note]:
    scopes = [EVERYONE]
    if project:
        scopes.append(_resolve_scope(tx, None, project)[0])
    if agent:
        scopes.append(_resolve_scope(tx, agent, None)[0])
    return [
        note
        for scope in scopes
        for note in tx.all(sql.VISIBLE, scope=scope, now=tx.now, limit=MAX_VISIBLE)
    ]


def _resolve_scope(tx: Tx, agent: str | None, project: str | None) -> tuple[str, str | None]:
    if agent and project:
        raise Invalid("A note is for an agent or for a project. Give only one of them.")
    if agent:
        return f"agent:{agents.get(tx, agent).name}", None
    if project:
        id = projects.get(tx, project).id
        return f"project:{id}", id
    return EVERYONE, None


def _check_source(source: object, scope: str) -> None:
    """An agent may add notes for itself, a project or everyone, but not for another agent."""
    is_between_agents = mailbox_kind(str(source)) == mailbox_kind(scope) == "agent"
    if is_between_agents and source != scope:
        raise Refused(
            f"{source} cannot add notes for {scope}. Send it a message, or add a note for everyone."
        )


def _check_limit(tx: Tx, scope: str, project_id: object) -> None:
    limit = settings.get_value(
        tx,
        "notes.max_notes",
        agent=agent_name_of(scope),
        project=str(project_id) if project_id else None,
    )
    if tx.value(sql.COUNT_CURRENT, scope=scope, now=tx.now) >= limit:
        raise Refused(
            f"{scope} has {limit:,} notes, which is the limit. Delete one (`corral note forget`), "
            "supersede one, or raise notes.max_notes.",
            scope=scope,
            limit=limit,
            reason="too_many_notes",
        )


def _build_values(
    text: str, category: str, key: str | None, confidence: int, source: str
) -> dict[str, object]:
    if not 0 <= check_int(confidence, "The confidence") <= 100:
        raise Invalid("The confidence must be between 0 and 100 percent.", confidence=confidence)
    return {
        "text": check_text(text, "The note", max_bytes=MAX_NOTE),
        "category": check_category(category, CATEGORIES),
        "key": check_optional_text(key, "The key", max_bytes=MAX_NAME),
        "confidence": confidence,
        "source": check_text(source, "The source", max_bytes=MAX_NAME),
    }


def _is_same(tx: Tx, note: Note, values: dict[str, Any]) -> bool:
    """Whether a valid note has the same text, category and confidence."""
    text = tx.without_secrets(values["text"])  # compare with the stored text, which is redacted
    return (note.expires_at is None or note.expires_at > tx.now) and (
        (note.text, note.category, note.confidence)
        == (text, values["category"], values["confidence"])
    )
