"""Report the outcome of letters: acknowledge, fail, refuse, expire, drop, resend."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_transitions import transition_many
from corral.db.statement import encode_rows
from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.mail import chains, sql
from corral.domain.mail.backoff import compute_backoff_ms
from corral.domain.mail.claims import LEASE_MS, check_claim, claim_letters
from corral.domain.mail.model import (
    Letter,
    LetterState,
    agent_name_of,
    check_mailbox,
    is_ordered,
)
from corral.domain.mail.put import end_undelivered
from corral.domain.settings import ops as settings
from corral.kernel.clock import YEAR
from corral.kernel.errors import IllegalMove
from corral.kernel.ids import parse_number
from corral.kernel.pagination import check_limit
from corral.kernel.validation import check_int, check_optional_text, check_text

MAX_ERROR = 8_192
EXPIRED_REASON = "not claimed before it expired"


def ack(tx: Tx, letter: Letter | str, *, fence: int | None = None) -> Letter:
    """Acknowledge a letter. Idempotent under one fence; raises Held when the lease was lost."""
    number, held_fence = check_claim(letter, fence)
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
    return claim_letters(tx, acknowledged.mailbox, owner=owner, limit=limit, lease_ms=lease_ms)


def fail(
    tx: Tx,
    letter: Letter | str,
    error: str,
    *,
    fence: int | None = None,
    pause_ms: int | None = None,
) -> Letter:
    """Record a failed attempt. The letter is retried after a back-off, or becomes a dead letter.

    The back-off is `mail.backoff_ms`, and at least `pause_ms`: the delay that the receiver
    requested, for example with Retry-After.
    """
    number, held_fence = check_claim(letter, fence)
    current = sql.LETTERS.get(tx, number)
    short = tx.shorten_for_storage(error, MAX_ERROR)
    reason = check_text(short or "no reason given", "The error", max_bytes=4 * MAX_ERROR)
    if current.fence == held_fence and current.attempts >= get_max_attempts(tx, current):
        return end_undelivered(tx, "dead_letter", number, reason, held_fence=held_fence)
    delays = _get_setting(tx, "mail.backoff_ms", current)
    requested = min(max(check_int(pause_ms, "The pause"), 0), YEAR) if pause_ms else 0
    due = tx.now + max(compute_backoff_ms(delays, max(current.attempts, 1)), requested)
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
    number, held_fence = check_claim(letter, fence)
    return transition(tx, sql.LETTERS, "begin_delivery", number, expected_fence=held_fence)


def refuse(tx: Tx, letter: Letter | str, reason: str, *, fence: int | None = None) -> Letter:
    """Reject a claimed letter for good; its sender gets a notice with the reason."""
    number, held_fence = check_claim(letter, fence)
    return end_undelivered(
        tx,
        "refuse",
        number,
        check_text(reason, "The reason", max_bytes=MAX_ERROR),
        held_fence=held_fence,
    )


def mark_dead(tx: Tx, letter: Letter, reason: str) -> Letter:
    """Move a letter to the dead letters; its sender gets a notice."""
    return end_undelivered(
        tx,
        "dead_letter",
        letter.number,
        tx.shorten_for_storage(reason, MAX_ERROR),
        held_fence=letter.fence,
    )


# -- without the owner -----------------------------------------------------------------------------


def resolve(tx: Tx, id: str, *, delivered: bool, reason: str | None = None) -> Letter:
    """Resolve an unconfirmed delivery: the letter arrived, or it is retried."""
    number = parse_number("let", id)
    reason = check_optional_text(reason, "The reason", max_bytes=MAX_ERROR)
    event_data = {"reason": reason} if reason else None
    if delivered:
        return transition(
            tx, sql.LETTERS, "confirm", number, event_data=event_data, ended_at=tx.now
        )
    current = sql.LETTERS.get(tx, number)
    queue_at = current.queue_at if is_ordered(current.mailbox) else tx.now
    return _make_claimable(tx, "retry", number, event_data=event_data, queue_at=queue_at)


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
    reason = check_optional_text(reason, "The reason", max_bytes=MAX_ERROR)
    reason = reason or f"dropped by {tx.actor}"
    return transition(
        tx,
        sql.LETTERS,
        "drop",
        parse_number("let", id),
        event_data={"reason": reason},
        last_error=reason,
        ended_at=tx.now,
    )


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


# -- several letters -------------------------------------------------------------------------------


def end_undeliverable(tx: Tx, claimed: Sequence[Letter]) -> list[Letter]:
    """End the letters among those just claimed that must not be delivered; returns the others.

    A letter past `expires_at` expires. A poison message, claimed more than `mail.max_attempts`
    times without an acknowledgement, becomes a dead letter: it probably kills its consumers.
    """
    deliverable = []
    for letter in claimed:
        number = letter.number
        if letter.expires_at is not None and letter.expires_at <= tx.now:
            end_undelivered(tx, "expire", number, EXPIRED_REASON, held_fence=letter.fence)
        elif letter.attempts > 1 and letter.attempts > get_max_attempts(tx, letter):
            end_undelivered(
                tx,
                "dead_letter",
                number,
                letter.last_error or "every lease expired without an acknowledgement",
                held_fence=letter.fence,
            )
        else:
            deliverable.append(letter)
    return deliverable


def expire_due(tx: Tx, *, limit: int = 100) -> list[Letter]:
    """Expire the unclaimed letters whose `expires_at` has passed, and notify their senders."""
    return [
        end_undelivered(tx, "expire", number, EXPIRED_REASON)
        for (number,) in tx.run(sql.EXPIRED, now=tx.now, limit=check_limit(limit))
    ]


def drop_waiting(tx: Tx, mailbox: str, *, reason: str) -> None:
    """Drop all waiting letters of a mailbox, in batches, without notices to their senders."""
    reason = check_text(reason, "The reason", max_bytes=MAX_ERROR)
    params = {"mailbox": check_mailbox(mailbox), "limit": 1_000}
    while numbers := [number for (number,) in tx.run(sql.WAITING_NUMBERS, **params)]:
        transition_many(tx, sql.LETTERS, "drop", numbers, last_error=reason, ended_at=tx.now)


def refuse_waiting(tx: Tx, mailbox: str, *, reason: str) -> None:
    """Refuse all waiting letters of a mailbox, including those due later; notifies senders."""
    reason = check_text(reason, "The reason", max_bytes=MAX_ERROR)
    params = {"mailbox": check_mailbox(mailbox), "limit": 1_000}
    while numbers := [number for (number,) in tx.run(sql.WAITING_NUMBERS, **params)]:
        for number in numbers:
            end_undelivered(tx, "refuse", number, reason)


def ack_unclaimed(tx: Tx, mailbox: str, keys: Sequence[str]) -> int:
    """Acknowledge the unclaimed letters with these keys; returns how many.

    For letters whose content became known in another way or is obsolete.
    """
    rows = tx.run(sql.UNCLAIMED_BY_KEY, mailbox=mailbox, keys_=encode_rows(keys), now=tx.now)
    numbers = [number for (number,) in rows]
    transition_many(tx, sql.LETTERS, "ack", numbers, ended_at=tx.now)
    chains.mark_read_by_caller(tx, [f"let_{number}" for number in numbers])
    return len(numbers)


# -- settings --------------------------------------------------------------------------------------


def get_max_attempts(tx: Tx, letter: Letter) -> int:
    """Return the number of attempts after which this letter becomes a dead letter."""
    return int(_get_setting(tx, "mail.max_attempts", letter))


def _get_setting(tx: Tx, name: str, letter: Letter) -> Any:
    """Return the setting that applies to the letter's agent and project."""
    return settings.get_value(
        tx, name, agent=agent_name_of(letter.mailbox), project=letter.project_id
    )
