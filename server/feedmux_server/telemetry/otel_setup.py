"""Metrics, traces and logs of one server, as the SDK exports them; and the page that Prometheus reads.

Exporters work in threads of the SDK with bounded queues: if a collector is down or never answers, its data is lost, but
it neither blocks the event loop nor uses more and more memory. Observed values are read on the loop
(`jobs.metrics_collector`), once for each collection; while the loop does not answer, the last values remain.
"""

import asyncio
import errno
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from logging import getLogger
from typing import Any, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, start_http_server

from feedmux_server.supervision import Tasks, in_daemon_thread
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.exporters import TelemetryMisconfigured, disabled, exporters
from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.log import without_secrets
from feedmux_server.telemetry.metrics import Kind, Metric
from feedmux_server.telemetry.metrics_snapshot import MetricsSnapshot
from feedmux_server.telemetry.observer import NOBODY, Observer
from feedmux_server.telemetry.otel_observer import OtelObserver
from feedmux_server.telemetry.otlp_logs import OtlpHandler

log = getLogger(__name__)

NAME: Final = "feedmux"
_SURVEY_TIMEOUT_S: Final = 2.0
_ALL_INTERFACES: Final = ("0.0.0.0", "::")
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, socket.EAI_ADDRFAMILY, socket.EAI_NONAME)
_PROBE_EVERY_S: Final = 0.1
_ALL_SERIES: Final = View(instrument_name="*", aggregation_cardinality_limit=sys.maxsize)
"""The SDK would make one series of all above 2,000 of a metric. `metrics` and `Labels` bound their number."""

Collect = Callable[[MetricsSnapshot], Awaitable[None]]
"""Fills a snapshot on the event loop."""


class MetricsPortInUse(Exception):
    """The server cannot listen on the address of the metrics page; the message says what to do."""


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """The options that feedmux itself has; OpenTelemetry's variables configure everything else."""

    listen: str = ""
    """Address of the metrics page, host:port; empty: none."""
    listen_required: bool = True
    """False: the server starts even if the port is in use."""
    tenants_max: int = 50
    shutdown_s: float = 2.0


@dataclass(slots=True)
class Telemetry:
    """The telemetry of a server. Start it with `start_telemetry`, and end it with `close`."""

    observer: Observer = NOBODY
    port: int | None = None
    """The port of the metrics page."""
    _shutdown_s: float = 2.0
    _endings: list[Callable[[], None]] = field(default_factory=list)
    _snapshots: "_Snapshots | None" = None

    def watch(self, collect: Collect, tasks: Tasks) -> list[asyncio.Task[None]]:
        """Begin to fill snapshots with `collect`. Returns tasks that the caller cancels at the end."""
        if self._snapshots is None:
            return []
        self._snapshots.collect = collect
        return [tasks.keep_running("event-loop-lag", partial(_probe_loop, self.observer))]

    async def close(self) -> None:
        """Send the remaining telemetry as far as the time allows, and drop the rest."""
        ended = [in_daemon_thread(end, "telemetry-end") for end in self._endings]
        if not ended:
            return
        _, late = await asyncio.wait(ended, timeout=self._shutdown_s)
        if late:
            log.warning("dropped telemetry that could not be sent within %g s", self._shutdown_s)


def start_telemetry(options: TelemetryOptions) -> Telemetry:
    """Start telemetry. Call it on the event loop to observe. Raises TelemetryMisconfigured, MetricsPortInUse."""
    if disabled():
        return Telemetry()
    try:
        return _start(options)
    except (TelemetryMisconfigured, MetricsPortInUse):
        raise
    except Exception as error:  # the SDK raises several kinds for a variable that it cannot use
        raise TelemetryMisconfigured(
            f"OpenTelemetry cannot be started with the variables OTEL_… ({type(error).__name__}:"
            f" {without_secrets(str(error))}). Correct them, or set OTEL_SDK_DISABLED=true"
        ) from error


def _start(options: TelemetryOptions) -> Telemetry:
    telemetry = Telemetry(_shutdown_s=options.shutdown_s)
    resource = _resource()
    span_exporters, log_exporters = exporters("traces"), exporters("logs")
    readers: list[MetricReader] = [PeriodicExportingMetricReader(each) for each in exporters("metrics")]
    if options.listen:
        readers += _page(options, telemetry)
    if not (span_exporters or log_exporters or readers):
        return telemetry
    tenants = Labels(options.tenants_max)
    # No shutdown at exit: it would wait for a collector without a time limit.
    meters = MeterProvider(readers, resource, shutdown_on_exit=False, views=[_ALL_SERIES])
    meter = meters.get_meter(NAME, _version())
    telemetry._endings.append(partial(_end, lambda: meters.shutdown(options.shutdown_s * 1000)))
    tracers: TracerProvider | None = None
    if span_exporters:
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        for exporter in span_exporters:
            tracers.add_span_processor(BatchSpanProcessor(exporter))
        telemetry._endings.append(partial(_end, tracers.shutdown))
    if log_exporters:
        _export_logs(log_exporters, resource, telemetry)
    observing = OtelObserver(meter, tracers.get_tracer(NAME, _version()) if tracers else None, tenants)
    telemetry.observer = observing
    telemetry._snapshots = _Snapshots(asyncio.get_running_loop(), observing, tenants)
    make_instruments(meter, telemetry._snapshots.of)
    return telemetry


