"""What an agent says goes into the store; one that is away holds nobody up, and loses nothing."""

from typing import Any

import pytest

from corral.adapters.providers.facts import LimitFact, ResultFact, TurnFact, UsageFact
from corral.kernel.errors import StoreUnavailable
from corral.supervisor import agent_io as voices
from corral.supervisor.agent_io import AgentIO
from corral.supervisor.recorder import MAX_PENDING_FACTS, Recorder
from tests.support.home import Home
from tests.support.run_factories import running


def test_records_are_buffered_in_order_while_the_store_is_unavailable(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voices, "MAX_PAUSE", 600.0)  # no try falls due while this test runs
    voice, away, tries = AgentIO(), True, 0
    with home.store() as store:
        session = store.sessions.open()
        run = running(store, session_id=session.id)
        append = store.sessions.append

        def sometimes(*given: Any, **more: Any) -> Any:
            nonlocal tries
            tries += 1
            if away:
                raise StoreUnavailable("It is away.", reason="unreachable")
            return append(*given, **more)

        monkeypatch.setitem(vars(store.sessions), "append", sometimes)
        recorder = Recorder(store, run, voice, lambda *line: None)
        recorder.record(
            [TurnFact("assistant", "one"), TurnFact("assistant", "two"), ResultFact(True)]
        )
        recorder.record([LimitFact("no more")])
        assert (recorder.has_pending, tries) == (True, 1), "tried now and then, not once a fact"
        assert voice.result is not None, "what the supervisor goes by waits for nobody"
        assert voice.quota_limit is not None
        recorder.record([TurnFact("assistant", str(number)) for number in range(MAX_PENDING_FACTS)])
        assert recorder.is_behind
        away = False
        recorder.finish()
        assert not recorder.has_pending
        said = [turn.content for turn in store.sessions.turns(session.id, limit=5).items]
        assert said == ["one", "two", "0", "1", "2"]


def test_charge_is_recorded_once_when_the_store_fails_after_the_commit(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with home.store() as store:
        run = running(store)
        tell, fails = store.internal.runs.update_details, [True, False]

        def sometimes(*given: Any, **more: Any) -> Any:
            if fails.pop(0):
                raise StoreUnavailable("It is away.", reason="unreachable")
            return tell(*given, **more)

        monkeypatch.setitem(vars(store.runs), "update_details", sometimes)
        recorder = Recorder(store, run, AgentIO(), lambda *line: None)
        recorder.record([UsageFact("m", output=100, cost_micros=5)])
        assert recorder.has_pending
        recorder.finish()
        assert store.charges.total(f"run:{run.id}").cost_micros == 5
        assert store.runs.get(run.id).cost_micros == 5
