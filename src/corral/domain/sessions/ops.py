"""Open, close and list sessions; append and read turns; keep state values."""

from collections.abc import Sequence
from typing import Any

from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.mail.model import check_mailbox
from corral.domain.projects import ops as projects
from corral.domain.sessions import lineage, sql
from corral.domain.sessions.lookup import (
    build_closed_error,
    check_not_pruned,
    get_current,
    get_open,
    insert_session,
    resolve_id,
)
from corral.domain.sessions.model import (
    NewTurn,
    Session,
    StateValue,
    Turn,
    TurnRole,
    TurnText,
)
from corral.domain.sessions.turn_rows import (
    MAX_TITLE,
    compute_turn_time,
    decode_turn,
    encode_turn,
    is_plain_text,
    parse_turn_cursor,
    parse_turns,
)
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text, encode_json

MAX_TURNS = 1_000
MAX_VALUES = 1_000


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
    """Open a session, optionally of an agent. Answers go to the mailbox `reply_to`.

    Idempotent by `provider` and `provider_session`: returns the session that has this id already.
    """
    if provider and provider_session:
        tx.serialize(f"provider:{provider}:{provider_session}")
        existing = find_by_provider(tx, provider, provider_session)
        if existing is not None:
            return existing
    owner = agents.get_active(tx, agent) if agent else None
    return insert_session(
        tx,
        title=check_optional_text(title, "The title", max_bytes=MAX_TITLE),
        project_id=projects.get(tx, project).id if project else None,
        agent_id=owner.id if owner else None,
        provider=check_optional_text(provider, "The provider", max_bytes=MAX_NAME)
        or (owner.provider if owner else None),
        provider_session=check_optional_text(provider_session, "The id", max_bytes=2 * MAX_NAME),
        reply_to=check_mailbox(reply_to) if reply_to else None,
    )


def get(tx: Tx, session: str) -> Session:
    """Return a session by its id, which may be shortened."""
    return sql.SESSIONS.get(tx, resolve_id(tx, session))


def rename(tx: Tx, session: Session | str, title: str | None) -> Session:
    """Change or clear the title of a session."""
    renamed = tx.first(
        sql.RENAME,
        id=resolve_id(tx, session),
        title=check_optional_text(title, "The title", max_bytes=MAX_TITLE),
        now=tx.now,
    )
    if renamed is None:
        raise sql.IDS.not_found(session if isinstance(session, str) else session.id)
    tx.emit("session", "rename", renamed.id, project_id=renamed.project_id, data={"title": title})
    return renamed


def close(tx: Tx, session: Session | str) -> Session:
    """Close a session: it accepts no more turns, and retention deletes it later."""
    return transition(
        tx, sql.SESSIONS, "close", resolve_id(tx, session), closed_at=tx.now, updated_at=tx.now
    )


def reopen(tx: Tx, session: Session | str) -> Session:
    """Reopen a closed session."""
    id = resolve_id(tx, session)
    reopened = transition(tx, sql.SESSIONS, "reopen", id, closed_at=None, updated_at=tx.now)
    check_not_pruned(tx, reopened)
    return reopened


def set_successor(tx: Tx, closed: str, successor: str) -> None:
    """Redirect letters for a closed session to its successor."""
    tx.run(sql.SET_SUCCESSOR, id=closed, successor=successor)


def find_by_provider(tx: Tx, provider: str, id: str) -> Session | None:
    """Return the latest session with a provider's own id; None when there is none."""
    return tx.first(
        sql.BY_PROVIDER,
        provider=check_text(provider, "The provider", max_bytes=MAX_NAME),
        provider_session=check_text(id, "The id", max_bytes=2 * MAX_NAME),
    )


def find_id(tx: Tx, session: str) -> str:
    """Return the full id of a session as a filter for a list."""
    return sql.IDS.find(tx, session)