def make_instruments(meter: Meter, values_of: Callable[[Metric], Iterable[tuple[float, dict[str, str]]]]) -> None:
    """Make an observed instrument for each metric except the histograms, which are recorded."""
    makers: dict[Kind, Any] = {
        Kind.COUNTER: meter.create_observable_counter,
        Kind.UP_DOWN: meter.create_observable_up_down_counter,
        Kind.GAUGE: meter.create_observable_gauge,
    }

    def observe(metric: Metric, _: CallbackOptions) -> list[Observation]:
        return [Observation(value, attributes) for value, attributes in values_of(metric)]

    for metric in metrics.METRICS:
        if metric.kind in makers:
            makers[metric.kind](metric.name, [partial(observe, metric)], metric.unit, metric.description)


class _Snapshots:
    """Gives the exporting threads the current values. Instruments are observed in the order in which they were made, so
    the first instrument of a collection takes a snapshot, and the others share it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, observing: OtelObserver, tenants: Labels) -> None:
        self.collect: Collect | None = None
        self._loop = loop
        self._observing = observing
        self._tenants = tenants
        self._lock = threading.Lock()
        self._latest = MetricsSnapshot(tenants)
        self._latest_s = time.monotonic()
        self._late = False

    def of(self, metric: Metric) -> list[tuple[float, dict[str, str]]]:
        with self._lock:
            if metric is metrics.METRICS[0]:
                self._ask()
            if metric is metrics.SURVEY_AGE:
                return [(time.monotonic() - self._latest_s, {})]
            return list(self._latest.of(metric))

    def _ask(self) -> None:
        taking = self._take()
        try:
            future = asyncio.run_coroutine_threadsafe(taking, self._loop)
        except RuntimeError:  # the loop is closed
            taking.close()
            return
        try:
            self._latest = future.result(_SURVEY_TIMEOUT_S)
            self._latest_s, self._late = time.monotonic(), False
        except TimeoutError:
            future.cancel()
            if not self._late:
                log.warning("the event loop is slow: metrics repeat older values (feedmux_telemetry_age_seconds)")
            self._late = True
        except CancelledError:  # the loop is ending
            return

    async def _take(self) -> MetricsSnapshot:
        snapshot = MetricsSnapshot(self._tenants)
        if self.collect is not None:
            await self.collect(snapshot)
        snapshot.take(self._observing.counted)
        return snapshot


async def _probe_loop(observer: Observer) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + _PROBE_EVERY_S
        await asyncio.sleep(_PROBE_EVERY_S)
        observer.measured(metrics.LOOP_LAG, max(0.0, loop.time() - due_s))


def _page(options: TelemetryOptions, telemetry: Telemetry) -> list[MetricReader]:
    registry = CollectorRegistry()
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise TelemetryMisconfigured(
            f"listen.metrics {options.listen!r} is no address: write host:port, such as 0.0.0.0:9117"
        )
    try:
        server, thread = _serve_page(host.strip("[]"), int(port), registry)
    except (OSError, OverflowError) as error:
        problem = (
            f"cannot listen on {options.listen} (metrics): the port is in use or the address is not this machine's."
            " Set listen.metrics (or FEEDMUX_LISTEN__METRICS) to another, or to nothing for no metrics page"
        )
        if options.listen_required:
            raise MetricsPortInUse(problem) from error
        log.warning("%s. The server continues without the metrics page", problem)
        return []
    telemetry.port = server.server_port
    telemetry._endings.append(partial(_end_page, server, thread))
    return [PrometheusMetricReader(scope_info_enabled=False, registry=registry)]


def _serve_page(host: str, port: int, registry: CollectorRegistry) -> tuple[Any, threading.Thread]:
    """Serve the page; on all interfaces by IPv6 and IPv4, as gRPC does, whichever of the two a pod has."""
    if host in _ALL_INTERFACES:
        try:
            return start_http_server(port, "::", registry)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
        host = "0.0.0.0"
    return start_http_server(port, host, registry)


def _end_page(server: Any, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()


def _export_logs(log_exporters: list[Any], resource: Resource, telemetry: Telemetry) -> None:
    loggers = LoggerProvider(resource, shutdown_on_exit=False)
    for exporter in log_exporters:
        loggers.add_log_record_processor(BatchLogRecordProcessor(exporter))
    handler, root = OtlpHandler(loggers), getLogger()
    root.addHandler(handler)

    def end() -> None:
        root.removeHandler(handler)
        loggers.shutdown()

    telemetry._endings.append(partial(_end, end))


def _end(shutdown: Callable[[], object]) -> None:
    # The exporter has already logged that its collector is unavailable.
    with suppress(Exception):
        shutdown()


def _resource() -> Resource:
    """The resource by OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and the detectors; its default name is `feedmux`."""
    found = Resource.create({SERVICE_VERSION: _version()})
    name = str(found.attributes.get(SERVICE_NAME, ""))
    return found.merge(Resource({SERVICE_NAME: NAME})) if name.partition(":")[0] == "unknown_service" else found


def _version() -> str:
    try:
        return version(NAME)
    except PackageNotFoundError:
        return "unknown"
