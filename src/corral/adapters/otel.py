"""Spans and measurements on their way to an OpenTelemetry collector, by OTLP over HTTP.

Where it is, and how it is spoken to, is told by the standard variables, as
`OTEL_EXPORTER_OTLP_ENDPOINT`. Ids are made from what a span is about, so a span that is sent twice
is one span.
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
        "Telemetry needs some more packages; run `pip install 'corral[otel]'`, or "
        "`corral setting set otel.enabled false`."
    ) from None

Value = str | int | float | bool
FLUSH_MS = 10_000
EVERY_MS = 30_000  # between two reports of measurements


class Span(NamedTuple):
    """Something that took its time."""

    about: str
    """What it is about, by its id: the same thing is the same span."""
    trace: str
    """What all spans of one trace have in common."""
    parent: str | None
    """What its parent is about."""
    name: str
    kind: str
    """client: it asked somebody else; internal."""
    began_at: int
    ended_at: int
    attributes: Mapping[str, Value | None]
    error: str | None = None


class _Ids(IdGenerator):
    """Gives the next span the ids that were chosen for it."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class Exporter:
    """Sends what it is given, in batches behind the caller."""

    def __init__(self, version: str) -> None:
        resource = Resource.create({"service.name": "corral", "service.version": version})
        self._ids = _Ids()
        self._traces = TracerProvider(resource=resource, id_generator=self._ids)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._traces.get_tracer("corral", version)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), EVERY_MS)
        self._meters = MeterProvider([reader], resource=resource)
        self._meter = self._meters.get_meter("corral", version)
        self._instruments: dict[str, Histogram] = {}

    def send(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._send(span)

    def _send(self, span: Span) -> None:
        self._ids.trace_id = _number(span.trace, 16)
        self._ids.span_id = _number(span.about, 8)
        context = None
        if span.parent is not None:
            above = trace.SpanContext(
                self._ids.trace_id, _number(span.parent, 8), True, trace.TraceFlags(1)
            )
            context = trace.set_span_in_context(trace.NonRecordingSpan(above))
        kind = trace.SpanKind.CLIENT if span.kind == "client" else trace.SpanKind.INTERNAL
        made = self._tracer.start_span(
            span.name,
            context,
            kind,
            _known(span.attributes),
            start_time=span.began_at * 1_000_000,
        )
        if span.error is not None:
            made.set_status(trace.StatusCode.ERROR, span.error)
        made.end(span.ended_at * 1_000_000)

    def measure(
        self, name: str, unit: str, value: float, attributes: Mapping[str, Value | None]
    ) -> None:
        """One value of a histogram."""
        if name not in self._instruments:
            self._instruments[name] = self._meter.create_histogram(name, unit)
        self._instruments[name].record(value, _known(attributes))

    def flush(self) -> None:
        self._traces.force_flush(FLUSH_MS)
        self._meters.force_flush(FLUSH_MS)

    def close(self) -> None:
        self._traces.shutdown()
        self._meters.shutdown()


def _known(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


def _number(text: str, size: int) -> int:
    """A number that stands for a text, and is not 0, which would mean none."""
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1
