"""Export spans and metrics to an OpenTelemetry collector, by OTLP over HTTP.

The collector is configured with the standard variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`.
Span ids are derived from the subject, so a span that is sent twice is one span.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from corral.kernel.errors import Refused

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.metrics import Histogram
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator
except ImportError:
    raise Refused(
        "Telemetry needs extra packages. Run `pip install 'corral[otel]'`, or "
        "`corral setting set otel.enabled false`."
    ) from None

AttributeValue = str | int | float | bool
FLUSH_MS = 10_000
EXPORT_INTERVAL_MS = 30_000


class Span(NamedTuple):
    """An operation with a duration."""

    about: str
    """The id of the subject; the span id is derived from it."""
    trace: str
    """The id that all spans of a trace share."""
    parent: str | None
    """The subject of the parent span."""
    name: str
    kind: str
    """client: a call to another service; internal."""
    began_at: int
    ended_at: int
    attributes: Mapping[str, AttributeValue | None]
    error: str | None = None


class _FixedIds(IdGenerator):
    """Id generator that returns the ids chosen for the next span."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class OtelExporter:
    """Exports spans and metrics in batches, in the background."""

    def __init__(self, version: str) -> None:
        resource = Resource.create({"service.name": "corral", "service.version": version})
        self._ids = _FixedIds()
        self._traces = TracerProvider(resource=resource, id_generator=self._ids)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._traces.get_tracer("corral", version)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), EXPORT_INTERVAL_MS)
        self._meters = MeterProvider([reader], resource=resource)
        self._meter = self._meters.get_meter("corral", version)
        self._instruments: dict[str, Histogram] = {}

    def send(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._send(span)

    def _send(self, span: Span) -> None:
        self._ids.trace_id = _hash_id(span.trace, 16)
        self._ids.span_id = _hash_id(span.about, 8)
        context = None
        if span.parent is not None:
            parent_context = trace.SpanContext(
                self._ids.trace_id, _hash_id(span.parent, 8), True, trace.TraceFlags(1)
            )
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent_context))
        kind = trace.SpanKind.CLIENT if span.kind == "client" else trace.SpanKind.INTERNAL
        exported = self._tracer.start_span(
            span.name,
            context,
            kind,
            _drop_none(span.attributes),
            start_time=span.began_at * 1_000_000,
        )
        if span.error is not None:
            exported.set_status(trace.StatusCode.ERROR, span.error)
        exported.end(span.ended_at * 1_000_000)

    def measure(
        self, name: str, unit: str, value: float, attributes: Mapping[str, AttributeValue | None]
    ) -> None:
        """Record one value of a histogram."""
        if name not in self._instruments:
            self._instruments[name] = self._meter.create_histogram(name, unit)
        self._instruments[name].record(value, _drop_none(attributes))

    def flush(self) -> None:
        self._traces.force_flush(FLUSH_MS)
        self._meters.force_flush(FLUSH_MS)

    def close(self) -> None:
        self._traces.shutdown()
        self._meters.shutdown()


def _drop_none(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value is not None}


def _hash_id(text: str, size: int) -> int:
    """Hash a text to a non-zero number; 0 would mean no id."""
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1
