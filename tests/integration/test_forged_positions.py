"""A tenant forges positions and tokens: the server rejects its calls, and no other session is affected."""

import asyncio
import zlib
from typing import Any

import bson
import grpc
import pytest
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.cursor import RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from tests.integration.servers import KEY_B, Here, until
from tests.integration.wire import LATEST, Api, at, feed, refusal, refused

Documents = Database[dict[str, Any]]

LAST = -3
"""The number of the last event."""
REFUSED = {
    "POSITION_INVALID",
    "POSITION_FOREIGN",
    "RESUME_TOKEN_NOT_FOUND",
    "HISTORY_LOST",
    "START_IN_FUTURE",
    "OPTION_REFUSED",
    "START_AFTER_REQUIRED",
}


def from_hex(data: str | bytes) -> bytes:
    """A token document."""
    return bson.encode({"_data": (data if isinstance(data, str) else data.hex()).upper()})


def data_of(token: bytes) -> bytes:
    return bytes.fromhex(bson.decode(token)["_data"])


def moved(token: bytes, seconds: int) -> bytes:
    """The same event at another time, where there was none."""
    data = data_of(token)
    time = int.from_bytes(data[1:9]) + (seconds << 32)
    return from_hex(data[:1] + time.to_bytes(8) + data[9:])


def forged_tokens(token: bytes) -> dict[str, bytes]:
    """By what is wrong with them. `token` is an event's."""
    data = data_of(token)
    return {
        "garbage behind": from_hex(data[:-1] + bytes.fromhex("2B0A2B0A04")),
        "another document": from_hex(data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]),
        "never existed": moved(token, -1),
        "before the oplog": moved(token, -400 * 86_400),
        "the future": moved(token, 3_600),
        "a high-water mark before the oplog": ResumeToken.high_water_mark(1 << 32).raw,
        "type bits of none": bson.encode({"_data": data.hex().upper(), "_typeBits": b"\xff" * 9}),
    }


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
        **{f"bit {bit}": flipped(position, bit) for bit in range(0, len(position) * 8, 37)},
    }


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


async def give_everywhere(api: Api, wanted: feed_pb2.Feed, name: str, bad: bytes, good: bytes) -> dict[str, str]:
    """The reason by call, for a position that is refused whatever it is given for."""
    start = at(position=bad)
    calls = {
        "Watch": api.watch(wanted, start).opened(),
        "Subscribe": opened(api, feed=wanted, start=start),
        "last_acked": opened(
            api, subscription=name, instance_id="i", last_acked=wire.LastAcked(epoch=1 << 60, position=bad)
        ),
        "ResolvePosition": api.resolve(wanted, start),
        "Create": api.create(f"{name}-2", wanted, start),
        "Seek": api.seek(name, start),
        "PlanRange.after": api.plan(feed=wanted, after=bad),
        "PlanRange.until": api.plan(feed=wanted, after=good, until=bad),
        "PlanRange.processed": api.plan(subscription=name, instance_id="i", processed=bad),
        "ReadRange.after": first_of(api, feed=wanted, after=bad, until=good),
        "ReadRange.until": first_of(api, feed=wanted, after=good, until=bad),
    }
    found = {call: (await refused(asked)).reason for call, asked in calls.items()}
    found["Explain"] = (await api.explain(feed=wanted, start=start)).refusal.reason
    return found


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


@pytest.mark.parametrize("same_feed", [True, pytest.param(False, marks=pytest.mark.full)])
async def test_tenants_on_the_same_feed_see_no_error_and_no_gap(
    tenants: Here, database: Documents, name: str, same_feed: bool
) -> None:
    """B opens with everything that it can make up, in a loop, while A's sessions run and reconnect."""
    wanted = feed(database.name, "c")
    theirs = wanted if same_feed else feed(database.name, "c", pipeline='[{"$match": {"operationType": "insert"}}]')
    api = tenants.api
    async with tenants.api.with_key(KEY_B) as other:
        token, position = await event_of(other, theirs, database, -1)
        _, foreign = await event_of(api, wanted, database, -2)
        await other.create(f"{name}-b", theirs, LATEST)
        live = api.watch(wanted, LATEST)
        begun = await live.opened()
        await api.create(name, wanted, at(position=begun.position))
        durable = await api.open(name)
        asked: dict[str, str] = {}
        rounds = [0, 0]
        wrote: list[int] = []

        async def attack(attacker: int) -> None:
            while True:
                for what, start in starts(token, position, foreign):
                    asked[what] = await reason_of(other, theirs, start)
                for what, forged in forged_tokens(token).items():
                    acked = wire.LastAcked(epoch=1 << 60, resume_token=forged)
                    asked[f"last acked {what}"] = await reason_of_session(other, f"{name}-b", acked)
                rounds[attacker] += 1

        async def write() -> None:
            """Until each attacker has tried everything."""
            while len(wrote) < 300 or 0 in rounds:
                await asyncio.to_thread(database.c.insert_one, {"n": len(wrote)})
                wrote.append(len(wrote))
                await asyncio.sleep(0.01)
            await asyncio.to_thread(database.c.insert_one, {"n": LAST})
            wrote.append(LAST)

        async def reconnect() -> list[int]:
            """A subscriber that opens again and again at its own position, with events after it."""
            found: list[int] = []
            place = at(position=begun.position)
            while LAST not in found:
                await until(lambda: len(wrote) > len(found) + 3 or LAST in wrote)
                each = api.watch(wanted, place)
                for _ in range(7):
                    found.extend(await each.numbers(1))
                    if LAST in found:
                        break
                place = at(resume_after=each.resume_token) if len(found) % 2 else at(position=each.position)
                pending = await each.take(len(each._pending))  # the rest of the batch with this position
                found.extend(event.n for event in pending)
                each.cancel()
            return found

        attackers = [asyncio.create_task(attack(attacker)) for attacker in range(len(rounds))]
        writing = asyncio.create_task(write())
        try:
            reconnected = await reconnect()
            await writing
            assert reconnected == wrote
            assert await live.numbers(len(wrote)) == wrote
            assert await durable.numbers(len(wrote)) == wrote
        finally:
            for task in (*attackers, writing):
                task.cancel()
            await asyncio.gather(*attackers, writing, return_exceptions=True)
        durable.cancel()
        live.cancel()
    wrong = {what: reason for what, reason in asked.items() if reason and reason not in REFUSED}
    assert not wrong
    assert {asked[f"position {what}"] for what in ("with a checksum", "a MAC of zeros")} == {"POSITION_INVALID"}


def starts(token: bytes, position: bytes, foreign: bytes) -> list[tuple[str, feed_pb2.Start]]:
    found = [(f"position {what}", at(position=bad)) for what, bad in forged_positions(position, foreign, token).items()]
    for what, bad in forged_tokens(token).items():
        found += [(f"resume {what}", at(resume_after=bad)), (f"start {what}", at(start_after=bad))]
    return found


async def reason_of(api: Api, wanted: feed_pb2.Feed, start: feed_pb2.Start) -> str:
    """Why it ends; empty when it gets an event."""
    receiver = api.watch(wanted, start)
    try:
        await receiver.opened()
        await receiver.take(1)
    except grpc.aio.AioRpcError as error:
        return refusal(error).reason
    finally:
        receiver.cancel()
    return ""


async def reason_of_session(api: Api, name: str, acked: wire.LastAcked) -> str:
    session = await api.session(name, last_acked=acked, takeover=True, credit=wire.Credit(events=1, bytes=1))
    try:
        await session.opened()
    except grpc.aio.AioRpcError as error:
        return refusal(error).reason
    finally:
        session.cancel()
    return ""


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
