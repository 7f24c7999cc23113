"""Forged positions are rejected by every call, and a rejected pipeline is asked for once."""

import asyncio
import zlib
from typing import Any

import bson
import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.source.cursor import RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from tests.documents import Documents
from tests.integration.servers import KEY_B, Here, until
from tests.integration.wire import LATEST, Api, at, feed, refused


def data_of(token: bytes) -> bytes:
    return bytes.fromhex(bson.decode(token)["_data"])


def moved(token: bytes, seconds: int) -> bytes:
    """The same event at another time, where there was none."""
    data = data_of(token)
    time = int.from_bytes(data[1:9]) + (seconds << 32)
    return bson.encode({"_data": (data[:1] + time.to_bytes(8) + data[9:]).hex().upper()})


def forged_positions(position: bytes, foreign: bytes, token: bytes) -> dict[str, bytes]:
    """`position` is B's own, `foreign` is A's."""
    content = bytes((0xF1, 0)) + position[6:22] + moved(token, -1)
    return {
        "with a checksum": content + zlib.crc32(content).to_bytes(4),
        "another token": position[:22] + moved(token, -1) + position[-16:],
        "another token, compact": position[:22] + data_of(moved(token, -1)) + position[-16:],
        "without a MAC": position[:-16],
        "a MAC of zeros": position[:-16] + bytes(16),
        "of tenant A": foreign,
        "of A under B's fingerprint": foreign[:6] + position[6:14] + foreign[14:],
        "flags changed": position[:1] + bytes([position[1] ^ 2]) + position[2:],
        "one byte": position[:1],
        "cut to its head": position[:20],
        "an unknown version": b"\xf3" + position[1:],
        "an earlier version": b"\xf1" + position[1:],
        "longer": position + b"\0",
        "zeroes": bytes(len(position)),
        **{f"bit {bit}": flipped(position, bit) for bit in range(0, len(position) * 8, 37)},
    }


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


async def start_everywhere(api: Api, wanted: feed_pb2.Feed, name: str, start: feed_pb2.Start) -> dict[str, str]:
    """The reason by call, for a start that is refused."""
    calls = {
        "Watch": api.watch(wanted, start).opened(),
        "Subscribe": opened(api, feed=wanted, start=start),
        "ResolvePosition": api.resolve(wanted, start),
        "Create": api.create(f"{name}-2", wanted, start),
        "Seek": api.seek(name, start),
    }
    found = {call: (await refused(asked)).reason for call, asked in calls.items()}
    found["Explain"] = (await api.explain(feed=wanted, start=start)).refusal.reason
    return found


async def give_everywhere(api: Api, wanted: feed_pb2.Feed, name: str, bad: bytes, good: bytes) -> dict[str, str]:
    """The reason by call, for a position that is refused whatever it is given for."""
    calls = {
        "last_acked": opened(
            api, subscription=name, instance_id="i", last_acked=wire.LastAcked(epoch=1 << 60, position=bad)
        ),
        "PlanRange.after": api.plan(feed=wanted, after=bad),
        "PlanRange.until": api.plan(feed=wanted, after=good, until=bad),
        "PlanRange.processed": api.plan(subscription=name, instance_id="i", processed=bad),
        "ReadRange.after": first_of(api, feed=wanted, after=bad, until=good),
        "ReadRange.until": first_of(api, feed=wanted, after=good, until=bad),
    }
    found = await start_everywhere(api, wanted, name, at(position=bad))
    return found | {call: (await refused(asked)).reason for call, asked in calls.items()}


async def opened(api: Api, **fields: Any) -> None:
    session = await api.session(**fields)
    try:
        await session.opened()
    finally:
        session.cancel()


async def first_of(api: Api, **fields: Any) -> None:
    receiver = api.read_range(**fields)
    try:
        await receiver.message()
    finally:
        receiver.cancel()


async def event_of(api: Api, wanted: feed_pb2.Feed, database: Documents, n: int) -> tuple[bytes, bytes]:
    """Token and position of an insert."""
    receiver = api.watch(wanted, LATEST)
    await receiver.opened()
    database.c.insert_one({"_id": f"e{n}", "n": n})
    await receiver.take(1)
    receiver.cancel()
    return receiver.resume_token, receiver.position


async def test_a_forged_position_is_refused_by_every_call(tenants: Here, database: Documents, name: str) -> None:
    wanted = feed(database.name, "c")
    async with tenants.api.with_key(KEY_B) as other:
        token, position = await event_of(other, wanted, database, 1)
        _, foreign = await event_of(tenants.api, wanted, database, 2)
        await other.create(name, wanted, LATEST)
        for what, bad in forged_positions(position, foreign, token).items():
            reasons = await give_everywhere(other, wanted, name, bad, position)
            assert set(reasons.values()) <= {"POSITION_INVALID", "POSITION_FOREIGN"}, (what, reasons)
        await other.delete(name)


async def test_a_rejected_pipeline_is_asked_for_once_for_all(
    tenants: Here, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty subscribers with different starts wait for MongoDB's answer to the first, which is the answer to all."""
    wanted = feed(database.name, "c", pipeline='[{"$match": {"fullDocument.a": {"$regex": "("}}}]')
    api, manager = tenants.api, tenants.server.service.manager
    now = (await api.resolve(wanted, LATEST)).cluster_time
    first, *others = [
        at(start_at_operation_time=feed_pb2.ClusterTime(seconds=now.seconds - 1, increment=n)) for n in range(1, 61)
    ]
    asked, answer = 0, asyncio.Event()
    open_cursor = Source.open_cursor

    async def held(source: Source, spec: FeedSpec, *rest: Any) -> RawChangeStreamCursor:
        nonlocal asked
        if spec.scope.database == database.name:
            asked += 1
            await answer.wait()
        return await open_cursor(source, spec, *rest)

    def waiting() -> int:
        keyed = [each for each in manager.keyed() if each.key.spec.scope.database == database.name]
        return sum(each.streams.subscriber_count for each in keyed)

    monkeypatch.setattr(Source, "open_cursor", held)
    watches = [asyncio.create_task(api.watch(wanted, first).end())]
    await until(lambda: asked)
    watches += [asyncio.create_task(api.watch(wanted, start).end()) for start in others]
    await until(lambda: waiting() == len(watches))
    answer.set()
    outcomes = await asyncio.gather(*watches)
    assert {outcome.reason for outcome in outcomes} == {"OPTION_REFUSED"}
    assert asked == 1
