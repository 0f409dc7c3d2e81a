"""Leases with fencing tokens.

A lease gives one owner the right to work on an object until it expires. Each claim increments the
fence, and the owner sends its fence with every write. If another owner has claimed the object
since, the fences differ and the late write is rejected. An expired lease without a new claim keeps
its fence, so the late result of the old owner is still accepted and the work is not repeated.
"""

from corral.kernel.clock import DAY, SECOND
from corral.kernel.errors import Held, Invalid
from corral.kernel.validation import check_int

MIN_LEASE_MS = SECOND
MAX_LEASE_MS = DAY


def lease_expiry(now: int, lease_ms: int) -> int:
    """Return when a lease that starts now expires; raises Invalid if its length is not allowed."""
    if not MIN_LEASE_MS <= check_int(lease_ms, "lease_ms") <= MAX_LEASE_MS:
        raise Invalid(
            f"Invalid lease of {lease_ms} ms: it must be from 1 s to 1 day. Renew the lease to "
            "hold it for longer.",
            lease_ms=lease_ms,
        )
    return now + lease_ms


def stale_fence_error(subject: str, *, yours: int, current: int, owner: str | None) -> Held:
    """Build the error for a write whose fence is not the current one."""
    if yours > current:
        return Held(
            f"{subject} was never claimed with fence {yours} (its fence is {current}). Claim it "
            "first.",
            fence=current,
            yours=yours,
            owner=owner,
            reason="never_claimed",
        )
    by = f" by {owner}" if owner else ""
    return Held(
        f"{subject} was taken over{by} (its fence is {current}, yours is {yours}). Discard your "
        "work and claim it again.",
        fence=current,
        yours=yours,
        owner=owner,
        reason="taken_over",
    )
