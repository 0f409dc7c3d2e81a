"""What may be stored: text that both engines keep alike, and JSON within bounds.

PostgreSQL keeps no NUL and no half surrogate pair, SQLite would keep both; so neither gets them.
"""

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar
from unicodedata import normalize

import msgspec

from corral.kernel.errors import Invalid

T = TypeVar("T")

MAX_NAME = 200
MAX_TEXT = 64 * 1024
MAX_BODY = 1024 * 1024
MAX_DEPTH = 100
"""How deep JSON may be nested: whoever reads it, from however deep a stack, must be able to."""

_CATEGORY = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_encode = msgspec.json.Encoder().encode


def clean_text(value: str, what: str, *, most: int = MAX_TEXT) -> str:
    """`value` itself, or Invalid when it is empty, too long, or not storable."""
    if not value:
        raise Invalid(f"{what} is empty; give it some text.", field=what, reason="empty")
    if "\0" in value:
        raise Invalid(f"{what} holds a NUL byte; remove it.", field=what, reason="nul_byte")
    size = len(value) if value.isascii() else len(encode_text(value, what))
    if size > most:
        raise Invalid(
            f"{what} has {size:,} bytes and {most:,} are allowed; shorten it, or put it "
            "into a file and give the path.",
            field=what,
            size=size,
            limit=most,
            reason="too_long",
        )
    return value


def command_words(command: str) -> list[str]:
    """The words that a shell would make of a command; Invalid when there are none, or when a quote
    in it has no end."""
    import shlex

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Invalid(
            f"The command cannot be split into words: {error}. Correct its quotes.",
            reason="bad_quotes",
        ) from None
    if not words:
        raise Invalid("The command is empty; give a program.", reason="empty")
    return words


def abridged(text: str, most: int) -> str:
    """At most so many characters; what is cut is cut between words, and a sign says so."""
    if len(text) <= most:
        return text
    kept = text[: most - 1]
    head = kept.rpartition(" ")[0]
    return (head if len(head) > most // 2 else kept).rstrip() + "…"


def check_int(value: int, what: str) -> int:
    """`value` itself, or Invalid when it is no whole number that both engines keep."""
    if type(value) is not int or not -(1 << 63) < value < 1 << 63:
        raise Invalid(f"{what} must be a whole number, not {value!r}.", field=what)
    return value


def check_category(value: str, like: str) -> str:
    """A short word in small letters, for a list that people choose by."""
    if not _CATEGORY.fullmatch(value):
        raise Invalid(
            f"{value[:100]!r} is no category; write a short word like {like}.",
            category=value[:100],
        )
    return value


def encode_text(value: str, what: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Invalid(
            f"{what} is not valid UTF-8; convert it first.", field=what, reason="not_utf8"
        ) from None


def convert(value: Any, kind: type[T], **options: Any) -> T:
    """`msgspec.convert`, for what comes from callers: half a sign where no text belongs is one more
    thing that cannot be, and no fault of the program."""
    try:
        converted: T = msgspec.convert(value, kind, **options)
    except UnicodeEncodeError:
        raise msgspec.ValidationError("a text in it is not valid UTF-8") from None
    return converted


def encode_json(value: Any, what: str, *, most: int = MAX_BODY) -> str:
    """`value` as JSON text, or Invalid when it is too large or not storable."""
    try:
        encoded = _encode(value)
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
            reason="too_long",
        )
    if len(encoded) > MAX_DEPTH and is_too_deep(encoded):
        raise Invalid(
            f"{what} is nested too deeply; flatten it.",
            field=what,
            limit=MAX_DEPTH,
            reason="nested_too_deeply",
        )
    if b"\\u0000" in encoded and _any(value, lambda part: isinstance(part, str) and "\0" in part):
        raise Invalid(f"{what} holds a NUL byte; remove it.", field=what, reason="nul_byte")
    if b"null" in encoded and _holds_no_number(value):
        raise Invalid(f"{what} holds a number that JSON does not have; leave it out.", field=what)
    return encoded.decode()


def in_whole_characters(json: bytes) -> bytes:
    """JSON of another program, with what is no character in its texts replaced: whoever cuts a text
    may cut an emoji in two. ValueError, or RecursionError, when it is no JSON."""
    from json import dumps, loads

    told = loads(json.decode("utf-8", "replace"))
    return dumps(told, ensure_ascii=False).encode("utf-8", "replace")


_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """The words of a text, in small letters and in the one spelling that each has."""
    return _WORD.findall(normalize("NFC", text).lower())


_SPELLED = {"\n": "⏎", "\t": " ", "\r": ""}


def printable(text: str, *, kept: str = "") -> str:
    """The text on one line, control characters, escapes and overrides of its direction spelled
    out; those in `kept` stay as they are."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else _SPELLED.get(c, f"\\x{ord(c):02x}") for c in text
    )


MAX_QUOTED = 100


def quoted(text: str) -> str:
    """Quote a name, or a text of another source, inside a line of Corral's own, so that it cannot
    pose as part of that line: one printable line of at most MAX_QUOTED characters."""
    return '"' + abridged(printable(text.strip()), MAX_QUOTED).replace('"', "'") + '"'


_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|[\]}]')


def is_too_deep(encoded: bytes) -> bool:
    """Whether JSON is nested deeper than MAX_DEPTH."""
    if encoded.count(b"[") + encoded.count(b"{") <= MAX_DEPTH:
        return False
    deepest = depth = 0
    for found in _BRACKETS.finditer(encoded):
        if found[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in (b"]", b"}"):
            depth -= 1
    return deepest > MAX_DEPTH


def _holds_no_number(value: Any) -> bool:
    """Whether any part of it is a number that became null in the text. What is left out in a record
    is null as well, and hot paths write such records: so this looks at containers alone."""
    left = [msgspec.to_builtins(value)]
    for part in left:
        inner = (*part, *part.values()) if type(part) is dict else part
        if type(inner) is float:
            inner = (inner,)
        if type(inner) in (list, tuple):
            for each in inner:
                kind = type(each)
                if kind in (dict, list, tuple):
                    left.append(each)
                elif kind is float and not math.isfinite(each):
                    return True
    return False


def _any(value: Any, test: Callable[[Any], bool]) -> bool:
    """Whether a test holds for any part of a value, keys included.

    Only the value can tell: in the text, a NUL looks like six characters spelled out.
    """
    plain = value if isinstance(value, dict | list | tuple | float) else msgspec.to_builtins(value)
    if isinstance(plain, dict):
        return any(_any(part, test) for pair in plain.items() for part in pair)
    if isinstance(plain, list | tuple):
        return any(_any(part, test) for part in plain)
    return test(plain)
