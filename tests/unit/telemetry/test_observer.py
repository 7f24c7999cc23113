"""Every report that the server makes has a counterpart that counts it, with the same arguments."""

import inspect

from feedmux_server.telemetry import observer, otel_observer
from tests.tables import over


@over("kind", ["Observer", "SessionObserver", "Span", "Call"])
def test_what_is_reported_is_observed(kind: str) -> None:
    silent = getattr(observer, kind)
    observing = [
        each
        for _, each in inspect.getmembers(otel_observer, inspect.isclass)
        if each is not silent and issubclass(each, silent)
    ]
    assert observing
    reports = {name: each for name, each in vars(silent).items() if inspect.isfunction(each) and name[0] != "_"}
    for each in observing:
        for name, report in reports.items():
            found = getattr(each, name)
            if kind == "Observer":
                assert found is not report, f"{each.__name__} ignores {name}"
            assert list(inspect.signature(found).parameters) == list(inspect.signature(report).parameters)
