"""Handing work over, and handing its result back."""

from typing import Any

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import AgentState
from corral.domain.delegations import sql
from corral.domain.delegations.model import Delegation, DelegationState
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import LetterState, check_mailbox
from corral.kernel.clock import DAY, YEAR
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.ids import number_of
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import check_int, clean_text, encode_json

KEPT = sql.KEPT
S = DelegationState
LETTER_MS = 30 * DAY
"""How long somebody who is away can still read how it went."""


def delegate(
    tx: Tx,
    to: str,
    text: str,
    *,
    context: str | None = None,
    project_id: str | None = None,
    parent: str | None = None,
    deadline_at: int | None = None,
    sender: str | None = None,
    agent: str | None = None,
) -> Delegation:
    """Hand work to an agent, by a letter; its result comes back as a letter, to `sender` or to
    whoever hands it over.

    Without a result at `deadline_at` it expires. `parent` is the delegation that this is a part
    of: it is cancelled with it.
    """
    return hand_over(
        tx,
        to,
        text,
        context=context,
        project_id=project_id,
        parent=parent,
        deadline_at=deadline_at,
        sender=sender,
        agent=agent,
    )


def hand_over(
    tx: Tx,
    to: str,
    text: str,
    *,
    context: str | None,
    project_id: str | None,
    parent: str | None,
    deadline_at: int | None,
    agent: str | None,
    sender: str | None = None,
    task_id: str | None = None,
) -> Delegation:
    """Hand work over, or a task, by whoever was found to be allowed to steer that: the end of a
    task's delegation takes the task away from its doer."""
    doer = agents.get(tx, to)
    if doer.state is not AgentState.ACTIVE:
        raise Refused(f"{doer.name} is retired; restore it, or take another.", id=doer.id)
    back = check_mailbox(sender or _speaker(tx, agent))
    if back == f"agent:{doer.name}":
        raise Invalid(f"{doer.name} cannot hand work to itself; just do it.")
    if deadline_at is not None and not (
        tx.now < check_int(deadline_at, "The deadline") <= tx.now + YEAR
    ):
        raise Invalid("A deadline lies ahead, and within a year.", deadline_at=deadline_at)
    above = _hold(tx, parent) if parent else None
    if above is not None and above.state is not S.ACTIVE:
        raise Conflict(f"{above.id} is {above.state}; there is no part of it left to do.")
    made = create(
        tx,
        sql.DELEGATIONS,
        {
            "id": tx.new_id("dlg"),
            "project_id": project_id,
            "from_mailbox": back,
            "to_agent_id": doer.id,
            "to_mailbox": f"agent:{doer.name}",
            "parent_id": above.id if above else None,
            "task_id": task_id,
            "text": clean_text(text, "The text"),
            "context": clean_text(context, "The context") if context else None,
            "deadline_at": deadline_at,
            "created_at": tx.now,
        },
        note={"to": doer.name, "task": task_id},
    )
    assert made is not None
    chains.save(tx, "delegations", made.id, chains.of_caller(tx, back))
    letter = mail.put(
        tx,
        made.to_mailbox,
        {
            "kind": "delegation",
            "delegation": made.id,
            "from": back,
            "task": task_id,
            "text": made.text,
            "context": made.context,
            "deadline_at": deadline_at,
        },
        key=made.id,
        sender=back,
        project=project_id,
    )
    sent = tx.one(sql.SET_LETTER, id=made.id, letter_id=letter.id)
    assert sent is not None
    return sent


def finish(tx: Tx, delegation: str, result: Any, *, agent: str | None = None) -> Delegation:
    """Hand a result back. Saying it twice is fine; only whoever it was handed to can."""
    found = _mine(tx, delegation, agent)
    if found.state is S.DONE:
        return found
    if result is None or result == "":
        raise Invalid("Hand back a result: text, or JSON that says what was done.")
    return _end(tx, found, "finish", result=result)


def fail(tx: Tx, delegation: str, reason: str, *, agent: str | None = None) -> Delegation:
    """Say that it cannot be done, and why; only whoever it was handed to can."""
    found = _mine(tx, delegation, agent)
    return _end(tx, found, "fail", reason=clean_text(reason, "The reason"))


def cancel(
    tx: Tx, delegation: str, *, reason: str | None = None, agent: str | None = None
) -> list[Delegation]:
    """Take a delegation back, and all that are parts of it; the agents are told.

    A letter that nobody has read yet is taken out of its mailbox.
    """
    found = get(tx, delegation)
    speaker = _speaker(tx, agent)
    if speaker.startswith("agent:") and speaker != found.from_mailbox:
        raise Refused(
            f"{found.id} was handed over by {found.from_mailbox}, who can take it back.",
            id=found.id,
        )
    return take_back(tx, found.id, clean_text(reason, "The reason") if reason else None)


def take_back(tx: Tx, id: str, why: str | None) -> list[Delegation]:
    """Cancel a delegation with its parts, for whoever was found to be allowed to."""
    cancelled = []
    open_ = [id]
    for id in open_:  # it grows while we go
        each = move(tx, sql.DELEGATIONS, "cancel", id, ended_at=tx.now, reason=why)
        _call_back(tx, each)
        cancelled.append(each)
        open_ += [row[0] for row in tx.run(sql.PARTS, id=id)]
    return cancelled


