"""Delegating work to an agent, and returning its result."""

from typing import Any

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.delegations import sql
from corral.domain.delegations.model import Delegation, DelegationRequest, DelegationState
from corral.domain.mail import chains
from corral.domain.mail import ops as mail
from corral.domain.mail.model import LetterState, check_mailbox, is_person
from corral.domain.mail.payloads import DelegationEnded, DelegationPayload, DelegationResult
from corral.kernel.clock import DAY, YEAR
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.ids import parse_number
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import check_int, check_optional_text, check_text, encode_json

RETENTION = sql.RETENTION
LETTER_MS = 30 * DAY
"""Expiry of a notification, so that a recipient who is away for weeks still receives it."""


# -- creation ------------------------------------------------------------------------------------


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
    """Delegate work to an agent with a letter.

    The result is sent as a letter to `sender`, or else to the caller. The delegation expires when
    there is no result at `deadline_at`. `parent` is the delegation of which this one is a part:
    cancelling the parent cancels its parts.
    """
    return create_delegation(
        tx,
        DelegationRequest(
            to=to,
            text=text,
            context=context,
            project_id=project_id,
            parent=parent,
            deadline_at=deadline_at,
            sender=sender,
            agent=agent,
        ),
    )


def create_delegation(tx: Tx, request: DelegationRequest) -> Delegation:
    """Create a delegation of a text, or with `task_id` of a task.

    The caller must have checked that it may manage the task, because the end of a delegation takes
    the task away from its agent.
    """
    recipient = agents.get_active(tx, request.to)
    reply_to = check_mailbox(request.sender or agents.resolve_actor(tx, request.agent))
    if reply_to == f"agent:{recipient.name}":
        raise Invalid(f"{recipient.name} cannot delegate work to itself.")
    _check_deadline(tx, request.deadline_at)
    above = _lock(tx, request.parent) if request.parent else None
    if above is not None and above.state is not DelegationState.ACTIVE:
        raise Conflict(f"{above.id} is {above.state}. A part needs an active delegation.")
    created = create(
        tx,
        sql.DELEGATIONS,
        {
            "id": tx.new_id("dlg"),
            "project_id": request.project_id,
            "from_mailbox": reply_to,
            "to_agent_id": recipient.id,
            "to_mailbox": f"agent:{recipient.name}",
            "parent_id": above.id if above else None,
            "task_id": request.task_id,
            "text": check_text(request.text, "The text"),
            "context": check_optional_text(request.context, "The context"),
            "deadline_at": request.deadline_at,
            "created_at": tx.now,
        },
        event_data={"to": recipient.name, "task": request.task_id},
    )
    chains.save(tx, "delegations", created.id, chains.get_for_caller(tx, reply_to))
    letter = mail.put(
        tx,
        created.to_mailbox,
        DelegationPayload(
            delegation=created.id,
            sender=reply_to,
            task=created.task_id,
            text=created.text,
            context=created.context,
            deadline_at=created.deadline_at,
        ),
        key=created.id,
        sender=reply_to,
        project=created.project_id,
    )
    return tx.one(sql.SET_LETTER, id=created.id, letter_id=letter.id)


def _check_deadline(tx: Tx, deadline_at: int | None) -> None:
    if deadline_at is not None and not (
        tx.now < check_int(deadline_at, "The deadline") <= tx.now + YEAR
    ):
        raise Invalid(
            "Invalid deadline. It must be in the future and within a year.",
            deadline_at=deadline_at,
        )


# -- end -----------------------------------------------------------------------------------------


def finish(tx: Tx, delegation: str, result: Any, *, agent: str | None = None) -> Delegation:
    """Send the result of a delegation back. Idempotent; only the recipient can."""
    own = _require_recipient(tx, delegation, agent)
    if own.state is DelegationState.DONE:
        return own
    if result is None or result == "":
        raise Invalid("The result is empty. Send text, or JSON that says what was done.")
    return _end(tx, own, "finish", result=result)


def fail(tx: Tx, delegation: str, reason: str, *, agent: str | None = None) -> Delegation:
    """Give a delegation up with a reason; only the recipient can."""
    own = _require_recipient(tx, delegation, agent)
    return _end(tx, own, "fail", reason=check_text(reason, "The reason"))


def cancel(
    tx: Tx, delegation: str, *, reason: str | None = None, agent: str | None = None
) -> list[Delegation]:
    """Cancel a delegation and all its parts.

    An unread letter is removed from its mailbox; otherwise the agent is notified.
    """
    target = get(tx, delegation)
    actor = agents.resolve_actor(tx, agent)
    if not is_person(actor) and actor != target.from_mailbox:
        raise Refused(
            f"Only {target.from_mailbox}, which sent {target.id}, can cancel it.",
            id=target.id,
        )
    return cancel_tree(tx, target.id, check_optional_text(reason, "The reason"))


def cancel_tree(tx: Tx, id: str, reason: str | None) -> list[Delegation]:
    """Cancel a delegation and all its parts without checking the caller."""
    cancelled = []
    queue = [id]
    for next_id in queue:  # `queue` grows during the loop
        ended = transition(tx, sql.DELEGATIONS, "cancel", next_id, ended_at=tx.now, reason=reason)
        _withdraw(tx, ended)
        cancelled.append(ended)
        queue += [row[0] for row in tx.run(sql.ACTIVE_PARTS, id=next_id)]
    return cancelled


