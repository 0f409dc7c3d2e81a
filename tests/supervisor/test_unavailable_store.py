"""A supervisor whose store is unavailable for single calls."""

import os
import sys
import time
from typing import Any

import pytest

from corral.adapters.supervisor_process import read_message, write_message
from corral.api import Corral
from corral.domain.runs.model import Run, RunState
from corral.kernel.errors import StoreUnavailable
from corral.supervisor import main as supervisor_main
from corral.supervisor.lease import RunLease
from corral.supervisor.resource_usage import ResourceMeter
from tests.support.run_factories import queued, starting


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
    lease.renew(None, 0, ResourceMeter())
    assert store.runs.get(lease.run.id).state is RunState.RUNNING
    assert lease.run.state is RunState.RUNNING


def test_heartbeat_before_the_launch_leaves_the_run_starting(store: Corral) -> None:
    lease = RunLease(store, starting(store))
    lease.renew(None, 0, ResourceMeter())
    assert store.runs.get(lease.run.id).state is RunState.STARTING


def test_run_stopped_before_the_launch_is_recorded_has_a_heartbeat_due(store: Corral) -> None:
    lease = RunLease(store, starting(store))
    store.internal.runs.request_stop(lease.run.id)
    lease.mark_launched()
    assert lease.next_beat <= time.monotonic()
    lease.renew(None, 0, ResourceMeter())
    assert lease.stop_reason == "stopped"
    assert store.runs.get(lease.run.id).state is RunState.STOPPING


def test_supervisor_exits_cleanly_when_the_store_is_away_at_its_start(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queued(store)
    order_reader, order_writer = os.pipe()
    answer_reader, answer_writer = os.pipe()
    write_message(order_writer, {"store": store.address, "run": run.id})
    service = store.as_service("supervisor")
    monkeypatch.setattr(sys, "argv", ["", str(order_reader), str(answer_writer), "-1"])
    monkeypatch.setattr(supervisor_main, "_open_store", lambda order: service)
    monkeypatch.setattr(supervisor_main, "_detach_from_caller", lambda: None)
    monkeypatch.setattr(supervisor_main, "Termination", lambda: None)
    monkeypatch.setattr(service.runs, "get", raise_unavailable)
    assert supervisor_main.main() == 0
    answer = read_message(answer_reader)
    assert answer is not None
    assert (answer["code"], answer["run"]) == ("store_unavailable", run.id)


def raise_unavailable(id: str) -> Run:
    raise StoreUnavailable("Cannot reach the store.", reason="unreachable")
