"""What a group sets aside: written first, then settled."""

import asyncio
from collections.abc import Callable

import bson
import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.dead_letter import DeadLetter
from feedmux_server.sessions.session_commits import FLUSH_TIMEOUT_S
from tests.unit.rpc.service_support import Served
from tests.unit.rpc.test_join import Member, change, group_served, joined, until
from tests.unit.sessions.letters_model import Collection
from tests.virtual_time import in_virtual_time


def away(_: DeadLetter) -> None:
    raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "away")


def reject(member: Member, sequence: int, reason: str = "") -> None:
    member.fail(sequence, reject=True, reason=reason)


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


async def tries(there: Served, *, fails: bool, while_: Callable[[], object]) -> list[list[int]]:
    """The attempts of the event of "a" that one member after the other has, each of which it ends: with a word, or
    without."""
    found = list[list[int]]()
    while while_() and len(found) < 5:
        member = await joined(there)
        await until(lambda: "a" in member.events)  # noqa: B023
        found.append([n for n, key in zip(member.attempts, member.events, strict=True) if key == "a"])
        if fails:
            member.fail(member.events.index("a") + 1, reason="exits")
            await member.close()
        else:
            await member.cut()
        await until(lambda: not there.service.groups)
    return found


@pytest.mark.parametrize("fails", [True, False])
@in_virtual_time
async def test_what_ends_its_only_member_each_time_becomes_a_dead_letter_and_as_such_again(*, fails: bool) -> None:
    collection = Collection()
    async with group_served(collection, attempts_max=2, reconnect_time={}, retry_first={"nanos": 10_000_000}) as there:
        change(there, "a", "b")
        expected = [[1], [2]] if fails else [[1], [2], [3]]
        assert await tries(there, fails=fails, while_=lambda: not collection.written) == expected
        member = await joined(there)
        assert await member.has(1) == ["b"]
        member.settle((1, 1))
        await member.close()
        collection.mark("a")
        again = [[n + len(expected)] for [n] in expected]
        assert await tries(there, fails=fails, while_=lambda: collection.marked) == again
        (letter,) = collection.written.values()
        assert (letter.attempts, letter.failures, letter.losses) == (2 * len(expected), 0, 0)


@in_virtual_time
async def test_a_group_waits_for_its_letters_from_when_its_last_member_left() -> None:
    """Not from when that was so before."""
    collection = Collection()
    collection.before = away
    async with group_served(collection, reconnect_time={}) as there:
        change(there, "a")
        member = await joined(there)
        await member.has(1)
        reject(member, 1)
        await member.close()
        await asyncio.sleep(FLUSH_TIMEOUT_S - 1.0)
        await (await joined(there)).close()
        await asyncio.sleep(FLUSH_TIMEOUT_S - 1.0)
        assert there.service.groups
        await until(lambda: not there.service.groups)