def list_sessions(
    tx: Tx,
    *,
    project: str | None = None,
    agent: str | None = None,
    all: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Session]:
    """List the open sessions, or all, newest first; optionally of a project or an agent."""
    if project and agent:
        raise Invalid("`project` and `agent` cannot be combined. Give only one of them.")
    listing = sql.LIST_ALL if all else sql.LIST_OPEN
    filters = {}
    if project:
        listing = sql.LIST_ALL_OF_PROJECT if all else sql.LIST_OPEN_OF_PROJECT
        filters["project_id"] = projects.find_id(tx, project)
    elif agent:
        listing = sql.LIST_ALL_OF_AGENT if all else sql.LIST_OPEN_OF_AGENT
        filters["agent_id"] = agents.find_id(tx, agent)
    return listing.page(tx, after=after, limit=limit, **filters)


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
    """Append a turn to an open session. Idempotent by `key`: returns the first turn with that key.

    Numbers have no gaps, even under concurrent appends. The author of an assistant turn is the
    agent of the session, unless `agent` names another. A turn writes no event.
    """
    new = NewTurn(
        role=role,
        content=content,
        key=key,
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        arguments=arguments,
        result=result,
        is_error=is_error,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        agent=agent,
        run=run,
        meta=meta,
    )
    row = encode_turn(new)
    id = resolve_id(tx, session)
    if key:
        tx.begin()
        tx.serialize(f"turns:{id}")
        existing = tx.first(sql.BY_KEY, session_id=id, key=key)
        if existing is not None:
            return existing
    row["session_id"] = id
    row["author"] = agents.get(tx, agent).id if agent else None
    row["now"] = tx.now
    added = (sql.APPEND_TEXT if is_plain_text(new) else sql.APPEND).append(tx, row)
    if added is None:
        raise build_closed_error(sql.SESSIONS.get(tx, id))
    tx.has_events = True
    return decode_turn(row, *added)


def append_many(
    tx: Tx, session: Session | str, turns: Sequence[NewTurn | dict[str, Any]]
) -> list[Turn]:
    """Append several turns in order, all or none. Turns whose key exists are returned as stored."""
    new_turns = parse_turns(turns)
    if not 1 <= len(new_turns) <= MAX_TURNS:
        raise Invalid(f"Invalid number of turns {len(new_turns):,}: expected 1 to {MAX_TURNS:,}.")
    id = resolve_id(tx, session)
    tx.serialize(f"turns:{id}")
    by_key: dict[str, Turn | None] = {}
    for new in new_turns:
        if new.key and new.key not in by_key:
            by_key[new.key] = tx.first(sql.BY_KEY, session_id=id, key=new.key)
    unseen_keys = {new.key for new in new_turns if new.key and by_key[new.key] is None}
    count = len(unseen_keys) + sum(not new.key for new in new_turns)
    updated = tx.first(sql.RESERVE_NUMBERS, session_id=id, count=count, now=tx.now)
    if updated is None:
        raise build_closed_error(sql.SESSIONS.get(tx, id))
    number = updated.turns - count
    appended: list[Turn] = []
    for new in new_turns:
        turn = by_key.get(new.key) if new.key else None
        if turn is None:
            number += 1
            turn = _insert_turn(tx, updated, number, new)
            if new.key:
                by_key[new.key] = turn
        appended.append(turn)
    tx.has_events = True
    return appended


def list_turns(
    tx: Tx,
    session: Session | str,
    *,
    after: str | int | None = None,
    limit: int = 100,
    newest: bool = False,
) -> Page[Turn]:
    """List the turns after the number `after`, oldest first, or with `newest` newest first.

    A fork shows the turns of its parent as its own.
    """
    current = get_current(tx, session)
    position = parse_turn_cursor(after, LAST_NUMBER if newest else 0)
    if newest:
        rows = lineage.list_newest(tx, current, position, check_limit(limit) + 1)
    else:
        rows = lineage.list_oldest(tx, current, position, check_limit(limit) + 1)
    items = rows[:limit]
    return Page(items, str(items[-1].number) if len(rows) > limit else None)


