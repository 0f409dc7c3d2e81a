"""Leases: limits of the duration, and errors for a stale owner."""

import pytest

from corral.kernel.clock import DAY, SECOND
from corral.kernel.errors import Conflict, Held, Invalid
from corral.kernel.lease import lease_expiry, stale_fence_error
from tests.support.grouped_cases import each_case


@each_case("term", [SECOND, 30 * SECOND, DAY])
def test_lease_ends_its_duration_after_now(term: int) -> None:
    assert lease_expiry(1_000, term) == 1_000 + term


@each_case("term", [-1, 0, SECOND - 1, DAY + 1])
def test_too_short_or_too_long_duration_is_rejected(term: int) -> None:
    with pytest.raises(Invalid) as caught:
        lease_expiry(1_000, term)
    assert caught.value.details["lease_ms"] == term


@each_case("term", [2**70, 1_500.7, "30s", True])
def test_fractional_duration_is_rejected(term: int) -> None:
    with pytest.raises(Invalid) as caught:
        lease_expiry(1_000, term)
    assert caught.value.details["field"] == "lease_ms"


def test_stale_owner_error_names_the_new_owner_and_the_remedy() -> None:
    error = stale_fence_error("let_1", yours=1, current=3, owner="bob")
    assert isinstance(error, Held)
    assert isinstance(error, Conflict)
    assert error.details == {"fence": 3, "yours": 1, "owner": "bob", "reason": "taken_over"}
    assert "let_1" in error.message
    assert "by bob" in error.message
    assert "claim it again" in error.message


def test_error_names_no_owner_when_there_is_none() -> None:
    assert "None" not in stale_fence_error("let_1", yours=1, current=3, owner=None).message


def test_unknown_fence_differs_from_a_stale_fence() -> None:
    unknown = stale_fence_error("let_1", yours=9, current=1, owner="bob")
    stale = stale_fence_error("let_1", yours=1, current=2, owner="bob")
    assert (unknown.details["reason"], stale.details["reason"]) == ("never_claimed", "taken_over")
