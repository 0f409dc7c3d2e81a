"""The verbs of the message queue: put, claim, acknowledge, fail, resend, drop.

Delivery is at least once: a letter whose owner dies can be claimed again when the lease expires.
Where a side effect must happen at most once, the owner calls `begin_delivery` before it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from corral.db.transitions import (
    create,
    create_if_absent,
    create_many,
    create_numbered,
    encode_rows,
    transition,
    transition_many,
)
from corral.db.tx import Tx
from corral.domain.mail import chains, sql
from corral.domain.mail.backoff import backoff_ms
from corral.domain.mail.model import (
    Chain,
    HopLimitReached,
    Letter,
    LetterDraft,
    LetterState,
    agent_name_of,
    check_mailbox,
    check_priority,
    is_ordered,
)
from corral.domain.mail.payloads import Payload, UndeliveredNotice
from corral.domain.settings import ops as settings
from corral.kernel.clock import YEAR
from corral.kernel.errors import CorralError, Held, IllegalMove, Invalid
from corral.kernel.ids import parse_number
from corral.kernel.lease import lease_expiry, stale_fence_error
from corral.kernel.pagination import check_limit
from corral.kernel.text import MAX_NAME, check_int, check_optional_text, check_text, encode_json

RETENTION = sql.RETENTION
LEASE_MS = 30_000
MAX_ERROR = 8_192
MAX_CLOCK_SKEW_MS = 10_000
MAX_SUCCESSORS = 100
"""How many times in a row a session may have been replaced."""
EXPIRED_REASON = "not claimed before it expired"
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
    if check_mailbox(mailbox).startswith("session:"):
        mailbox = resolve_mailbox(tx, mailbox)
    values = _column_values(tx, body, key, due_at, priority, sender, expires_at, project)
    values["mailbox"] = mailbox
    if (tx.run_id is not None or tx.actor.startswith("agent:")) and chains.is_read_by_agent(
        mailbox
    ):
        tx.begin()
        cause = chains.get_for_caller(tx)
        if cause is not None:
            return _put_in_chain_or_notify(
                tx, values, cause, is_limited=mailbox.startswith("session:")
            )
    return _put(tx, values)


def put_caused_by(tx: Tx, cause: Chain | None, mailbox: str, body: Any, **options: Any) -> Letter:
    """Put a letter that continues the chain `cause`, or the caller's chain if that is longer.

    The options are those of `put`. Beyond `mail.max_hops` the mailbox gets a notice instead, which
    wakes no agent. A letter to a closed session is refused, and its sender gets a notice.
    """
    values = {**_column_values(tx, body, **options), "mailbox": check_mailbox(mailbox)}
    if not chains.is_read_by_agent(mailbox):
        return _put(tx, values)
    try:
        values["mailbox"] = resolve_mailbox(tx, mailbox)
    except CorralError as error:
        letter = _put(tx, values)
        return letter if letter.ended_at else _end(tx, "refuse", _number(letter), error.message)
    cause = chains.longest(cause, chains.get_for_caller(tx))
    if cause is None:
        return _put(tx, values)
    return _put_in_chain_or_notify(tx, values, cause, is_limited=True)


def resolve_mailbox(tx: Tx, mailbox: str) -> str:
    """Return the mailbox that accepts letters for this address.

    A session that was closed and replaced resolves to its successor. Raises NotFound for an unknown
    session and IllegalMove for a closed one. Other mailboxes exist without a row.
    """
    kind, _, name = mailbox.partition(":")
    if kind != "session":
        return mailbox
    tx.begin()
    try:
        id = first = sql.SESSION_IDS.resolve(tx, name)
    except Invalid:
        raise sql.SESSION_IDS.not_found(name) from None
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
    values = {**_column_values(tx, body, **options), "mailbox": check_mailbox(mailbox)}
    letter = _put(tx, values)
    chains.record(tx, letter.id, cause, in_reply_to=in_reply_to, reply_to=reply_to)
    return letter


def _put_in_chain_or_notify(
    tx: Tx, values: dict[str, Any], cause: Chain, *, is_limited: bool
) -> Letter:
    exceeded = chains.exceeded_limit(tx, cause) if is_limited else None
    if exceeded is not None:
        sender = values.get("sender") or tx.actor
        return notify_hop_limit(tx, cause, values["mailbox"], sender, exceeded)
    letter = _put(tx, values)
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
    return _put(tx, {**_column_values(tx, body, key), "mailbox": mailbox})


def _put(tx: Tx, values: dict[str, Any]) -> Letter:
    mailbox, key = values["mailbox"], values.get("key")
    letter = create(tx, sql.LETTERS, values) if key is None else None
    while letter is None:
        # Loop: the letter with this key may be pruned between the INSERT and the SELECT.
        letter = create_if_absent(
            tx, sql.LETTERS, dict(values), on_conflict=_UNIQUE_KEY
        ) or tx.first(sql.BY_KEY, mailbox=mailbox, key=key)
    return letter


def put_many(tx: Tx, drafts: Sequence[LetterDraft]) -> list[str]:
    """Put several letters in order, in one batch; returns their ids. Idempotent by key."""
    rows = [
        {"mailbox": check_mailbox(draft.mailbox), "key": None, "sender": None}
        | _column_values(tx, draft.body, key=draft.key, sender=draft.sender)
        for draft in drafts
    ]
    numbers = create_numbered(tx, sql.LETTERS, rows, on_conflict=_UNIQUE_KEY)
    return [
        f"let_{number}"
        if number is not None
        else put(tx, draft.mailbox, draft.body, key=draft.key, sender=draft.sender).id
        for number, draft in zip(numbers, drafts, strict=True)
    ]


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
    values = _column_values(tx, body, key=key, **options)
    if rows := [{"mailbox": check_mailbox(mailbox)} for mailbox in mailboxes]:
        create_many(tx, sql.LETTERS, rows, {"mailbox": "text"}, on_conflict=_UNIQUE_KEY, **values)
    of_agents = [mailbox for mailbox in mailboxes if chains.is_read_by_agent(mailbox)]
    if of_agents and (cause := cause or chains.get_for_caller(tx)) is not None:
        chains.record_all(tx, of_agents, key, cause)


def _column_values(
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


def claim(
    tx: Tx, mailbox: str, *, owner: str, limit: int = 1, lease_ms: int = LEASE_MS
) -> list[Letter]:
    """Claim up to `limit` letters: highest priority first, then oldest due.

    One claim returns letters of one priority. The owner holds a lease of `lease_ms` and must show
    the fence of a letter to acknowledge it. In an ordered mailbox nothing is given to another owner
    while a lease lasts. A claim writes no event.
    """
    check_mailbox(mailbox)
    check_text(owner, "The owner", max_bytes=MAX_NAME)
    is_read_by_run = tx.run_id is not None and chains.is_read_by_agent(mailbox)
    if is_read_by_run:
        tx.begin()
    statement = sql.CLAIM_ONE if limit == 1 else sql.CLAIM
    if is_ordered(mailbox):
        tx.serialize(f"mailbox:{mailbox}")
        statement = sql.CLAIM_ONE_IN_ORDER if limit == 1 else sql.CLAIM_IN_ORDER
        if limit > 1:
            # A late owner may acknowledge or fail one of these letters concurrently.
            tx.run(sql.LOCK_EXPIRED_LEASES, mailbox=mailbox, now=tx.now)
    letters = tx.all(
        statement,
        mailbox=mailbox,
        owner=owner,
        limit=check_limit(limit),
        now=tx.now,
        until=lease_expiry(tx.now, lease_ms),
    )
    if len(letters) > 1:
        # RETURNING does not guarantee an order.
        letters.sort(key=lambda letter: (letter.queue_at, _number(letter)))
    if is_read_by_run:
        chains.mark_read_by_caller(tx, [letter.id for letter in letters])
    return letters


def end_undeliverable(tx: Tx, claimed: Sequence[Letter]) -> list[Letter]:
    """End the letters among those just claimed that must not be delivered; returns the others.

    A letter past `expires_at` expires. A poison message, claimed more than `mail.max_attempts`
    times without an acknowledgement, becomes a dead letter: it probably kills its consumers.
    """
    deliverable = []
    for letter in claimed:
        number = _number(letter)
        if letter.expires_at is not None and letter.expires_at <= tx.now:
            _end(tx, "expire", number, EXPIRED_REASON, held_fence=letter.fence)
        elif letter.attempts > 1 and letter.attempts > max_attempts(tx, letter):
            _end(
                tx,
                "dead_letter",
                number,
                letter.last_error or "every lease expired without an acknowledgement",
                held_fence=letter.fence,
            )
        else:
            deliverable.append(letter)
    return deliverable


def renew(
    tx: Tx, letter: Letter | str, *, fence: int | None = None, lease_ms: int = LEASE_MS
) -> Letter:
    """Renew the lease of a claimed letter; raises Held when the lease was lost."""
    number, held_fence = _check_claim(letter, fence)
    renewed = tx.first(
        sql.RENEW, seq=number, fence=held_fence, now=tx.now, until=lease_expiry(tx.now, lease_ms)
    )
    if renewed is None:
        current = sql.LETTERS.get(tx, number)
        if current.fence != held_fence:
            raise stale_fence_error(
                current.id, yours=held_fence, current=current.fence, owner=current.owner
            )
        raise Held(
            f"Your lease on {current.id} has ended; the letter is {current.state}. Claim again.",
            state=current.state,
        )
    return renewed


def ack(tx: Tx, letter: Letter | str, *, fence: int | None = None) -> Letter:
    """Acknowledge a letter. Idempotent under one fence; raises Held when the lease was lost."""
    number, held_fence = _check_claim(letter, fence)
    try:
        return transition(
            tx,
            sql.LETTERS,
            "ack",
            number,
            expected_fence=held_fence,
            current=letter if isinstance(letter, Letter) else None,
            ended_at=tx.now,
            # The columns that a renewal changes are set too, so that the row need not be read back.
            due_at=tx.now,
            queue_at=tx.now,
        )
    except IllegalMove:
        stored = sql.LETTERS.get(tx, number)
        if stored.state is LetterState.DONE and stored.fence == held_fence:
            return stored
        raise


def ack_and_claim(
    tx: Tx,
    letter: Letter | str,
    *,
    owner: str,
    fence: int | None = None,
    limit: int = 1,
    lease_ms: int = LEASE_MS,
) -> list[Letter]:
    """Acknowledge a letter and claim the next ones of its mailbox, in one transaction."""
    acknowledged = ack(tx, letter, fence=fence)
    return claim(tx, acknowledged.mailbox, owner=owner, limit=limit, lease_ms=lease_ms)


def fail(
    tx: Tx,
    letter: Letter | str,
    error: str,
    *,
    fence: int | None = None,
    pause_ms: int | None = None,
) -> Letter:
    """Record a failed attempt. The letter is retried after a back-off, or becomes a dead letter.

    The back-off is `mail.backoff_ms`, and at least `pause_ms`: what the receiver asked for, such
    as Retry-After.
    """
    number, held_fence = _check_claim(letter, fence)
    current = sql.LETTERS.get(tx, number)
    reason = check_text(
        error[:MAX_ERROR] or "no reason given", "The error", max_bytes=4 * MAX_ERROR
    )
    if current.fence == held_fence and current.attempts >= max_attempts(tx, current):
        return _end(tx, "dead_letter", number, reason, held_fence=held_fence)
    delays = _setting(tx, "mail.backoff_ms", current)
    requested = min(max(check_int(pause_ms, "The pause"), 0), YEAR) if pause_ms else 0
    due = tx.now + max(backoff_ms(delays, max(current.attempts, 1)), requested)
    queue_at = current.queue_at if is_ordered(current.mailbox) else due
    return transition(
        tx,
        sql.LETTERS,
        "fail",
        number,
        expected_fence=held_fence,
        event_data={"error": reason},
        due_at=due,
        queue_at=queue_at,
        owner=None,
        fence=held_fence + 1,  # rejects further writes of this owner
        last_error=reason,
    )


def begin_delivery(tx: Tx, letter: Letter | str, *, fence: int | None = None) -> Letter:
    """Mark the delivery unconfirmed, before a side effect that must happen at most once.

    `ack` or `fail` then report the outcome. After a crash the letter stays `unconfirmed` and is not
    claimed again until `resolve` says whether it arrived.
    """
    number, held_fence = _check_claim(letter, fence)
    return transition(tx, sql.LETTERS, "begin_delivery", number, expected_fence=held_fence)


def resolve(tx: Tx, id: str, *, delivered: bool, reason: str | None = None) -> Letter:
    """Resolve an unconfirmed delivery: the letter arrived, or it is retried."""
    number = parse_number("let", id)
    text = check_optional_text(reason, "The reason", max_bytes=MAX_ERROR)
    event_data = {"reason": text} if text else None
    if delivered:
        return transition(
            tx, sql.LETTERS, "confirm", number, event_data=event_data, ended_at=tx.now
        )
    current = sql.LETTERS.get(tx, number)
    queue_at = current.queue_at if is_ordered(current.mailbox) else tx.now
    return _make_claimable(tx, "retry", number, event_data=event_data, queue_at=queue_at)


def refuse(tx: Tx, letter: Letter | str, reason: str, *, fence: int | None = None) -> Letter:
    """Reject a claimed letter for good; its sender gets a notice with the reason."""
    number, held_fence = _check_claim(letter, fence)
    return _end(
        tx,
        "refuse",
        number,
        check_text(reason, "The reason", max_bytes=MAX_ERROR),
        held_fence=held_fence,
    )


def mark_dead(tx: Tx, letter: Letter, reason: str) -> Letter:
    """Move a letter to the dead letters; its sender gets a notice."""
    return _end(
        tx,
        "dead_letter",
        parse_number("let", letter.id),
        reason[:MAX_ERROR],
        held_fence=letter.fence,
    )


def resend(tx: Tx, id: str) -> Letter:
    """Retry a dead, refused or expired letter as if it were new."""
    return _make_claimable(
        tx,
        "resend",
        parse_number("let", id),
        attempts=0,
        queue_at=tx.now,
        expires_at=None,
        last_error=None,
        ended_at=None,
    )


def drop(tx: Tx, id: str, *, reason: str | None = None) -> Letter:
    """Refuse a letter by a person's decision, without a notice to its sender."""
    text = check_optional_text(reason, "The reason", max_bytes=MAX_ERROR)
    text = text or f"dropped by {tx.actor}"
    return transition(
        tx,
        sql.LETTERS,
        "drop",
        parse_number("let", id),
        event_data={"reason": text},
        last_error=text,
        ended_at=tx.now,
    )


