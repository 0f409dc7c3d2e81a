"""Noting things, finding them again, and giving an agent what it needs of them."""

from collections.abc import Sequence

from corral.db.retention import EVERYBODY, Whose
from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.notes import sql
from corral.domain.notes.model import EVERYONE, Found, Note, NoteState, Section
from corral.domain.notes.rank import ranked, section_of
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.kernel.clock import YEAR
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_category, check_int, clean_text, encode_json

CATEGORIES = "core, gotcha, pattern or decision"
MAX_NOTE = 4 * 1024
MAX_QUERY = 64 * 1024
MAX_TOKENS = 100_000
LONGEST = 10 * YEAR
MOST = 10_000


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
    """Remember something, for an agent, for a project, or for everyone; secrets are taken out.

    With a `key` it comes in the place of the note that has this key; the same words again change
    nothing. Refused when as many are remembered as may be.
    """
    scope, project_id = _scope(tx, agent, project)
    values = _values(text, category, key, confidence, source or tx.actor)
    if ttl_ms is not None and not 1 <= check_int(ttl_ms, "The time") <= LONGEST:
        raise Invalid("A note counts for 1 ms to 10 years.", ttl_ms=ttl_ms)
    _check_source(values["source"], scope)
    # One that comes in another's place, and the count, are rules over several notes.
    tx.serialize(f"notes:{scope}")
    before = tx.one(sql.BY_KEY, scope=scope, key=key) if key else None
    if before is not None and _same(before, values, tx.now) and ttl_ms is None:
        return before
    values |= {
        "scope": scope,
        "project_id": project_id,
        "expires_at": None if ttl_ms is None else tx.now + ttl_ms,
    }
    return _put(tx, values, before)


def supersede(
    tx: Tx, note: str, text: str, *, confidence: int | None = None, source: str | None = None
) -> Note:
    """Put another note in the place of one that is not true any more, or not well said."""
    before = get(tx, note)
    if before.state is not NoteState.CURRENT:
        raise Conflict(f"{before.id} was superseded already; take the current one.", id=before.id)
    sure = before.confidence if confidence is None else confidence
    values = _values(text, before.category, before.key, sure, source or tx.actor)
    _check_source(values["source"], before.scope)
    tx.serialize(f"notes:{before.scope}")
    values |= {
        "scope": before.scope,
        "project_id": before.project_id,
        "expires_at": before.expires_at,
    }
    return _put(tx, values, before)


def forget(tx: Tx, note: str) -> Note:
    """Remember it no more: its words are gone from the store."""
    gone = tx.one(sql.FORGET, id=sql.IDS.resolve(tx, note))
    if gone is None:
        raise sql.IDS.missing(note)
    tx.note("note", "forget", gone.id, project_id=gone.project_id, data={"scope": gone.scope})
    return gone


def get(tx: Tx, note: str) -> Note:
    """A note by its id, which may be shortened."""
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
    """Notes that count, newest first: all, or of an agent, of a project, for everyone; also those
    that were superseded or have expired."""
    (before,) = decode_cursor(after, LAST_ID)
    query = sql.LIST_ALL if all else sql.LIST
    narrow = {}
    if agent or project or everyone:
        query = sql.LIST_ALL_OF_SCOPE if all else sql.LIST_OF_SCOPE
        narrow["scope"] = _scope(tx, agent, project)[0]
    rows = tx.all(
        query,
        before=before,
        category=check_category(category, CATEGORIES) if category else None,
        now=tx.now,
        limit=check_limit(limit) + 1,
        **narrow,
    )
    return page_of(rows, limit, lambda note: (note.id,))


def search(
    tx: Tx,
    text: str,
    *,
    agent: str | None = None,
    project: str | None = None,
    limit: int = 10,
) -> list[Found]:
    """The notes that fit a text best, of those for everyone, for the agent and for the project.

    One word in common is enough; more, and rarer ones, make a better fit.
    """
    clean_text(text, "What to look for", most=MAX_QUERY)
    return ranked(_visible(tx, agent, project), text, tx.now)[: check_limit(limit)]


def section(
    tx: Tx,
    *,
    about: str | None = None,
    agent: str | None = None,
    project: str | None = None,
    tokens: int = 1_200,
) -> Section:
    """What an agent should know, as a part of its prompt that has at most so many tokens.

    Notes of the category `core` come first, then what fits the text best. They stand there as data
    which no text of theirs can leave.
    """
    if not 1 <= check_int(tokens, "The tokens") <= MAX_TOKENS:
        raise Invalid(f"A part of a prompt has 1 to {MAX_TOKENS:,} tokens.", tokens=tokens)
    if about is not None:
        clean_text(about, "What it is about", most=MAX_QUERY)
    return section_of(_visible(tx, agent, project), about, tx.now, tokens)


