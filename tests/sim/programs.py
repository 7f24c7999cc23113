"""Programs without a feedmux client: plain gRPC calls of Watch, and of PlanRange with ReadRange."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import grpc
import grpc.aio
from bson import Timestamp

from feedmux import Start
from feedmux.requests import feed_message, start_message
from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim import records
from tests.sim.mongo import PART, Entry
from tests.sim.network import SimChannel
from tests.sim.readers import Reader
from tests.sim.tenants import OPERATOR
from tests.sim.wire import events_in, hex_of

_SERVICE: Final = "/feedmux.v1.ChangeFeed/"
RETRIED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED})


@dataclass(slots=True, eq=False)
class Program(Reader):
    """A program; subclasses implement `_step`."""

    opening: bool = field(default=False, init=False)
    """Whether a session is requested, and not yet open."""
    problems: list[str] = field(default_factory=list, init=False)

    @property
    def needs(self) -> int:
        """The cluster time from which it will read again."""
        return inspect_position(self._position).token.cluster_time if self._position else 1 << 63

    def _wants(self, entry: Entry) -> bool:
        return self.begins is not None and entry.token.is_after(self.begins)

    async def _run(self) -> None:
        assert self.node is not None
        channel = SimChannel(self.network, self.node)
        try:
            while not self.leaving:
                try:
                    await self._step(channel)
                except grpc.aio.AioRpcError as error:
                    self.recorder.note(f"{self.name} got {error.code().name} {error.details()}")
                    if error.code() not in RETRIED:
                        self.met.add(error.code().name)
                    if error.code() is grpc.StatusCode.OUT_OF_RANGE:
                        self._position, self.begins = b"", None
                    await asyncio.sleep(self.rng.uniform(0.1, 1.0))
        finally:
            await channel.close()

    async def _step(self, channel: SimChannel) -> None:
        raise NotImplementedError


class Watching(Program):
    """Reads with Watch, and stores the position of each message."""

    async def _step(self, channel: SimChannel) -> None:
        request = wire.WatchRequest(feed=feed_message(self.shape.feed(), "main"))
        start = Start.position(self._position) if self._position else Start.latest()
        request.start.CopyFrom(start_message(start))
        request.heartbeat_interval.seconds = 1
        call = channel.stream_stream(f"{_SERVICE}Watch")(metadata=metadata_of(self.tenant.key))
        self.opening = True
        await call.write(request.SerializeToString())
        call.half_close()
        session = ""
        try:
            while not self.leaving:
                message = await call.read()
                if message is grpc.aio.EOF:
                    break
                response = wire.WatchResponse.FromString(message)
                match response.WhichOneof("message"):
                    case "opened":
                        session = self._opened(response.opened)
                    case "batch":
                        self._got(session, response.batch)
                    case "progress":
                        self.recorder.add(records.Progress(session, hex_of(response.progress.resume_token)))
                        self._position = response.progress.position
        finally:
            self.opening = False
            call.cancel()
            if session:
                self.recorder.add(records.Ended(session))

    def _opened(self, opened: wire.Opened) -> str:
        self._sessions += 1
        self.opening = False
        session, place = f"{self.name}/{self._sessions}", hex_of(opened.resume_token)
        if not self._position:
            self._position = opened.position
            self.begins = inspect_position(opened.position).token
            self._beginnings += 1  # from now on: earlier events do not belong to this reading
        name, feed = f"{self.name} beginning {self._beginnings}", self.shape.name_for(self.tenant.granted)
        self.recorder.add(records.Opened(name, session, place, feed, stops_at_invalidate=False))
        return session

    def _got(self, session: str, batch: wire.Batch) -> None:
        numbers, sizes = events_in(batch)
        place = hex_of(batch.resume_token)
        self.recorder.add(records.Delivered(session, batch.first_delivery_sequence, numbers, sizes, place))
        self.recorder.add(records.Acked(session, batch.first_delivery_sequence + len(numbers) - 1))
        self.newest = max(self.newest, int(numbers[-1]) % PART)
        self._position = batch.position


class Unread(Program):
    """Opens a Watch in history, and reads nothing of it until the run ends."""

    async def _step(self, channel: SimChannel) -> None:
        request = wire.WatchRequest(feed=feed_message(self.shape.feed(), "main"))
        time = self.rng.choice(self.mongo.entries).token.cluster_time
        request.start.CopyFrom(start_message(Start.operation_time(Timestamp(time >> 32, time & 0xFFFFFFFF))))
        call = channel.stream_stream(f"{_SERVICE}Watch")(metadata=metadata_of(self.tenant.key))
        self.opening = True
        await call.write(request.SerializeToString())
        call.half_close()
        try:
            opened = await call.read()
            self.opening = False
            while opened is not grpc.aio.EOF and not self.leaving:
                await asyncio.sleep(0.1)
        finally:
            self.opening = False
            call.cancel()


class Ranging(Program):
    """Plans ranges, reads their slices, and checks that the slices are complete."""

    async def _step(self, channel: SimChannel) -> None:
        feed = feed_message(self.shape.feed(), "main")
        if not self._position:
            resolved = await self._call(
                channel,
                "ResolvePosition",
                wire.ResolvePositionRequest(feed=feed, start=start_message(Start.latest())),
                wire.ResolvePositionResponse,
            )
            self._position = resolved.position
            self.begins = inspect_position(self._position).token
        granted = self.tenant.granted
        request = wire.PlanRangeRequest(
            feed=feed,
            after=self._position,
            events_max=self.rng.choice((1, 7, 1_000)),
            bytes_max=self.rng.choice((2_000, 1 << 20)),
            slices=self.rng.choice((1, 3)),
        )
        request.wait.seconds = 4
        acknowledged, restores = len(self.mongo.entries), self.mongo.restores
        plan = await self._call(channel, "PlanRange", request, wire.PlanRangeResponse)
        batches = [
            await read_slice(channel, feed, part, plan.feed_fingerprint, self.tenant.key) for part in plan.slices
        ]
        parts = [[number for batch in each for number in events_in(batch)[0]] for each in batches]
        got = list(chain.from_iterable(parts))
        if granted == self.tenant.granted and restores == self.mongo.restores:
            counts = [(part.event_count, len(read)) for part, read in zip(plan.slices, parts, strict=True)]
            after, end = inspect_position(plan.after).token, inspect_position(plan.end).token
            self._judge(got, after, end, counts)
            if plan.caught_up:
                self._judge_end(end, self.mongo.entries[:acknowledged])
        if got:
            self.newest = max(self.newest, int(got[-1]) % PART)
        self._position = plan.end

    def _judge(self, got: list[str], after: ResumeToken, end: ResumeToken, counts: list[tuple[int, int]]) -> None:
        self.problems += [
            f"Complete: {self.name}: a slice of {planned} events has {read}"
            for planned, read in counts
            if planned != read
        ]
        wanted = [
            str(each.number)
            for entry in self.mongo.entries
            if self.shows(entry)
            for each in entry.shown(split=self.shape.split)
            if each.token.is_after(after) and end.reaches(each.token)
        ]
        if got != wanted:
            self.problems.append(f"Complete: {self.name}: a range has {got} instead of {wanted}")
        self.recorder.note(f"{self.name} has read {got}")

    def _judge_end(self, end: ResumeToken, acknowledged: list[Entry]) -> None:
        """Check that a plan that says it is caught up includes what was acknowledged to its writer before the plan."""
        left = [each.number for each in acknowledged if self.shows(each) and each.token.is_after(end)]
        if left:
            self.problems.append(f"Complete: {self.name}: a plan is caught up without {left}, written before it")

    async def _call(self, channel: SimChannel, method: str, request: Any, answer: Callable[..., Any]) -> Any:
        return await call_feeds(channel, method, request, answer, self.tenant.key)


async def call_feeds(channel: SimChannel, method: str, request: Any, answer: Callable[..., Any], key: str) -> Any:
    """Call a method of ChangeFeed. Raises AioRpcError."""
    return await _unary(channel, f"{_SERVICE}{method}", request, answer, key)


async def read_slice(
    channel: SimChannel, feed: Any, part: wire.RangeSlice, fingerprint: bytes, key: str
) -> list[wire.Batch]:
    """Read a slice with ReadRange. Raises AioRpcError."""
    request = wire.ReadRangeRequest(feed=feed, after=part.after, until=part.until, feed_fingerprint=fingerprint)
    call = channel.stream_stream(f"{_SERVICE}ReadRange")(metadata=metadata_of(key))
    await call.write(request.SerializeToString())
    call.half_close()
    got: list[wire.Batch] = []
    while (message := await call.read()) is not grpc.aio.EOF:
        response = wire.ReadRangeResponse.FromString(message)
        if response.HasField("batch"):
            got.append(response.batch)
    return got


class OperatorClient:
    """Calls methods of Operator, all on one server. Raises AioRpcError."""

    def __init__(self, channel: SimChannel) -> None:
        self._channel = channel

    async def call(self, method: str, request: Any, answer: Callable[..., Any]) -> Any:
        return await _unary(self._channel, f"/feedmux.v1.Operator/{method}", request, answer, OPERATOR.key)


async def _unary(channel: SimChannel, method: str, request: Any, answer: Callable[..., Any], key: str) -> Any:
    call: Any = channel.unary_unary(
        method,
        lambda message: message.SerializeToString(),
        answer.FromString,  # type: ignore[attr-defined]
    )
    return await call(request, timeout=20.0, metadata=metadata_of(key))


def metadata_of(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)
