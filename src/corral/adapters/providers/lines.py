"""Reading a stream of JSON lines that may be anything: cut off, not UTF-8, of other types.

What an agent prints is not trusted. Each getter gives a value of its type or a neutral one, and a
parser built on `JsonLines` never raises.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from corral.adapters.output.lines import OutputLine
from corral.adapters.providers.facts import Fact, Logged, Said, Used
from corral.kernel.clock import Clock, SystemClock
from corral.kernel.text import replace_invalid_utf8

if TYPE_CHECKING:
    from corral.adapters.providers.provider import Parser

MAX_LINE = 16 * 1024 * 1024
MAX_CONTENT = 256 * 1024
MAX_NUMBER = 1 << 53
MAX_OPEN = 1_000  # calls without an answer that are remembered; a stream may have no end


class JsonLines:
    """A parser's frame: `read` gets each line that is a JSON object."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._closed = False

    def feed(self, line: bytes) -> list[Fact]:
        line = line.strip()
        if not line:
            return []
        try:
            message = decode(line)
            if message is None:
                return self.other(line.decode("utf-8", errors="replace").replace("\0", "\ufffd"))
            return self.read(message)
        except Exception as error:  # a stranger's stream must not end the one who reads it
            return [Logged("warn", f"A line was not understood: {type(error).__name__}.")]

    def read(self, message: dict[str, Any]) -> list[Fact]:
        raise NotImplementedError

    def other(self, text: str) -> list[Fact]:
        """A line that is no JSON object: something that the CLI, or a program it ran, printed."""
        return [Logged("info", shorten(text, 4_096))]

    def pending(self) -> list[Used]:
        return []

    def close(self) -> list[Fact]:
        if self._closed:
            return []
        self._closed = True
        try:
            return self.end()
        except Exception as error:  # as in feed
            return [Logged("warn", f"The stream's end was not understood: {type(error).__name__}.")]

    def end(self) -> list[Fact]:
        return [*self.pending()]


def facts_of(parser: "Parser", line: OutputLine) -> list[Fact]:
    """What a line of a stream says, if it is not too long to be held."""
    if line.text is None:
        return [Logged("warn", f"A line of {line.length:,} bytes was not read.")]
    return parser.feed(line.text)


class Calls:
    """The names of calls that have no answer yet, by their ids; the oldest are forgotten."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add(self, call: str | None, name: str | None) -> None:
        if call and name:
            if len(self._names) >= MAX_OPEN:
                del self._names[next(iter(self._names))]
            self._names[call] = name

    def take(self, call: str | None) -> str | None:
        return self._names.pop(call, None) if call else None


def decode(line: bytes) -> dict[str, Any] | None:
    """The object on a line, or None. It holds no NUL: no store keeps one."""
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


def text(source: Any, *path: str) -> str | None:
    """The text at a path of keys; an empty one is none."""
    value = _at(source, path)
    return value if isinstance(value, str) and value else None


def number(source: Any, *path: str) -> int:
    """The whole number at a path of keys, not below 0; 0 when there is none."""
    value = _at(source, path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_NUMBER:
        return 0
    return int(value)


def table(source: Any, *path: str) -> dict[str, Any]:
    value = _at(source, path)
    return value if isinstance(value, dict) else {}


def rows(source: Any, *path: str) -> list[dict[str, Any]]:
    value = _at(source, path)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def micros(source: Any, *path: str) -> int | None:
    """Dollars at a path of keys, as micro-dollars; None where nothing is said."""
    value = _at(source, path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return None
    return round(value * 1_000_000)


def _at(source: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        source = source.get(key) if isinstance(source, dict) else None
    return source


def words_in(content: Any) -> str:
    """The words of a content field: a text, or a list of blocks of which some are text."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return ""
    parts = [part if isinstance(part, str) else text(part, "text") or "" for part in content]
    return "\n".join(part for part in parts if part)


def plus(one: Used, other: Used) -> Used:
    """Both together; it is `one`'s model and key."""
    return Used(
        one.model,
        one.input + other.input,
        one.output + other.output,
        one.cache_read + other.cache_read,
        one.cache_write + other.cache_write,
        one.reasoning + other.reasoning,
        key=one.key,
    )


def shorten(content: str, most: int = MAX_CONTENT) -> str:
    """At most `most` characters; the middle goes, and is said to be gone."""
    if len(content) <= most:
        return content
    half = most // 2
    left_out = len(content) - 2 * half
    return f"{content[:half]}\n[{left_out:,} characters left out]\n{content[-half:]}"


def bounded(value: Any) -> Any:
    """A value as it is, or as shortened text when it is too large for a turn."""
    if isinstance(value, str):
        return shorten(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    return value if len(encoded) <= MAX_CONTENT else shorten(encoded.decode(errors="replace"))


def said(content: str) -> list[Fact]:
    return [Said("assistant", shorten(content))] if content.strip() else []


def called(call: str | None, name: str | None, arguments: Any) -> Said:
    return Said("assistant", "", tool_call_id=call, tool_name=name, arguments=bounded(arguments))


def answered(
    call: str | None, name: str | None, content: str, *, result: Any = None, is_error: bool = False
) -> Said:
    return Said(
        "tool",
        shorten(content),
        tool_call_id=call,
        tool_name=name,
        result=bounded(result),
        is_error=is_error,
    )