def use(tx: Tx, notes: Sequence[str]) -> None:
    """Count that these notes were given to an agent; whatever is forgotten is passed over."""
    tx.run(sql.USE, keys_=encode_json(list(notes), "The notes"), now=tx.now)


def prunable(tx: Tx, *, before: int, limit: int = 100, whose: Whose = EVERYBODY) -> list[str]:
    """Notes that have been superseded, or have expired, before a moment."""
    return [
        id
        for statement in (sql.SUPERSEDED, sql.EXPIRED)
        for (id,) in statement.run(tx, whose, before=before, limit=limit)
    ]


def count_prunable(tx: Tx, *, before: int, whose: Whose = EVERYBODY) -> int:
    """How many notes `prunable` would give in the end."""
    counts = (sql.COUNT_SUPERSEDED, sql.COUNT_EXPIRED)
    return sum(int(count.value(tx, whose, before=before)) for count in counts)


def of_project(tx: Tx, project_id: str, *, limit: int = 100) -> list[str]:
    """Notes of a project, to be forgotten with it."""
    return [id for (id,) in tx.run(sql.OF_SCOPE, scope=f"project:{project_id}", limit=limit)]


def _put(tx: Tx, values: dict[str, object], before: Note | None) -> Note:
    id = tx.new_id("nte")
    if before is None:
        _check_room(tx, str(values["scope"]), values["project_id"])
    else:
        move(tx, sql.NOTES, "supersede", before.id, ended_at=tx.now, note={"by": id})
    made = create(
        tx,
        sql.NOTES,
        values
        | {
            "id": id,
            "uses": 0,
            "supersedes": before.id if before else None,
            "created_at": tx.now,
        },
        note={"scope": values["scope"], "category": values["category"]},
    )
    assert made is not None
    return made


def _visible(tx: Tx, agent: str | None, project: str | None) -> list[Note]:
    scopes = [EVERYONE]
    if project:
        scopes.append(_scope(tx, None, project)[0])
    if agent:
        scopes.append(_scope(tx, agent, None)[0])
    return [
        note
        for scope in scopes
        for note in tx.all(sql.VISIBLE, scope=scope, now=tx.now, limit=MOST)
    ]


def _scope(tx: Tx, agent: str | None, project: str | None) -> tuple[str, str | None]:
    if agent and project:
        raise Invalid("A note is for an agent, for a project, or for everyone; give one of them.")
    if agent:
        return f"agent:{agents.get(tx, agent).name}", None
    if project:
        id = projects.get(tx, project).id
        return f"project:{id}", id
    return EVERYONE, None


def _check_source(source: object, scope: str) -> None:
    """An agent may note for itself, for a project and for everyone; not into another's head."""
    if str(source).startswith("agent:") and scope.startswith("agent:") and source != scope:
        raise Refused(f"{source} cannot note anything for {scope}; tell it, or note it for all.")


def _check_room(tx: Tx, scope: str, project_id: object) -> None:
    most = settings.value(
        tx,
        "notes.max",
        agent=scope.removeprefix("agent:") if scope.startswith("agent:") else None,
        project=str(project_id) if project_id else None,
    )
    if tx.value(sql.COUNT, scope=scope, now=tx.now) >= most:
        raise Refused(
            f"{most:,} notes are remembered for {scope}, and more are not allowed; forget one "
            "(`corral note forget`), supersede one, or raise notes.max.",
            scope=scope,
            limit=most,
            reason="too_many_notes",
        )


def _values(
    text: str, category: str, key: str | None, confidence: int, source: str
) -> dict[str, object]:
    if not 0 <= check_int(confidence, "The confidence") <= 100:
        raise Invalid("A confidence goes from 0 to 100 percent.", confidence=confidence)
    return {
        "text": clean_text(text, "The note", most=MAX_NOTE),
        "category": check_category(category, CATEGORIES),
        "key": clean_text(key, "The key", most=MAX_NAME) if key else None,
        "confidence": confidence,
        "source": clean_text(source, "The source", most=MAX_NAME),
    }


def _same(note: Note, values: dict[str, object], now: int) -> bool:
    """Whether a note says just that, and still counts."""
    counts = note.expires_at is None or note.expires_at > now
    return counts and all(
        getattr(note, name) == values[name] for name in ("text", "category", "confidence")
    )
