"""The base of the state machines: a fresh store for each example, with a manual clock.

A machine applies the steps that hypothesis generates to a store and to a simple model of it, and
compares the two. The model follows the documented behaviour, not the implementation.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import corral
from corral.kernel.clock import ManualClock
from corral.kernel.errors import CorralError
from tests.support.invariants import check_rows

FreshUrl = Callable[[], str]
POSTGRES_SHARE = 3
SHARE = 1 if os.environ.get("CORRAL_FUZZ") else 0.5  # of the examples of a machine

# Hypothesis shrinks a failing example, which may take a while.
allow_shrinking_time = pytest.mark.timeout(420)


class StoreMachine(RuleBasedStateMachine):
    """One example, on one fresh store."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = corral.open(url, clock=self.clock, actor="user:tester")

    @property
    def now(self) -> int:
        return self.clock.now()

    def is_rejected(self, error: type[CorralError] | None, call: Callable[[], Any]) -> bool:
        """Return whether the model expects an error; if so, check that the call raises it."""
        if error is None:
            return False
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error
        return True

    def teardown(self) -> None:
        try:
            check_rows(self.store)
        finally:
            self.store.close()


def run_machine(
    machine: Callable[[str], StoreMachine], fresh_url: FreshUrl, *, examples: int, steps: int
) -> None:
    """Run half of the examples, or all of them with CORRAL_FUZZ.

    PostgreSQL runs a third of that: SQLite finds most bugs in a tenth of the time, and PostgreSQL
    only has to agree.
    """
    on_postgres = fresh_url().startswith("postgres")
    run_state_machine_as_test(
        lambda: machine(fresh_url()),
        settings=settings(
            max_examples=int(examples * SHARE) // (POSTGRES_SHARE if on_postgres else 1),
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
