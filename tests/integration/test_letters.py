"""The collection for dead letters, on a real MongoDB."""

import asyncio
import struct
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pytest
import pytest_asyncio
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.collation import Collation
from pymongo.database import Database

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.config.server import Config
from feedmux_server.core.check_result import CheckResult, Level
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.dead_letter import DeadLetter, dead_letter
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.doctor import examine
from feedmux_server.source import dead_letters
from feedmux_server.source.answers import ANSWER
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.source.deployment import Source, SourceConfig
from feedmux_server.source.letters import PART_BYTES, Check, Letters, LettersPlace, OfKey
from tests.integration.servers import Here, guarded, serving, settings, until
from tests.integration.wire import feed, refused
from tests.tables import over

NOW_S = 1_800_000_000.0


def place(database: str, **bounds: Any) -> LettersPlace:
    return replace(LettersPlace(database, "letters", 30 * 86_400, 1 << 30, 1_000, 100), **bounds)


@asynccontextmanager
async def prepared(mongo: ReplicaSet, database: str, **bounds: Any) -> AsyncIterator[DeadLetters]:
    source = Source(SourceConfig("letters", mongo.uri, server_selection_timeout_ms=5_000))
    try:
        letters = DeadLetters(source, place(database, **bounds), "", {})
        await letters.prepare()
        yield letters
    finally:
        await source.close()


@pytest_asyncio.fixture
async def letters(mongo: ReplicaSet, database: Database[Any]) -> AsyncIterator[Letters]:
    async with prepared(mongo, database.name) as there:
        yield there.letters


def _made(**options: Any) -> Callable[[Database[Any]], object]:
    return lambda database: database.create_collection("letters", **options)


def _indexed(key: str, **options: Any) -> Callable[[Database[Any]], object]:
    return lambda database: database.letters.create_index(key, **options)


UNFIT: dict[str, tuple[Callable[[Database[Any]], object], str]] = {
    "collation": (_made(collation=Collation("en", strength=1)), "has a collation"),
    "capped": (_made(capped=True, size=1 << 20), "is capped"),
    "time series": (_made(timeseries={"timeField": "failed_at"}), "is a timeseries"),
    "view": (_made(viewOn="others", pipeline=[]), "is a view"),
    "unique": (_indexed("subscription", unique=True), "on subscription is unique"),
    "unique, of odd ones": (
        _indexed("subscription", unique=True, partialFilterExpression={"failed_at": {"$gt": DatetimeMS(10**15)}}),
        "on subscription is unique",
    ),
    "expires": (_indexed("failed_at", expireAfterSeconds=1), "would delete letters early"),
    "same name": (_indexed("tenant", name="usage"), "takes the place of one"),
    "same key": (_indexed("expires_at", expireAfterSeconds=0), "takes the place of one"),
}


def event(number: int, **more: Any) -> bytes:
    return bson.encode({"_id": {"_data": f"82{number:08x}"}, "documentKey": {"_id": number}, **more})


def letter(data: bytes, *, tenant: str = "a", subscription: str = "s", now_s: float = NOW_S) -> DeadLetter:
    return dead_letter(
        data,
        tenant=tenant,
        subscription=subscription,
        stream_key=b"k" * 16,
        attempts=5,
        reasons=tuple(f"reason {number}" for number in range(7)),
        member="worker-1",
        cluster_time=7 << 32 | 3,
        now_s=now_s,
    )


def nested(depth: int) -> bytes:
    data = bson.encode({})
    for _ in range(depth):
        data = struct.pack("<i", len(data) + 8) + b"\x03d\x00" + data + b"\x00"
    return data


async def test_a_host_that_was_frozen_releases_no_key_of_its_successor(letters: Letters) -> None:
    keys = [b"one", b"two"]
    await letters.quarantine("a", "s", 7, keys, 2, NOW_S)
    await letters.quarantine("a", "other", 7, keys[:1], 1, NOW_S)
    assert sorted(await letters.take_over("a", "s", 9)) == keys
    await letters.quarantine("a", "s", 7, [b"three"], 1, NOW_S)
    await letters.release("a", "s", 7, keys)
    assert (await letters.usage("a")).keys == 4
    assert set(keys) <= set(await letters.quarantined("a", "s"))
    await letters.release("a", "s", 9, keys)
    assert await letters.quarantined("a", "s") == [b"three"]
    assert await letters.quarantined("a", "other") == [b"one"]