def drop_waiting(tx: Tx, mailbox: str, *, reason: str) -> None:
    """Drop all waiting letters of a mailbox, in batches, without notices to their senders."""
    text = check_text(reason, "The reason", max_bytes=MAX_ERROR)
    params = {"mailbox": check_mailbox(mailbox), "limit": 1_000}
    while numbers := [number for (number,) in tx.run(sql.WAITING_NUMBERS, **params)]:
        transition_many(tx, sql.LETTERS, "drop", numbers, last_error=text, ended_at=tx.now)


def refuse_waiting(tx: Tx, mailbox: str, *, reason: str) -> None:
    """Refuse all waiting letters of a mailbox, also those for later, and notify their senders."""
    text = check_text(reason, "The reason", max_bytes=MAX_ERROR)
    params = {"mailbox": check_mailbox(mailbox), "limit": 1_000}
    while numbers := [number for (number,) in tx.run(sql.WAITING_NUMBERS, **params)]:
        for number in numbers:
            _end(tx, "refuse", number, text)


def expire_due(tx: Tx, *, limit: int = 100) -> list[Letter]:
    """Expire the unclaimed letters whose `expires_at` has passed, and notify their senders."""
    return [
        _end(tx, "expire", number, EXPIRED_REASON)
        for (number,) in tx.run(sql.EXPIRED, now=tx.now, limit=check_limit(limit))
    ]


