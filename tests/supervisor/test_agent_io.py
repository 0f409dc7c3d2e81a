"""The recorder buffers facts while the store is unavailable and records each of them once."""

from typing import Any

import pytest

from corral.adapters.providers.facts import (
    LimitFact,
    ResultFact,
    SessionFact,
    TurnFact,
    UsageFact,
)
from corral.api import Corral
from corral.kernel.errors import StoreUnavailable
from corral.supervisor import agent_io as agent_io_module
from corral.supervisor.agent_io import AgentIO
from corral.supervisor.recorder import MAX_PENDING_FACTS, Recorder
from tests.support.home import Home
from tests.support.run_factories import running


def test_records_are_buffered_in_order_while_the_store_is_unavailable(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_io_module, "MAX_PAUSE", 600.0)  # no retry is due during this test
    agent_io, unavailable, attempts = AgentIO(), True, 0
    with home.store() as store:
        session = store.sessions.open()
        run = running(store, session_id=session.id)
        append = store.sessions.append

        def append_if_available(*args: Any, **kwargs: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if unavailable:
                raise StoreUnavailable("The store is unavailable.", reason="unreachable")
            return append(*args, **kwargs)

        monkeypatch.setitem(vars(store.sessions), "append", append_if_available)
        recorder = Recorder(store, run, agent_io.status, lambda *line: None)
        recorder.record(
            [TurnFact("assistant", "one"), TurnFact("assistant", "two"), ResultFact(True)]
        )
        recorder.record([LimitFact("no more")])
        assert (recorder.has_pending, attempts) == (True, 1), (
            "one attempt for all facts, because of the back-off"
        )
        assert agent_io.status.result is not None, "the supervisor sees the result at once"
        assert agent_io.status.quota_limit is not None
        recorder.record([TurnFact("assistant", str(number)) for number in range(MAX_PENDING_FACTS)])
        assert recorder.is_behind
        unavailable = False
        recorder.finish()
        assert not recorder.has_pending
        texts = [turn.content for turn in store.sessions.turns(session.id, limit=5).items]
        assert texts == ["one", "two", "0", "1", "2"]


def test_charge_is_recorded_once_when_the_store_fails_after_the_commit(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with home.store() as store:
        run = running(store)
        update_details, failures = store.internal.runs.update_details, [True, False]

        def update_or_fail(*args: Any, **kwargs: Any) -> Any:
            if failures.pop(0):
                raise StoreUnavailable("The store is unavailable.", reason="unreachable")
            return update_details(*args, **kwargs)

        monkeypatch.setitem(vars(store.internal.runs), "update_details", update_or_fail)
        recorder = Recorder(store, run, AgentIO().status, lambda *line: None)
        recorder.record([UsageFact("m", output=100, cost_micros=5)])
        assert recorder.has_pending
        recorder.finish()
        assert store.charges.total(f"run:{run.id}").cost_micros == 5
        assert store.runs.get(run.id).cost_micros == 5


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_turns_wait_until_the_session_of_their_cli_is_linked(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = running(store, raw=True, provider="codex")
    open_session, failures = store.sessions.open, [True]

    def open_or_fail(*args: Any, **kwargs: Any) -> Any:
        if failures:
            failures.pop()
            raise StoreUnavailable("The store is unavailable.", reason="unreachable")
        return open_session(*args, **kwargs)

    monkeypatch.setitem(vars(store.sessions), "open", open_or_fail)
    recorder = Recorder(store, run, AgentIO().status, lambda *line: None)
    recorder.link(SessionFact("01a1ec0e-4b91"), title="look at it")
    recorder.record([TurnFact("assistant", "one")])
    assert recorder.has_pending
    recorder.finish()
    session = store.sessions.by_provider("codex", "01a1ec0e-4b91")
    assert session is not None
    assert session.title == "look at it"
    assert store.runs.get(run.id).session_id == session.id
    assert [turn.content for turn in store.sessions.turns(session.id).items] == ["one"]
