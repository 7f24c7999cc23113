"""What hostile members send, and keys that no group is made for, on a real server."""

from collections.abc import Sequence
from typing import Any

import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.group_reader import READ_BYTES
from tests.documents import Documents
from tests.integration.servers import Here, Limited, until
from tests.integration.wire import Session, feed, refused

MEGABYTE = "x" * (1 << 20)


def ranges(*pairs: tuple[int, int]) -> dict[str, wire.Settle]:
    return {"settle": wire.Settle(done=[wire.Settle.Range(first=first, last=last) for first, last in pairs])}


async def joined(here: Here, name: str, **fields: Any) -> Session:
    return await here.api.open(name, join=True, **{"message_bytes_max": 16 << 20, **fields})


@pytest.mark.parametrize(
    ("settle", "reason"),
    [
        (ranges((3, 3)), "ACK_OUT_OF_RANGE"),
        (ranges((1, 2), (1, 1 << 62)), "ACK_OUT_OF_RANGE"),
        (ranges((2, 1)), "MESSAGE_INVALID"),
        (ranges((-1, 1)), "MESSAGE_INVALID"),
    ],
)
async def test_what_was_never_sent_is_not_settled(
    small: Here, database: Documents, name: str, settle: dict[str, Any], reason: str
) -> None:
    await small.api.create(name, feed(database.name, "c"), group={})
    member = await joined(small, name)
    database.c.insert_many([{"n": n} for n in (1, 2)])
    await member.take(2)
    other = await joined(small, name)
    await other.send(**ranges((1, 1)))
    assert (await other.end()).reason == "ACK_OUT_OF_RANGE", "the events are another member's"
    await member.send(**settle)
    assert (await member.end()).reason == reason
    again = await joined(small, name)
    database.c.insert_one({"n": 3})
    # The first range of such a message may be settled.
    left = {3} if settle["settle"].done[0].first == 1 else {1, 2, 3}
    assert {event.n for event in await again.take(len(left))} == left
    await again.send(**ranges((1, len(left)), (1, 1), (len(left), len(left))))
    await again.close()
    assert (await refused(small.api.open(name))).reason == "GROUP_MISMATCH"


async def test_a_document_whose_id_changes_its_type_stays_one_key(small: Here, database: Documents, name: str) -> None:
    await small.api.create(name, feed(database.name, "c"), group={})
    one = await joined(small, name, credit=wire.Credit(events=1, bytes=1 << 20))
    database.c.insert_one({"_id": 1, "n": 1})
    assert await one.numbers(1) == [1]
    other = await joined(small, name)
    for number in (1.0, Int64(1), Decimal128("1")):
        database.c.replace_one({"_id": 1}, {"_id": number, "n": 2})
    database.c.insert_one({"_id": 2, "n": 3})
    assert await other.numbers(1) == [3], "what is later of the document waits for its first event"
    await one.send(**ranges((1, 1)))
    await one.close()
    await other.close()


@pytest.mark.parametrize(
    ("pipeline", "alone"),
    [
        ("", False),
        ('[{"$set": {"documentKey": ["no", "document"]}}]', True),
        ('[{"$unset": "documentKey"}]', True),
    ],
)
async def test_keys_of_a_megabyte_and_events_without_one(
    small: Here, database: Documents, name: str, pipeline: str, alone: bool
) -> None:
    await small.api.create(name, feed(database.name, "c", pipeline), group={})
    member = await joined(small, name)
    for n in range(3):
        for key in (MEGABYTE + "a", MEGABYTE + "b"):
            database.c.replace_one({"_id": key}, {"n": n}, upsert=True)
    seen: list[int] = []
    while len(seen) < 6:
        events = await member.take(1)
        await member.until(lambda: member.batches)
        runs: Sequence[int] = member.batches.pop(0).runs
        events += await member.take(sum(runs) - 1)
        assert not alone or len(events) == 1
        seen += [event.n for event in events]
        (group,) = small.server.service.groups
        assert all(len(key or b"") <= 128 for key in group.ledger.keys)
        await member.send(**ranges((1, len(seen))))
    assert sorted(seen) == [0, 0, 1, 1, 2, 2]
    await member.close()


async def test_a_member_that_takes_and_never_settles_has_a_bounded_memory(
    limited: Limited, database: Documents, name: str
) -> None:
    quota, limit, size, count = 100_000, 64 << 10, 1_000, 1_000
    async with limited({"outstanding_bytes": quota}) as here:
        await here.api.create(name, feed(database.name, "c"), group={})
        member = await joined(here, name, message_bytes_max=limit)
        outstanding = here.server.service.manager.accounts.of("a").outstanding
        database.c.insert_many([{"n": n, "pad": "x" * size} for n in range(count)])
        await until(lambda: not outstanding.has_room)
        (group,) = here.server.service.groups
        taken = len(await member.take(quota // (2 * size)))
        assert outstanding.bytes < quota + 2 * limit
        assert outstanding.backlog_bytes < quota + 2 * READ_BYTES
        assert group.ledger.outstanding < count, "the group reads no further"
        while taken < count:
            await member.send(**ranges((1, taken)))
            taken += len(await member.take(1))
        await member.close()
        await until(lambda: outstanding.bytes == 0)
