"""Answers of a server by method, in place of the calls of a `Connection`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from feedmux.v1 import change_feed_pb2, feed_pb2
from feedmux_spark.connection import Connection

FEED = b"fingerprint"
"""The fingerprint of the feed, in every answer."""


@dataclass(slots=True)
class Answer:
    """A call whose answer is there."""

    value: Any
    cancelled: bool = False

    def result(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def cancel(self) -> None:
        self.cancelled = True


class Answers:
    """Gives the answers of each method in their order, and records the requests. An exception is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []
        self.calls: list[Answer] = []

        def start(
            _connection: Connection, _service: str, method: str, request: Any, _type: Any, wait_s: float = 0.0
        ) -> Answer:
            self.calls.append(Answer(self._next(method, request)))
            return self.calls[-1]

        def stream(_connection: Connection, method: str, request: Any, _route: str) -> Iterator[bytes]:
            for message in self._next(method, request):
                if isinstance(message, Exception):
                    raise message
                yield message.SerializeToString()

        monkeypatch.setattr(Connection, "start", start)
        monkeypatch.setattr(Connection, "stream", stream)
        monkeypatch.setattr("time.sleep", lambda _s: None)

    def _next(self, method: str, request: Any) -> Any:
        self.asked.append((method, request))
        return self.answers[method].pop(0)

    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]


def time(seconds: int) -> feed_pb2.ClusterTime:
    return feed_pb2.ClusterTime(seconds=seconds, increment=1)


def resolved(
    position: bytes, seconds: int = 1000, copied: int | None = None
) -> change_feed_pb2.ResolvePositionResponse:
    """`copied`: the number of documents, of a position within a copy."""
    snapshot = None if copied is None else feed_pb2.SnapshotStatus(documents=copied)
    return change_feed_pb2.ResolvePositionResponse(
        position=position, cluster_time=time(seconds), feed_fingerprint=FEED, snapshot=snapshot
    )


def plan(
    end: bytes, count: int = 0, *, seconds: int = 1000, caught_up: bool = False
) -> change_feed_pb2.PlanRangeResponse:
    """A plan up to `end`, with one slice if it has events."""
    slices = [change_feed_pb2.RangeSlice(after=b"before " + end, until=end, event_count=count)] if count else []
    return change_feed_pb2.PlanRangeResponse(
        end=end,
        cluster_time=time(seconds),
        event_count=count,
        slices=slices,
        caught_up=caught_up,
        latest=time(seconds + 5),
        routing_key="route",
        feed_fingerprint=FEED,
    )
