"""The verification of signed webhook requests: the signature, and the time in it."""

import hmac

from corral.adapters.channels.contract import RequestRejected
from corral.kernel.clock import MINUTE

MAX_AGE_MS = 5 * MINUTE
"""How old a signature may be; an older request may be a replay."""


def parse_signed_at(seconds: str) -> int:
    """Return the time of a signature in milliseconds. Raises RequestRejected."""
    if not (seconds.isascii() and seconds.isdigit()) or len(seconds) > 12:
        raise RequestRejected("the request is not signed")
    return int(seconds) * 1_000


def verify_signature(received: str, expected: str, *, signed_at: int, now: int) -> None:
    """Compare signatures in constant time, then check the age. Raises RequestRejected."""
    # As bytes, because compare_digest accepts only ASCII in str.
    if not hmac.compare_digest(expected.encode(), received.encode()):
        raise RequestRejected("the signature is invalid")
    if abs(now - signed_at) > MAX_AGE_MS:
        raise RequestRejected("the signature has expired, or a clock is wrong")
