"""What the machines have in common: a fresh store for each story, and the same time on both sides.

A machine does the same to a room and to a plain model of it, step by step, as hypothesis makes up
the story, and compares the two. The model is written from what the room promises, without a look
at how it keeps the promise.
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
SHARE = 1 if os.environ.get("CORRAL_FUZZ") else 0.5  # of the stories of a machine

# A story that fails is told again and again until it is short; that may take a while.
while_it_is_made_short = pytest.mark.timeout(420)


class StoreMachine(RuleBasedStateMachine):
    """One story, on one fresh store."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = corral.open(url, clock=self.clock, actor="user:tester")

    @property
    def now(self) -> int:
        return self.clock.now()

    def refused(self, error: type[CorralError] | None, call: Callable[[], Any]) -> bool:
        """Whether the model expects a refusal, which the room must then give."""
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
    machine: Callable[[str], StoreMachine], fresh_url: FreshUrl, *, stories: int, steps: int
) -> None:
    """Run half of the stories, or all of them with CORRAL_FUZZ.

    PostgreSQL gets a third of that: a fault of a room is found on SQLite in a tenth of the time,
    and here it is seen that the engines agree.
    """
    on_postgres = fresh_url().startswith("postgres")
    run_state_machine_as_test(
        lambda: machine(fresh_url()),
        settings=settings(
            max_examples=int(stories * SHARE) // (POSTGRES_SHARE if on_postgres else 1),
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
