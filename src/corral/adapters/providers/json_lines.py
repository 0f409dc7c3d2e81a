"""Base class and helpers for parsers of untrusted JSON lines.

The output of an agent may be truncated, not UTF-8, or of unexpected types. Every getter returns a
value of its type or a neutral default, and a parser based on `JsonLinesParser` never raises.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from corral.adapters.output.lines import OutputLine
from corral.adapters.providers.facts import LogFact, ProviderFact, TurnFact, UsageFact
from corral.kernel.clock import Clock, SystemClock
from corral.kernel.validation import replace_invalid_utf8

if TYPE_CHECKING:
    from corral.adapters.providers.provider import StreamParser

MAX_LINE = 16 * 1024 * 1024
MAX_CONTENT = 256 * 1024
MAX_NUMBER = 1 << 53
MAX_OPEN_CALLS = 1_000  # bounds the memory for calls that never get a result


class JsonLinesParser:
    """Base class of the stream parsers. Subclasses implement `read`, and override `end`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._closed = False

    def feed(self, line: bytes) -> list[ProviderFact]:
        line = line.strip()
        if not line:
            return []
        try:
            message = decode_object(line)
            if message is None:
                return self.other(line.decode("utf-8", errors="replace").replace("\0", "\ufffd"))
            return self.read(message)
        except Exception as error:  # untrusted input must not crash the supervisor
            return [LogFact("warn", f"Cannot parse a line of output: {type(error).__name__}.")]

    def read(self, message: dict[str, Any]) -> list[ProviderFact]:
        """Return the facts of one JSON object."""
        raise NotImplementedError

    def other(self, text: str) -> list[ProviderFact]:
        """Return the facts of a line that is not a JSON object: plain output of a program."""
        return [LogFact("info", shorten(text, 4_096))]

    def pending(self) -> list[UsageFact]:
        return []

    def close(self) -> list[ProviderFact]:
        if self._closed:
            return []
        self._closed = True
        try:
            return self.end()
        except Exception as error:  # untrusted input, as in feed
            return [LogFact("warn", f"Cannot parse the end of the output: {type(error).__name__}.")]

    def end(self) -> list[ProviderFact]:
        """Return the remaining facts at the end of the stream."""
        return [*self.pending()]


def parse_line(parser: "StreamParser", line: OutputLine) -> list[ProviderFact]:
    """Return the facts of a line; a warning if the line exceeded the size limit."""
    if line.text is None:
        return [LogFact("warn", f"Skipped a line of {line.length:,} bytes: too long.")]
    return parser.feed(line.text)


class OpenCalls:
    """Tool names of calls without a result, by call id. Drops the oldest above the limit."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, call: str | None, name: str | None) -> None:
        if call and name:
            if len(self._names) >= MAX_OPEN_CALLS:
                del self._names[next(iter(self._names))]
            self._names[call] = name

    def take(self, call: str | None) -> str | None:
        return self._names.pop(call, None) if call else None


def decode_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on a line, or None.

    NUL characters are replaced, because the store cannot hold them.
    """
    if not line.startswith(b"{"):
        return None
    if b"\\u0000" in line:
        line = line.replace(b"\\u0000", b"\\ufffd")
    try:
        value = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            value = msgspec.json.decode(replace_invalid_utf8(line))
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def get_text(source: Any, *path: str) -> str | None:
    """Return the string at a path of keys; None if it is missing or empty."""
    value = _follow_path(source, path)
    return value if isinstance(value, str) and value else None


def get_int(source: Any, *path: str) -> int:
    """Return the non-negative integer at a path of keys; 0 if there is none."""
    value = _follow_path(source, path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_NUMBER:
        return 0
    return int(value)


def get_dict(source: Any, *path: str) -> dict[str, Any]:
    """Return the object at a path of keys; an empty one if there is none."""
    value = _follow_path(source, path)
    return value if isinstance(value, dict) else {}


def get_dicts(source: Any, *path: str) -> list[dict[str, Any]]:
    """Return the objects in the array at a path of keys; other elements are dropped."""
    value = _follow_path(source, path)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def get_micros(source: Any, *path: str) -> int | None:
    """Return the dollar amount at a path of keys in micro-dollars; None if there is none."""
    value = _follow_path(source, path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return None
    return round(value * 1_000_000)


def _follow_path(source: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        source = source.get(key) if isinstance(source, dict) else None
    return source


def extract_text(content: Any) -> str:
    """Return the text of a content field: a string, or a list of blocks with text blocks."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return ""
    parts = [part if isinstance(part, str) else get_text(part, "text") or "" for part in content]
    return "\n".join(part for part in parts if part)


def add_usage(one: UsageFact, other: UsageFact) -> UsageFact:
    """Return the sum of two usages, with the model and key of `one`."""
    return UsageFact(
        one.model,
        one.input + other.input,
        one.output + other.output,
        one.cache_read + other.cache_read,
        one.cache_write + other.cache_write,
        one.reasoning + other.reasoning,
        key=one.key,
    )


def shorten(content: str, limit: int = MAX_CONTENT) -> str:
    """Replace the middle of a text longer than `limit` characters by a note of its length."""
    if len(content) <= limit:
        return content
    half = limit // 2
    left_out = len(content) - 2 * half
    return f"{content[:half]}\n[{left_out:,} characters left out]\n{content[-half:]}"


def limit_size(value: Any) -> Any:
    """Return a value unchanged, or as shortened text if it is too large for a turn."""
    if isinstance(value, str):
        return shorten(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    return value if len(encoded) <= MAX_CONTENT else shorten(encoded.decode(errors="replace"))


def text_facts(content: str) -> list[ProviderFact]:
    """Return the turn of an assistant's text; nothing for blank text."""
    return [TurnFact("assistant", shorten(content))] if content.strip() else []


def tool_call(call: str | None, name: str | None, arguments: Any) -> TurnFact:
    """Return the turn of a tool call."""
    return TurnFact(
        "assistant", "", tool_call_id=call, tool_name=name, arguments=limit_size(arguments)
    )


def tool_result(
    call: str | None, name: str | None, content: str, *, result: Any = None, is_error: bool = False
) -> TurnFact:
    """Return the turn of a tool result."""
    return TurnFact(
        "tool",
        shorten(content),
        tool_call_id=call,
        tool_name=name,
        result=limit_size(result),
        is_error=is_error,
    )
