"""Parsing and formatting of durations; clocks that can be injected."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.kernel.clock import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    ManualClock,
    SystemClock,
    format_duration,
    parse_duration,
)
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case


@each_case(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("90s", 90 * SECOND),
        ("10m", 10 * MINUTE),
        ("1h30m", 90 * MINUTE),
        ("7d", 7 * DAY),
        ("2w", 14 * DAY),
        ("1.5h", 90 * MINUTE),
        ("0s", 0),
        ("1d2h3m4s5ms", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5),
        (" 5s ", 5 * SECOND),
    ],
)
def test_duration_is_parsed(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@each_case(
    "text",
    ["", " ", "5", "s", "5 s", "1h 30m", "-5s", "+5s", "5x", "5s!", "1,5s", "1e3s", "5S", ".5s"],
)
def test_invalid_duration_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_duration(text)
    assert "90s" in caught.value.message


@each_case("text", ["\u0663s", "\uff15s"])
def test_non_ascii_digits_are_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        parse_duration(text)


@given(st.integers(0, 400 * DAY))
def test_formatted_duration_is_parsed_back(ms: int) -> None:
    assert parse_duration(format_duration(ms)) == ms


@given(st.integers(0, 10**9))
def test_fraction_keeps_every_millisecond(ms: int) -> None:
    assert parse_duration(f"{ms // 1_000}.{ms % 1_000:03}s") == ms


@each_case(
    ("ms", "text"), [(0, "0s"), (1, "1ms"), (90_000, "1m30s"), (DAY, "1d"), (HOUR + 1, "1h1ms")]
)
def test_duration_is_formatted_in_its_largest_units(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_manual_clock_changes_only_when_advanced() -> None:
    clock = ManualClock(5)
    assert (clock.now(), clock.now()) == (5, 5)
    clock.advance(3)
    assert clock.now() == 8


def test_system_clock_counts_milliseconds() -> None:
    before = time.time() * 1_000
    now = SystemClock().now()
    assert isinstance(now, int)
    assert before - 1 <= now <= time.time() * 1_000
