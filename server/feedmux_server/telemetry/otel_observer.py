"""The observer that records counts, durations and spans.

Counts are plain numbers of the event loop, copied into each snapshot. A histogram of the SDK costs 5 µs per value, so
durations of messages are measured only for a share of the messages; the share is random, because subscribers get
messages in turn. Spans are made if there is a tracer.
"""

import asyncio
from collections.abc import Iterable
from random import random
from typing import Final, Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, Tracer

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.metrics import Kind, Metric
from feedmux_server.telemetry.metrics_snapshot import MetricsSnapshot
from feedmux_server.telemetry.observer import (
    NO_SPAN,
    Attributes,
    Call,
    Metadata,
    Observer,
    SessionObserver,
    Span,
    Trace,
)

MEASURED_SHARE: Final = 1 / 16
"""The share of messages that is measured. A measurement adds 5 µs to the 50 that a small message costs the server."""
DELIVERY_SPAN_EVERY_S: Final = 1.0
"""A traced session has a span for at most one message in this time."""


class OtelObserver(Observer):
    """Without `tracer` there are no spans."""

    def __init__(self, meter: Meter, tracer: Tracer | None, tenants: Labels) -> None:
        # Reads OTEL_PROPAGATORS, and fails if it names one that is not installed.
        from opentelemetry.propagate import extract

        self._context_of = extract
        self.counted = MetricsSnapshot(tenants)
        self._tenants = tenants
        self._errors = Labels(metrics.ERROR_TYPES_MAX)
        self._tracer = tracer
        self.histograms: dict[Metric, Histogram] = {
            each: meter.create_histogram(
                each.name, each.unit, each.description, explicit_bucket_boundaries_advisory=each.buckets
            )
            for each in metrics.METRICS
            if each.kind is Kind.HISTOGRAM
        }
        self._stages = self.histograms[metrics.STAGES]

    def count(self, metric: Metric, number: int, *attributes: str) -> None:
        if metric.attributes[-1:] == (metrics.ERROR,):
            attributes = (*attributes[:-1], self._errors.of(attributes[-1]))
        self.counted.add(metric, number, *attributes)

    def measured(self, metric: Metric, duration_s: float) -> None:
        self.histograms[metric].record(duration_s)

    def batch_read(self, source: str, events: int, size: int, happened_s: float, read_time_s: float) -> None:
        self.counted.add(metrics.READS, 1, source)
        if events:
            self.counted.add(metrics.SOURCE_EVENTS, events, source)
            self.counted.add(metrics.SOURCE_IO, size, source)
            if happened_s:
                self._stages.record(max(0.0, read_time_s - happened_s), {metrics.STAGE: "read", metrics.SOURCE: source})

    def batch_in_ring(self, source: str, read_time_s: float) -> None:
        self._stages.record(max(0.0, wall_s() - read_time_s), {metrics.STAGE: "ring", metrics.SOURCE: source})

    def documents_read(self, source: str, documents: int, size: int) -> None:
        self.counted.add(metrics.SNAPSHOT_DOCUMENTS, documents, source)
        self.counted.add(metrics.SNAPSHOT_BYTES, size, source)

    def session(self, tenant: str) -> SessionObserver:
        self.counted.add(metrics.SESSIONS_OPENED, 1, tenant)
        call = trace.get_current_span() if self._tracer is not None else None
        traced = _TracedSession(self._tracer, call) if self._tracer and call and call.is_recording() else None
        return _Session(self._stages, self._tenants.of(tenant), traced)

    def call(self, method: str, metadata: Metadata) -> Call:
        span: trace.Span = trace.INVALID_SPAN
        if self._tracer is not None:
            span = self._tracer.start_span(
                method,
                self._context_of({name: each for name, each in metadata() or () if isinstance(each, str)}),
                SpanKind.SERVER,
                {"rpc.system.name": "grpc", "rpc.method": method},
            )
        return _Call(method, self.histograms[metrics.CALLS], span)

    def span(
        self, name: str, attributes: Attributes | None = None, *, client: bool = False, root: bool = False,
        links: Iterable[Trace] = (),
    ) -> Span:  # fmt: skip
        if self._tracer is None or (client and self.here is None):
            return NO_SPAN
        started = self._tracer.start_span(
            name,
            Context() if root else None,
            SpanKind.CLIENT if client else SpanKind.INTERNAL,
            attributes,
            [Link(each) for each in links if isinstance(each, SpanContext)],
        )
        return _Span(started)

    @property
    def here(self) -> Trace:
        if self._tracer is None:
            return None
        found = trace.get_current_span().get_span_context()
        return found if found.is_valid else None


