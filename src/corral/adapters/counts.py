"""How many tests passed and failed, from what a test program printed or wrote.

What comes from an agent's check is not to be trusted: nothing here is run, expanded or looked up,
and what is not understood is None, never 0.
"""

from typing import Literal

import msgspec

Runner = Literal["junit", "pytest", "unittest", "jest", "vitest", "mocha", "go", "cargo", "tap"]


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
    raise NotImplementedError


def from_junit(document: bytes) -> Counts | None:
    """The counts in a JUnit report. None for what is no such report, and for a document that
    declares entities or is too large."""
    raise NotImplementedError
