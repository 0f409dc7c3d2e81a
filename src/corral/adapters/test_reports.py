"""Parse the number of passed and failed tests from the output or report of a test runner.

The input comes from an agent's check and is not trusted: nothing is executed, expanded or
fetched. A number that cannot be determined is None, never 0.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

Runner = Literal["junit", "pytest", "unittest", "jest", "vitest", "mocha", "go", "cargo", "tap"]
MAX_OUTPUT = 8 * 1024 * 1024
MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


class ReportCounts(msgspec.Struct, frozen=True):
    """The result of a test run."""

    runner: Runner
    passed: int | None = None
    failed: int | None = None
    errors: int | None = None
    skipped: int | None = None
    total: int | None = None


def parse_output(text: str) -> ReportCounts | None:
    """Parse the output of a test runner; None when it has no known summary.

    The last summary counts, or the sum of all where a runner prints one per part (cargo, go).
    """
    plain = _COLOUR.sub("", text[-MAX_OUTPUT:]).replace("\r\n", "\n")
    for parser in _PARSERS:
        if counts := parser(plain):
            return counts
    return None


def _parse_number(digits: str) -> int:
    return int(digits[:9])  # bounds the size of the number


def _find_last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = None
    for match in pattern.finditer(text):
        last = match
    return last


def _parse_pairs(text: str) -> dict[str, int]:
    """Parse a list such as `1 failed, 3 passed`; repeated words are added."""
    counts: dict[str, int] = {}
    for digits, word in re.findall(r"(\d+) ([a-z]+)", text):
        counts[word] = counts.get(word, 0) + _parse_number(digits)
    return counts


def _sum_counts(counts: Mapping[str, int], *words: str) -> int | None:
    """Return the sum of the counts of some words; None when all are missing."""
    present = [counts[word] for word in words if word in counts]
    return sum(present) if present else None


_PYTEST = re.compile(
    r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+|no tests ran|no tests collected) in [\d.]+\s?s.*$", re.M
)


def _parse_pytest(text: str) -> ReportCounts | None:
    last = _find_last(_PYTEST, text)
    if last is None:
        return None
    if last[1].startswith("no tests"):
        return ReportCounts("pytest", 0, 0, 0, 0, 0)
    counts = _parse_pairs(last[1])
    passed = _sum_counts(counts, "passed", "xpassed") or 0
    failed = counts.get("failed", 0)
    errors = _sum_counts(counts, "error", "errors") or 0
    skipped = _sum_counts(counts, "skipped", "xfailed") or 0
    return ReportCounts(
        "pytest", passed, failed, errors, skipped, passed + failed + errors + skipped
    )


_UNITTEST = re.compile(
    r"^Ran (\d+) tests? in [\d.]+s\n+(OK|FAILED|NO TESTS RAN)(?: \(([^)\n]*)\))?", re.M
)


def _parse_unittest(text: str) -> ReportCounts | None:
    last = _find_last(_UNITTEST, text)
    if last is None:
        return None
    named = {
        word: _parse_number(digits)
        for word, digits in re.findall(r"([a-z ]+)=(\d+)", last[3] or "")
    }
    counts = {word.strip(): count for word, count in named.items()}
    total = _parse_number(last[1])
    failed = _sum_counts(counts, "failures", "unexpected successes") or 0
    errors = counts.get("errors", 0)
    skipped = _sum_counts(counts, "skipped", "expected failures") or 0
    return ReportCounts(
        "unittest", max(total - failed - errors - skipped, 0), failed, errors, skipped, total
    )


_JEST = re.compile(r"^Tests: +((?:\d+ [a-z]+(?:, )?)+)$", re.M)
_VITEST = re.compile(r"^ *Tests +((?:\d+ [a-z]+(?: \| )?)+)(?: \((\d+)\))?$", re.M)


def _parse_jest(text: str) -> ReportCounts | None:
    last = _find_last(_JEST, text)
    if last is None:
        return None
    counts = _parse_pairs(last[1])
    return ReportCounts(
        "jest",
        counts.get("passed", 0),
        counts.get("failed", 0),
        None,
        _sum_counts(counts, "skipped", "todo", "pending") or 0,
        counts.get("total"),
    )


def _parse_vitest(text: str) -> ReportCounts | None:
    last = _find_last(_VITEST, text)
    if last is None:
        return None
    counts = _parse_pairs(last[1])
    total = _parse_number(last[2]) if last[2] else sum(counts.values())
    return ReportCounts(
        "vitest",
        counts.get("passed", 0),
        counts.get("failed", 0),
        None,
        _sum_counts(counts, "skipped", "todo") or 0,
        total,
    )


_MOCHA = re.compile(
    r"^ *(\d+) passing \([\d.]+\w+\)(?:\n+ *(\d+) pending)?(?:\n+ *(\d+) failing)?", re.M
)


def _parse_mocha(text: str) -> ReportCounts | None:
    last = _find_last(_MOCHA, text)
    if last is None:
        return None
    passed, skipped, failed = (_parse_number(digits or "0") for digits in last.groups())
    return ReportCounts("mocha", passed, failed, None, skipped, passed + failed + skipped)


_CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.M)


def _parse_cargo(text: str) -> ReportCounts | None:
    results = [tuple(map(_parse_number, match)) for match in _CARGO.findall(text)]
    if not results:
        return None
    passed, failed, skipped = (sum(column) for column in zip(*results, strict=True))
    return ReportCounts("cargo", passed, failed, None, skipped, passed + failed + skipped)


_GO = re.compile(r"^ *--- (PASS|FAIL|SKIP): \S+ \([\d.]+s\)$", re.M)


def _parse_go_json(text: str) -> ReportCounts | None:
    """Parse `go test -json`: one event per line, `{"Action":"pass","Package":…,"Test":…}`."""
    outcomes: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        if '"Action"' not in line or not line.startswith("{"):
            continue
        try:
            event = _EVENT.decode(line)
        except msgspec.MsgspecError:
            continue
        if event.Test and event.Action in ("pass", "fail", "skip"):
            outcomes[event.Package, event.Test] = event.Action
    return _count_go_results(outcomes.values())


class _Event(msgspec.Struct):
    Action: str
    Package: str = ""
    Test: str = ""


_EVENT = msgspec.json.Decoder(_Event)


def _parse_go(text: str) -> ReportCounts | None:
    """Parse `go test`.

    Passed tests are named only with `-v`; otherwise only the failures are known.
    """
    named = [word.lower() for word in _GO.findall(text)]
    if re.search(r"^=== RUN ", text, re.M):
        return _count_go_results(named)
    if not re.search(r"^(ok  \t|FAIL\t)\S+", text, re.M):
        return None
    return ReportCounts("go", failed=named.count("fail"))


def _count_go_results(outcomes: Iterable[str]) -> ReportCounts | None:
    results = [*outcomes]
    if not results:
        return None
    count = results.count
    return ReportCounts("go", count("pass"), count("fail"), None, count("skip"), len(results))


_TAP = re.compile(r"^(ok|not ok)\b(?: +\d+)?([^\n]*)$", re.M)


def _parse_tap(text: str) -> ReportCounts | None:
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
    return ReportCounts("tap", passed, failed, None, skipped, _parse_number(plan[1]))


# The most specific formats first: the output of one runner may contain that of another.
_PARSERS: tuple[Callable[[str], ReportCounts | None], ...] = (
    _parse_go_json,
    _parse_cargo,
    _parse_pytest,
    _parse_unittest,
    _parse_jest,
    _parse_vitest,
    _parse_mocha,
    _parse_go,
    _parse_tap,
)


# -- JUnit -----------------------------------------------------------------------------------------


class _DeclarationFound(Exception):
    """The document declares a document type or an entity."""


def parse_junit(document: bytes) -> ReportCounts | None:
    """Parse a JUnit report.

    None for other documents, for one that declares entities, and for one that is too large.
    """
    if len(document) > MAX_DOCUMENT_BYTES:
        return None
    from xml.parsers import expat

    cases = _CaseCounter()
    parser = expat.ParserCreate()
    parser.StartElementHandler = cases.start
    parser.EndElementHandler = cases.end
    # A report needs no document type; entities could expand without limit.
    parser.StartDoctypeDeclHandler = cases.refuse
    parser.EntityDeclHandler = cases.refuse
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, _DeclarationFound, LookupError, ValueError):
        return None  # LookupError, ValueError: an unknown or unusable encoding
    return cases.counted()


class _CaseCounter:
    """Counts the test cases while a report is parsed."""

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
        raise _DeclarationFound

    def counted(self) -> ReportCounts | None:
        if not self.report:
            return None
        count = self.ends.count
        total = len(self.ends)
        return ReportCounts(
            "junit", count("passed"), count("failure"), count("error"), count("skipped"), total
        )
