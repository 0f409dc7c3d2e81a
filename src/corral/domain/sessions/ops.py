"""Opening sessions, appending what is said, and giving them from hand to hand."""

from collections.abc import Sequence
from typing import Any

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent, AgentState
from corral.domain.mail.model import check_mailbox
from corral.domain.projects import ops as projects
from corral.domain.sessions import lineage, sql
from corral.domain.sessions.model import (
    NewTurn,
    Passage,
    Role,
    Session,
    SessionState,
    StateValue,
    Turn,
)
from corral.domain.sessions.turn import (
    MAX_TITLE,
    check_optional,
    is_plain,
    moment_of,
    parse_number,
    read_turns,
    row_of,
    turn_of,
)
from corral.kernel.errors import Conflict, IllegalMove, Invalid, Refused
from corral.kernel.ids import LENGTH
from corral.kernel.pagination import LAST_ID, LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, encode_json

MAX_TURNS = 1_000
MAX_VALUES = 1_000
_WHOLE_ID = len("ses_") + LENGTH


def open_session(
    tx: Tx,
    agent: str | None = None,
    *,
    project: str | None = None,
    title: str | None = None,
    provider: str | None = None,
    provider_session: str | None = None,
    reply_to: str | None = None,
) -> Session:
    """Begin a conversation, of an agent or of nobody yet. Answers go to the mailbox `reply_to`.

    With the provider's own id of it, the session that has it already comes back.
    """
    if provider and provider_session:
        tx.serialize(f"provider:{provider}:{provider_session}")
        known = by_provider(tx, provider, provider_session)
        if known is not None:
            return known
    whose = active_agent(tx, agent) if agent else None
    return begin(
        tx,
        title=check_optional(title, "The title", most=MAX_TITLE),
        project_id=projects.get(tx, project).id if project else None,
        agent_id=whose.id if whose else None,
        provider=check_optional(provider, "The provider") or (whose.provider if whose else None),
        provider_session=check_optional(provider_session, "The id", most=2 * MAX_NAME),
        reply_to=check_mailbox(reply_to) if reply_to else None,
    )


def get(tx: Tx, session: str) -> Session:
    """A session by its id, which may be shortened."""
    return sql.SESSIONS.get(tx, whole_id(tx, session))


def rename(tx: Tx, session: Session | str, title: str | None) -> Session:
    """Give a session another title, or none."""
    renamed = tx.one(
        sql.RENAME,
        id=whole_id(tx, session),
        title=check_optional(title, "The title", most=MAX_TITLE),
        now=tx.now,
    )
    if renamed is None:
        raise sql.IDS.missing(session if isinstance(session, str) else session.id)
    tx.note("session", "rename", renamed.id, project_id=renamed.project_id, data={"title": title})
    return renamed


def close(tx: Tx, session: Session | str) -> Session:
    """End a session: it takes no more turns, and is forgotten in time."""
    return move(
        tx, sql.SESSIONS, "close", whole_id(tx, session), closed_at=tx.now, updated_at=tx.now
    )


def reopen(tx: Tx, session: Session | str) -> Session:
    """Go on with a session that was closed."""
    id = whole_id(tx, session)
    again = move(tx, sql.SESSIONS, "reopen", id, closed_at=None, updated_at=tx.now)
    require_whole(tx, again)
    return again


def set_successor(tx: Tx, closed: str, successor: str) -> None:
    """Let letters to a closed session go to the one that took its place."""
    tx.run(sql.SET_SUCCESSOR, id=closed, successor=successor)


def by_provider(tx: Tx, provider: str, id: str) -> Session | None:
    """The latest session that a provider knows by this id of its own, if there is one."""
    return tx.one(
        sql.BY_PROVIDER,
        provider=clean_text(provider, "The provider", most=MAX_NAME),
        provider_session=clean_text(id, "The id", most=2 * MAX_NAME),
    )


def find_id(tx: Tx, given: str) -> str:
    """Return the full id of a session as a filter for a list."""
    return sql.IDS.find(tx, given)


def list_sessions(
    tx: Tx,
    *,
    project: str | None = None,
    agent: str | None = None,
    all: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Session]:
    """Sessions that are open, or all of them, newest first; of a project or of an agent."""
    if project and agent:
        raise Invalid("Give a project or an agent, not both.")
    (before,) = decode_cursor(after, LAST_ID)
    query = sql.LIST_ALL if all else sql.LIST_OPEN
    narrow = {}
    if project:
        query = sql.LIST_ALL_OF_PROJECT if all else sql.LIST_OPEN_OF_PROJECT
        narrow["project_id"] = projects.find_id(tx, project)
    elif agent:
        query = sql.LIST_ALL_OF_AGENT if all else sql.LIST_OPEN_OF_AGENT
        narrow["agent_id"] = agents.find_id(tx, agent)
    rows = tx.all(query, before=before, limit=check_limit(limit) + 1, **narrow)
    return page_of(rows, limit, lambda session: (session.id,))


