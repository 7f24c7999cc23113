"""A program of the simulation that copies a collection by ranges, as Spark does: it stores the end of a range before it
reads the range, and after a failure reads the same range again."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import bson
import grpc
import grpc.aio

from feedmux import Start
from feedmux.requests import feed_message, start_message
from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim.copiers import COLLECTION, DATABASE, Copier
from tests.sim.network import SimChannel
from tests.sim.programs import RETRIED, call_feeds, read_slice

Event = dict[str, Any]


@dataclass(slots=True, eq=False)
class RangeCopier(Copier):
    """Its sink stores its state at the end of each range."""

    _planned: bytes = field(default=b"", init=False)
    """The end of the range that it reads, or has read and not stored."""
    _first_read: list[Event] | None = field(default=None, init=False)
    """What that range had when it was read before."""
    _exact_after: int = field(default=0, init=False)
    """The state is that of a position after this cluster time: documents were read as of a later time than the range
    says."""

    async def _run(self) -> None:
        assert self.node is not None
        channel = SimChannel(self.network, self.node)
        self.state = dict(self._stored)
        try:
            while not self.leaving:
                try:
                    await self._read_range(channel)
                except grpc.aio.AioRpcError as error:
                    self.recorder.note(f"{self.name} got {error.code().name} {error.details()}")
                    if error.code() is grpc.StatusCode.OUT_OF_RANGE:
                        self._begins_again = True
                    elif error.code() not in (*RETRIED, grpc.StatusCode.FAILED_PRECONDITION):  # the feed has ended
                        self.met.add(error.code().name)
                    await asyncio.sleep(self.rng.uniform(0.1, 1.0))
        finally:
            await channel.close()

    async def _read_range(self, channel: SimChannel) -> None:
        feed, key = feed_message(self.shape.feed(), "main"), self.tenant.key
        if self._begins_again:
            start = wire.ResolvePositionRequest(feed=feed, start=start_message(Start.snapshot()))
            begun = await call_feeds(channel, "ResolvePosition", start, wire.ResolvePositionResponse, key)
            self.state, self._stored, self.reached, self._exact_after = {}, {}, None, 0
            self._position, self._planned, self._was_replaced = begun.position, b"", False
            self._begins_again = False
        request = wire.PlanRangeRequest(
            feed=feed,
            after=self._position,
            until=self._planned,
            events_max=self.rng.choice((1, 7, 1_000)),
            bytes_max=self.rng.choice((2_000, 1 << 20)),
            slices=self.rng.choice((1, 3)),
        )
        request.wait.seconds = 1
        plan = await call_feeds(channel, "PlanRange", request, wire.PlanRangeResponse, key)
        if plan.end != self._planned:
            self._planned, self._first_read = plan.end, None
        place = inspect_position(plan.end).token
        was_readable = self._is_readable(place)
        batches = [
            each for part in plan.slices for each in await read_slice(channel, feed, part, plan.feed_fingerprint, key)
        ]
        events = [event for batch in batches for event in bson.decode_all(batch.bson)]
        begins = inspect_position(self._position).token
        is_copying, self._copied = begins.copied is not None, self._copied_at(begins)
        if is_copying and was_readable and self._is_readable(place):
            if self._first_read not in (None, events):
                self.problems.append(f"Snapshot exact: {self.name}: a range has other events when it is read again")
            self._first_read = events
        elif is_copying:
            self._exact_after, self._first_read = self.mongo.latest, None
        if not self.calm and self.rng.random() < 0.2:
            return  # as if the task had failed: the same range is read again
        for event in events:
            self._apply(event, 0)
        self._planned = b""
        if self._was_replaced:
            self._follow_rename(plan.end)
        if self._begins_again:
            return
        self._position = plan.end
        if place.cluster_time > self._exact_after:
            self._keep(plan.end)
        self._stored = dict(self.state)
        self.reached = None if place.copied is not None else place
        if not self.calm:
            await asyncio.sleep(self.rng.uniform(0.0, self.habits.think_s))

    def _is_readable(self, place: ResumeToken) -> bool:
        """Whether MongoDB can read the documents of a range that ends there as of its time."""
        time, created = place.cluster_time - 1, self.mongo.created(DATABASE, COLLECTION)
        return 0 < created <= time and not self.mongo.is_too_old(time)