async def test_a_release_that_is_carried_out_late_releases_no_key_that_is_quarantined_again(letters: Letters) -> None:
    keys, late = [b"one", b"two"], list[Callable[[], Awaitable[Any]]]()

    async def not_answered(_: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        late.append(ask)
        raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "no answer")

    await letters.quarantine("a", "s", 7, keys, 2, NOW_S)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(letters, "_answer", not_answered)
        with pytest.raises(FeedmuxError):
            await letters.release("a", "s", 7, keys)
    await letters.quarantine("a", "s", 7, keys[:1], 0, NOW_S)
    await late[0]()
    assert await letters.quarantined("a", "s") == keys[:1]
    await letters.release("a", "s", 7, keys)
    assert await letters.quarantined("a", "s") == []


async def test_a_key_whose_letters_are_discarded_is_to_be_checked_whatever_fails(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, gone = letters._answer, list[str]()

    async def dies(operation: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        if gone:
            raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "after the letters were deleted")
        answered = await answer(operation, ask)
        gone.extend([operation] if operation == "delete" else [])
        return answered

    await letters.quarantine("a", "s", 7, [b"g", b"h"], 2, NOW_S)
    await letters.insert([replace(letter(event(number)), group_key=b"g") for number in (1, 2)])
    with monkeypatch.context() as patched:
        patched.setattr(letters, "_answer", dies)
        with pytest.raises(FeedmuxError):
            await letters.discard("a", "s", [letter(event(1)).id])
    (seen,) = await letters.to_check("a", "s")
    assert seen.key == b"g"
    assert await letters.without_letters("a", "s", [b"g", b"h"]) == {b"h"}
    await letters.discard("a", "s", [letter(event(2)).id])
    await letters.checked("a", "s", seen)
    (again,) = await letters.to_check("a", "s")
    assert again.key == b"g", "the last letter was discarded after the host had found it"
    await letters.checked("a", "s", again)
    assert await letters.to_check("a", "s") == []


async def test_a_host_knows_which_letters_came_after_all_were_discarded(letters: Letters) -> None:
    of_key = [
        replace(letter(event(number)), group_key=b"g", place=str(number), attempts=number == 1)
        for number in range(1, 5)
    ]
    of_key = [replace(each, key=of_key[0].key) for each in of_key]
    await letters.quarantine("a", "s", 7, [b"g", b"h"], 2, NOW_S)
    await letters.insert(of_key[:2])
    await letters.discard("a", "s", [each.id for each in of_key[:2]], complete=True)
    (check,) = await letters.to_check("a", "s")
    assert check.newest == ("2", of_key[1].key)
    found = [check.came_later(each) for each in of_key]
    assert found == [False, False, True, True]
    assert not check.came_later(replace(of_key[2], key=b"of another shard key"))
    assert not check.came_later(replace(of_key[2], attempts=1))
    await letters.insert(of_key[2:])
    await letters.discard("a", "s", [of_key[2].id])
    (again,) = await letters.to_check("a", "s")
    assert again.newest == check.newest
    await letters.checked("a", "s", again)
    await letters.discard("a", "s", [of_key[3].id])
    assert [each.newest for each in await letters.to_check("a", "s")] == [None]


async def test_the_call_that_discards_the_last_letter_of_a_key_says_so_also_if_other_keys_have_more(
    letters: Letters,
) -> None:
    keys = [b"g", b"h"]
    own = [replace(letter(event(number)), group_key=keys[number % 2], place=str(number)) for number in range(4)]
    await letters.quarantine("a", "s", 7, keys, 2, NOW_S)
    await letters.insert(own)
    found = list[dict[bytes, str | None]]()
    for first, stop in ((0, 1), (1, 3)):
        await letters.discard("a", "s", [each.id for each in own[first:stop]], complete=False)
        checks = await letters.to_check("a", "s")
        found.append({each.key: each.newest and each.newest[0] for each in checks})
    assert found == [{b"g": None}, {b"g": "2", b"h": None}]


async def test_what_a_host_quarantines_that_has_a_successor_already_is_not_quarantined(letters: Letters) -> None:
    """It was frozen meanwhile, for example, or has not heard of an update: its successor delivers these events."""
    await letters.quarantine("a", "s", 7, [b"g", b"h"], 2, NOW_S)
    await letters.quarantine("a", "t", 7, [b"k"], 1, NOW_S)
    assert await letters.take_over("a", "s", 8) == [b"g", b"h"]
    await letters.quarantine("a", "s", 7, [b"h", b"late"], 1, NOW_S)
    await letters.quarantine("a", "s", 8, [b"i"], 1, NOW_S)
    for epoch in (9, 10):
        assert await letters.take_over("a", "s", epoch) == [b"g", b"h", b"i"]
        assert (await letters.usage("a")).keys == 4
    await letters.quarantine("a", "s", 10, [b"late"], 1, NOW_S)
    assert await letters.take_over("a", "s", 11) == [b"g", b"h", b"i", b"late"]


async def test_the_replay_of_a_key_becomes_one_of_its_letters(letters: Letters) -> None:
    here = b"k" * 16
    await letters.quarantine("a", "s", 7, [b"g", b"h"], 2, NOW_S)
    own = [replace(letter(event(number)), group_key=b"g", place=str(number)) for number in (1, 2)]
    await letters.insert([*own, replace(letter(event(3)), group_key=b"g", stream_key=b"f" * 16)])
    await letters.mark_key("a", "s", here, 7, b"g", to_replay=True)
    assert await letters.to_replay("a", "s", here, 5, after=b"") == []
    await letters.mark("a", "s", here, (), epoch=8, most=1)
    await letters.mark_key("a", "s", here, 7, b"g", to_replay=False)
    assert [each.id for each in await letters.to_replay("a", "s", here, 5, after=b"")] == [own[0].id]
    await letters.mark_key("a", "s", here, 7, b"g", to_replay=True)
    assert await letters.to_replay("a", "s", here, 5, after=b"") == []
    await letters.mark_letters("a", "s", here, 8, await letters.quarantined("a", "s", to_replay=True))
    assert await letters.quarantined("a", "s", to_replay=True) == []
    assert [each.id for each in await letters.to_replay("a", "s", here, 5, after=b"")] == [each.id for each in own]
    assert await letters.to_replay("a", "s", here, 5, after=b"g") == []


async def test_a_host_that_was_frozen_leaves_the_replays_of_its_successor(letters: Letters) -> None:
    here = b"k" * 16
    await letters.quarantine("a", "s", 7, [b"g"], 1, NOW_S)
    await letters.insert([own := replace(letter(event(1)), group_key=b"g")])
    await letters.take_over("a", "s", 8)
    await letters.mark("a", "s", here, (), epoch=8, most=1)
    await letters.mark_key("a", "s", here, 7, b"g", to_replay=True)
    assert [each.id for each in await letters.to_replay("a", "s", here, 5, after=b"")] == [own.id]
    assert await letters.quarantined("a", "s", to_replay=True) == []
    await letters.mark_key("a", "s", here, 8, b"g", to_replay=True)
    await letters.mark_key("a", "s", here, 7, b"g", to_replay=False)
    assert await letters.quarantined("a", "s", to_replay=True) == [b"g"]
    await letters.mark_key("a", "s", here, 8, b"g", to_replay=False)
    assert await letters.quarantined("a", "s", to_replay=True) == []

    async def fails_again(epoch: int) -> tuple[bool, int, int]:
        stored = await letters.failed_again("a", "s", epoch, replace(own, attempts=epoch), own.id)
        await letters.failed_in_replay("a", "s", epoch, {own.id: (epoch, 0)})
        found = await letters.get("a", "s", own.id, with_event=False)
        assert found is not None
        return stored, found.attempts, found.failures

    await letters.mark("a", "s", here, (), epoch=8, most=1)
    assert await fails_again(7) == (False, 5, 0)
    assert [each.id for each in await letters.to_replay("a", "s", here, 5, after=b"")] == [own.id]
    assert await fails_again(8) == (True, 8, 8)
    assert await letters.to_replay("a", "s", here, 5, after=b"") == []
    assert await fails_again(7) == (False, 8, 8)


async def test_events_come_back_bit_for_bit(
    letters: Letters, database: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that MongoDB would not store within a document, or not in one."""
    odd = event(1, fullDocument={"a.b": 1, "$set": {"$x": 2}, "": None})
    twice = odd[:-1] + b"\x10same\x00\x01\x00\x00\x00\x10same\x00\x02\x00\x00\x00" + b"\x00"
    twice = struct.pack("<i", len(twice)) + twice[4:]
    deep = event(3)[:-1] + b"\x03deep\x00" + nested(179) + b"\x00"
    deep = struct.pack("<i", len(deep)) + deep[4:]
    large = event(4, fullDocument={"text": "x" * (15 * PART_BYTES + 700_000)})
    for data, part_bytes in ((odd, PART_BYTES), (deep, PART_BYTES), (large, 15 << 20), (large, PART_BYTES)):
        sent = letter(data)
        await letters.discard("a", "s", [sent.id])
        monkeypatch.setattr("feedmux_server.source.letters.PART_BYTES", part_bytes)
        await letters.insert([sent])
        monkeypatch.undo()  # earlier versions have stored larger parts
        got = await letters.get("a", "s", sent.id, with_event=True)
        assert got is not None
        assert got.event == data
        assert got.reasons == tuple(f"reason {number}" for number in range(2, 7))
        assert (got.attempts, got.member, got.cluster_time) == (5, "worker-1", 7 << 32 | 3)
        assert got.expires_ms == got.failed_ms + 30 * 86_400_000
    sent = letter(twice)  # the event of `odd` once more, as far as its `_id` says
    await letters.insert([sent])
    got = await letters.get("a", "s", sent.id, with_event=True)
    assert got is not None
    assert got.event == odd, "an event is stored once"
    assert database.letters.count_documents({"tenant": "a"}) == 3
    sizes = database.letters.aggregate([{"$group": {"_id": None, "most": {"$max": {"$bsonSize": "$$ROOT"}}}}])
    assert next(iter(sizes))["most"] < 1.1 * PART_BYTES, "the event loop encodes no more at once"
    later, again = letter(large, now_s=NOW_S + 86_400), letter(large).id
    assert await letters.failed_again("a", "s", 7, later, again)
    kept = database.letters.distinct("expires_at", {"_id.event": again})
    assert [each.timestamp() for each in kept] == [NOW_S + 31 * 86_400], "no part expires before its letter"
    assert await letters.discard("a", "s", [again]) == 1
    assert database.letters.count_documents({}) == 2, "all parts are gone"


async def test_an_event_that_is_set_aside_again_is_kept_as_long_as_a_new_one(
    mongo: ReplicaSet, database: Database[Any]
) -> None:
    large = event(1, fullDocument={"text": "x" * (2 * PART_BYTES)})
    async with prepared(mongo, database.name, letters_max=1) as dead:
        first, again = letter(large), letter(large, now_s=NOW_S + 86_400)
        assert await dead.letters.insert([first]) == 1

        async def stored(sent: DeadLetter) -> tuple[int, tuple[str, ...], float]:
            assert await dead.letters.insert([sent]) == 1
            found = await dead.letters.get("a", "s", sent.id, with_event=True)
            assert found is not None
            assert found.event == large
            (expires,) = database.letters.distinct("expires_at")
            assert expires.timestamp() * 1000 == found.expires_ms, "no part expires before its letter"
            return found.attempts, found.reasons, found.failed_ms / 1000 - NOW_S

        assert await stored(replace(again, attempts=2, reasons=("again",))) == (2, ("again",), 86_400)
        assert await stored(replace(first, attempts=3)) == (3, first.reasons, 86_400), "a clock was set back"
        follows = replace(again, attempts=0, reasons=(), member="")
        assert await stored(follows) == (3, first.reasons, 86_400), "it follows another letter this time"
        assert (await dead.letters.usage("a")).letters == 1
        await dead.letters.failed_in_replay("a", "s", 7, {first.id: (3, 2), b"gone": (1, 1)})
        for expected in ((3, 2), (0, 0)):
            found = await dead.letters.get("a", "s", first.id, with_event=False)
            assert found is not None
            assert (found.failures, found.losses) == expected, "of one replay"
            await dead.letters.insert([again])


async def test_pages_keys_and_other_tenants(letters: Letters) -> None:
    sent = [letter(event(number), now_s=NOW_S + number // 2) for number in range(7)]
    for each in (*reversed(sent), letter(event(1), tenant="b"), letter(event(1), subscription="t")):
        await letters.insert([each])
    found: list[bytes] = []
    after, more = None, True
    while more:
        page, more = await letters.page("a", "s", of=None, after=after, most=3)
        assert not any(each.event for each in page)
        found += [each.id for each in page]
        after = page[-1].failed_ms, page[-1].id
    assert len(found) == 7
    assert set(found) == {each.id for each in sent}
    times = {each.id: each.failed_ms for each in sent}
    assert [times[each] for each in found] == sorted(times.values())
    by_key = await letters.page("a", "s", of=OfKey(bson.encode({"_id": 2.0}), b"k" * 16), after=None, most=3)
    assert [each.id for each in by_key.letters] == [sent[2].id], "numbers are equal as MongoDB compares them"
    for hostile in ({"$gt": 0}, {"_id": {"$gt": 0}}, {"$exists": True}, {"$where": "true"}):
        of = OfKey(bson.encode(hostile), b"k" * 16)
        assert not (await letters.page("a", "s", of=of, after=None, most=3)).letters
    assert await letters.get("b", "s", sent[2].id, with_event=True) is None
    assert await letters.discard("b", "s", [each.id for each in sent]) == 1, "its own"
    assert (await letters.usage("a")).letters == 8


async def test_bounds_of_a_tenant(mongo: ReplicaSet, database: Database[Any]) -> None:
    async with prepared(mongo, database.name, letters_max=2, bytes_max=1 << 20) as dead:
        for number in range(2):
            await dead.letters.insert([letter(event(number))])
        assert dead.shares() == {"a": 1.0}
        with pytest.raises(FeedmuxError, match=r"letters_max") as raised:
            await dead.letters.insert([letter(event(2))])
        assert raised.value.reason is ErrorReason.QUOTA_EXCEEDED
        await dead.letters.insert([letter(event(1))])  # it is there: its group may settle the event
        await dead.letters.insert([letter(event(2), tenant="b")])
        assert await dead.letters.discard("a", "s", [letter(event(0)).id]) == 1
        await dead.letters.insert([letter(event(2))])
        with pytest.raises(FeedmuxError, match=r"bytes_max"):
            await dead.letters.insert([letter(event(9, fullDocument={"text": "x" * (1 << 20)}), tenant="c")])


async def test_what_mongodb_examines_for_a_call_does_not_grow_with_the_letters(
    mongo: ReplicaSet, database: Database[Any]
) -> None:
    """All letters are of one key, which is quarantined: whether they are replayed, withheld, or marked already."""
    here, former = b"k" * 16, b"f" * 16
    of, by_former = (OfKey(bson.encode({"_id": 0}), each) for each in (here, former))
    found: dict[str, set[int]] = defaultdict(set)
    async with prepared(mongo, database.name, letters_max=10_000) as dead:
        letters = dead.letters
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "replay begins": lambda: letters.mark_key("a", "s", here, 7, b"g", to_replay=True),
            "replay stops": lambda: letters.mark_key("a", "s", here, 7, b"g", to_replay=False),
            "mark": lambda: letters.mark("a", "s", here, (), epoch=8, most=5),
            "mark key": lambda: letters.mark("a", "s", here, (), epoch=8, key=of.key, most=5),
            "mark none": lambda: letters.mark("a", "s", former, (), epoch=8, most=5),
            "mark none of key": lambda: letters.mark("a", "s", former, (), epoch=8, key=of.key, most=5),
            "withheld": lambda: letters.withheld("a", "s", here, (), most=5),
            "all withheld": lambda: letters.withheld("a", "s", former, (), most=5),
            "page": lambda: letters.page("a", "s", of=None, after=None, most=5),
            "page of key": lambda: letters.page("a", "s", of=of, after=None, most=5),
            "page of key withheld": lambda: letters.page("a", "s", of=by_former, after=None, most=5),
            "look": lambda: letters.to_replay("a", "s", here, 5, after=b""),
            "look after": lambda: letters.to_replay("a", "s", here, 5, after=b"g"),
            "look withheld": lambda: letters.to_replay("a", "s", former, 5, after=b""),
            "load": lambda: letters.of_group_key("a", "s", b"g", 5),
            "check": lambda: letters.check("a", "s", [b"g"]),
            "to check": lambda: letters.to_check("a", "s"),
            "reread": lambda: letters.without_letters("a", "s", [b"g", b"h"]),
            "checked": lambda: letters.checked("a", "s", Check(b"g", None)),
        }
        for state in ("set_aside", "replay"):
            for count in (10, 100, 1_000):
                numbers = range(1, count + 1)
                data = [bson.encode({"_id": {"_data": f"82{each:08x}"}, "documentKey": {"_id": 0}}) for each in numbers]
                await letters.insert([replace(letter(each), group_key=b"g") for each in data])
                await letters.quarantine("a", "s", 1, [b"g"], 1, NOW_S)
                for name, each in calls.items():
                    database.letters.update_many({"bytes": {"$exists": True}}, {"$set": {"state": state}})
                    if name.startswith("replay ") and state == "replay":
                        continue  # as many marks are removed as callers have made
                    found[f"{name}, {state}"].add(await examined(database, each))
                database.letters.delete_many({})
    assert {name for name, counts in found.items() if max(counts) > 60} == set()


async def examined(database: Database[Any], call: Callable[[], Awaitable[Any]]) -> int:
    """How many entries of indexes and documents MongoDB examines for what `call` asks, and how many it changes."""
    database.command("profile", 2, filter={"ns": f"{database.name}.letters"})
    try:
        await call()
    finally:
        database.command("profile", 0)
    entries = list(database.system.profile.find({"op": {"$in": ["query", "command", "update", "getmore"]}}))
    database.system.profile.drop()
    assert entries
    counted = ("keysExamined", "docsExamined", "nModified")
    return sum(each.get(name, 0) for each in entries for name in counted)


async def test_tenants_take_turns(letters: Letters) -> None:
    """However many groups of a tenant have letters to write, another tenant waits for one of them."""
    order: list[str] = []

    async def write(tenant: str, number: int) -> None:
        async with letters.writing(tenant):
            await letters.insert([letter(event(number), tenant=tenant)])
            order.append(tenant)

    async with asyncio.TaskGroup() as tasks:
        for number in range(50):
            tasks.create_task(write("busy", number))
        tasks.create_task(write("other", 1))
    assert order.index("other") < 25
    assert (await letters.usage("busy")).letters == 50


async def test_a_deployment_that_tenants_watch_must_be_named(mongo: ReplicaSet, database: Database[Any]) -> None:
    watched = Source(SourceConfig("main", mongo.uri))
    own = Source(SourceConfig("dead_letters", mongo.uri))
    try:
        await watched.connect()
        unnamed = DeadLetters(own, place(database.name), "", {"main": watched})
        with pytest.raises(FeedmuxError, match=r"dead_letters\.source to 'main'"):
            await unnamed.prepare()
        with pytest.raises(FeedmuxError, match="cannot be used"):
            _ = unnamed.letters
        assert database.list_collection_names() == []
        later = Source(SourceConfig("later", mongo.uri))
        found_later = DeadLetters(own, place(f"{database.name}_later"), "", {"later": later})
        await found_later.prepare()
        _ = found_later.letters
        await later.connect()
        with pytest.raises(FeedmuxError, match="cannot be used"):
            _ = found_later.letters
        await later.close()
        other = Source(SourceConfig("other", mongo.uri))
        sources = {"main": watched, "other": other}
        named = DeadLetters(own, place(database.name), "main", sources)
        all_of, its_own, another = (Scope("other", each) for each in ("", database.name, "shop"))
        unreached = DeadLetters(Source(SourceConfig("dead_letters", mongo.uri)), place(database.name), "main", sources)

        def is_unknown(letters: DeadLetters) -> None:
            assert (letters.hidden_database(Scope("main")), letters.hidden_database(another)) == (database.name, "")
            for scope in (all_of, its_own):
                with pytest.raises(FeedmuxError, match="not known yet"):
                    letters.hidden_database(scope)

        await named.prepare()
        is_unknown(named)
        await other.connect()
        is_unknown(unreached)
        assert named.hidden_database(all_of) == named.hidden_database(its_own) == database.name
        await other.close()
        assert named.hidden_database(all_of) == database.name, "also while the deployment cannot be reached"
    finally:
        await watched.close()
        await own.close()


async def test_an_unavailable_collection_says_so(replica_set_factory: Any) -> None:
    mongo = await replica_set_factory()
    source = Source(SourceConfig("letters", mongo.uri, server_selection_timeout_ms=2_000))
    letters = DeadLetters(source, place("away"), "", {})
    await letters.prepare()
    await letters.letters.insert([letter(event(1))])
    mongo.pause()
    with pytest.raises(FeedmuxError, match="cannot be used now") as raised:
        await letters.letters.insert([letter(event(2))])
    assert raised.value.reason is ErrorReason.SOURCE_UNAVAILABLE
    mongo.resume()

    async def is_written() -> bool:
        try:
            await letters.letters.insert([letter(event(2))])
        except FeedmuxError:
            return False
        return True

    await until(is_written)
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        assert client.away.letters.count_documents({}) == 2, "what was under way is written once"
    await source.close()


@over("kind", [*UNFIT])
async def test_a_collection_in_which_letters_would_not_be_what_was_written_is_rejected(
    mongo: ReplicaSet, redis_server: RedisServer, database: Database[Any], kind: str
) -> None:
    make, says = UNFIT[kind]
    database.drop_collection("letters")
    make(database)
    with pytest.raises(FeedmuxError, match=says) as raised:
        async with prepared(mongo, database.name):
            pass
    assert raised.value.reason is ErrorReason.SOURCE_UNSUITABLE
    section = {"source": "main", "database": database.name, "collection": "letters"}
    doctor = await doctored(settings(mongo.uri, redis_server.url), section)
    assert (doctor.level, doctor.advice[:4]) == (Level.FAILED, "Drop")
    assert says in doctor.says
    if kind not in ("view", "time series"):
        listed = database.command({"listIndexes": "letters"}, codec_options=ANSWER)
        assert len(listed["cursor"]["firstBatch"]) <= 2, "nothing was changed"


async def test_a_collection_with_a_collation_that_takes_its_place_loses_no_letter(
    mongo: ReplicaSet, database: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PREPARE_S", 0.1)
    async with prepared(mongo, database.name) as dead:
        database.letters.drop()
        database.create_collection("letters", collation=Collation("en", strength=1))
        assert await dead.letters.insert([letter(event(1))]) == 1
        with pytest.raises(FeedmuxError, match="cannot be used now"):
            await dead.letters.insert([letter(event(1), tenant="A")])
        await dead.letters.quarantine("a", "s", 1, [b"k"], 1, NOW_S)
        with pytest.raises(FeedmuxError, match="cannot be used now"):
            await dead.letters.quarantine("A", "s", 1, [b"k"], 1, NOW_S)
        running = asyncio.create_task(dead.run())
        await until(lambda: not dead.is_ready)
        database.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
        database.clustered.rename("letters", dropTarget=True)
        await until(lambda: dead.is_ready)
        running.cancel()
        await asyncio.wait([running])


async def test_the_log_says_why_a_letter_was_rejected(
    mongo: ReplicaSet, database: Database[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with prepared(mongo, database.name) as dead:
        database.command("collMod", "letters", validator={"member": "another"})
        with pytest.raises(FeedmuxError):
            await dead.letters.insert([letter(event(1))])
        assert "MongoDB's error 121" in caplog.text
        doctor = await dead.examine()
        assert (doctor[0].level, "code 121" in doctor[0].says) == (Level.FAILED, True)
        assert "validator" in doctor[0].advice
        database.command("collMod", "letters", validator={})
        database.letters.create_index("member", unique=True, partialFilterExpression={"member": {"$exists": True}})
        await dead.letters.insert([letter(event(1))])
        dead.letters._next_line_s = 0.0
        with pytest.raises(FeedmuxError):
            await dead.letters.insert([letter(event(number)) for number in (1, 2)])
        assert "its unique index on member rejects a letter" in caplog.text
        assert "worker-1" not in caplog.text


@pytest.fixture
def hidden(database: Database[Any]) -> str:
    return f"{database.name}_letters"


async def test_nobody_watches_the_letters(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    mongo_client: MongoClient[dict[str, Any]],
    database: Database[Any],
    hidden: str,
    tmp_path: Path,
) -> None:
    configuration = settings(mongo.uri, redis_server.url)
    configuration["dead_letters"] = {"source": "main", "database": hidden}
    collation = bson.encode({"locale": "en", "strength": 1})
    async with serving(configuration) as here:
        api = here.api
        for source in ("main", "other"):
            for collection in ("", "dead_letters"):
                rejection = await refused(api.watch(feed(hidden, collection, source=source)).opened())
                assert rejection.reason == "NAMESPACE_DENIED", (source, collection)
            explained = await api.explain(feed=feed(source=source, full_document="whenAvailable"))
            assert hidden not in [each.database for each in explained.images]
            wide = [api.watch(feed(source=source)), api.watch(feed(source=source, collation=collation))]
            beside = f"{database.name}_létters"
            for each in wide:
                await each.opened()
            mongo_client[hidden].dead_letters.insert_one({"n": 1})
            mongo_client[hidden].dead_letters.drop()
            mongo_client.drop_database(hidden)
            mongo_client[beside].others.insert_one({"n": 2})
            database.others.insert_one({"n": 3})
            for each in wide:
                seen = await _until_own(each, database.name)
                assert hidden not in seen
                assert beside in seen
            mongo_client.drop_database(beside)
            for each in wide:
                each.cancel()


async def _until_own(receiver: Any, database: str) -> list[str]:
    seen: list[str] = []
    while database not in seen:
        (one,) = await receiver.take(1)
        seen.append(one.document["ns"]["db"])
    return seen


async def test_the_server_creates_the_collection_also_after_a_drop_and_serves_without_it(
    here: Here, mongo: ReplicaSet, redis_server: RedisServer, database: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PREPARE_S", 0.1)
    configuration = settings(mongo.uri, redis_server.url)
    configuration["dead_letters"] = {"source": "main", "database": database.name}
    async with serving(configuration):
        for _ in range(2):
            await until(lambda: len(database.dead_letters.index_information()) == 9)
            database.dead_letters.drop()
    away = {"uri": "mongodb://127.0.0.1:1/?replicaSet=r", "server_selection_timeout_ms": 100}
    async with serving({**settings(mongo.uri, redis_server.url), "dead_letters": away}) as without:
        await without.api.watch(feed(f"d{uuid.uuid4().hex[:8]}")).opened()


async def test_accounts_and_passwords(redis_server: RedisServer, tmp_path: Path) -> None:
    """The account of the letters writes, that of the source only reads, and the doctor tells them apart."""
    password = tmp_path / "password"
    password.write_text("first/@canary\n")
    async with guarded(tmp_path) as (admin, address):
        admin.admin.command("createUser", "feeds", pwd="feeds", roles=["readAnyDatabase"])
        role = {"role": "readWrite", "db": "feedmux"}
        admin.admin.command("createUser", "letters", pwd="first/@canary", roles=[role])
        uri = f"mongodb://letters@{address}&authSource=admin"
        configuration = settings(f"mongodb://feeds:feeds@{address}", redis_server.url)
        section = {"source": "main", "uri": uri, "password_file": str(password)}
        resource, actions = {"db": "feedmux", "collection": ""}, ["find", "insert", "update", "remove"]
        privilege = {"resource": resource, "actions": [*actions, "listCollections", "listIndexes"]}
        admin.admin.command("createRole", "no indexes", privileges=[privilege], roles=[])
        admin.admin.command("createUser", "writer", pwd="first/@canary", roles=["no indexes"])
        no_indexes = {**section, "uri": uri.replace("letters@", "writer@")}
        wrong = [{"source": "main"}, no_indexes, {"uri": uri, "password_file": str(password)}]
        says = [(await doctored(configuration, each)) for each in (section, *wrong)]
        assert [each.level for each in says] == [Level.OK, Level.FAILED, Level.FAILED, Level.FAILED]
        assert "role readWrite" in says[1].advice
        assert "role readWrite" in says[2].advice
        assert "dead_letters.source" in says[3].says
        assert not admin.feedmux.dead_letters.count_documents({}), "the probe is removed"
        async with serving({**configuration, "dead_letters": section, "reload_s": 0.05}) as here:
            letters = here.server.service.letters
            assert letters is not None
            await until(lambda: letters.is_ready)
            before = letters.deployment._commands.client
            admin.admin.command("updateUser", "letters", pwd="second-canary")
            password.write_text("second-canary")
            await until(lambda: letters.deployment._commands.client is not before)
            await letters.letters.insert([letter(event(1))])
            assert admin.feedmux.dead_letters.count_documents({}) == 1


async def doctored(configuration: dict[str, Any], section: dict[str, Any]) -> CheckResult:
    config = Config(**configuration, dead_letters=section)  # type: ignore[arg-type]
    (found,) = [each async for each in examine(config, [], 20.0) if each.check == "dead_letters"]
    return found
