"""How many tests passed and failed, from what a test program printed or wrote.

What comes from an agent's check is not to be trusted: nothing here is run, expanded or looked up,
and what is not understood is None, never 0.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

Runner = Literal["junit", "pytest", "unittest", "jest", "vitest", "mocha", "go", "cargo", "tap"]
MAX_TEXT = 8 * 1024 * 1024
MAX_DOCUMENT = 32 * 1024 * 1024
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


class Counts(msgspec.Struct, frozen=True):
    runner: Runner
    passed: int | None = None
    failed: int | None = None
    errors: int | None = None
    skipped: int | None = None
    total: int | None = None


def from_output(text: str) -> Counts | None:
    """The counts in what a test program printed: the last summary of it, or the sum of all where a
    program prints one for each of its parts (cargo, go). None when there is none."""
    plain = _COLOUR.sub("", text[-MAX_TEXT:]).replace("\r\n", "\n")
    for look in _LOOKS:
        if found := look(plain):
            return found
    return None


def _number(digits: str) -> int:
    return int(digits[:9])  # nobody has a thousand million tests


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for match in pattern.finditer(text):
        found = match
    return found


def _pairs(text: str) -> dict[str, int]:
    """What is counted in a list such as `1 failed, 3 passed`; the same word twice is added."""
    found: dict[str, int] = {}
    for digits, word in re.findall(r"(\d+) ([a-z]+)", text):
        found[word] = found.get(word, 0) + _number(digits)
    return found


def _summed(found: Mapping[str, int], *words: str) -> int | None:
    """The sum of those of some words that are there; None when none is."""
    known = [found[word] for word in words if word in found]
    return sum(known) if known else None


_PYTEST = re.compile(
    r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+|no tests ran|no tests collected) in [\d.]+\s?s.*$", re.M
)


def _pytest(text: str) -> Counts | None:
    last = _last(_PYTEST, text)
    if last is None:
        return None
    if last[1].startswith("no tests"):
        return Counts("pytest", 0, 0, 0, 0, 0)
    found = _pairs(last[1])
    passed = _summed(found, "passed", "xpassed") or 0
    failed = found.get("failed", 0)
    errors = _summed(found, "error", "errors") or 0
    skipped = _summed(found, "skipped", "xfailed") or 0
    return Counts("pytest", passed, failed, errors, skipped, passed + failed + errors + skipped)


_UNITTEST = re.compile(
    r"^Ran (\d+) tests? in [\d.]+s\n+(OK|FAILED|NO TESTS RAN)(?: \(([^)\n]*)\))?", re.M
)


def _unittest(text: str) -> Counts | None:
    last = _last(_UNITTEST, text)
    if last is None:
        return None
    named = {
        word: _number(digits) for word, digits in re.findall(r"([a-z ]+)=(\d+)", last[3] or "")
    }
    found = {word.strip(): count for word, count in named.items()}
    total = _number(last[1])
    failed = _summed(found, "failures", "unexpected successes") or 0
    errors = found.get("errors", 0)
    skipped = _summed(found, "skipped", "expected failures") or 0
    return Counts(
        "unittest", max(total - failed - errors - skipped, 0), failed, errors, skipped, total
    )


_JEST = re.compile(r"^Tests: +((?:\d+ [a-z]+(?:, )?)+)$", re.M)
_VITEST = re.compile(r"^ *Tests +((?:\d+ [a-z]+(?: \| )?)+)(?: \((\d+)\))?$", re.M)


def _jest(text: str) -> Counts | None:
    last = _last(_JEST, text)
    if last is None:
        return None
    found = _pairs(last[1])
    return Counts(
        "jest",
        found.get("passed", 0),
        found.get("failed", 0),
        None,
        _summed(found, "skipped", "todo", "pending") or 0,
        found.get("total"),
    )


def _vitest(text: str) -> Counts | None:
    last = _last(_VITEST, text)
    if last is None:
        return None
    found = _pairs(last[1])
    total = _number(last[2]) if last[2] else sum(found.values())
    return Counts(
        "vitest",
        found.get("passed", 0),
        found.get("failed", 0),
        None,
        _summed(found, "skipped", "todo") or 0,
        total,
    )


_MOCHA = re.compile(
    r"^ *(\d+) passing \([\d.]+\w+\)(?:\n+ *(\d+) pending)?(?:\n+ *(\d+) failing)?", re.M
)


def _mocha(text: str) -> Counts | None:
    last = _last(_MOCHA, text)
    if last is None:
        return None
    passed, skipped, failed = (_number(digits or "0") for digits in last.groups())
    return Counts("mocha", passed, failed, None, skipped, passed + failed + skipped)


_CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.M)


def _cargo(text: str) -> Counts | None:
    results = [tuple(map(_number, found)) for found in _CARGO.findall(text)]
    if not results:
        return None
    passed, failed, skipped = (sum(column) for column in zip(*results, strict=True))
    return Counts("cargo", passed, failed, None, skipped, passed + failed + skipped)


_GO = re.compile(r"^ *--- (PASS|FAIL|SKIP): \S+ \([\d.]+s\)$", re.M)


def _go_json(text: str) -> Counts | None:
    """One line for each thing that happens: `{"Action":"pass","Package":…,"Test":…}`."""
    ends: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        if '"Action"' not in line or not line.startswith("{"):
            continue
        try:
            event = _EVENT.decode(line)
        except msgspec.MsgspecError:
            continue
        if event.Test and event.Action in ("pass", "fail", "skip"):
            ends[event.Package, event.Test] = event.Action
    return _go_counted(ends.values())


class _Event(msgspec.Struct):
    Action: str
    Package: str = ""
    Test: str = ""


_EVENT = msgspec.json.Decoder(_Event)


def _go(text: str) -> Counts | None:
    """With `-v` every test is named; without, only those that failed, and of the others nothing is
    known."""
    named = [word.lower() for word in _GO.findall(text)]
    if re.search(r"^=== RUN ", text, re.M):
        return _go_counted(named)
    if not re.search(r"^(ok  \t|FAIL\t)\S+", text, re.M):
        return None
    return Counts("go", failed=named.count("fail"))


def _go_counted(ends: Iterable[str]) -> Counts | None:
    found = [*ends]
    if not found:
        return None
    count = found.count
    return Counts("go", count("pass"), count("fail"), None, count("skip"), len(found))


_TAP = re.compile(r"^(ok|not ok)\b(?: +\d+)?([^\n]*)$", re.M)


def _tap(text: str) -> Counts | None:
    plan = re.search(r"^1\.\.(\d+)", text, re.M)
    if plan is None:
        return None
    passed = failed = skipped = 0
    for result, rest in _TAP.findall(text):
        if re.search(r"# *(skip|todo)", rest, re.I):
            skipped += 1
        elif result == "ok":
            passed += 1
        else:
            failed += 1
    return Counts("tap", passed, failed, None, skipped, _number(plan[1]))


# What is the least likely to be in another one's output comes first.
_LOOKS: tuple[Callable[[str], Counts | None], ...] = (
    _go_json,
    _cargo,
    _pytest,
    _unittest,
    _jest,
    _vitest,
    _mocha,
    _go,
    _tap,
)


# -- JUnit -----------------------------------------------------------------------------------------


class _Declared(Exception):
    """A document that declares something of its own."""


def from_junit(document: bytes) -> Counts | None:
    """The counts in a JUnit report. None for what is no such report, and for a document that
    declares entities or is too large."""
    if len(document) > MAX_DOCUMENT:
        return None
    from xml.parsers import expat

    cases = _Cases()
    parser = expat.ParserCreate()
    parser.StartElementHandler = cases.start
    parser.EndElementHandler = cases.end
    # A report has no document type; one that has may expand to anything.
    parser.StartDoctypeDeclHandler = cases.refuse
    parser.EntityDeclHandler = cases.refuse
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, _Declared, LookupError, ValueError):
        return None  # the last two: it names an encoding that nobody knows, or that is no use here
    return cases.counted()


class _Cases:
    """What is counted while a report is read: its cases, each by what is inside of it."""

    def __init__(self) -> None:
        self.report = False
        self.depth = 0
        self.ends: list[str] = []

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        plain = name.rpartition("}")[2].rpartition(":")[2]
        if self.depth == 0:
            self.report = plain in ("testsuites", "testsuite")
        self.depth += 1
        if plain == "testcase":
            self.ends.append("passed")
        elif self.ends and plain in ("failure", "error", "skipped"):
            self.ends[-1] = plain

    def end(self, name: str) -> None:
        self.depth -= 1

    def refuse(self, *words: object) -> None:
        raise _Declared

    def counted(self) -> Counts | None:
        if not self.report:
            return None
        count = self.ends.count
        total = len(self.ends)
        return Counts(
            "junit", count("passed"), count("failure"), count("error"), count("skipped"), total
        )
