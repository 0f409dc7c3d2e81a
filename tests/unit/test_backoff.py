"""The delays between retries."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from corral.domain.mail.backoff import JITTER, compute_backoff_ms
from tests.support.grouped_cases import each_case

LADDER = [5_000, 10_000, 20_000, 40_000, 80_000]


@each_case(("failures", "rung"), [(1, 5_000), (2, 10_000), (5, 80_000), (9, 80_000)])
def test_nth_failure_uses_nth_delay_and_the_last_repeats(failures: int, rung: int) -> None:
    assert compute_backoff_ms(LADDER, failures, lambda: 0.0) == rung


def test_single_delay_is_always_used() -> None:
    assert [compute_backoff_ms([7], n, lambda: 0.0) for n in (1, 2, 50)] == [7, 7, 7]


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=8), st.integers(1, 100), st.floats(0, 1)
)
def test_jitter_only_lengthens_a_delay(
    ladder: list[int], failures: int, random_fraction: float
) -> None:
    rung = ladder[min(failures, len(ladder)) - 1]
    assert (
        rung <= compute_backoff_ms(ladder, failures, lambda: random_fraction) <= rung * (1 + JITTER)
    )


def test_simultaneous_failures_get_different_delays() -> None:
    assert len({compute_backoff_ms(LADDER, 5) for _ in range(50)}) > 10


def test_built_in_delays_only_grow() -> None:
    longest = [compute_backoff_ms(LADDER, n, lambda: 1.0) for n in range(1, 6)]
    shortest = [compute_backoff_ms(LADDER, n, lambda: 0.0) for n in range(1, 6)]
    assert all(before < after for before, after in pairwise(longest))
    assert all(long < short for long, short in zip(longest, shortest[1:], strict=False))
