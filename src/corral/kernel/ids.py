"""Ids: a prefix that names the type, followed by a part that sorts by creation time.

- Most objects: `prj_` and 26 characters of base32, which hold 48 bits of milliseconds and 80 random
  bits. Ids that one process creates within the same millisecond still ascend. People may type any
  unique prefix of an id.
- Objects in large numbers (letters, events): `let_184`, the sequence number of the row, so that
  the table needs no second key.
"""

import os
import threading
from typing import NamedTuple

from corral.kernel.errors import Invalid

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base32: without i, l, o, u
ID_LENGTH = 26

# Prefixes of ids that are sequence numbers, with the CLI noun whose `list` shows them.
_NUMBERED = {"chg": "charge", "lck": "lock", "let": "mail", "msg": "message"}

# Two characters encode ten bits, so an id takes thirteen lookups.
_PAIRS = [a + b for a in ALPHABET for b in ALPHABET]
_SHIFTS = range(120, -1, -10)


class _LastId:
    """The newest id of this process; the next one must be larger."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value = 0


_last = _LastId()


def _reset_after_fork() -> None:
    # A forked child would continue from its parent's last id, as its siblings do, and collide.
    global _last
    _last = _LastId()


os.register_at_fork(after_in_child=_reset_after_fork)


def new_id(prefix: str, now: int) -> str:
    """Return a new id that sorts after every id that this process created before."""
    candidate = (now << 80) | int.from_bytes(os.urandom(10))
    with _last.lock:
        is_later = candidate >> 80 > _last.value >> 80
        value = _last.value = candidate if is_later else _last.value + 1
    return _encode(prefix, value)


def make_backdated_id(prefix: str, at: int) -> str:
    """Return a new id that sorts among the ids created at a past time; for imported rows."""
    return _encode(prefix, (at << 80) | int.from_bytes(os.urandom(10)))


def _encode(prefix: str, value: int) -> str:
    return f"{prefix}_" + "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])


class IdRange(NamedTuple):
    """The ids that start with a typed prefix: `low` <= id < `high`."""

    low: str
    high: str


def id_range(prefix: str, typed: str) -> IdRange:
    """Return the range of ids that a complete or shortened id can mean.

    The type prefix (`prj_`) may be omitted. Raises Invalid if the text cannot be such an id.
    """
    text = typed.strip().lower()
    tail = text.removeprefix(prefix + "_")
    if not tail or len(tail) > ID_LENGTH or any(c not in ALPHABET for c in tail):
        raise Invalid(
            f"Invalid id {typed!r}: expected {prefix}_ and up to {ID_LENGTH} letters and digits.",
            value=typed,
            reason="bad_id",
        )
    low = f"{prefix}_{tail}"
    return IdRange(low, low + "~")  # "~" sorts after every character of the alphabet


def parse_number(prefix: str, typed: str | int) -> int:
    """Return the sequence number of `let_184` or plain `184`; raises Invalid."""
    digits = str(typed).strip().removeprefix(prefix + "_")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        hint = f" `corral {_NUMBERED[prefix]} list` lists them." if prefix in _NUMBERED else ""
        raise Invalid(
            f"Invalid id {str(typed)!r}: expected {prefix}_ and a number, such as {prefix}_184."
            f"{hint}",
            value=str(typed),
            reason="bad_id",
        )
    return int(digits)
