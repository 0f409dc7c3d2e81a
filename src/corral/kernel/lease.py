"""A lease: the right of one owner to work on one thing until a moment.

Every taking raises the fence. Whoever writes as the owner shows the fence it was given; when the
thing was taken over since, the number is higher and the late write is refused. A lease that has run
out but was taken by nobody still carries its fence, so work that was finished late is not redone.
"""

from corral.kernel.clock import DAY, SECOND
from corral.kernel.errors import Held, Invalid
from corral.kernel.text import check_int

SHORTEST = SECOND
LONGEST = DAY


def lease_end(now: int, lease_ms: int) -> int:
    """The end of a lease taken now; a term that protects nothing, or for ever, is refused."""
    if not SHORTEST <= check_int(lease_ms, "lease_ms") <= LONGEST:
        raise Invalid(
            f"A lease lasts from 1 s to 1 day, not {lease_ms} ms; renew it to hold it for longer.",
            lease_ms=lease_ms,
        )
    return now + lease_ms


def taken_over(thing: str, *, yours: int, found: int, owner: str | None) -> Held:
    """The refusal that a late owner gets."""
    if yours > found:
        return Held(
            f"{thing} was never claimed with fence {yours} (its fence is {found}); claim it first.",
            fence=found,
            yours=yours,
            owner=owner,
            reason="never_claimed",
        )
    by = f" by {owner}" if owner else ""
    return Held(
        f"{thing} was taken over{by} (its fence is {found}, yours is {yours}); "
        "drop what you did and claim again.",
        fence=found,
        yours=yours,
        owner=owner,
        reason="taken_over",
    )