# -- turns ----------------------------------------------------------------------------------------


def append(
    tx: Tx,
    session: Session | str,
    role: str,
    content: str,
    *,
    key: str | None = None,
    tool_call_id: str | None = None,
    tool_name: str | None = None,
    arguments: Any = None,
    result: Any = None,
    is_error: bool = False,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    agent: str | None = None,
    run: str | None = None,
    meta: Any = None,
) -> Turn:
    """Add a turn to an open session. A key that the session has seen gives back that first turn.

    Its number is the next one, without gaps, whoever else appends. The assistant's words are those
    of the agent that has the session unless `agent` names another. A turn is its own record: it
    writes no event.
    """
    new = NewTurn(
        role,
        content,
        key,
        tool_call_id,
        tool_name,
        arguments,
        result,
        is_error,
        input_tokens,
        output_tokens,
        agent,
        run,
        meta,
    )
    row = row_of(new)
    id = whole_id(tx, session)
    if key:
        tx.several()
        tx.serialize(f"turns:{id}")
        known = tx.one(sql.BY_KEY, session_id=id, key=key)
        if known is not None:
            return known
    row["session_id"] = id
    row["author"] = agents.get(tx, agent).id if agent else None
    row["now"] = tx.now
    added = (sql.APPEND_WORDS if is_plain(new) else sql.APPEND).append(tx, row)
    if added is None:
        raise _closed(sql.SESSIONS.get(tx, id))
    tx.noted = True
    return turn_of(row, *added)


def append_many(
    tx: Tx, session: Session | str, turns: Sequence[NewTurn | dict[str, Any]]
) -> list[Turn]:
    """Add several turns, all or none, in their order; those whose key was seen come back as is."""
    given = read_turns(turns)
    if not 1 <= len(given) <= MAX_TURNS:
        raise Invalid(f"Give from 1 to {MAX_TURNS:,} turns at a time, not {len(given):,}.")
    id = whole_id(tx, session)
    tx.serialize(f"turns:{id}")
    seen: dict[str, Turn | None] = {}
    for new in given:
        if new.key and new.key not in seen:
            seen[new.key] = tx.one(sql.BY_KEY, session_id=id, key=new.key)
    fresh = {new.key for new in given if new.key and seen[new.key] is None}
    count = len(fresh) + sum(not new.key for new in given)
    found = tx.one(sql.MAKE_ROOM, session_id=id, count=count, now=tx.now)
    if found is None:
        raise _closed(sql.SESSIONS.get(tx, id))
    number = found.turns - count
    appended: list[Turn] = []
    for new in given:
        known = seen.get(new.key) if new.key else None
        if known is None:
            number += 1
            known = _add(tx, found, number, new)
            if new.key:
                seen[new.key] = known
        appended.append(known)
    tx.noted = True
    return appended


def turns(
    tx: Tx,
    session: Session | str,
    *,
    after: str | int | None = None,
    limit: int = 100,
    newest: bool = False,
) -> Page[Turn]:
    """What was said, in order, behind the turn with the number `after`; or newest first.

    A fork shows the turns that it inherited as its own.
    """
    found = current(tx, session)
    place = parse_number(after, LAST_NUMBER if newest else 0)
    if newest:
        rows = lineage.newest(tx, found, place, check_limit(limit) + 1)
    else:
        rows = lineage.oldest(tx, found, place, check_limit(limit) + 1)
    items = rows[:limit]
    return Page(items, str(items[-1].number) if len(rows) > limit else None)


def last(tx: Tx, session: Session | str, limit: int = 50) -> Page[Turn]:
    """The latest turns, oldest of them first; `next` is the place to go on from later."""
    found = current(tx, session)
    items = lineage.newest(tx, found, LAST_NUMBER, check_limit(limit))[::-1]
    return Page(items, str(items[-1].number) if items else None)


def newest_number(tx: Tx) -> int:
    """The highest number that any turn of the store has; for whoever copies turns elsewhere."""
    return int(tx.value(sql.NEWEST_NUMBER) or 0)


def turns_behind(tx: Tx, seq: int, *, upto: int, limit: int = 1_000) -> list[Passage]:
    """Turns of all sessions by the number under which the store has them, within (seq, upto]."""
    return tx.all(sql.BEHIND, after=seq, upto=upto, limit=limit)


# -- what a session remembers ---------------------------------------------------------------------


def state(tx: Tx, session: Session | str) -> dict[str, Any]:
    """The values that a session remembers, by their names."""
    found = current(tx, session)
    values = tx.all(sql.STATE, session_id=found.id, limit=MAX_VALUES)
    return {each.name: each.value for each in values}