def list_latest_turns(tx: Tx, session: Session | str, limit: int = 50) -> Page[Turn]:
    """List the latest turns, oldest first. `next` is the cursor of turns to come."""
    current = get_current(tx, session)
    items = lineage.list_newest(tx, current, LAST_NUMBER, check_limit(limit))[::-1]
    return Page(items, str(items[-1].number) if items else None)


def get_highest_turn_seq(tx: Tx) -> int:
    """Return the highest `seq` of any turn in the store, for the search index."""
    return int(tx.value(sql.HIGHEST_SEQ) or 0)


def list_turns_after(tx: Tx, seq: int, *, upto: int, limit: int = 1_000) -> list[TurnText]:
    """List turns of all sessions by `seq`, within (seq, upto], for the search index."""
    return tx.all(sql.TURNS_AFTER, after=seq, upto=upto, limit=limit)


# -- state ----------------------------------------------------------------------------------------


def get_state(tx: Tx, session: Session | str) -> dict[str, Any]:
    """Return the state values of a session by name."""
    current = get_current(tx, session)
    entries = tx.all(sql.STATE, session_id=current.id, limit=MAX_VALUES)
    return {entry.name: entry.value for entry in entries}


def set_state(tx: Tx, session: Session | str, name: str, value: Any) -> StateValue | None:
    """Set a state value of an open session; None deletes it."""
    check_text(name, "The name", max_bytes=MAX_NAME)
    text = encode_json(value, "The value")
    current = get_open(tx, session)
    tx.serialize(f"state:{current.id}")
    event: dict[str, Any] = {"project_id": current.project_id, "data": {"name": name}}
    if value is None:
        if tx.run(sql.DELETE_STATE_VALUE, session_id=current.id, name=name):
            tx.emit("session", "unset", current.id, **event)
        return None
    if (
        tx.first(sql.STATE_VALUE, session_id=current.id, name=name) is None
        and tx.value(sql.COUNT_STATE, session_id=current.id) >= MAX_VALUES
    ):
        raise Refused(
            f"{current.id} has reached the limit of {MAX_VALUES:,} state values. Delete some first."
        )
    stored = tx.first(sql.SET_STATE, session_id=current.id, name=name, value=text, now=tx.now)
    tx.emit("session", "set", current.id, **event)
    return stored


def set_provider_session(
    tx: Tx, session: Session | str, provider: str, id: str | None, *, agent: str | None = None
) -> Session:
    """Store the provider's own id, under which it can resume the conversation.

    Raises Conflict when `agent`, the reporting agent, no longer has the session. Idempotent.
    """
    check_text(provider, "The provider", max_bytes=MAX_NAME)
    pointer = check_optional_text(id, "The provider's id", max_bytes=2 * MAX_NAME)
    reporter = agents.get(tx, agent).id if agent else None
    full_id = resolve_id(tx, session)
    tx.serialize(f"session:{full_id}")
    current = sql.SESSIONS.get(tx, full_id)
    if reporter and current.agent_id != reporter:
        raise Conflict(
            f"{current.id} was handed off to another agent. The provider id of {agent} is ignored.",
            id=current.id,
            agent_id=current.agent_id,
        )
    if (current.provider, current.provider_session) == (provider, pointer):
        return current
    changed = tx.one(
        sql.SET_PROVIDER_SESSION,
        id=full_id,
        provider=provider,
        provider_session=pointer,
        now=tx.now,
    )
    tx.emit(
        "session",
        "set_provider_session",
        full_id,
        project_id=changed.project_id,
        data={"provider": provider, "provider_session": pointer},
    )
    return changed


def _insert_turn(tx: Tx, session: Session, number: int, new: NewTurn) -> Turn:
    author = agents.get(tx, new.agent).id if new.agent else None
    if author is None and new.role == TurnRole.ASSISTANT:
        author = session.agent_id
    return tx.one(
        sql.ADD,
        session_id=session.id,
        number=number,
        author=author,
        now=compute_turn_time(new, tx.now),
        **encode_turn(new),
    )
