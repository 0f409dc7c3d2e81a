"""Leases: their bounds, and the words for one who comes late."""

import pytest

from corral.kernel.clock import DAY, SECOND
from corral.kernel.errors import Conflict, Held, Invalid
from corral.kernel.lease import lease_expiry, stale_fence_error
from tests.support.grouped_cases import each_case


@each_case("term", [SECOND, 30 * SECOND, DAY])
def test_a_lease_ends_its_term_after_now(term: int) -> None:
    assert lease_expiry(1_000, term) == 1_000 + term


@each_case("term", [-1, 0, SECOND - 1, DAY + 1])
def test_a_term_that_protects_nothing_or_for_ever_is_refused(term: int) -> None:
    with pytest.raises(Invalid) as caught:
        lease_expiry(1_000, term)
    assert caught.value.details["lease_ms"] == term


@each_case("term", [2**70, 1_500.7, "30s", True])
def test_a_term_that_is_no_whole_number_is_refused(term: int) -> None:
    with pytest.raises(Invalid) as caught:
        lease_expiry(1_000, term)
    assert caught.value.details["field"] == "lease_ms"


def test_the_late_owner_is_told_by_whom_and_what_to_do() -> None:
    error = stale_fence_error("let_1", yours=1, current=3, owner="bob")
    assert isinstance(error, Held)
    assert isinstance(error, Conflict)
    assert error.details == {"fence": 3, "yours": 1, "owner": "bob", "reason": "taken_over"}
    assert "let_1" in error.message
    assert "by bob" in error.message
    assert "claim it again" in error.message


def test_nobody_is_named_when_nobody_holds_it() -> None:
    assert "None" not in stale_fence_error("let_1", yours=1, current=3, owner=None).message


def test_a_fence_that_was_never_given_out_is_told_apart_from_a_late_one() -> None:
    early = stale_fence_error("let_1", yours=9, current=1, owner="bob")
    late = stale_fence_error("let_1", yours=1, current=2, owner="bob")
    assert (early.details["reason"], late.details["reason"]) == ("never_claimed", "taken_over")