def set_state(tx: Tx, session: Session | str, name: str, value: Any) -> StateValue | None:
    """Let a session remember a value, under a name; None forgets it."""
    clean_text(name, "The name", most=MAX_NAME)
    text = encode_json(value, "The value")
    found = open_one(tx, session)
    tx.serialize(f"state:{found.id}")
    if value is None:
        if tx.run(sql.FORGET_STATE_VALUE, session_id=found.id, name=name):
            tx.note("session", "unset", found.id, project_id=found.project_id, data={"name": name})
        return None
    if (
        tx.one(sql.STATE_VALUE, session_id=found.id, name=name) is None
        and tx.value(sql.COUNT_STATE, session_id=found.id) >= MAX_VALUES
    ):
        raise Refused(
            f"{found.id} remembers {MAX_VALUES:,} values, which is all it can; forget some first."
        )
    kept = tx.one(sql.SET_STATE, session_id=found.id, name=name, value=text, now=tx.now)
    tx.note("session", "set", found.id, project_id=found.project_id, data={"name": name})
    return kept


def set_provider_session(
    tx: Tx, session: Session | str, provider: str, id: str | None, *, agent: str | None = None
) -> Session:
    """Remember under which id of its own a provider can resume the conversation.

    `agent` is who speaks: when the session was handed to another since, it is refused.
    """
    clean_text(provider, "The provider", most=MAX_NAME)
    pointer = check_optional(id, "The provider's id", most=2 * MAX_NAME)
    speaker = agents.get(tx, agent).id if agent else None
    whole = whole_id(tx, session)
    tx.serialize(f"session:{whole}")
    found = sql.SESSIONS.get(tx, whole)
    if speaker and found.agent_id != speaker:
        raise Conflict(
            f"{found.id} was handed to another agent since; what {agent} knows of it is not kept.",
            id=found.id,
            agent_id=found.agent_id,
        )
    if (found.provider, found.provider_session) == (provider, pointer):
        return found
    changed = tx.one(
        sql.POINT_TO_PROVIDER, id=whole, provider=provider, provider_session=pointer, now=tx.now
    )
    assert changed is not None
    tx.note(
        "session",
        "point",
        whole,
        project_id=changed.project_id,
        data={"provider": provider, "provider_session": pointer},
    )
    return changed


# -- what the verbs share -------------------------------------------------------------------------


def whole_id(tx: Tx, session: Session | str) -> str:
    """The whole id of a session that was given as a record, or by an id, shortened or not."""
    if not isinstance(session, str):
        return session.id
    if len(session) == _WHOLE_ID and session.startswith("ses_"):
        return session  # whether it exists, the statement that wants it will tell
    return sql.IDS.resolve(tx, session)


def current(tx: Tx, session: Session | str) -> Session:
    """The session as it is now, whatever an older record of it says."""
    return sql.SESSIONS.get(tx, whole_id(tx, session))


def open_one(tx: Tx, session: Session | str) -> Session:
    """The session, which must be open."""
    found = current(tx, session)
    if found.state is not SessionState.OPEN:
        raise _closed(found)
    return found


def require_whole(tx: Tx, session: Session) -> None:
    """Refuse a session whose turns are being forgotten at this time."""
    first = session.parent_turn + 1
    if session.turns >= first and not tx.run(
        sql.FIRST_OWN_TURN, session_id=session.id, number=first
    ):
        raise Refused(f"{session.id} is too old and is being forgotten; open a new one.")


def active_agent(tx: Tx, agent: str) -> Agent:
    """An agent that may be given work."""
    found = agents.get(tx, agent)
    if found.state is not AgentState.ACTIVE:
        raise Refused(
            f"{found.name} is retired and gets no more work; `corral agent restore {found.name}` "
            "takes it back.",
            agent_id=found.id,
        )
    return found


def begin(tx: Tx, **columns: Any) -> Session:
    """A new session with these columns; what is left out is as in one that was never used."""
    made = create(
        tx,
        sql.SESSIONS,
        {
            "id": tx.new_id("ses"),
            "turns": 0,
            "cleared_turn": 0,
            "handoff": None,
            "parent_id": None,
            "parent_turn": 0,
            "created_at": tx.now,
            "updated_at": tx.now,
        }
        | columns,
        note={
            name: value
            for name, value in columns.items()
            if value and name not in ("id", "imported_at")
        },
    )
    assert made is not None
    return made


def _closed(found: Session) -> IllegalMove:
    return IllegalMove(
        f"{found.id} is {found.state} and takes nothing new; reopen it first.",
        id=found.id,
        found=found.state,
        allowed=["reopen"],
        reason="session_closed",
    )


def _add(tx: Tx, session: Session, number: int, new: NewTurn) -> Turn:
    author = agents.get(tx, new.agent).id if new.agent else None
    if author is None and new.role == Role.ASSISTANT:
        author = session.agent_id
    added = tx.one(
        sql.ADD,
        session_id=session.id,
        number=number,
        author=author,
        now=moment_of(new, tx.now),
        **row_of(new),
    )
    assert added is not None
    return added
