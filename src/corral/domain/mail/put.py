"""Put letters into mailboxes: one or many, with the chain of letters that caused them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.bulk_transitions import create_many, create_numbered
from corral.db.transitions import create, create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.mail import chains, sql
from corral.domain.mail.model import (
    Chain,
    HopLimitReached,
    Letter,
    LetterDraft,
    check_mailbox,
    check_priority,
    is_ordered,
    mailbox_kind,
    session_id_of,
)
from corral.domain.mail.payloads import Payload, UndeliveredNotice
from corral.kernel.clock import YEAR
from corral.kernel.errors import Ambiguous, CorralError, IllegalMove, Invalid, NotFound
from corral.kernel.validation import MAX_NAME, check_int, check_text, encode_json

MAX_CLOCK_SKEW_MS = 10_000
MAX_SUCCESSORS = 100
"""How many times in a row a session may have been replaced."""
_UNIQUE_KEY = "(mailbox, key) WHERE key IS NOT NULL"


def put(
    tx: Tx,
    mailbox: str,
    body: Any,
    *,
    key: str | None = None,
    due_at: int | None = None,
    priority: int = 0,
    sender: str | None = None,
    expires_at: int | None = None,
    project: str | None = None,
) -> Letter:
    """Put a letter into a mailbox. Idempotent by `key`: returns the first letter with that key.

    The letter can be claimed from `due_at` on and is not delivered after `expires_at`. The mailbox
    `sender` gets a notice if the letter is never delivered. A letter that a run or an agent puts
    for an agent continues a chain (see `chains`); beyond `mail.max_hops` a session gets a notice
    instead. A session must be open; a letter to a replaced session goes to its successor.
    """
    mailbox = resolve_mailbox(tx, check_mailbox(mailbox))
    values = _build_columns(tx, body, key, due_at, priority, sender, expires_at, project)
    values["mailbox"] = mailbox
    is_put_by_agent = tx.run_id is not None or mailbox_kind(tx.actor) == "agent"
    if is_put_by_agent and chains.is_read_by_agent(mailbox):
        tx.begin()
        cause = chains.get_for_caller(tx)
        if cause is not None:
            is_limited = mailbox_kind(mailbox) == "session"
            return _put_in_chain_or_notify(tx, values, cause, is_limited=is_limited)
    return _insert_once(tx, values)


def put_by_caller(
    tx: Tx,
    mailbox: str,
    body: Any,
    *,
    key: str | None = None,
    due_at: int | None = None,
    priority: int = 0,
    sender: str | None = None,
    expires_at: int | None = None,
    project: str | None = None,
) -> Letter | HopLimitReached:
    """Put a letter into a mailbox. Idempotent by `key`: returns the first letter with that key.

    The letter can be claimed from `due_at` on and is not delivered after `expires_at`. The mailbox
    `sender` gets a notice if the letter is never delivered. A session must be open; a letter to a
    replaced session goes to its successor.

    A letter of an agent or a run that an agent may read continues the chain of letters that led to
    it; raises Refused when the chain exceeds `mail.max_hops`. The key of an agent is unique among
    its own keys, except in a `queue:…` mailbox: keys of Corral's letters can be guessed (`msg_7`),
    and a letter with a known key would suppress them.
    """
    if tx.run_id is not None or mailbox_kind(tx.actor) == "agent":
        if key and is_ordered(mailbox):
            key = f"{tx.actor}:{key}"
        if chains.is_read_by_agent(mailbox):
            tx.begin()
            if (exceeded := _refuse_beyond_limit(tx, mailbox)) is not None:
                return exceeded
    return put(
        tx,
        mailbox,
        body,
        key=key,
        due_at=due_at,
        priority=priority,
        sender=sender,
        expires_at=expires_at,
        project=project,
    )


def _refuse_beyond_limit(tx: Tx, mailbox: str) -> HopLimitReached | None:
    """Notify both sides, if a letter of the caller would exceed the hop limit; else return None."""
    cause = chains.get_for_caller(tx)
    if cause is None or (exceeded := chains.find_exceeded_limit(tx, cause)) is None:
        return None
    sender = f"agent:{cause.agent}" if cause.agent else tx.actor
    notify_hop_limit(tx, cause, mailbox, sender, exceeded)
    return exceeded


def put_last(
    tx: Tx, mailbox: str, body: Any, *, key: str | None = None, sender: str | None = None
) -> Letter:
    """Put a letter behind all waiting letters of a mailbox.

    That includes letters of transactions that began later and committed first. Callers must be
    serialized by `Tx.serialize`.
    """
    mailbox = resolve_mailbox(tx, check_mailbox(mailbox))
    last = tx.value(sql.LAST_POSITION, mailbox=mailbox) or 0
    # Bounded: a clock that was set back must not delay the letter for long.
    due = min(max(tx.now, last), tx.now + MAX_CLOCK_SKEW_MS)
    return put(tx, mailbox, body, key=key, sender=sender, due_at=due)


def put_many(tx: Tx, drafts: Sequence[LetterDraft]) -> list[str]:
    """Put several letters in order, in one batch; returns their ids. Idempotent by key.

    Unlike `put`, it does not look for the successor of a session: the caller has just chosen an
    open session.
    """
    rows = [
        {"mailbox": check_mailbox(draft.mailbox), "key": None, "sender": None}
        | _build_columns(tx, draft.body, key=draft.key, sender=draft.sender)
        for draft in drafts
    ]
    letters = create_numbered(tx, sql.LETTERS, rows, on_conflict=_UNIQUE_KEY)
    return [(letter or _insert_once(tx, row)).id for letter, row in zip(letters, rows, strict=True)]


def broadcast(
    tx: Tx,
    mailboxes: Sequence[str],
    body: Any,
    *,
    key: str,
    cause: Chain | None = None,
    **options: Any,
) -> None:
    """Put the same letter into several mailboxes of agents and people, by one INSERT.

    Idempotent by key. The letters continue the chain `cause`, else the caller's chain; the caller
    checks the hop limit. The options are those of `put`.
    """
    values = _build_columns(tx, body, key=key, **options)
    if rows := [{"mailbox": check_mailbox(mailbox)} for mailbox in mailboxes]:
        create_many(tx, sql.LETTERS, rows, {"mailbox": "text"}, on_conflict=_UNIQUE_KEY, **values)
    of_agents = [mailbox for mailbox in mailboxes if chains.is_read_by_agent(mailbox)]
    if of_agents and (cause := cause or chains.get_for_caller(tx)) is not None:
        chains.record_all(tx, of_agents, key, cause)


def resolve_mailbox(tx: Tx, mailbox: str) -> str:
    """Return the mailbox that accepts letters for this address.

    A session that was closed and replaced resolves to its successor. Raises NotFound for an unknown
    session and IllegalMove for a closed one. Other mailboxes exist without a row.
    """
    session = session_id_of(mailbox)
    if session is None:
        return mailbox
    tx.begin()
    try:
        id = first = sql.SESSION_IDS.resolve(tx, session)
    except Invalid:
        raise sql.SESSION_IDS.not_found(session) from None
    for _ in range(MAX_SUCCESSORS):
        rows = tx.run(sql.SESSION, id=id)
        if not rows:
            raise sql.SESSION_IDS.not_found(id)
        ((state, successor),) = rows
        if state == "open":
            return f"session:{id}"
        if successor is None:
            break
        id = successor
    raise IllegalMove(
        f"Session {first} is closed and accepts no letters. Reopen it with "
        f"`corral session reopen {first}`.",
        id=first,
        state="closed",
        allowed=["reopen"],
    )


# -- chains ----------------------------------------------------------------------------------------


def put_caused_by(tx: Tx, cause: Chain | None, mailbox: str, body: Any, **options: Any) -> Letter:
    """Put a letter that continues the chain `cause`, or the caller's chain if that is longer.

    The options are those of `put`. Beyond `mail.max_hops` the mailbox gets a notice instead, which
    wakes no agent. A letter to a closed session is refused, and its sender gets a notice.
    """
    values = {**_build_columns(tx, body, **options), "mailbox": check_mailbox(mailbox)}
    if not chains.is_read_by_agent(mailbox):
        return _insert_once(tx, values)
    try:
        values["mailbox"] = resolve_mailbox(tx, mailbox)
    except CorralError as error:
        letter = _insert_once(tx, values)
        if letter.ended_at is not None:  # an earlier call with this key refused it
            return letter
        return end_undelivered(tx, "refuse", letter.number, error.message)
    cause = chains.choose_longest(cause, chains.get_for_caller(tx))
    if cause is None:
        return _insert_once(tx, values)
    return _put_in_chain_or_notify(tx, values, cause, is_limited=True)


def put_in_chain(
    tx: Tx,
    cause: Chain,
    mailbox: str,
    body: Any,
    *,
    in_reply_to: str | None,
    reply_to: str,
    **options: Any,
) -> Letter:
    """Put a letter that continues a chain and can be answered at `reply_to`.

    The caller checks the hop limit. The options are those of `put`.
    """
    values = {**_build_columns(tx, body, **options), "mailbox": check_mailbox(mailbox)}
    letter = _insert_once(tx, values)
    chains.record(tx, letter.id, cause, in_reply_to=in_reply_to, reply_to=reply_to)
    return letter


def _put_in_chain_or_notify(
    tx: Tx, values: dict[str, Any], cause: Chain, *, is_limited: bool
) -> Letter:
    exceeded = chains.find_exceeded_limit(tx, cause) if is_limited else None
    if exceeded is not None:
        sender = values.get("sender") or tx.actor
        return notify_hop_limit(tx, cause, values["mailbox"], sender, exceeded)
    letter = _insert_once(tx, values)
    chains.record(tx, letter.id, cause)
    return letter


def notify_hop_limit(
    tx: Tx, chain: Chain, mailbox: str, sender: str, exceeded: HopLimitReached
) -> Letter:
    """Put a notice that a chain reached the hop limit, once per chain. It wakes no agent."""
    reason = f"A further letter from {sender} was not delivered. {exceeded.message}"
    body = UndeliveredNotice(undelivered=chain.correlation_id, reason=reason)
    data = {"to": mailbox, "correlation": chain.correlation_id}
    tx.emit("agent", "hop_limit", sender, data=data)
    key = f"hop_limit:{chain.correlation_id}"
    return _insert_once(tx, {**_build_columns(tx, body, key), "mailbox": mailbox})


# -- undelivered letters ---------------------------------------------------------------------------


def end_undelivered(
    tx: Tx, verb: str, number: int, reason: str, *, held_fence: int | None = None
) -> Letter:
    """End a letter that is not delivered, and notify its sender once, if it still exists."""
    ended = transition(
        tx,
        sql.LETTERS,
        verb,
        number,
        expected_fence=held_fence,
        event_data={"reason": reason},
        last_error=reason,
        ended_at=tx.now,
    )
    if ended.sender is not None:
        _notify_sender(tx, ended, ended.sender, reason)
    return ended


def _notify_sender(tx: Tx, ended: Letter, sender: str, reason: str) -> None:
    """Put a notice into the sender's mailbox.

    A session that was closed or deleted since accepts no notice. An event records that: the letter
    has to end nevertheless, and an error would also roll back the other letters of a batch.
    """
    # The notice has no sender, so bounces cannot loop.
    notice = UndeliveredNotice(
        undelivered=ended.id,
        mailbox=ended.mailbox,
        state=ended.state,
        reason=reason,
        key=ended.key,
    )
    key = f"undelivered:{ended.id}:{ended.fence}"
    try:
        put(tx, sender, notice, key=key, project=ended.project_id)
    except (NotFound, IllegalMove, Ambiguous) as error:
        tx.emit(
            "letter",
            "notice_undelivered",
            ended.id,
            project_id=ended.project_id,
            data={"to": sender, "reason": error.message},
        )


# -- rows ------------------------------------------------------------------------------------------


def _insert_once(tx: Tx, values: dict[str, Any]) -> Letter:
    """Insert a letter, or return the letter of the mailbox that has its key already."""
    mailbox, key = values["mailbox"], values.get("key")
    if key is None:
        return create(tx, sql.LETTERS, values)
    # Loop: the letter with this key may be pruned between the INSERT and the SELECT.
    while True:
        created = create_if_absent(tx, sql.LETTERS, values, on_conflict=_UNIQUE_KEY)
        letter = created or tx.first(sql.BY_KEY, mailbox=mailbox, key=key)
        if letter is not None:
            return letter
        tx.begin()  # in mode "one", a second INSERT would be refused


def _build_columns(
    tx: Tx,
    body: Any,
    key: str | None = None,
    due_at: int | None = None,
    priority: int = 0,
    sender: str | None = None,
    expires_at: int | None = None,
    project: str | None = None,
) -> dict[str, Any]:
    """Return the columns of a new letter, except its mailbox.

    Columns without a value are left out: binding each one costs time in the hottest INSERT.
    """
    now = tx.now
    due = now if due_at is None else _check_due(due_at, now)
    if isinstance(body, Payload):
        body = msgspec.to_builtins(body)  # the checks of `encode_json` walk plain values
    values = {
        "body": encode_json(body, "The body"),
        "rank": 0 if priority == 0 else -check_priority(priority),
        "due_at": due,
        "queue_at": due,
        "created_at": now,
    }
    if key:
        values["key"] = check_text(key, "The key", max_bytes=MAX_NAME)
    if sender:
        values["sender"] = check_mailbox(sender)
    if project:
        values["project_id"] = check_text(project, "The project", max_bytes=MAX_NAME)
    if expires_at is not None:
        values["expires_at"] = _check_expiry(expires_at, due, now)
    return values


def _check_due(due_at: int, now: int) -> int:
    if not 0 <= check_int(due_at, "The due time") <= now + YEAR:
        raise Invalid(
            "Invalid due time: at most one year from now is allowed. Use a schedule instead.",
            due_at=due_at,
        )
    return due_at


def _check_expiry(expires_at: int, due: int, now: int) -> int:
    if not max(due, now) < check_int(expires_at, "The expiry") <= due + 10 * YEAR:
        raise Invalid(
            "Invalid expiry: it must be after the due time and at most ten years later.",
            expires_at=expires_at,
            due_at=due,
        )
    return expires_at
