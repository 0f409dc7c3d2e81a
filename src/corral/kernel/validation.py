"""Validation of text and JSON before it is stored.

PostgreSQL rejects NUL characters and lone surrogates in text, SQLite would store both. Both are
rejected here, so that the engines behave the same.
"""

import math
import re
from enum import StrEnum
from typing import Any, TypeVar, cast

import msgspec

from corral.kernel.errors import Invalid

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MAX_NAME = 200
MAX_TEXT = 64 * 1024
MAX_BODY = 1024 * 1024
MAX_DEPTH = 100
"""Maximum nesting of JSON, so that every reader can decode it without a stack overflow."""

_CATEGORY = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_encode = msgspec.json.Encoder().encode


def check_text(value: str, field: str, *, max_bytes: int = MAX_TEXT) -> str:
    """Return `value`, or raise Invalid if it is empty, too long or cannot be stored."""
    if not value:
        raise Invalid(f"{field} is empty. Provide some text.", field=field, reason="empty")
    if "\0" in value:
        raise Invalid(
            f"{field} contains a NUL character. Remove it.", field=field, reason="nul_byte"
        )
    size = len(value) if value.isascii() else len(encode_text(value, field))
    if size > max_bytes:
        raise Invalid(
            f"{field} is too long: {size:,} bytes, the maximum is {max_bytes:,}. Shorten it, or "
            "store it in a file and pass the path.",
            field=field,
            size=size,
            limit=max_bytes,
            reason="too_long",
        )
    return value


def check_optional_text(value: str | None, field: str, *, max_bytes: int = MAX_TEXT) -> str | None:
    """Return the checked text; None for None and for an empty text."""
    return check_text(value, field, max_bytes=max_bytes) if value else None


def check_choice(value: str, choices: type[E], field: str) -> E:
    """Return the enum member with this value; raises Invalid with the possible values."""
    member = choices._value2member_map_.get(value)
    if member is None:
        noun = field.removeprefix("The ")
        raise Invalid(
            f"Invalid {noun} {value!r}: expected one of {', '.join(choices)}.",
            field=field,
            value=value,
            reason="unknown_choice",
        )
    return cast(E, member)


def check_int(value: int, field: str) -> int:
    """Return `value`, or raise Invalid if it is not an integer of 64 bits."""
    if type(value) is not int or not -(1 << 63) < value < 1 << 63:
        raise Invalid(f"{field} must be an integer, not {value!r}.", field=field)
    return value


def check_category(value: str, example: str) -> str:
    """Return `value`, or raise Invalid if it is not a short lower-case word."""
    if not _CATEGORY.fullmatch(value):
        raise Invalid(
            f"Invalid category {value[:100]!r}: expected a short lower-case word such as "
            f"{example}.",
            category=value[:100],
        )
    return value


def encode_text(value: str, field: str) -> bytes:
    """Encode as UTF-8; raises Invalid if the text has a lone surrogate."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Invalid(
            f"{field} is not valid UTF-8. Convert it first.", field=field, reason="not_utf8"
        ) from None


def convert(value: Any, kind: type[T], **options: Any) -> T:
    """Call `msgspec.convert` on input of a caller; a lone surrogate is a ValidationError too."""
    try:
        converted: T = msgspec.convert(value, kind, **options)
    except UnicodeEncodeError:
        raise msgspec.ValidationError("a text in it is not valid UTF-8") from None
    return converted


def encode_json(value: Any, field: str, *, max_bytes: int = MAX_BODY) -> str:
    """Encode `value` as JSON text, or raise Invalid if it is too large or cannot be stored."""
    try:
        encoded = _encode(value)
    except UnicodeEncodeError:
        raise Invalid(
            f"{field} is not valid UTF-8. Convert it first.", field=field, reason="not_utf8"
        ) from None
    except RecursionError:
        raise Invalid(
            f"{field} is nested too deeply. Flatten it.", field=field, reason="nested_too_deeply"
        ) from None
    except (TypeError, msgspec.MsgspecError) as error:
        raise Invalid(f"{field} cannot be encoded as JSON: {error}.", field=field) from None
    if len(encoded) > max_bytes:
        raise Invalid(
            f"{field} is too long: {len(encoded):,} bytes, the maximum is {max_bytes:,}. Store it "
            "in a file and send the path.",
            field=field,
            size=len(encoded),
            limit=max_bytes,
            reason="too_long",
        )
    if len(encoded) > MAX_DEPTH and is_too_deep(encoded):
        raise Invalid(
            f"{field} is nested too deeply. Flatten it.",
            field=field,
            limit=MAX_DEPTH,
            reason="nested_too_deeply",
        )
    if b"\\u0000" in encoded and _has_nul(value):
        raise Invalid(
            f"{field} contains a NUL character. Remove it.", field=field, reason="nul_byte"
        )
    if b"null" in encoded and _has_non_finite_number(value):
        raise Invalid(
            f"{field} contains a number that JSON cannot represent (NaN or infinity). Remove it.",
            field=field,
        )
    return encoded.decode()


def replace_invalid_utf8(json: bytes) -> bytes:
    """Replace invalid UTF-8 and lone surrogates in JSON of another program.

    Such text occurs when a program truncates a string inside an emoji. Raises ValueError or
    RecursionError if the input is not JSON.
    """
    from json import dumps, loads

    value = loads(json.decode("utf-8", "replace"))
    return dumps(value, ensure_ascii=False).encode("utf-8", "replace")


_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|[\]}]')


def is_too_deep(encoded: bytes) -> bool:
    """Whether JSON is nested deeper than MAX_DEPTH."""
    if encoded.count(b"[") + encoded.count(b"{") <= MAX_DEPTH:
        return False
    deepest = depth = 0
    for token in _BRACKETS.finditer(encoded):
        if token[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in (b"]", b"}"):
            depth -= 1
    return deepest > MAX_DEPTH


def _has_non_finite_number(value: Any) -> bool:
    """Whether a NaN or infinity was encoded as null.

    Unset fields of records are null too, and hot paths write such records, so this is written for
    speed: it visits containers only.
    """
    pending = [msgspec.to_builtins(value)]
    for part in pending:
        items = (*part, *part.values()) if type(part) is dict else part
        if type(items) is float:
            items = (items,)
        if type(items) in (list, tuple):
            for item in items:
                kind = type(item)
                if kind in (dict, list, tuple):
                    pending.append(item)
                elif kind is float and not math.isfinite(item):
                    return True
    return False


def _has_nul(value: Any) -> bool:
    """Whether any text in a value, including keys, contains a NUL character.

    The encoded text cannot tell: a string with a literal backslash-u-0000 looks like a NUL there.
    """
    plain = value if isinstance(value, dict | list | tuple | float) else msgspec.to_builtins(value)
    if isinstance(plain, dict):
        return any(_has_nul(part) for pair in plain.items() for part in pair)
    if isinstance(plain, list | tuple):
        return any(_has_nul(part) for part in plain)
    return isinstance(plain, str) and "\0" in plain