def end_for_task(tx: Tx, task_id: str, *, done: bool, result: Any) -> None:
    """End the delegations of a task that has ended."""
    for delegation in tx.all(sql.ACTIVE_OF_TASK, task_id=task_id):
        if done:
            _end(tx, delegation, "finish", result=result)
        else:
            _end(tx, delegation, "fail", result=result, reason=result.get("reason"))


def expire_due(tx: Tx, *, limit: int = 100) -> list[Delegation]:
    """End the delegations whose deadline has passed, and notify both sides."""
    expired = []
    for delegation in tx.all(sql.EXPIRED, now=tx.now, limit=check_limit(limit)):
        ended = _end(tx, delegation, "expire", reason="no result before the deadline")
        _withdraw(tx, ended)
        expired.append(ended)
    return expired


def _end(
    tx: Tx, delegation: Delegation, verb: str, *, result: Any = None, reason: str | None = None
) -> Delegation:
    """End a delegation and send its outcome to the sender."""
    ended = transition(
        tx,
        sql.DELEGATIONS,
        verb,
        delegation.id,
        ended_at=tx.now,
        result=None if result is None else encode_json(result, "The result"),
        reason=reason,
    )
    mail.put_caused_by(
        tx,
        chains.load(tx, "delegations", ended.id),
        ended.from_mailbox,
        DelegationResult(
            delegation=ended.id,
            sender=ended.to_mailbox,
            state=ended.state,
            task=ended.task_id,
            result=ended.result,
            reason=ended.reason,
        ),
        key=f"{ended.id}:end",
        project=ended.project_id,
        expires_at=tx.now + LETTER_MS,
    )
    return ended


def _withdraw(tx: Tx, ended: Delegation) -> None:
    """Drop the recipient's letter; notify the recipient if it has claimed the letter before."""
    if ended.letter_id is not None:
        letter = mail.find_for_update(tx, parse_number("let", ended.letter_id))
        if letter is not None and letter.state is LetterState.WAITING:
            mail.drop(tx, letter.id, reason=f"{ended.id} is {ended.state}")
            if letter.attempts == 0:
                return  # the recipient has never seen it
    mail.put(
        tx,
        ended.to_mailbox,
        DelegationEnded(
            delegation=ended.id, state=ended.state, task=ended.task_id, reason=ended.reason
        ),
        key=f"{ended.id}:back",
        project=ended.project_id,
        expires_at=tx.now + LETTER_MS,
    )


# -- queries -------------------------------------------------------------------------------------


def get(tx: Tx, delegation: str) -> Delegation:
    """Return a delegation by its id or a prefix of it."""
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
    """List delegations, newest first: the active ones, or with `all` every one.

    `to`, `sender` and `parent` filter by recipient, by the sender's mailbox and by parent; they
    include ended delegations and cannot be combined.
    """
    filters: dict[str, Any] = {}
    if to is not None:
        filters["to"] = agents.get(tx, to).id
    if sender is not None:
        filters["sender"] = check_mailbox(sender)
    if parent is not None:
        filters["parent"] = sql.IDS.resolve(tx, parent)
    if len(filters) > 1:
        raise Invalid("Filter delegations by one of `to`, `sender` and `parent`.")
    listing = sql.LISTS[tuple(filters) or (("all",) if all else ())]
    return listing.page(tx, after=after, limit=limit, **filters)


def list_active_for_task(tx: Tx, task_id: str) -> list[Delegation]:
    """List the active delegations of a task."""
    return tx.all(sql.ACTIVE_OF_TASK, task_id=task_id)


def next_deadline(tx: Tx) -> int | None:
    """Return the earliest deadline of an active delegation."""
    at: int | None = tx.value(sql.NEXT_DEADLINE)
    return at


# -- retention -----------------------------------------------------------------------------------


def delete_project_rows(tx: Tx, project_id: str) -> None:
    """Delete the delegations of a project that is being deleted.

    Active ones are cancelled first, which notifies both sides.
    """
    for delegation in tx.all(sql.ACTIVE_OF_PROJECT, project=project_id):
        _withdraw(tx, _end(tx, delegation, "cancel", reason="the project was deleted"))
    tx.run(sql.DELETE_OF_PROJECT, project=project_id)


# -- access --------------------------------------------------------------------------------------


def _lock(tx: Tx, delegation: str) -> Delegation:
    """Return a delegation that no other transaction can end concurrently."""
    return sql.DELEGATIONS.get_for_update(tx, sql.IDS.resolve(tx, delegation))


def _require_recipient(tx: Tx, delegation: str, agent: str | None) -> Delegation:
    """Lock and return a delegation for its recipient, or for a person.

    Raises Refused for an active delegation of a task: the task's own outcome ends it.
    """
    locked = _lock(tx, delegation)
    actor = agents.resolve_actor(tx, agent)
    if not is_person(actor) and actor != locked.to_mailbox:
        raise Refused(
            f"{locked.id} was delegated to {locked.to_mailbox}, not to {actor}.",
            id=locked.id,
            reason="other_delegate",
        )
    if locked.task_id is not None and locked.state is DelegationState.ACTIVE:
        raise Refused(
            f"{locked.id} delegates the task {locked.task_id}. Submit or fail the task; that sends "
            "the result back.",
            id=locked.id,
            task=locked.task_id,
        )
    return locked
