"""Which exporters the standard variables of OpenTelemetry choose."""

import os

import pytest

from feedmux_server.telemetry.exporters import Signal, TelemetryMisconfigured, _names, disabled, exporters
from feedmux_server.telemetry.otel_setup import TelemetryOptions, start_telemetry


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("signal", "given", "names"),
    [
        ("traces", {}, []),
        ("traces", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, ["otlp_proto_grpc"]),
        ("logs", {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c:4317"}, ["otlp_proto_grpc"]),
        ("logs", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, []),
        ("traces", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, []),
        ("metrics", {"OTEL_METRICS_EXPORTER": "prometheus, console"}, ["console"]),
        (
            "traces",
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ["otlp_proto_http"],
        ),
        (
            "traces",
            {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            },
            ["otlp_proto_grpc"],
        ),
    ],
)
def test_the_choice(monkeypatch: pytest.MonkeyPatch, signal: Signal, given: dict[str, str], names: list[str]) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert _names(signal) == names


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OTEL_TRACES_EXPORTER", "jaegre", "OTEL_TRACES_EXPORTER: there is no exporter 'jaegre' here: .*otlp"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL 'http/json' is not known"),
    ],
)
def test_a_choice_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    with pytest.raises(TelemetryMisconfigured, match=message):
        exporters("traces")


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://me:canary@[::1", "Invalid IPv6 URL"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://me:canary@a℀b", "'…@a℀b' contains invalid characters"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip", "InvalidCompressionValueException: .*OTEL_EXPORTER_OTLP_COMPRESSION"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "ValueError: .*'10s'"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5000", "max_export_batch_size"),
    ],
)
async def test_a_variable_that_the_sdk_cannot_use(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, cause: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    with pytest.raises(TelemetryMisconfigured, match=f"variables OTEL_.*{cause}") as caught:
        start_telemetry(TelemetryOptions())
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(("value", "off"), [("true", True), (" TRUE ", True), ("1", False), ("", False)])
def test_all_telemetry_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, value: str, off: bool) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", value)
    assert disabled() == off