def end_of_task(tx: Tx, task_id: str, *, done: bool, result: Any) -> None:
    """The task that was handed over has come to its end: so have its delegations."""
    for each in tx.all(sql.OF_TASK, task_id=task_id):
        if done:
            _end(tx, each, "finish", result=result)
        else:
            _end(tx, each, "fail", result=result, reason=result.get("reason"))


def active_of_task(tx: Tx, task_id: str) -> list[Delegation]:
    """The delegations with which a task is handed over now."""
    return tx.all(sql.OF_TASK, task_id=task_id)


def expire_due(tx: Tx, *, limit: int = 100) -> list[Delegation]:
    """End what had to be done by now; both sides are told."""
    expired = []
    for each in tx.all(sql.DUE, now=tx.now, limit=check_limit(limit)):
        expired.append(_end(tx, each, "expire", reason="no result came in time"))
        _call_back(tx, expired[-1])
    return expired


def next_deadline(tx: Tx) -> int | None:
    """When the next delegation expires."""
    at: int | None = tx.value(sql.NEXT_DEADLINE)
    return at


def get(tx: Tx, delegation: str) -> Delegation:
    """A delegation by its id, which may be shortened."""
    return sql.DELEGATIONS.get(tx, sql.IDS.resolve(tx, delegation))


def list_delegations(
    tx: Tx,
    *,
    to: str | None = None,
    sender: str | None = None,
    parent: str | None = None,
    all: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page[Delegation]:
    """Delegations, newest first: those without a result yet, all, all to an agent, all from a
    mailbox, or all parts of one."""
    wanted: dict[str, Any] = {}
    if to is not None:
        wanted["to"] = agents.get(tx, to).id
    if sender is not None:
        wanted["sender"] = check_mailbox(sender)
    if parent is not None:
        wanted["parent"] = sql.IDS.resolve(tx, parent)
    if len(wanted) > 1:
        raise Invalid("Delegations are listed by `to`, by `sender` or by `parent`, one at a time.")
    (before,) = decode_cursor(after, LAST_ID)
    statement = sql.LISTS[tuple(wanted) or (("all",) if all else ())]
    rows = tx.all(statement, before=before, limit=check_limit(limit) + 1, **wanted)
    return page_of(rows, limit, lambda each: (each.id,))


def forget_project(tx: Tx, project_id: str) -> None:
    """Forget the delegations of a project that is being deleted; both sides of those that have no
    result yet are told that none comes."""
    for each in tx.all(sql.ACTIVE_OF_PROJECT, project=project_id):
        _call_back(tx, _end(tx, each, "cancel", reason="the project was deleted"))
    tx.run(sql.OF_PROJECT, project=project_id)


def _hold(tx: Tx, delegation: str) -> Delegation:
    """A delegation that comes to no end beside this transaction."""
    return sql.DELEGATIONS.hold(tx, sql.IDS.resolve(tx, delegation))


def _mine(tx: Tx, delegation: str, agent: str | None) -> Delegation:
    found = _hold(tx, delegation)
    speaker = _speaker(tx, agent)
    if speaker.startswith("agent:") and speaker != found.to_mailbox:
        raise Refused(
            f"{found.id} was handed to {found.to_mailbox}, not to {speaker}.",
            id=found.id,
            reason="other_delegate",
        )
    if found.task_id is not None and found.state is S.ACTIVE:
        raise Refused(
            f"{found.id} hands over the task {found.task_id}; submit or fail that, and the "
            "result goes back by itself.",
            id=found.id,
            task=found.task_id,
        )
    return found


def _speaker(tx: Tx, agent: str | None) -> str:
    return f"agent:{agents.get(tx, agent).name}" if agent else tx.actor


def _end(
    tx: Tx, found: Delegation, verb: str, *, result: Any = None, reason: str | None = None
) -> Delegation:
    ended = move(
        tx,
        sql.DELEGATIONS,
        verb,
        found.id,
        ended_at=tx.now,
        result=None if result is None else encode_json(result, "The result"),
        reason=reason,
    )
    mail.put_after(
        tx,
        chains.load(tx, "delegations", ended.id),
        ended.from_mailbox,
        {
            "kind": "delegation_result",
            "delegation": ended.id,
            "from": ended.to_mailbox,
            "state": ended.state,
            "task": ended.task_id,
            "result": ended.result,
            "reason": ended.reason,
        },
        key=f"{ended.id}:end",
        project=ended.project_id,
        expires_at=tx.now + LETTER_MS,
    )
    return ended


def _call_back(tx: Tx, ended: Delegation) -> None:
    """Take the letter back when nobody has read it, else tell whoever did."""
    if ended.letter_id is not None:
        letter = mail.hold(tx, number_of("let", ended.letter_id))
        if (
            letter is not None
            and letter.state is LetterState.WAITING
            and mail.drop(tx, letter.id, reason=f"{ended.id} is {ended.state}").attempts == 0
        ):
            return
    mail.put(
        tx,
        ended.to_mailbox,
        {"kind": "delegation_ended", "delegation": ended.id, "state": ended.state}
        | ({"task": ended.task_id} if ended.task_id else {})
        | ({"reason": ended.reason} if ended.reason else {}),
        key=f"{ended.id}:back",
        project=ended.project_id,
        expires_at=tx.now + LETTER_MS,
    )
