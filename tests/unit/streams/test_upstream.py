"""When an upstream tries again after a failure, and what its traces say."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from pymongo.errors import AutoReconnect

from feedmux_server.source.reader import Batch, Failed
from feedmux_server.streams.upstream import Reader, TraceContext, Upstream
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.metrics import Metric
from feedmux_server.telemetry.observer import Observer


class Answers:
    """A reader that answers with what the test gives it."""

    def __init__(self, *answers: Batch | Failed) -> None:
        self.answers = list(answers)

    async def open(self) -> None:
        await self.read()

    async def read(self) -> Batch:
        answer = self.answers.pop(0)
        if isinstance(answer, Failed):
            raise answer
        return answer


class Spans:
    """Records the spans; the trace of each is its number."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, Any], tuple[object, ...]]] = []
        self.resumed_by: list[str] = []

    @contextmanager
    def span(self, name: str, attributes: dict[str, Any], *, root: bool, links: tuple[object, ...]) -> Iterator[Any]:
        assert root
        self.spans.append((name, attributes, links))
        yield SimpleNamespace(trace=len(self.spans))

    def count(self, metric: Metric, number: int, source: str, kind: str) -> None:
        assert (metric, number) == (metrics.RESUMES, 1)
        self.resumed_by.append(f"{source}: {kind}")


def failed(*, at_once: bool = True) -> Failed:
    return Failed(AutoReconnect(), at_once=at_once)


def upstream(spans: Spans, *answers: Batch | Failed) -> Upstream:
    return Upstream(
        cast(Reader, Answers(*answers)), cast(Observer, spans), TraceContext("main", {"feedmux.stream.id": 7}, "call")
    )


def test_only_the_first_attempt_after_a_success_is_made_at_once() -> None:
    up = upstream(Spans())
    assert up.retry_delay_s(failed()) == 0.0
    delays = [up.retry_delay_s(failed()) for _ in range(20)]
    bounds = [min(10.0, 0.2 * 2**n) for n in range(20)]
    assert all(bound / 2 <= delay <= bound for delay, bound in zip(delays, bounds, strict=True)), delays


def test_an_error_that_needs_time_is_never_tried_again_at_once() -> None:
    assert 0.1 <= upstream(Spans()).retry_delay_s(failed(at_once=False)) <= 0.2


def test_an_answer_of_mongodb_ends_the_failure() -> None:
    up = upstream(Spans())
    for _ in range(10):
        up.retry_delay_s(failed())
    up.answered()
    assert up.failure is None
    assert up.retry_delay_s(failed()) == 0.0
    assert up.retry_delay_s(failed()) <= 0.2
