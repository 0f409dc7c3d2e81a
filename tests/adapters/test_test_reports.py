"""Test counts parsed from the output and reports of test runners, and from hostile text."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.adapters.test_reports import ReportCounts, parse_junit, parse_output

pytestmark = pytest.mark.slow

PRINTED = {
    "pytest": (
        "..F.E\nFAILED test_a.py::test_b - assert 1 == 2\n"
        "=========== 1 failed, 3 passed, 2 skipped, 1 xfailed, 1 error in 0.12s ===========\n",
        ReportCounts("pytest", 3, 1, 1, 3, 8),
    ),
    "pytest, quiet": ("....\n4 passed in 0.01s\n", ReportCounts("pytest", 4, 0, 0, 0, 4)),
    "pytest, coloured": (
        "\x1b[32m\x1b[1m2 passed\x1b[0m\x1b[32m, \x1b[33m1 warning\x1b[0m in 61.20s (0:01:01)\n",
        ReportCounts("pytest", 2, 0, 0, 0, 2),
    ),
    "pytest, none": (
        "\n===== no tests ran in 0.00s =====\n",
        ReportCounts("pytest", 0, 0, 0, 0, 0),
    ),
    "pytest, the last of two": (
        "=== 9 passed in 1.00s ===\nagain\n=== 1 passed in 1.00s ===\n",
        ReportCounts("pytest", 1, 0, 0, 0, 1),
    ),
    "unittest": (
        "----\nRan 7 tests in 0.003s\n\nFAILED (failures=1, errors=2, skipped=1)\n",
        ReportCounts("unittest", 3, 1, 2, 1, 7),
    ),
    "unittest, good": ("Ran 1 test in 0.000s\n\nOK\n", ReportCounts("unittest", 1, 0, 0, 0, 1)),
    "jest": (
        "Test Suites: 1 failed, 2 passed, 3 total\n"
        "Tests:       1 failed, 1 skipped, 1 todo, 5 passed, 8 total\nSnapshots:   0 total\n",
        ReportCounts("jest", 5, 1, None, 2, 8),
    ),
    "vitest": (
        " Test Files  1 failed | 3 passed (4)\n"
        "      Tests  2 failed | 30 passed | 1 skipped (33)\n",
        ReportCounts("vitest", 30, 2, None, 1, 33),
    ),
    "mocha": (
        "\n  12 passing (34ms)\n  1 pending\n  2 failing\n\n  1) adds:\n",
        ReportCounts("mocha", 12, 2, None, 1, 15),
    ),
    "go -v": (
        "=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n    --- FAIL: TestB/x (0.00s)\n"
        "--- SKIP: TestC (0.00s)\nFAIL\nFAIL\texample.org/a\t0.003s\n",
        ReportCounts("go", 1, 1, None, 1, 3),
    ),
    "go": (
        "--- FAIL: TestB (0.00s)\n    a_test.go:3: no\nFAIL\nFAIL\texample.org/a\t0.003s\n"
        "ok  \texample.org/b\t0.002s\n",
        ReportCounts("go", None, 1, None, None, None),
    ),
    "go -json": (
        '{"Action":"run","Package":"a","Test":"TestA"}\n'
        '{"Action":"pass","Package":"a","Test":"TestA","Elapsed":0}\n'
        '{"Action":"fail","Package":"b","Test":"TestA","Elapsed":0}\n'
        '{"Action":"skip","Package":"b","Test":"TestB","Elapsed":0}\n'
        '{"Action":"fail","Package":"b","Elapsed":0.1}\n{nonsense "Action"\n',
        ReportCounts("go", 1, 1, None, 1, 3),
    ),
    "cargo": (
        "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished\n"
        "test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished\n",
        ReportCounts("cargo", 7, 1, None, 2, 10),
    ),
    "tap": (
        "TAP version 13\n1..4\nok 1 - a\nnot ok 2 - b\n  ---\n  ...\nok 3 # SKIP no\n",
        ReportCounts("tap", 1, 1, None, 1, 4),
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_output_of_a_test_runner_is_counted(name: str) -> None:
    text, counts = PRINTED[name]
    assert parse_output(text) == counts
    assert parse_output(text.replace("\n", "\r\n")) == counts


@pytest.mark.parametrize(
    "text", ["", "all tests passed", "5 passed", "Tests: many", "ok\n", "make: *** [test] Error 2"]
)
def test_unrecognized_output_is_unknown(text: str) -> None:
    assert parse_output(text) is None


@given(st.text(max_size=400))
def test_any_text_is_accepted(text: str) -> None:
    parse_output(text)


@pytest.mark.parametrize(
    "piece", ["1 passed, ", "9" * 50, "=== RUN ", "ok ", "Tests: 1 a, ", "\x1b[1", "\n 1 passing ("]
)
def test_hostile_text_is_parsed_in_linear_time(piece: str) -> None:
    start = time.process_time()
    parse_output(piece * (2_000_000 // len(piece)))
    assert time.process_time() - start < 10
    assert parse_output(f"{'9' * 100} passed in 1s") == ReportCounts(
        "pytest", 999_999_999, 0, 0, 0, 999_999_999
    )


def test_junit_report_is_counted() -> None:
    report = b"""<?xml version="1.0"?><testsuites><testsuite tests="99">
      <testcase name="a"/><testcase name="b"><failure message="x"/></testcase>
      <testcase name="c"><error/></testcase><testcase name="d"><skipped/></testcase>
      <testcase name="e"><system-out>fine</system-out></testcase>
    </testsuite></testsuites>"""
    assert parse_junit(report) == ReportCounts("junit", 2, 1, 1, 1, 5)
    assert parse_junit(b"<testsuite/>") == ReportCounts("junit", 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no xml",
        b"<html/>",
        b"<testsuite>",
        b'<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><testsuite><testcase/>&c;</testsuite>',
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite/>',
    ],
)
def test_invalid_report_or_one_with_a_dtd_is_unknown(document: bytes) -> None:
    assert parse_junit(document) is None


@given(st.binary(max_size=200))
def test_any_document_is_accepted(document: bytes) -> None:
    parse_junit(document)


def test_real_pytest_output_and_report_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.mark.skip\ndef test_c(): pass\n@pytest.fixture\ndef bad(): 1/0\n"
        "def test_d(bad): pass\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junit-xml=report.xml"],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    numbers = (1, 1, 1, 1, 4)
    assert parse_output(result.stdout) == ReportCounts("pytest", *numbers)
    assert parse_junit((tmp_path / "report.xml").read_bytes()) == ReportCounts("junit", *numbers)


def test_real_unittest_output_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): pass\n"
        "    def test_b(self): self.fail()\n    def test_c(self): 1/0\n"
        "    @unittest.skip('x')\n    def test_d(self): pass\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "unittest"], cwd=tmp_path, capture_output=True, text=True
    )
    assert parse_output(result.stderr) == ReportCounts("unittest", 1, 1, 1, 1, 4)
