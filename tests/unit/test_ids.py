"""Ids: ordered by time, ascending within a millisecond, and abbreviable."""

import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.kernel.errors import Invalid
from corral.kernel.ids import ALPHABET, ID_LENGTH, id_range, new_id, parse_number
from tests.support.grouped_cases import each_case

MOMENT = 1_800_000_000_000


def test_id_is_a_prefix_and_26_unambiguous_characters() -> None:
    prefix, _, tail = new_id("prj", MOMENT).partition("_")
    assert (prefix, len(tail)) == ("prj", ID_LENGTH)
    assert {*tail} <= {*ALPHABET}
    assert not {*"ilou"} & {*ALPHABET}


def test_ids_of_one_millisecond_ascend() -> None:
    results = [new_id("x", MOMENT + 10_000) for _ in range(2_000)]
    assert results == sorted(results)
    assert len({*results}) == len(results)


def test_ids_ascend_when_the_clock_is_set_back() -> None:
    first = new_id("x", MOMENT + 20_000)
    assert new_id("x", MOMENT + 19_000) > first


@given(st.integers(1, 2**47), st.integers(1, 2**20))
def test_later_times_give_larger_ids(moment: int, step: int) -> None:
    # A child process starts from scratch, so ids that this process generated do not matter.
    first, second = encoded(moment), encoded(moment + step)
    assert first < second


def encoded(moment: int) -> str:
    """Return the time part of an id, computed independently."""
    bits = moment << 80
    return "".join(ALPHABET[(bits >> shift) & 31] for shift in range(125, -1, -5))


def test_id_starts_with_its_time() -> None:
    # In a new process: this one may already have generated an id of a later time.
    code = f"from corral.kernel.ids import new_id; print(new_id('x', {MOMENT}))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    value = 0
    for character in result.stdout.strip().partition("_")[2]:
        value = value * 32 + ALPHABET.index(character)
    assert value >> 80 == MOMENT


def test_threads_never_generate_the_same_id() -> None:
    results: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: results.extend([new_id("x", MOMENT + 40_000) for _ in range(500)])
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*results}) == len(results) == 4_000


def test_forked_child_does_not_continue_the_parents_ids() -> None:
    moment = MOMENT + 50_000
    new_id("x", moment)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.write(writer, new_id("x", moment).encode())
        os._exit(0)
    os.waitpid(child, 0)
    child_id = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert child_id != new_id("x", moment)


# -- abbreviation ----------------------------------------------------------------------------


@given(st.integers(1, ID_LENGTH))
def test_range_of_every_prefix_contains_the_id(length: int) -> None:
    id = new_id("prj", MOMENT)
    low, high = id_range("prj", id[: 4 + length])
    assert low <= id < high


def test_range_excludes_ids_with_another_prefix() -> None:
    low, high = id_range("prj", "prj_0b")
    assert low <= "prj_0b" < high
    assert low <= "prj_0bzzzz" < high
    assert not low <= "prj_0a" + "z" * 24 < high
    assert not low <= "prj_0c" < high
    assert not low <= "prk_0b" < high


@each_case("typed", ["prj_0b", "0b", "0B", "PRJ_0B", "  prj_0b\n"])
def test_type_prefix_is_optional_and_case_is_ignored(typed: str) -> None:
    assert id_range("prj", typed).low == "prj_0b"


@each_case(
    "typed",
    ["", " ", "prj_", "sch_0b", "prj_u", "prj_o", "0-b", "é", "prj_" + "0" * 27, "0\0"],
)
def test_invalid_id_is_rejected_with_an_example(typed: str) -> None:
    with pytest.raises(Invalid) as caught:
        id_range("prj", typed)
    assert "prj_" in caught.value.message


# -- numbers ---------------------------------------------------------------------------------


@each_case(
    ("typed", "number"),
    [("let_184", 184), ("184", 184), (184, 184), (" let_7 ", 7), ("let_007", 7), ("0", 0)],
)
def test_number_is_read_from_an_id(typed: str | int, number: int) -> None:
    assert parse_number("let", typed) == number


def test_largest_number_fits_64_bits() -> None:
    assert parse_number("let", "9" * 18) < 2**63
    with pytest.raises(Invalid):
        parse_number("let", "9" * 19)


@each_case("typed", ["", "let_", "evt_1", "let_1.0", "-1", "let_-1", "+1", "1e3"])
def test_id_without_a_number_is_rejected(typed: str) -> None:
    with pytest.raises(Invalid):
        parse_number("let", typed)


@each_case("typed", ["²", "\u0663", "\uff11", "1_000", "0x1", "let_1\0", -1])
def test_non_ascii_digits_are_not_numbers(typed: str | int) -> None:
    with pytest.raises(Invalid):
        parse_number("let", typed)
