"""Ids: a prefix that names the kind, then text or a number that orders by time.

- Most things: `prj_` + 26 characters of base32, 48 bits of milliseconds and 80 of randomness. Ids
  made by one process in one millisecond still ascend. People may type any unique prefix.
- Rows that come in great numbers (letters, events): `let_184`, the row's own sequence number, so
  that they need no second key.
"""

import os
import threading
from typing import NamedTuple

from corral.kernel.errors import Invalid

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u to misread
LENGTH = 26

# What is numbered in the order in which it came, and the noun that lists it.
_NUMBERED = {"chg": "charge", "lck": "lock", "let": "mail", "msg": "message"}

# Two characters are ten bits, so thirteen look-ups spell an id.
_PAIRS = [a + b for a in ALPHABET for b in ALPHABET]
_SHIFTS = range(120, -1, -10)


class _Last:
    """The newest id of this process, so that the next one is larger."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value = 0


_last = _Last()


def _forget_after_fork() -> None:
    # A child would otherwise count on from its parent's last id, as its siblings do.
    global _last
    _last = _Last()


os.register_at_fork(after_in_child=_forget_after_fork)


def new_id(prefix: str, now: int) -> str:
    """A new id that sorts after every id this process made before."""
    fresh = (now << 80) | int.from_bytes(os.urandom(10))
    with _last.lock:
        value = _last.value = fresh if fresh >> 80 > _last.value >> 80 else _last.value + 1
    return _spelled(prefix, value)


def past_id(prefix: str, at: int) -> str:
    """An id for what was made at a moment of the past: it sorts among those of that time."""
    return _spelled(prefix, (at << 80) | int.from_bytes(os.urandom(10)))


def _spelled(prefix: str, value: int) -> str:
    return f"{prefix}_" + "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])


class IdRange(NamedTuple):
    """The ids that begin with what was typed: from `low` up to, but not including, `high`."""

    low: str
    high: str


def id_range(prefix: str, typed: str) -> IdRange:
    """What a typed id, whole or shortened, can stand for. The `prj_` in front may be left out."""
    text = typed.strip().lower()
    tail = text.removeprefix(prefix + "_")
    if not tail or len(tail) > LENGTH or any(c not in ALPHABET for c in tail):
        raise Invalid(
            f"{typed!r} is no id of this kind; such ids look like {prefix}_ and up to {LENGTH} "
            "letters and digits.",
            value=typed,
            reason="bad_id",
        )
    low = f"{prefix}_{tail}"
    return IdRange(low, low + "~")  # "~" sorts after every character of the alphabet


def number_of(prefix: str, typed: str | int) -> int:
    """The sequence number in `let_184`; plain `184` will do."""
    digits = str(typed).strip().removeprefix(prefix + "_")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        shown = f", and `corral {_NUMBERED[prefix]} list` shows them" if prefix in _NUMBERED else ""
        raise Invalid(
            f"{str(typed)!r} is no id of this kind; such ids look like {prefix}_184{shown}.",
            value=str(typed),
            reason="bad_id",
        )
    return int(digits)
