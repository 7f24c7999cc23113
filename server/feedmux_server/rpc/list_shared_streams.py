"""Operator.ListSharedStreams: lists what this replica reads, and for which subscribers."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import chain

import bson

from feedmux.v1 import operator_pb2 as wire
from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import change_stream_options
from feedmux_server.core.feeds.stream_key import StreamKey, effective_stages
from feedmux_server.rpc import convert
from feedmux_server.rpc.live_sessions import LiveSession
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context
from feedmux_server.source.deployment import Source
from feedmux_server.streams.key_streams import KeyStreams
from feedmux_server.streams.wide.manager import WideStreams

PIPELINE_CHARS = 4096
"""The most characters shown of a stream's pipeline."""
FEEDS_AT_ONCE = 16
SUBSCRIBERS_AT_ONCE = 100
OPERATORS = ""
"""The owner of renderings for operators; no tenant has this name."""

_STATES = {
    StreamState.GATHERING: wire.SharedStream.STATE_OPENING,
    StreamState.OPENING: wire.SharedStream.STATE_OPENING,
    StreamState.READING: wire.SharedStream.STATE_READING,
    StreamState.PAUSED: wire.SharedStream.STATE_PAUSED,
    StreamState.IDLE: wire.SharedStream.STATE_IDLE,
    StreamState.RECOVERING: wire.SharedStream.STATE_RECOVERING,
    StreamState.ENDED: wire.SharedStream.STATE_ENDED,
}


class ListSharedStreams:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, data: bytes, context: Context) -> bytes:
        request = convert.parse(wire.ListSharedStreamsRequest, data)
        service = self._service
        if request.source not in ("", *service.manager.sources):
            names = ", ".join(sorted(service.manager.sources))
            raise FeedmuxError(
                ErrorReason.SOURCE_NOT_FOUND,
                f"no source {request.source!r}; the sources are: {names}",
                {"source": request.source},
                field="source",
            )
        sessions = {live.session.subscriber.id: live for live in service.sessions}
        shared = {group.reader.subscriber.id: group.reader.members for group in service.groups}
        response = wire.ListSharedStreamsResponse()
        feeds = sorted(
            (each for each in service.manager.keyed() if request.source in ("", each.source.name)),
            key=lambda each: (each.source.name, each.key.spec.scope.namespace),
        )
        times = {source.name: await _now(source) for source in {each.source for each in feeds}}
        for number, each in enumerate(feeds):
            if number % FEEDS_AT_ONCE == 0:
                await asyncio.sleep(0)  # deliveries do not wait for thousands of feeds
            now = times[each.source.name]
            stages = bson.encode({"pipeline": effective_stages(each.key)})
            pipeline = await service.checks.render(stages, OPERATORS, _not_charged, PIPELINE_CHARS)
            for stream in list(each.streams.open):
                message = _stream(each, stream, now, pipeline)
                if not request.omit_subscribers:
                    async for subscriber in _readers(stream.subscribers.values(), shared):
                        message.subscribers.append(_subscriber(each.streams, subscriber, sessions))
                response.shared_streams.append(message)
            if not request.omit_subscribers:
                async for subscriber in _readers(each.streams.detached.values(), shared):
                    response.detached_subscribers.append(_subscriber(each.streams, subscriber, sessions))
        response.wide_groups.extend(
            _wide_group(service.manager.wide, name, feeds)
            for name, feeds in service.manager.wide.plan.groups()
            if request.source in ("", name.spec.scope.source)
        )
        response.totals.CopyFrom(
            wire.Totals(
                shared_streams=sum(len(each.streams.open) for each in service.manager.keyed()),
                cursors=service.manager.cursors,
                subscribers=len(service.sessions),
                memory_bytes=service.manager.memory.bytes,
                memory_bytes_max=service.manager.memory.bytes_max,
            )
        )
        return response.SerializeToString()


def _not_charged(_: float) -> None:
    """Charge nothing: operators have no quotas."""


