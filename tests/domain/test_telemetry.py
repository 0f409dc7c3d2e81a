"""What runs did, told to a real receiver of OTLP on loopback."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.daemon.telemetry import Telemetry
from corral.kernel.clock import ManualClock
from corral.kernel.exit_status import ExitStatus
from tests.support.home import wait_until
from tests.support.http_receiver import ReceivedRequest, Receiver, run_receiver
from tests.support.run_factories import ended, running
from tests.support.store import rows


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with run_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.removesuffix("/hook"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        yield receiver


@pytest.fixture
def loop() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.close()


def settled(store: Corral) -> None:
    """Until the feed shows all that was written: PostgreSQL's waits for others on the server."""
    ((last,),) = rows(store, "SELECT max(seq) FROM events")
    wait_until(
        lambda: store.events.newest(limit=1).items[0].id == f"evt_{last}", "the feed shows all"
    )


def attributes(told: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in told.attributes}


def spans(posted: list[ReceivedRequest]) -> list[Any]:
    found = []
    for one in posted:
        if one.path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(one.body)
            found += [
                span
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
    return found


def metrics(posted: list[ReceivedRequest]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for one in posted:
        if one.path == "/v1/metrics":
            request = ExportMetricsServiceRequest.FromString(one.body)
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        found.setdefault(metric.name, []).extend(metric.histogram.data_points)
    return found


def test_nothing_is_exported_unless_enabled(
    store: Corral, collector: Receiver, loop: Telemetry
) -> None:
    ended(store)
    assert loop.run_once(store) == 0
    assert collector.posted == []


def test_run_turns_and_tools_form_one_trace(
    store: Corral, collector: Receiver, loop: Telemetry, clock: ManualClock
) -> None:
    store.settings.set("otel.enabled", True)
    settled(store)
    assert loop.run_once(store) == 0
    store.agents.create("ada")
    session = store.sessions.open("ada")
    agent = store.agents.get("ada")
    run = running(store, session_id=session.id, agent_id=agent.id, provider="claude")
    clock.advance(1_000)
    store.sessions.append(session, "assistant", "let me look", run=run.id, output_tokens=7)
    clock.advance(2_000)
    store.sessions.append(
        session, "tool", "secret words", tool_name="Bash", tool_call_id="c1", run=run.id
    )
    child = running(store, supervisor=2, parent_id=run.id)
    store.internal.runs.end(child, ExitStatus(exit_code=3))
    store.charges.add(
        UsageFact(input=100, output=7, model="claude-x", cost_micros=1_500_000),
        run_id=run.id,
        provider="claude",
    )
    clock.advance(1_000)
    store.internal.runs.end(run, ExitStatus(exit_code=0))
    settled(store)
    assert loop.run_once(store) == 3

    told = {span.name: span for span in spans(collector.posted)}
    assert {*told} == {"invoke_agent ada", "chat claude", "execute_tool Bash", "invoke_agent plain"}
    top = told["invoke_agent ada"]
    assert {span.trace_id for span in told.values()} == {top.trace_id}
    assert {span.parent_span_id for name, span in told.items() if span is not top} == {top.span_id}
    known = attributes(top)
    assert known["gen_ai.operation.name"] == "invoke_agent"
    assert known["gen_ai.provider.name"] == "anthropic"
    assert known["gen_ai.agent.name"] == "ada"
    assert known["gen_ai.conversation.id"] == session.id
    assert (known["gen_ai.usage.input_tokens"], known["gen_ai.usage.output_tokens"]) == (100, 7)
    assert top.end_time_unix_nano - top.start_time_unix_nano == 4_000_000_000
    chat = told["chat claude"]
    assert chat.end_time_unix_nano - chat.start_time_unix_nano == 1_000_000_000
    assert attributes(told["execute_tool Bash"])["gen_ai.tool.call.id"] == "c1"
    assert attributes(told["invoke_agent plain"])["error.type"] == "failed"
    assert told["invoke_agent plain"].status.code == 2

    measured = metrics(collector.posted)
    usage = {
        attributes(point)["gen_ai.token.type"]: point.sum
        for point in measured["gen_ai.client.token.usage"]
    }
    assert usage == {"input": 100, "output": 7}
    assert [point.sum for point in measured["corral.cost"]] == [1.5]
    assert "gen_ai.client.operation.duration" in measured
    assert not any(b"secret words" in one.body for one in collector.posted)


def test_telemetry_can_be_switched_off_and_on(
    store: Corral, collector: Receiver, loop: Telemetry
) -> None:
    store.settings.set("otel.enabled", True)
    loop.run_once(store)
    store.settings.set("otel.enabled", False)
    ended(store)
    settled(store)
    assert loop.run_once(store) == 0
    store.settings.set("otel.enabled", True)
    loop.run_once(store)
    assert spans(collector.posted) == []


def test_deleted_run_does_not_stop_the_export(
    store: Corral, collector: Receiver, loop: Telemetry
) -> None:
    store.settings.set("otel.enabled", True)
    settled(store)
    loop.run_once(store)
    gone = ended(store)
    store.runs.delete(gone.id)
    ended(store)
    settled(store)
    assert loop.run_once(store) == 1
