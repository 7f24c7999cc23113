"""Which exporters the standard variables of OpenTelemetry choose."""

import os

import pytest

from feedmux_server.telemetry.exporters import Signal, TelemetryMisconfigured, _names, disabled, exporters


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


@pytest.mark.parametrize(("value", "off"), [("true", True), (" TRUE ", True), ("1", False), ("", False)])
def test_all_telemetry_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, value: str, off: bool) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", value)
    assert disabled() == off