def error_type(error: BaseException) -> str:
    """The attribute `error.type`: our reason, or the exception's class."""
    return error.reason.value if isinstance(error, FeedmuxError) else type(error).__name__


class _Span(Span):
    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def trace(self) -> Trace:
        return self._span.get_span_context()

    def __enter__(self) -> Self:
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        contexts.detach(self._token)
        if error is not None and not isinstance(error, asyncio.CancelledError):
            # Without any text, even our own: our texts quote MongoDB, which quotes pipelines, keys and documents.
            self._span.set_attribute(metrics.ERROR, error_type(error))
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _Call(_Span, Call):
    """Without a tracer, its span is OpenTelemetry's invalid one, which does nothing."""

    __slots__ = ("_began_s", "_duration", "_method", "_reason", "_status")

    def __init__(self, method: str, duration: Histogram, span: trace.Span) -> None:
        super().__init__(span)
        self._method = method
        self._duration = duration
        self._status = "CANCELLED"
        self._reason = ""
        self._began_s = monotonic_s()

    def answered(self, status: str, reason: str = "") -> None:
        self._status = status
        self._reason = reason

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        status = {"rpc.response.status_code": self._status}
        if self._status != "OK":
            status[metrics.ERROR] = self._reason or self._status
        common = {"rpc.system.name": "grpc", "rpc.method": self._method}
        self._duration.record(monotonic_s() - self._began_s, {**common, **status})
        contexts.detach(self._token)
        self._span.set_attributes(status)
        # By the convention, a server's span has failed only if the failure was the server's fault.
        if self._status in _SERVER_FAULTS:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


_SERVER_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)


class _Session(SessionObserver):
    __slots__ = ("_acked", "_duration", "_pending", "_sent", "_traced")

    def __init__(self, duration: Histogram, tenant: str, traced: "_TracedSession | None") -> None:
        self._duration = duration
        self._sent = {metrics.STAGE: "sent", metrics.TENANT: tenant}
        self._acked = {metrics.STAGE: "acked", metrics.TENANT: tenant}
        self._traced = traced
        self._pending: tuple[int, float] | None = None

    def sent(self, last_sequence: int, count: int, size: int, read_time_s: float, stream: Trace) -> None:
        if self._traced is not None:
            self._traced.sent(count, size, read_time_s, stream)
        if random() >= MEASURED_SHARE:
            return
        now_s = wall_s()
        self._duration.record(max(0.0, now_s - read_time_s), self._sent)
        if self._pending is None:
            self._pending = (last_sequence, now_s)

    def acked(self, sequence: int) -> None:
        pending = self._pending
        if pending is not None and sequence >= pending[0]:
            self._pending = None
            self._duration.record(max(0.0, wall_s() - pending[1]), self._acked)


class _TracedSession:
    """A session whose call is sampled: the call is linked to the streams that read for it, and so are some messages."""

    __slots__ = ("_call", "_next_span_s", "_stream", "_tracer")

    def __init__(self, tracer: Tracer, call: trace.Span) -> None:
        self._tracer = tracer
        self._call = call
        self._stream: Trace = None
        self._next_span_s = 0.0

    def sent(self, count: int, size: int, read_time_s: float, stream: Trace) -> None:
        if stream is not self._stream and isinstance(stream, SpanContext):
            self._stream = stream
            self._call.add_link(stream)
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_span_s:
            return
        self._next_span_s = now_s + DELIVERY_SPAN_EVERY_S
        span = self._tracer.start_span(
            "feedmux deliver",
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.system": "feedmux",
                "messaging.operation.type": "send",
                "messaging.batch.message_count": count,
                "feedmux.batch.size": size,
            },
            links=[Link(stream)] if isinstance(stream, SpanContext) else None,
            start_time=int(read_time_s * 1e9),
        )
        span.end()
