"""What may be stored: text that both engines keep alike, and JSON within bounds.

PostgreSQL keeps no NUL and no half surrogate pair, SQLite would keep both; so neither gets them.
"""

from typing import Any

import msgspec

from corral.kernel.errors import Invalid

MAX_NAME = 200
MAX_TEXT = 64 * 1024
MAX_BODY = 1024 * 1024


def clean_text(value: str, what: str, *, most: int = MAX_TEXT) -> str:
    """`value` itself, or Invalid when it is empty, too long, or not storable."""
    if not value:
        raise Invalid(f"{what} is empty; give it some text.", field=what)
    if "\0" in value:
        raise Invalid(f"{what} holds a NUL byte; remove it.", field=what)
    size = len(value) if value.isascii() else len(encode_text(value, what))
    if size > most:
        raise Invalid(
            f"{what} has {size:,} bytes and {most:,} are allowed; shorten it, or put it "
            "into a file and give the path.",
            field=what,
            size=size,
            limit=most,
        )
    return value


def encode_text(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what} is not valid UTF-8; convert it first.", field=what) from None


def encode_json(value: Any, what: str, *, most: int = MAX_BODY) -> str:
    """`value` as JSON text, or Invalid when it is too large or not storable."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise Invalid(f"{what} is not valid UTF-8; convert it first.", field=what) from None
    except RecursionError:
        raise Invalid(f"{what} is nested too deeply; flatten it.", field=what) from None
    except (TypeError, msgspec.MsgspecError) as error:
        raise Invalid(f"{what} is not JSON: {error}.", field=what) from None
    if len(encoded) > most:
        raise Invalid(
            f"{what} has {len(encoded):,} bytes and {most:,} are allowed; put it into a file and "
            "send the path.",
            field=what,
            size=len(encoded),
            limit=most,
        )
    if b"\\u0000" in encoded and _holds_nul(value):
        raise Invalid(f"{what} holds a NUL byte; remove it.", field=what)
    return encoded.decode()


def _holds_nul(value: Any) -> bool:
    # Encoded text alone cannot tell a NUL from the six characters \u0000 spelled out.
    plain = msgspec.to_builtins(value)
    if isinstance(plain, str):
        return "\0" in plain
    if isinstance(plain, dict):
        return any(_holds_nul(part) for pair in plain.items() for part in pair)
    return isinstance(plain, list | tuple) and any(map(_holds_nul, plain))
