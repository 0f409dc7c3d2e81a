"""Claim letters from a mailbox, and renew the lease of a claim."""

from corral.db.tx import Tx
from corral.domain.mail import chains, claims_sql, sql
from corral.domain.mail.model import Letter, check_mailbox, is_ordered
from corral.kernel.errors import Held, Invalid
from corral.kernel.ids import parse_number
from corral.kernel.lease import lease_expiry, stale_fence_error
from corral.kernel.pagination import check_limit
from corral.kernel.validation import MAX_NAME, check_int, check_text

LEASE_MS = 30_000


def claim_letters(
    tx: Tx, mailbox: str, *, owner: str, limit: int = 1, lease_ms: int = LEASE_MS
) -> list[Letter]:
    """Claim up to `limit` letters: highest priority first, then oldest due.

    One claim returns letters of one priority. The owner holds a lease of `lease_ms` and must show
    the fence of a letter to acknowledge it. In an ordered mailbox nothing is given to another owner
    while a lease lasts. A claim writes no event.
    """
    check_mailbox(mailbox)
    check_text(owner, "The owner", max_bytes=MAX_NAME)
    check_limit(limit)
    is_read_by_run = tx.run_id is not None and chains.is_read_by_agent(mailbox)
    if is_read_by_run:
        tx.begin()
    if is_ordered(mailbox):
        statement = claims_sql.CLAIM_ONE_IN_ORDER if limit == 1 else claims_sql.CLAIM_IN_ORDER
        _lock_ordered_mailbox(tx, mailbox, limit)
    else:
        statement = claims_sql.CLAIM_ONE_UNORDERED if limit == 1 else claims_sql.CLAIM_UNORDERED
    letters = tx.all(
        statement,
        mailbox=mailbox,
        owner=owner,
        limit=limit,
        now=tx.now,
        until=lease_expiry(tx.now, lease_ms),
    )
    if len(letters) > 1:
        # RETURNING does not guarantee an order.
        letters.sort(key=lambda letter: (letter.queue_at, letter.number))
    if is_read_by_run:
        chains.mark_read_by_caller(tx, [letter.id for letter in letters])
    return letters


def _lock_ordered_mailbox(tx: Tx, mailbox: str, limit: int) -> None:
    tx.serialize(f"mailbox:{mailbox}")
    if limit > 1:
        # A late owner may acknowledge or fail one of these letters concurrently.
        tx.run(claims_sql.LOCK_EXPIRED_LEASES, mailbox=mailbox, now=tx.now)


def renew(
    tx: Tx, letter: Letter | str, *, fence: int | None = None, lease_ms: int = LEASE_MS
) -> Letter:
    """Renew the lease of a claimed letter; raises Held when the lease was lost."""
    number, held_fence = check_claim(letter, fence)
    renewed = tx.first(
        claims_sql.RENEW,
        seq=number,
        fence=held_fence,
        now=tx.now,
        until=lease_expiry(tx.now, lease_ms),
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


def check_claim(letter: Letter | str, fence: int | None) -> tuple[int, int]:
    """Return the number and fence of a letter that the caller has claimed."""
    if isinstance(letter, Letter):
        return letter.number, _check_fence(letter.fence)
    return parse_number("let", letter), _check_fence(fence)


def _check_fence(fence: int | None) -> int:
    if fence is None or check_int(fence, "The fence") < 1:
        raise Invalid("The fence is missing: pass the fence of the claimed letter.")
    return fence