def _wide_group(wide_streams: WideStreams, name: StreamKey, feeds: int) -> wire.WideGroup:
    options = {**change_stream_options(name.spec), "readPreference": name.spec.read_preference}
    del options["allChangesForCluster"]
    message = wire.WideGroup(
        source=name.spec.scope.source,
        options=", ".join(f"{option}: {value}" for option, value in options.items() if value),
        feeds=feeds,
        decision=wide_streams.plan.state(name).value,
    )
    stream = wide_streams.of(name)
    if stream is not None:
        message.MergeFrom(
            wire.WideGroup(
                views=stream.view_count,
                scope=stream.scope.namespace,
                events_read=stream.events_read,
                events_taken=stream.events_taken,
                ring_bytes=stream.ring.bytes,
            )
        )
    return message


async def _now(source: Source) -> int:
    """The source's current time, or 0 if the source is unavailable."""
    try:
        return await source.clock.operation_time()
    except FeedmuxError:
        return 0


def _lag_s(newest: int, now: int) -> float:
    return float(max(0, (now >> 32) - (newest >> 32))) if now else 0.0


def _stream(each: KeyStreams, stream: SharedStream, now: int, pipeline: str) -> wire.SharedStream:
    pump, wide = each.pumps.get(stream.id), each.wide_stream_of(stream)
    ring, reader = stream.ring, pump.reader if pump is not None else None
    return wire.SharedStream(
        id=str(stream.id),
        stream_key=each.key.digest.hex(),
        source=each.key.spec.scope.source,
        scope=each.key.spec.scope.namespace,
        pipeline=pipeline,
        state=_STATES[stream.state],
        catch_up=stream.gave_way or each.streams.open.is_catch_up(stream),
        oldest=convert.cluster_time(ring.oldest.cluster_time),
        newest=convert.cluster_time(ring.newest.cluster_time),
        ring_events=ring.events,
        ring_bytes=ring.bytes,
        lag=convert.duration(_lag_s(ring.newest.cluster_time, now)),
        events_read=stream.events_read,
        batches_read=stream.batches_read,
        resumes=stream.resumes,
        cursor_open=reader is not None and reader.has_cursor,
        view_of=wide.scope.namespace if wide is not None else "",
        subscriber_count=len(stream.subscribers),
    )


async def _readers(
    subscribers: Iterable[Subscriber], shared: Mapping[int, Sequence[Subscriber]]
) -> AsyncIterator[Subscriber]:
    """The subscribers, with the members of a group in the place of the one that reads for them. A stream may have all
    sessions of the server."""
    readers = chain.from_iterable([shared.get(subscriber.id, (subscriber,)) for subscriber in subscribers])
    for number, reader in enumerate(readers, 1):
        if number % SUBSCRIBERS_AT_ONCE == 0:
            await asyncio.sleep(0)
        yield reader


def _subscriber(streams: FeedStreams, subscriber: Subscriber, sessions: dict[int, LiveSession]) -> wire.Subscriber:
    live = sessions.get(subscriber.id)
    behind_s = 0.0
    if subscriber.ring is not None:
        behind_s = _lag_s(subscriber.at.place.cluster_time, subscriber.ring.newest.cluster_time)
    return wire.Subscriber(
        id=str(subscriber.id),
        tenant=subscriber.tenant,
        subscription=live.subscription if live else "",
        instance_id=live.instance_id if live else "",
        state=streams.state_of(subscriber).value,
        position=convert.cluster_time(subscriber.at.place.cluster_time),
        lag=convert.duration(behind_s),
        lag_events=subscriber.lag_events(),
        events_sent=subscriber.events_sent,
        events_unacked=subscriber.unacked,
        credit_events=subscriber.credit.events,
        credit_bytes=max(0, subscriber.credit.bytes),
        peer=live.peer if live else "",
        snapshot=convert.snapshot_status(live.session.copy_status) if live else None,
    )
