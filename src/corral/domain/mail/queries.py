"""Read letters, and list letters and mailboxes."""

from collections.abc import Sequence

from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.mail import claims_sql, sql
from corral.domain.mail.model import (
    Letter,
    LetterState,
    OverlongLeases,
    StalledMailbox,
    check_mailbox,
)
from corral.kernel.errors import Invalid
from corral.kernel.ids import parse_number
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import encode_json

MAILBOX_PAGE_SIZE = 1_000
# The states with an index of their own: letters that may need attention.
LISTED_STATES = (
    LetterState.UNCONFIRMED,
    LetterState.DEAD,
    LetterState.REFUSED,
    LetterState.EXPIRED,
)


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


def list_waiting(
    tx: Tx, *, mailbox: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Letter]:
    """List the waiting letters by mailbox, each in queue order."""
    if mailbox is None:
        return sql.WAITING.page(tx, after=after, limit=limit)
    return sql.WAITING_IN_MAILBOX.page(tx, after=after, limit=limit, mailbox=check_mailbox(mailbox))


def list_all(
    tx: Tx, *, mailbox: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Letter]:
    """List all letters, including ended ones, newest first."""
    if mailbox is None:
        return sql.ALL.page(tx, after=after, limit=limit)
    return sql.ALL_OF_MAILBOX.page(tx, after=after, limit=limit, mailbox=check_mailbox(mailbox))


def list_by_state(tx: Tx, *, state: str, after: str | None = None, limit: int = 50) -> Page[Letter]:
    """List the letters in a state (unconfirmed, dead, refused or expired), newest first."""
    if state not in LISTED_STATES:
        raise Invalid(
            f"Invalid state {state!r}: expected one of {', '.join(LISTED_STATES)}.", state=state
        )
    return sql.BY_STATE.page(tx, after=after, limit=limit, state=state)


def get_many(tx: Tx, ids: Sequence[str]) -> list[Letter]:
    """Return letters by their ids, oldest first; pruned ones are left out."""
    numbers = [parse_number("let", id) for id in ids]
    check_limit(len(numbers) or 1)
    return tx.all(sql.BY_NUMBERS, keys_=encode_json(numbers, "The ids")) if numbers else []


def find_ids_by_key(tx: Tx, keyed: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the ids of letters by mailbox and key; pruned ones are left out."""
    rows = tx.run(sql.IDS_BY_KEY, rows=encode_rows(keyed))
    return {(mailbox, key): id for mailbox, key, id in rows}


def list_mailboxes(tx: Tx, kind: str) -> list[str]:
    """List all mailboxes of a kind that hold waiting letters, by name."""
    mailboxes: list[str] = []
    while True:
        low = mailboxes[-1] if mailboxes else f"{kind}:"
        # ";" follows ":" in ASCII, so this range is every mailbox of the kind.
        rows = tx.run(sql.MAILBOXES, low=low, high=f"{kind};", limit=MAILBOX_PAGE_SIZE)
        mailboxes += [mailbox for (mailbox,) in rows]
        if len(rows) < MAILBOX_PAGE_SIZE:
            return mailboxes


def list_unconfirmed_mailboxes(tx: Tx, kind: str) -> list[str]:
    """List all mailboxes of a kind that hold unconfirmed letters."""
    rows = tx.run(sql.UNCONFIRMED_MAILBOXES, low=f"{kind}:", high=f"{kind};")
    return list(dict.fromkeys(mailbox for (mailbox,) in rows))


def list_dead(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Letter]:
    """List the dead letters, newest first."""
    return list_by_state(tx, state="dead", after=after, limit=limit)


def list_claimable(tx: Tx, mailbox: str, *, owner: str, limit: int) -> list[Letter]:
    """List the letters that `claim_letters` would return to this owner now, without claiming.

    For ordered mailboxes. The result is exact only within the transaction that also claims.
    """
    letters = tx.all(
        claims_sql.CLAIMABLE_IN_ORDER,
        mailbox=check_mailbox(mailbox),
        owner=owner,
        limit=check_limit(limit),
        now=tx.now,
    )
    return sorted(letters, key=sql.queue_position)


def list_stalled(tx: Tx, *, before: int) -> list[StalledMailbox]:
    """List up to 1,000 mailboxes whose first letter is due since `before` and unclaimed.

    Longest first. A mailbox in which an owner holds a lease is not stalled. The cost grows with the
    number of mailboxes that hold waiting letters, not with the number of letters.
    """
    oldest: dict[str, int] = {}
    for row in tx.all(sql.STALLED, before=before, now=tx.now, limit=MAILBOX_PAGE_SIZE):
        oldest[row.mailbox] = min(row.due_at, oldest.get(row.mailbox, row.due_at))
    stalled = [StalledMailbox(mailbox, due_at) for mailbox, due_at in oldest.items()]
    return sorted(stalled, key=lambda entry: (entry.due_at, entry.mailbox))


def count_overlong_leases(tx: Tx, *, after: int) -> OverlongLeases:
    """Count the claimed letters whose lease ends after a time. Reads all waiting letters."""
    return tx.one(sql.OVERLONG_LEASES, after=after)


def next_due_after_now(tx: Tx, mailbox: str) -> int | None:
    """Return when the next waiting letter becomes due; None when all are due, or none waits."""
    due: int | None = tx.value(sql.NEXT_DUE_AFTER, mailbox=check_mailbox(mailbox), now=tx.now)
    return due


def next_due(tx: Tx, mailbox: str) -> int | None:
    """Return the earliest time at which a letter can be claimed; None for an empty mailbox."""
    due: int | None = tx.value(sql.NEXT_DUE, mailbox=check_mailbox(mailbox))
    return due
