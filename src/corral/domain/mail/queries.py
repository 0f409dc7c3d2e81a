"""Lists of letters, for people and programs that look at mail without taking part in it."""

from collections.abc import Sequence

from corral.db.bulk_transitions import encode_rows
from corral.db.tx import Tx
from corral.domain.mail import sql
from corral.domain.mail.model import Letter, LetterState, Stalled, check_mailbox
from corral.kernel.errors import Invalid
from corral.kernel.ids import number_of
from corral.kernel.pagination import LAST_NUMBER, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import encode_json

LINES_AT_ONCE = 1_000
LISTED_STATES = (
    LetterState.UNKNOWN,
    LetterState.DEAD,
    LetterState.REFUSED,
    LetterState.EXPIRED,
)


def list_waiting(
    tx: Tx, *, mailbox: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Letter]:
    """Letters that are still on their way: by mailbox, each in the order of its line."""
    box, rank, line_at, seq = decode_cursor(after, mailbox or "", -LAST_NUMBER, 0, 0)
    if mailbox not in (None, box):
        raise Invalid("The cursor belongs to the list of another mailbox.", mailbox=mailbox)
    if mailbox is not None:
        check_mailbox(mailbox)
    rows = tx.all(
        sql.WAITING if mailbox is None else sql.WAITING_IN_MAILBOX,
        mailbox=box,
        rank=rank,
        line_at=line_at,
        seq=seq,
        limit=check_limit(limit) + 1,
    )
    return page_of(rows, limit, _place_in_line)


def _place_in_line(letter: Letter) -> tuple[str, int, int, int]:
    return letter.mailbox, -letter.priority, letter.line_at, number_of("let", letter.id)


def list_all(
    tx: Tx, *, mailbox: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Letter]:
    """All letters, also those that have ended: newest first."""
    (before,) = decode_cursor(after, LAST_NUMBER)
    query = {"before": before, "limit": check_limit(limit) + 1}
    if mailbox is None:
        rows = tx.all(sql.ALL, **query)
    else:
        rows = tx.all(sql.ALL_OF_MAILBOX, mailbox=check_mailbox(mailbox), **query)
    return page_of(rows, limit, lambda letter: (number_of("let", letter.id),))


def list_by_state(tx: Tx, *, state: str, after: str | None = None, limit: int = 50) -> Page[Letter]:
    """Letters that somebody may have to look at (unknown, dead, refused, expired), newest first."""
    if state not in LISTED_STATES:
        raise Invalid(f"{state!r} is none of {', '.join(LISTED_STATES)}.", state=state)
    (before,) = decode_cursor(after, LAST_NUMBER)
    rows = tx.all(sql.BY_STATE, state=state, before=before, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda letter: (number_of("let", letter.id),))


def get_all(tx: Tx, ids: Sequence[str]) -> list[Letter]:
    """Letters by their ids, oldest first; those that are kept no more are left out."""
    numbers = [number_of("let", id) for id in ids]
    check_limit(len(numbers) or 1)
    return tx.all(sql.WITH_NUMBERS, keys_=encode_json(numbers, "The ids")) if numbers else []


def find_all(tx: Tx, keyed: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The ids of letters that were put with a key, by mailbox and key, of those still kept."""
    found = tx.run(sql.KEYED, rows=encode_rows(keyed))
    return {(mailbox, key): id for mailbox, key, id in found}


def lines(tx: Tx, kind: str) -> list[str]:
    """All mailboxes of a kind in which letters wait, by name."""
    found: list[str] = []
    while True:
        low = found[-1] if found else f"{kind}:"
        piece = tx.run(sql.LINES, low=low, high=f"{kind};", limit=LINES_AT_ONCE)
        found += [mailbox for (mailbox,) in piece]
        if len(piece) < LINES_AT_ONCE:
            return found


def dead(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Letter]:
    """Letters that failed too often, newest first."""
    return list_by_state(tx, state="dead", after=after, limit=limit)


def list_claimable(tx: Tx, mailbox: str, *, owner: str, limit: int) -> list[Letter]:
    """List the letters that `ops.claim` would return to this owner now, without claiming them.

    For mailboxes that keep order. The result is exact within one transaction that also claims.
    """
    found = tx.all(
        sql.CLAIMABLE_IN_ORDER,
        mailbox=check_mailbox(mailbox),
        owner=owner,
        limit=check_limit(limit),
        now=tx.now,
    )
    return sorted(found, key=_place_in_line)


def list_stalled(tx: Tx, *, before: int) -> list[Stalled]:
    """List up to 1,000 mailboxes whose first letter has been due since `before` and is not claimed,
    longest first.

    A mailbox in which an owner has a letter out is not stalled. The cost grows with the number of
    mailboxes that hold waiting letters, and does not depend on how many letters each one holds.
    """
    oldest: dict[str, int] = {}
    for found in tx.all(sql.STALLED, before=before, now=tx.now, limit=LINES_AT_ONCE):
        oldest[found.mailbox] = min(found.due_at, oldest.get(found.mailbox, found.due_at))
    stalled = [Stalled(mailbox, due_at) for mailbox, due_at in oldest.items()]
    return sorted(stalled, key=lambda each: (each.due_at, each.mailbox))


def next_due(tx: Tx, mailbox: str) -> int | None:
    """When the mailbox's next letter can be claimed at the earliest; None when it is empty."""
    due: int | None = tx.value(sql.NEXT_DUE, mailbox=check_mailbox(mailbox))
    return due
