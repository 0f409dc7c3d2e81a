"""Telemetry: spans and metrics of runs, sent to an OTLP receiver on loopback."""

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


def wait_for_feed(store: Corral) -> None:
    """Wait until the feed has every event; on PostgreSQL it waits for open transactions."""
    ((last,),) = rows(store, "SELECT max(seq) FROM events")
    wait_until(
        lambda: store.events.newest(limit=1).items[0].id == f"evt_{last}", "the feed shows all"
    )


def read_attributes(record: Any) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in record.attributes
    }


def list_spans(posted: list[ReceivedRequest]) -> list[Any]:
    spans = []
    for request_body in posted:
        if request_body.path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(request_body.body)
            spans += [
                span
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
    return spans


def list_metrics(posted: list[ReceivedRequest]) -> dict[str, list[Any]]:
    points: dict[str, list[Any]] = {}
    for request_body in posted:
        if request_body.path == "/v1/metrics":
            request = ExportMetricsServiceRequest.FromString(request_body.body)
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        points.setdefault(metric.name, []).extend(metric.histogram.data_points)
    return points


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
    wait_for_feed(store)
    assert loop.run_once(store) == 0
    store.agents.create("ada")
    session = store.sessions.open("ada")
    agent = store.agents.get("ada")
    run = running(store, session_id=session.id, agent_id=agent.id, provider="claude")
    clock.advance(1_000)
    store.sessions.append(session, "assistant", "one moment", run=run.id, output_tokens=7)
    clock.advance(2_000)
    store.sessions.append(
        session, "tool", "secret words", tool_name="Bash", tool_call_id="c1", run=run.id
    )
    child = running(store, supervisor=2, parent_id=run.id)
    store.internal.runs.record_end(child, ExitStatus(exit_code=3))
    store.charges.add(
        UsageFact(input=100, output=7, model="claude-x", cost_micros=1_500_000),
        run_id=run.id,
        provider="claude",
    )
    clock.advance(1_000)
    store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    wait_for_feed(store)
    assert loop.run_once(store) == 3

    spans = {span.name: span for span in list_spans(collector.posted)}
    assert {*spans} == {
        "invoke_agent ada",
        "chat claude",
        "execute_tool Bash",
        "invoke_agent plain",
    }
    root = spans["invoke_agent ada"]
    assert {span.trace_id for span in spans.values()} == {root.trace_id}
    assert {span.parent_span_id for name, span in spans.items() if span is not root} == {
        root.span_id
    }
    attributes = read_attributes(root)
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert attributes["gen_ai.provider.name"] == "anthropic"
    assert attributes["gen_ai.agent.name"] == "ada"
    assert attributes["gen_ai.conversation.id"] == session.id
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (
        100,
        7,
    )
    assert root.end_time_unix_nano - root.start_time_unix_nano == 4_000_000_000
    chat = spans["chat claude"]
    assert chat.end_time_unix_nano - chat.start_time_unix_nano == 1_000_000_000
    assert read_attributes(spans["execute_tool Bash"])["gen_ai.tool.call.id"] == "c1"
    assert read_attributes(spans["invoke_agent plain"])["error.type"] == "failed"
    assert spans["invoke_agent plain"].status.code == 2

    points = list_metrics(collector.posted)
    usage = {
        read_attributes(point)["gen_ai.token.type"]: point.sum
        for point in points["gen_ai.client.token.usage"]
    }
    assert usage == {"input": 100, "output": 7}
    assert [point.sum for point in points["corral.cost"]] == [1.5]
    assert "gen_ai.client.operation.duration" in points
    assert not any(b"secret words" in request.body for request in collector.posted)


def test_telemetry_can_be_switched_off_and_on(
    store: Corral, collector: Receiver, loop: Telemetry
) -> None:
    store.settings.set("otel.enabled", True)
    loop.run_once(store)
    store.settings.set("otel.enabled", False)
    ended(store)
    wait_for_feed(store)
    assert loop.run_once(store) == 0
    store.settings.set("otel.enabled", True)
    loop.run_once(store)
    assert list_spans(collector.posted) == []


def test_deleted_run_does_not_stop_the_export(
    store: Corral, collector: Receiver, loop: Telemetry
) -> None:
    store.settings.set("otel.enabled", True)
    wait_for_feed(store)
    loop.run_once(store)
    deleted = ended(store)
    store.runs.delete(deleted.id)
    ended(store)
    wait_for_feed(store)
    assert loop.run_once(store) == 1
