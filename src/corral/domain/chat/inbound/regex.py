r"""Regular expressions with linear-time matching, for patterns of untrusted users.

A wiring's pattern is matched against every message of a chat. Python's `re` backtracks, so a
hostile pattern or message could take exponential time, and a match cannot be interrupted. This
engine is a Thompson NFA: it advances all states at once, so the cost is at most the length of the
text times the length of the pattern. Both lengths are limited.

Supported: characters, `.`, classes `[a-z]` and `[^…]`, `\w \d \s` and their complements, `\b`,
groups, `|`, `*`, `+`, `?`, `^` and `$`. Matching ignores case. Back-references and look-around are
not supported.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from corral.kernel.errors import Invalid

MAX_PATTERN = 200
MAX_TEXT = 4_000
"""Maximum characters of a message that are searched."""

Test = Callable[[str], bool]


class Node(NamedTuple):
    """A state of the NFA: it consumes a character that passes the test, or none."""

    test: Test | None
    next: tuple[int, ...]
    edge: str = ""
    """An assertion: `^` (start of text), `$` (end of text) or `b` (word boundary)."""


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CLASSES: dict[str, Test] = {
    "w": _is_word,
    "W": lambda c: not _is_word(c),
    "d": str.isdigit,
    "D": lambda c: not c.isdigit(),
    "s": str.isspace,
    "S": lambda c: not c.isspace(),
}


class Part(NamedTuple):
    """A node of the parsed pattern."""

    kind: str
    """one (a character), edge (an assertion), either (alternatives) or repeat."""
    test: Test | None = None
    sign: str = ""
    ways: "tuple[tuple[Part, ...], ...]" = ()


class Reader:
    """A recursive-descent parser of patterns."""

    def __init__(self, text: str) -> None:
        self._source = _folded(text)
        self._place = 0

    def read(self) -> Part:
        whole = self._either()
        if self._peek() is not None:
            raise _bad(self._source, "unmatched closing parenthesis")
        return whole

    def _either(self) -> Part:
        ways = [self._sequence()]
        while self._peek() == "|":
            self._place += 1
            ways.append(self._sequence())
        return Part("either", ways=tuple(ways))

    def _sequence(self) -> tuple[Part, ...]:
        parts: list[Part] = []
        while (character := self._peek()) is not None and character not in "|)":
            part = self._atom()
            while (sign := self._peek()) is not None and sign in "*+?":
                self._place += 1
                part = Part("repeat", sign=sign, ways=((part,),))
            parts.append(part)
        return tuple(parts)

    def _atom(self) -> Part:
        character = self._take()
        if character == "(":
            if self._peek() == "?":
                raise _bad(self._source, "groups with (? are not supported")
            inner = self._either()
            if self._take() != ")":
                raise _bad(self._source, "unclosed parenthesis")
            return inner
        if character in "^$":
            return Part("edge", sign=character)
        if character == "\\" and self._peek() == "b":
            self._place += 1
            return Part("edge", sign="b")
        return Part("one", self._test(character))

    def _test(self, character: str) -> Test:
        if character == ".":
            return lambda c: c != "\n"
        if character == "\\":
            return self._after_slash()
        if character == "[":
            return self._class()
        if character in "*+?{}":
            raise _bad(
                self._source, f"nothing to repeat before {character!r}; escape it as \\{character}"
            )
        return character.__eq__

    def _after_slash(self) -> Test:
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        if character.isalnum():
            raise _bad(self._source, f"\\{character} is not supported")
        return character.__eq__

    def _class(self) -> Test:
        opposite = self._peek() == "^"
        self._place += opposite
        tests: list[Test] = []
        while (character := self._take()) != "]" or not tests:
            tests.append(self._member(character))
        return lambda c: any(test(c) for test in tests) is not opposite

    def _member(self, character: str) -> Test:
        if character == "\\":
            return self._after_slash()
        if self._peek() == "-" and self._source[self._place + 1 : self._place + 2] not in ("]", ""):
            self._place += 1
            last = self._take()
            return lambda c: character <= c <= last
        return character.__eq__

    def _peek(self) -> str | None:
        return self._source[self._place] if self._place < len(self._source) else None

    def _take(self) -> str:
        character = self._peek()
        if character is None:
            raise _bad(self._source, "unexpected end")
        self._place += 1
        return character


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        if not 1 <= len(text) <= MAX_PATTERN:
            raise Invalid(f"A pattern must have 1 to {MAX_PATTERN} characters.", pattern=text)
        self._nodes: list[Node] = []
        self._end = self._add(Node(None, ()))
        try:
            self._start = self._build(Reader(text).read(), self._end)
        except RecursionError:
            raise _bad(text, "its parentheses are nested too deeply") from None

    def found_in(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the first `MAX_TEXT` characters."""
        words = text[:MAX_TEXT].casefold()
        last = len(words) if len(text) <= MAX_TEXT else -1
        going: set[int] = set()
        for place in range(len(words) + 1):
            going = self._spread(going | {self._start}, words, place, last)
            if self._end in going:
                return True
            if place < len(words):
                going = self._step(going, words[place])
        return False

    def _step(self, going: set[int], character: str) -> set[int]:
        after: set[int] = set()
        for number in going:
            node = self._nodes[number]
            if node.test is not None and node.test(character):
                after.update(node.next)
        return after

    def _spread(self, going: set[int], words: str, place: int, last: int) -> set[int]:
        """Return the epsilon closure: all states reachable without consuming a character."""
        reached: set[int] = set()
        todo = list(going)
        while todo:
            number = todo.pop()
            if number in reached:
                continue
            reached.add(number)
            node = self._nodes[number]
            if node.test is None and (not node.edge or _holds(node.edge, words, place, last)):
                todo.extend(node.next)
        return reached

    # -- compilation, from the end of the pattern to its start ------------------------------------

    def _add(self, node: Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _build(self, part: Part, then: int) -> int:
        if part.kind == "one":
            return self._add(Node(part.test, (then,)))
        if part.kind == "edge":
            return self._add(Node(None, (then,), part.sign))
        if part.kind == "either":
            return self._add(Node(None, tuple(self._row(way, then) for way in part.ways)))
        if part.sign == "?":
            return self._add(Node(None, (self._row(part.ways[0], then), then)))
        again = self._add(Node(None, ()))
        body = self._row(part.ways[0], again)
        self._nodes[again] = Node(None, (body, then))
        return body if part.sign == "+" else again

    def _row(self, parts: tuple[Part, ...], then: int) -> int:
        for part in reversed(parts):
            then = self._build(part, then)
        return then


def _folded(text: str) -> str:
    """Fold the case, except after a backslash, where case is significant."""
    parts, escaped = [], False
    for character in text:
        parts.append(character if escaped else character.casefold())
        escaped = character == "\\" and not escaped
    return "".join(parts)


def _holds(edge: str, words: str, place: int, last: int) -> bool:
    if edge == "^":
        return place == 0
    if edge == "$":
        return place == last
    before = place > 0 and _is_word(words[place - 1])
    behind = place < len(words) and _is_word(words[place])
    return before is not behind


def _bad(pattern: str, why: str) -> Invalid:
    return Invalid(
        f"Invalid pattern {pattern!r}: {why}. Supported: . [a-z] \\w \\d \\s \\b ( ) | * + ? ^ $.",
        pattern=pattern,
    )


@lru_cache(256)
def compile_pattern(text: str) -> Pattern:
    """Compile a pattern; raises Invalid. Cached."""
    return Pattern(text)
