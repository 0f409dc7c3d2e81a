"""The lease of a supervisor while the store fails for single calls."""

import time
from typing import Any

import pytest

from corral.api import Corral
from corral.domain.runs.model import RunState
from corral.kernel.errors import StoreUnavailable
from corral.supervisor.lease import RunLease
from corral.supervisor.usage import UsageMeter
from tests.support.run_factories import starting


def fail_once(monkeypatch: pytest.MonkeyPatch, target: Any, name: str) -> None:
    """Make the next call of a method fail as if the store was unavailable."""
    method = getattr(target, name)
    failures = [StoreUnavailable("Cannot reach the store.", reason="unreachable")]

    def call(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return method(*arguments, **options)

    monkeypatch.setattr(target, name, call)


def test_launch_that_the_store_missed_is_recorded_by_the_next_heartbeat(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = RunLease(store, starting(store))
    fail_once(monkeypatch, store.internal.runs, "launch")
    lease.mark_launched()
    assert store.runs.get(lease.run.id).state is RunState.STARTING
    lease.renew(None, 0, UsageMeter())
    assert store.runs.get(lease.run.id).state is RunState.RUNNING
    assert lease.run.state is RunState.RUNNING


def test_heartbeat_before_the_launch_leaves_the_run_starting(store: Corral) -> None:
    lease = RunLease(store, starting(store))
    lease.renew(None, 0, UsageMeter())
    assert store.runs.get(lease.run.id).state is RunState.STARTING


def test_run_stopped_before_the_launch_is_recorded_has_a_heartbeat_due(store: Corral) -> None:
    lease = RunLease(store, starting(store))
    store.internal.runs.request_stop(lease.run.id)
    lease.mark_launched()
    assert lease.next_beat <= time.monotonic()
    lease.renew(None, 0, UsageMeter())
    assert lease.stop_reason == "stopped"
    assert store.runs.get(lease.run.id).state is RunState.STOPPING
