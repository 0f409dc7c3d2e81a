"""Claims of letters from a mailbox, including the wait for the next one."""

from typing import TYPE_CHECKING

from corral.db.types import MAX_LISTEN_SECONDS
from corral.domain.mail import ops, queries
from corral.domain.mail.model import Letter, is_ordered
from corral.services.wait import wait_until

if TYPE_CHECKING:
    from corral.db.database import Database

MIN_SLEEP = 0.001
MIN_DUE_SLEEP = 0.005
"""Shortest sleep before a letter is due: the clock of a store may stand still for a moment."""
MAX_WAIT_MS = 24 * 3_600_000


def claim(
    database: "Database",
    mailbox: str,
    *,
    owner: str,
    limit: int = 1,
    lease_ms: int = ops.LEASE_MS,
    wait_ms: int = 0,
) -> list[Letter]:
    """Claim up to `limit` letters; see `Mail.claim`."""
    if wait_ms > 0:
        return _claim_waiting(database, mailbox, owner, limit, lease_ms, min(wait_ms, MAX_WAIT_MS))
    # In an ordered mailbox, a claim whose reply was lost is not retried: the same owner would get
    # the second letter while it holds, without knowing it, the first.
    repeatable = not is_ordered(mailbox)
    while True:
        claimed = database.write(
            lambda tx: ops.claim_letters(tx, mailbox, owner=owner, limit=limit, lease_ms=lease_ms),
            mode="one",
            repeatable=repeatable,
        )
        deliverable = _end_undeliverable(database, claimed)
        if deliverable or not claimed:
            return deliverable


def ack_and_claim(
    database: "Database",
    letter: Letter | str,
    *,
    owner: str,
    fence: int | None = None,
    limit: int = 1,
    lease_ms: int = ops.LEASE_MS,
) -> list[Letter]:
    """Acknowledge a letter and claim the next ones of its mailbox, in one transaction."""
    claimed = database.write(
        lambda tx: ops.ack_and_claim(
            tx, letter, owner=owner, fence=fence, limit=limit, lease_ms=lease_ms
        )
    )
    deliverable = _end_undeliverable(database, claimed)
    if claimed and not deliverable:
        return claim(database, claimed[0].mailbox, owner=owner, limit=limit, lease_ms=lease_ms)
    return deliverable


def next_due(database: "Database", mailbox: str) -> int | None:
    """Return when the next letter of a mailbox is due; None when there is none."""
    return database.read(lambda tx: queries.next_due(tx, mailbox), mode="one")


def _end_undeliverable(database: "Database", claimed: list[Letter]) -> list[Letter]:
    """Move expired and poison letters to their final state; returns the others.

    Almost no batch contains one, and the rows themselves show it without a second transaction.
    """
    for letter in claimed:
        if letter.attempts > 1 or letter.expires_at is not None:
            return database.write(lambda tx: ops.end_undeliverable(tx, claimed))
    return claimed


def _claim_waiting(
    database: "Database", mailbox: str, owner: str, limit: int, lease_ms: int, wait_ms: int
) -> list[Letter]:
    pause = MIN_SLEEP

    def claim_now() -> list[Letter] | None:
        return claim(database, mailbox, owner=owner, limit=limit, lease_ms=lease_ms) or None

    def until_due(is_woken: bool) -> float:
        nonlocal pause
        due = next_due(database, mailbox)
        left = MAX_LISTEN_SECONDS if due is None else (due - database.clock.now()) / 1_000
        # A due letter that was not claimed became due this moment, or is queued behind a
        # claimed letter: retry soon, then with exponential back-off.
        before = MIN_SLEEP if is_woken else pause
        pause = min(before * 2, MAX_LISTEN_SECONDS) if left <= 0 else max(left, MIN_DUE_SLEEP)
        return pause

    return wait_until(database, claim_now, timeout_ms=wait_ms, next_pause=until_due) or []