def ack_unclaimed(tx: Tx, mailbox: str, keys: Sequence[str]) -> int:
    """Acknowledge the unclaimed letters with these keys; returns how many.

    For letters whose content became known in another way or is obsolete.
    """
    rows = tx.run(sql.UNCLAIMED_BY_KEY, mailbox=mailbox, keys_=encode_rows(keys), now=tx.now)
    transition_many(tx, sql.LETTERS, "ack", [seq for (seq,) in rows], ended_at=tx.now)
    chains.mark_read_by_caller(tx, [f"let_{seq}" for (seq,) in rows])
    return len(rows)


def get(tx: Tx, id: str) -> Letter:
    """Return a letter by its id."""
    return sql.LETTERS.get(tx, parse_number("let", id))


def find_by_number(tx: Tx, number: int) -> Letter | None:
    """Return a letter by its number; None when it was pruned."""
    return tx.first(sql.LETTERS.by_key, key_=number)


def find_for_update(tx: Tx, number: int) -> Letter | None:
    """Return a letter by its number and lock its row until the transaction ends."""
    tx.begin()
    return tx.first(sql.LETTERS.by_key_for_update, key_=number)


def put_last(
    tx: Tx, mailbox: str, body: Any, *, key: str | None = None, sender: str | None = None
) -> Letter:
    """Put a letter behind all waiting letters of a mailbox.

    That includes letters of transactions that began later and committed first. Callers must be
    serialized by `Tx.serialize`.
    """
    last = tx.value(sql.LAST_POSITION, mailbox=check_mailbox(mailbox)) or 0
    # Bounded: a clock that was set back must not delay the letter for long.
    due = min(max(tx.now, last), tx.now + MAX_CLOCK_SKEW_MS)
    return put(tx, mailbox, body, key=key, sender=sender, due_at=due)


