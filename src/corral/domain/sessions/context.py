"""What the agent that has a session is given of it: hand-offs, fresh starts, forks."""

from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.sessions import sql
from corral.domain.sessions.model import Context, Handoff, Policy, Session
from corral.domain.sessions.ops import active_agent, begin, current, require_whole, turns, whole_id
from corral.domain.sessions.turn import MAX_TITLE, check_optional, parse_number
from corral.kernel.errors import Invalid
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_BODY, check_int

MAX_GIVEN = 1_000


def clear(tx: Tx, session: Session | str, *, keep_provider_session: bool = False) -> Session:
    """Let the agent start afresh: the values and the provider's pointer are forgotten.

    The turns stay readable, and the context begins behind them. A provider that keeps all it knows
    here may go on under its own id.
    """
    id = whole_id(tx, session)
    tx.serialize(f"session:{id}")
    # The move holds the row: no turn comes between it and the count below.
    forgotten = {} if keep_provider_session else {"provider_session": None}
    move(tx, sql.SESSIONS, "clear", id, handoff=None, **forgotten)
    tx.run(sql.FORGET_STATE, session_id=id)
    cleared = tx.one(sql.CLEARED, id=id, now=tx.now)
    assert cleared is not None
    return cleared


def handoff(
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
    """Give an open session to another agent, which is given what the policy says, and the note.

    `all` turns since it was cleared, the `last` so many, or a `summary` and none of them. The
    provider's pointer belonged to the agent before, so it is forgotten.
    """
    _check_policy(policy, last, summary, note)
    told = check_optional(note, "The note", most=MAX_BODY)
    short = check_optional(summary, "The summary", most=MAX_BODY)
    by = check_optional(run, "The run")
    taker = active_agent(tx, to)
    id = whole_id(tx, session)
    tx.serialize(f"session:{id}")
    number = int(tx.value(sql.LAST_HANDOFF, session_id=id) or 0) + 1
    before = sql.SESSIONS.get(tx, id)
    # The move holds the row: no turn comes between it and the record of what was handed over.
    after = move(
        tx,
        sql.SESSIONS,
        "handoff",
        id,
        note={"from": before.agent_id, "to": taker.id, "policy": policy, "number": number},
        agent_id=taker.id,
        provider=taker.provider,
        provider_session=None,
        handoff=number,
        updated_at=tx.now,
    )
    behind = {"all": 0, "last": after.turns - (last or 0), "summary": after.turns}[policy]
    made = tx.one(
        sql.ADD_HANDOFF,
        session_id=id,
        number=number,
        from_agent_id=before.agent_id,
        to_agent_id=taker.id,
        policy=policy,
        last_n=last,
        note=told,
        summary=short,
        at_turn=after.turns,
        from_turn=max(behind, after.cleared_turn),
        run_id=by,
        created_at=tx.now,
    )
    assert made is not None
    return made


def handoffs(
    tx: Tx, session: Session | str, *, after: str | None = None, limit: int = 50
) -> Page[Handoff]:
    """How a session went from hand to hand, in order."""
    (number,) = decode_cursor(after, 0)
    rows = tx.all(
        sql.HANDOFFS, session_id=whole_id(tx, session), after=number, limit=check_limit(limit) + 1
    )
    return page_of(rows, limit, lambda each: (each.number,))


def context(
    tx: Tx, session: Session | str, *, after: str | int | None = None, limit: int = MAX_GIVEN
) -> Context:
    """What the agent that has a session is given: note, summary, and the turns it may see."""
    found = current(tx, session)
    given = (
        tx.one(sql.HANDOFF, session_id=found.id, number=found.handoff) if found.handoff else None
    )
    behind = given.from_turn if given else found.cleared_turn
    page = turns(tx, found, after=max(parse_number(after, 0), behind), limit=limit)
    return Context(
        found.id,
        found.agent_id,
        given.note if given else None,
        given.summary if given else None,
        behind,
        page.items,
        page.next,
    )


def fork(
    tx: Tx, session: Session | str, at: int | None = None, *, title: str | None = None
) -> Session:
    """A new session that goes on from a turn of another one; from the latest when none is named.

    It shows the turns up to there as its own, without a copy. It belongs to the agent that had
    the session at that turn, begins without values and without a provider's pointer, and a clear
    or hand-off that is in force there is in force here too.
    """
    whole = whole_id(tx, session)
    tx.serialize(f"session:{whole}")
    source = sql.SESSIONS.get(tx, whole)
    turn = source.turns if at is None else check_int(at, "The turn")
    if not 0 <= turn <= source.turns:
        raise Invalid(
            f"{source.id} has no turn {turn}; its turns go from 1 to {source.turns}.",
            id=source.id,
            turns=source.turns,
        )
    require_whole(tx, source)
    away = tx.run(sql.GIVEN_AWAY, session_id=whole, turn=turn)
    force = tx.one(sql.HANDOFF, session_id=whole, number=source.handoff) if source.handoff else None
    if force is not None and force.at_turn > turn:
        force = None
    made = begin(
        tx,
        title=check_optional(title, "The title", most=MAX_TITLE) or source.title,
        project_id=source.project_id,
        agent_id=away[0][0] if away else source.agent_id,
        provider=None if away else source.provider,
        reply_to=source.reply_to,
        turns=turn,
        cleared_turn=source.cleared_turn if source.cleared_turn <= turn else 0,
        handoff=1 if force else None,
        parent_id=source.id,
        parent_turn=turn,
    )
    if force is not None:
        fields = {name: getattr(force, name) for name in Handoff.__struct_fields__}
        tx.one(sql.ADD_HANDOFF, **fields | {"session_id": made.id, "number": 1})
    return made


def _check_policy(policy: str, last: int | None, summary: str | None, note: str | None) -> None:
    if policy not in tuple(Policy):
        raise Invalid(
            f"{policy!r} is no way to hand a session over; it is one of {', '.join(Policy)}.",
            policy=policy,
        )
    if (policy == Policy.LAST) != (last is not None):
        raise Invalid("Say how many turns with the policy `last`, and with no other.", last=last)
    if last is not None and check_int(last, "The number of turns") < 1:
        raise Invalid(f"Hand over at least one turn, not {last}.", last=last)
    if policy == Policy.SUMMARY and not (summary or note):
        raise Invalid("With the policy `summary`, give a summary or a note; nothing else is given.")
