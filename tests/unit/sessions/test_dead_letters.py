"""What a group sets aside: written first, then settled."""

import asyncio

import bson

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.dead_letter import DeadLetter
from feedmux_server.sessions.dead_letters import RETRY_MAX_S
from tests.unit.rpc.test_join import Member, change, group_served, joined, stored, until
from tests.unit.sessions.letters_model import Collection
from tests.virtual_time import in_virtual_time


def away(_: DeadLetter) -> None:
    raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "away")


def reject(member: Member, sequence: int, reason: str = "") -> None:
    member.fail(sequence, reject=True, reason=reason)


@in_virtual_time
async def test_a_rejected_event_is_written_and_its_key_goes_on() -> None:
    collection = Collection()
    async with group_served(collection) as there:
        member = await joined(there, "worker-1")
        change(there, "a", "b")
        await member.has(2)
        change(there, "a", "a")
        begin = (await stored(there)).position
        reject(member, 1, "no such customer")
        assert await member.has(4) == ["a", "b", "a", "a"], "the key goes on without the event"
        (letter,) = collection.written.values()
        assert (letter.tenant, letter.subscription) == ("default", "orders")
        assert (letter.attempts, letter.reasons, letter.member) == (1, ("no such customer",), "worker-1")
        assert bson.decode(letter.event)["documentKey"] == {"_id": "a"}
        assert letter.cluster_time >> 32 > 0
        member.settle((2, 4))
        await until(lambda: member.committed == 4)
        assert (await stored(there)).position != begin
        await member.close()


@in_virtual_time
async def test_an_event_is_set_aside_after_so_many_attempts() -> None:
    collection = Collection()
    async with group_served(collection, attempts_max=3) as there:
        member = await joined(there)
        change(there, "a", "a")
        for sequence, _ in enumerate(range(3), 1):
            await member.has(2 * sequence)
            assert not collection.written
            member.fail(2 * sequence - 1, reason=f"try {sequence}", retry_after={"seconds": 1})
        await until(lambda: collection.written)
        (letter,) = collection.written.values()
        assert (letter.attempts, letter.reasons) == (3, ("try 1", "try 2", "try 3"))
        assert len(await member.has(7)) == 7
        member.settle((7, 7))
        await until(lambda: member.committed >= 7)
        await member.close()


@in_virtual_time
async def test_while_the_collection_is_away_the_key_is_held_and_nothing_else() -> None:
    collection = Collection()
    collection.before = away
    async with group_served(collection) as there:
        member = await joined(there)
        change(there, "a", "a", "b")
        await member.has(3)
        begin = (await stored(there)).position
        reject(member, 1)
        (group,) = there.service.groups
        await until(lambda: collection.tries >= 3)
        assert group.ledger.aside == 1
        member.settle((3, 3))
        change(there, "b", "c")
        assert (await member.has(5))[-2:] == ["b", "c"]
        member.settle((4, 5))
        await asyncio.sleep(10 * RETRY_MAX_S)
        assert (await stored(there)).position == begin, "the event is not settled before its letter is written"
        assert len(member.events) == 5
        tries = collection.tries
        assert tries < 60, "the time between tries grows"
        collection.before = lambda letter: None
        assert (await member.has(6))[-1] == "a"
        assert collection.keys == ["a"]
        assert group.ledger.aside == 0
        await member.close()


@in_virtual_time
async def test_a_letter_that_cannot_be_written_holds_up_no_other() -> None:
    collection = Collection()

    def too_large(letter: DeadLetter) -> None:
        if bson.decode(letter.key)["_id"] == "a":
            raise FeedmuxError(ErrorReason.QUOTA_EXCEEDED, "too large")

    collection.before = too_large
    async with group_served(collection) as there:
        member = await joined(there)
        change(there, "a", "b", "c")
        await member.has(3)
        for sequence in (1, 2, 3):
            reject(member, sequence)
        await until(lambda: len(collection.written) == 2)
        assert collection.keys == ["b", "c"]
        collection.before = lambda letter: None
        await until(lambda: len(collection.written) == 3)
        await member.close()


@in_virtual_time
async def test_a_host_that_is_lost_between_letter_and_commit_writes_it_once() -> None:
    collection = Collection()
    collection.after = away  # the letter is written, and its writer never knows
    async with group_served(collection) as there:
        member = await joined(there)
        change(there, "a")
        await member.has(1)
        reject(member, 1)
        await until(lambda: collection.written)
        await member.close()  # the last one: the group ends with the event unsettled
        tries = collection.tries
        await asyncio.sleep(2 * RETRY_MAX_S)
        assert collection.tries == tries, "a group that has ended writes nothing"
        collection.after = lambda letter: None
        member = await joined(there)
        assert await member.has(1) == ["a"], "the event comes again, because it was not settled"
        reject(member, 1)
        await until(lambda: collection.tries > tries)
        assert len(collection.written) == 1
        change(there, "a")
        await member.has(2)
        member.settle((2, 2))
        await until(lambda: member.committed == 2)
        await member.close()


@in_virtual_time
async def test_without_a_collection_nothing_is_rejected() -> None:
    async with group_served() as there:
        member = await joined(there)
        change(there, "a")
        await member.has(1)
        reject(member, 1)
        assert (await member.error()).reason is ErrorReason.DEAD_LETTERS_UNAVAILABLE