def _end(tx: Tx, verb: str, number: int, reason: str, *, held_fence: int | None = None) -> Letter:
    """End a letter that is not delivered, and notify its sender once."""
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
        # The notice has no sender, so bounces cannot loop.
        put(
            tx,
            ended.sender,
            UndeliveredNotice(
                undelivered=ended.id,
                mailbox=ended.mailbox,
                state=ended.state,
                reason=reason,
                key=ended.key,
            ),
            key=f"undelivered:{ended.id}:{ended.fence}",
            project=ended.project_id,
        )
    return ended


def _number(letter: Letter) -> int:
    return parse_number("let", letter.id)


def _make_claimable(tx: Tx, verb: str, number: int, **columns: Any) -> Letter:
    """Make a letter due now, with a new fence that rejects writes of its previous owner."""
    fence = sql.LETTERS.get(tx, number).fence
    return transition(
        tx,
        sql.LETTERS,
        verb,
        number,
        expected_fence=fence,
        fence=fence + 1,
        owner=None,
        due_at=tx.now,
        **columns,
    )


def max_attempts(tx: Tx, letter: Letter) -> int:
    """Return the number of attempts after which this letter becomes a dead letter."""
    return int(_setting(tx, "mail.max_attempts", letter))


def _setting(tx: Tx, name: str, letter: Letter) -> Any:
    """Return the setting that applies to the letter's agent and project."""
    return settings.get_value(
        tx, name, agent=agent_name_of(letter.mailbox), project=letter.project_id
    )


def _check_claim(letter: Letter | str, fence: int | None) -> tuple[int, int]:
    """Return the number and fence of a letter that the caller has claimed."""
    if isinstance(letter, Letter):
        fence, letter = letter.fence, letter.id
    if fence is None or check_int(fence, "The fence") < 1:
        raise Invalid("The fence is missing: pass the fence of the claimed letter.")
    return parse_number("let", letter), fence
