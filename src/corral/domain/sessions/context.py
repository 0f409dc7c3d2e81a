"""The context of a session: clear, hand-off, fork, and the turns that its agent reads."""

from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.sessions import sql
from corral.domain.sessions.lookup import (
    check_not_pruned,
    get_current,
    insert_session,
    resolve_id,
)
from corral.domain.sessions.model import Context, Handoff, HandoffPolicy, Session
from corral.domain.sessions.ops import list_turns
from corral.domain.sessions.turn_rows import MAX_TITLE, parse_turn_cursor
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page
from corral.kernel.validation import (
    MAX_BODY,
    MAX_NAME,
    check_choice,
    check_int,
    check_optional_text,
)

MAX_CONTEXT_TURNS = 1_000


def clear(tx: Tx, session: Session | str, *, keep_provider_session: bool = False) -> Session:
    """Clear the context: delete the state values and the provider's session id.

    The turns stay readable; the context starts after them. `keep_provider_session` is for providers
    that keep all their state in Corral.
    """
    id = resolve_id(tx, session)
    tx.serialize(f"session:{id}")
    # The transition locks the row, so no turn is appended between it and SET_CLEARED_TURN.
    cleared_columns = {} if keep_provider_session else {"provider_session": None}
    transition(tx, sql.SESSIONS, "clear", id, handoff=None, **cleared_columns)
    tx.run(sql.DELETE_STATE, session_id=id)
    return tx.one(sql.SET_CLEARED_TURN, id=id, now=tx.now)


def hand_off(
    tx: Tx,
    session: Session | str,
    to: str,
    policy: str = "all",
    note: str | None = None,
    *,
    last: int | None = None,
    summary: str | None = None,
    run: str | None = None,
) -> Handoff:
    """Hand an open session off to another agent, with a note.

    The policy selects its context: `all` turns since the last clear, the `last` n turns, or a
    `summary` without turns. The provider's session id belonged to the previous agent and is
    deleted.
    """
    _check_policy(policy, last, summary, note)
    note_text = check_optional_text(note, "The note", max_bytes=MAX_BODY)
    summary_text = check_optional_text(summary, "The summary", max_bytes=MAX_BODY)
    run_id = check_optional_text(run, "The run", max_bytes=MAX_NAME)
    recipient = agents.get_active(tx, to)
    id = resolve_id(tx, session)
    tx.serialize(f"session:{id}")
    number = int(tx.value(sql.LAST_HANDOFF, session_id=id) or 0) + 1
    before = sql.SESSIONS.get(tx, id)
    # The transition locks the row, so no turn is appended before the hand-off is recorded.
    after = transition(
        tx,
        sql.SESSIONS,
        "handoff",
        id,
        event_data={
            "from": before.agent_id,
            "to": recipient.id,
            "policy": policy,
            "number": number,
        },
        agent_id=recipient.id,
        provider=recipient.provider,
        provider_session=None,
        handoff=number,
        updated_at=tx.now,
    )
    from_turn = {"all": 0, "last": after.turns - (last or 0), "summary": after.turns}[policy]
    return tx.one(
        sql.ADD_HANDOFF,
        session_id=id,
        number=number,
        from_agent_id=before.agent_id,
        to_agent_id=recipient.id,
        policy=policy,
        last_n=last,
        note=note_text,
        summary=summary_text,
        at_turn=after.turns,
        from_turn=max(from_turn, after.cleared_turn),
        run_id=run_id,
        created_at=tx.now,
    )


def list_handoffs(
    tx: Tx, session: Session | str, *, after: str | None = None, limit: int = 50
) -> Page[Handoff]:
    """List the hand-offs of a session in order."""
    return sql.HANDOFFS.page(tx, after=after, limit=limit, session_id=resolve_id(tx, session))


def get_context(
    tx: Tx,
    session: Session | str,
    *,
    after: str | int | None = None,
    limit: int = MAX_CONTEXT_TURNS,
) -> Context:
    """Return the context for the agent of a session: note, summary and visible turns."""
    current = get_current(tx, session)
    active = _find_active_handoff(tx, current)
    from_turn = active.from_turn if active else current.cleared_turn
    page = list_turns(tx, current, after=max(parse_turn_cursor(after, 0), from_turn), limit=limit)
    return Context(
        current.id,
        current.agent_id,
        active.note if active else None,
        active.summary if active else None,
        from_turn,
        page.items,
        page.next,
    )


def fork(
    tx: Tx, session: Session | str, at: int | None = None, *, title: str | None = None
) -> Session:
    """Open a session that continues another one from a turn, by default from the latest.

    The fork shows the turns up to there as its own; they are not copied. It belongs to the agent
    that had the session at that turn. It starts without state values and provider session id. A
    clear or hand-off that was in effect at the turn applies to the fork as well.
    """
    parent_id = resolve_id(tx, session)
    tx.serialize(f"session:{parent_id}")
    source = sql.SESSIONS.get(tx, parent_id)
    turn = source.turns if at is None else check_int(at, "The turn")
    if not 0 <= turn <= source.turns:
        raise Invalid(
            f"{source.id} has no turn {turn}: its turns are 1 to {source.turns}.",
            id=source.id,
            turns=source.turns,
        )
    check_not_pruned(tx, source)
    # The agent that had the session at this turn, if the session was handed off later.
    handed_off = tx.run(sql.AGENT_AT_TURN, session_id=parent_id, turn=turn)
    active = _find_active_handoff(tx, source)
    if active is not None and active.at_turn > turn:
        active = None
    forked = insert_session(
        tx,
        title=check_optional_text(title, "The title", max_bytes=MAX_TITLE) or source.title,
        project_id=source.project_id,
        agent_id=handed_off[0][0] if handed_off else source.agent_id,
        provider=None if handed_off else source.provider,
        reply_to=source.reply_to,
        turns=turn,
        cleared_turn=source.cleared_turn if source.cleared_turn <= turn else 0,
        handoff=1 if active else None,
        parent_id=source.id,
        parent_turn=turn,
    )
    if active is not None:
        fields = {name: getattr(active, name) for name in Handoff.__struct_fields__}
        tx.run(sql.ADD_HANDOFF, **fields | {"session_id": forked.id, "number": 1})
    return forked


def _find_active_handoff(tx: Tx, session: Session) -> Handoff | None:
    """Return the hand-off that selects the context of a session; None without one."""
    if not session.handoff:
        return None
    return tx.first(sql.HANDOFF, session_id=session.id, number=session.handoff)


def _check_policy(policy: str, last: int | None, summary: str | None, note: str | None) -> None:
    check_choice(policy, HandoffPolicy, "The hand-off policy")
    if (policy == HandoffPolicy.LAST) != (last is not None):
        raise Invalid("`last` is required with the policy `last`, and only there.", last=last)
    if last is not None and check_int(last, "The number of turns") < 1:
        raise Invalid(f"Invalid number of turns {last}: it must be at least 1.", last=last)
    if policy == HandoffPolicy.SUMMARY and not (summary or note):
        raise Invalid("The policy `summary` requires a summary or a note.")
