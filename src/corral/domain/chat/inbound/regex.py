r"""Patterns that cannot run for ever.

A wiring's pattern comes from a person and is tried on every message of a chat, so no message and no
pattern may hold up the others. Python's `re` goes back and tries again, which can take longer than
anybody waits, and cannot be interrupted. These patterns are run by stepping through all their
states at once (Thompson's way): the work is the length of the text times the length of the pattern,
whatever they are, and both have a limit.

They have characters, `.`, classes `[a-z]` and `[^…]`, `\w \d \s` and their opposites, `\b`,
groups, `|`, `*`, `+`, `?`, `^` and `$`. Upper and lower case are the same. What needs going back
(references to groups, looking ahead) there is not.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from corral.kernel.errors import Invalid

MAX_PATTERN = 200
MAX_TEXT = 4_000
"""Characters of a message that are looked at."""

Test = Callable[[str], bool]


class Node(NamedTuple):
    """A state: it takes a character that passes the test, or goes on without one."""

    test: Test | None
    next: tuple[int, ...]
    edge: str = ""
    """`^`, `$` or `b`: goes on only at the text's start, its end, or an end of a word."""


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
    """A piece of a pattern: what it is, and how often it may come."""

    kind: str
    """one: a character; edge; either: one of several sequences; repeat."""
    test: Test | None = None
    sign: str = ""
    ways: "tuple[tuple[Part, ...], ...]" = ()


class Reader:
    """A pattern's text, read once from its start to its end."""

    def __init__(self, text: str) -> None:
        self._source = _folded(text)
        self._place = 0

    def read(self) -> Part:
        whole = self._either()
        if self._peek() is not None:
            raise _bad(self._source, "a bracket closes that was never opened")
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
                raise _bad(self._source, "groups with (? are not understood")
            inner = self._either()
            if self._take() != ")":
                raise _bad(self._source, "a bracket is not closed")
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
            raise _bad(self._source, f"nothing stands before {character!r}; write \\{character}")
        return character.__eq__

    def _after_slash(self) -> Test:
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        if character.isalnum():
            raise _bad(self._source, f"\\{character} is not understood")
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
            raise _bad(self._source, "it ends too early")
        self._place += 1
        return character


class Pattern:
    """A pattern, ready to be looked for."""

    def __init__(self, text: str) -> None:
        if not 1 <= len(text) <= MAX_PATTERN:
            raise Invalid(f"A pattern has from 1 to {MAX_PATTERN} characters.", pattern=text)
        self._nodes: list[Node] = []
        self._end = self._add(Node(None, ()))
        try:
            self._start = self._build(Reader(text).read(), self._end)
        except RecursionError:
            raise _bad(text, "its brackets are nested too deeply") from None

    def found_in(self, text: str) -> bool:
        """Whether it fits anywhere in the text's first few thousand characters."""
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
        """All states that are reached from here without taking a character."""
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

    # -- from its end to its start: each part is told what follows it -----------------------------

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
    """In small letters, but for what stands behind a slash: there case has a meaning."""
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
        f"{pattern!r} is no pattern that Corral understands: {why}. It has . [a-z] \\w \\d \\s \\b "
        "( ) | * + ? ^ $.",
        pattern=pattern,
    )


@lru_cache(256)
def compiled(text: str) -> Pattern:
    """The pattern of a text; Invalid says what is wrong with it."""
    return Pattern(text)
