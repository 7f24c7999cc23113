"""A collector that receives OTLP over gRPC and records it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass
class Collector:
    """The received spans, logs and metrics, in order."""

    endpoint: str = ""
    spans: list[Any] = field(default_factory=list)
    logs: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    """The last value of each metric, by name."""
    resources: list[dict[str, Any]] = field(default_factory=list)

    def named(self, name: str, **attributes: Any) -> list[Any]:
        """The spans with this name and these attributes; underscores in the attribute names stand for dots."""
        wanted = attributes.items()
        return [each for each in self.spans if each.name == name and wanted <= plain(each.attributes, "_").items()]

    def take_spans(self, request: Any) -> None:
        for resource in request.resource_spans:
            self.resources.append(plain(resource.resource.attributes))
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def take_logs(self, request: Any) -> None:
        for resource in request.resource_logs:
            self.resources.append(plain(resource.resource.attributes))
            self.logs += [record for scope in resource.scope_logs for record in scope.log_records]

    def take_metrics(self, request: Any) -> None:
        for resource in request.resource_metrics:
            self.resources.append(plain(resource.resource.attributes))
            self.metrics.update({each.name: each for scope in resource.scope_metrics for each in scope.metrics})


def plain(attributes: Any, dot: str = ".") -> dict[str, Any]:
    """OTLP key-values as a dictionary."""
    return {each.key.replace(".", dot): getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 the name is the protocol's
        self._collector.take_spans(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._collector.take_logs(request)
        return logs_service_pb2.ExportLogsServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._collector.take_metrics(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Run a collector on its own port."""
    collector, server = Collector(), grpc.aio.server()
    services: tuple[tuple[Any, Any], ...] = (
        (trace_service_pb2_grpc.add_TraceServiceServicer_to_server, _Traces(collector)),
        (logs_service_pb2_grpc.add_LogsServiceServicer_to_server, _Logs(collector)),
        (metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server, _Metrics(collector)),
    )
    for add, service in services:
        add(service, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(0)
