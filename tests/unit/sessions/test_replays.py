"""Quarantined keys, and dead letters that are delivered again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import AsyncMock

import bson
import pytest

from feedmux.v1 import subscriptions_pb2
from feedmux_server.core.delivery import key_ledger
from feedmux_server.core.delivery.key_ledger import KeyLedger
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.delivery.retry import Failure
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.dead_letter import DeadLetter, dead_letter
from feedmux_server.core.limits.account import LOOKS_PER_S
from feedmux_server.sessions import dead_letters, replays
from feedmux_server.sessions.replays import LOOK_S, HostedGroup, Replays
from feedmux_server.source import letters
from feedmux_server.source.letters import Usage
from tests.executed import executed
from tests.tables import over
from tests.unit.core.delivery.group_events import START, group_event
from tests.unit.rpc.service_support import Served
from tests.unit.rpc.test_join import Member, change, group_served, joined, until
from tests.unit.sessions.letters_model import Collection
from tests.unit.sessions.test_dead_letters import away, reject
from tests.virtual_time import in_virtual_time

QUARANTINE = subscriptions_pb2.AFTER_DEAD_LETTER_QUARANTINE


def numbers(member: Member) -> list[int]:
    """The events that a member has received, by the order in which they happened."""
    return [int(event["clusterTime"].time) for each in member.batches for event in bson.decode_all(each.bson)]


def of(member: Member, key: object) -> list[int]:
    return [number for number, name in zip(numbers(member), member.events, strict=True) if name == key]


@asynccontextmanager
async def quarantined(
    collection: Collection | None = None, *, later: int = 3, **group: Any
) -> AsyncIterator[tuple[Served, Collection, Member]]:
    """A member that has rejected an event of `a`, which was changed some more times."""
    collection = collection or Collection()
    async with group_served(collection, after_dead_letter=QUARANTINE, **group) as there:
        member = await joined(there)
        change(there, "a")
        await member.has(1)
        reject(member, 1, "no such customer")
        await until(lambda: collection.pins)
        change(there, *["a"] * later)
        await until(lambda: len(collection.written) == 1 + later)
        yield there, collection, member
        if not member.task.done():
            await member.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a group looks for letters that are to be replayed."""
    times, look = list[float](), Replays.look

    async def counted(self: Replays) -> bool:
        times.append(asyncio.get_running_loop().time())
        return await look(self)

    monkeypatch.setattr(Replays, "look", counted)
    return times


@in_virtual_time
async def test_an_event_that_the_collection_rejects_holds_up_its_own_key_only() -> None:
    collection = Collection()
    async with group_served(collection, after_dead_letter=QUARANTINE) as there:
        member = await joined(there)
        for sequence, key in ((1, "a"), (2, "b")):
            change(there, key)
            await member.has(sequence)
            reject(member, sequence, "bad")
        await until(lambda: len(collection.pins) == 2)

        def rejects(letter: DeadLetter) -> None:
            if bson.decode(letter.key)["_id"] == "a":
                away(letter)

        collection.before = rejects
        change(there, *["b", "a", "b"] * 4)
        await until(lambda: collection.keys.count("b") == 9)
        (group,) = there.service.groups
        await until(lambda: len(group.ledger.events) == 4)
        assert collection.keys.count("a") == 1
        collection.before = lambda letter: None
        await until(lambda: collection.keys.count("a") == 5)
        await member.close()


@in_virtual_time
async def test_more_letters_than_are_loaded_at_a_time_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "RUN_MAX", 10)
    async with quarantined(later=24) as (there, collection, member):
        collection.mark("a")
        await member.has(11)
        change(there, *["a"] * 4)
        for count in (11, 21, 26, 30):
            await member.has(count)
            member.settle((2, count))
        got = of(member, "a")[1:]
        assert len(got) == 29
        assert got == sorted(got)
        await until(lambda: not collection.pins)


@in_virtual_time
async def test_a_group_that_deletes_letters_looks_no_more_often_than_a_tenant_may(looks: list[float]) -> None:
    async with quarantined(later=40) as (there, collection, member):
        looks.clear()
        collection.mark("a")
        await member.has(42)
        for sequence in range(2, 43):
            member.settle((sequence, sequence))
            while len(collection.written) > 42 - sequence:
                await asyncio.sleep(0.001)
        await until(lambda: not collection.pins)
        assert len(looks) <= 2 + (looks[-1] - looks[0]) * LOOKS_PER_S
        (group,) = there.service.groups
        await member.close()
        assert group._account.looks.taken == 0


@in_virtual_time
async def test_letters_count_as_memory_of_the_tenant_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read, counted = Collection.get, list[int]()

    async def get(*arguments: Any, **options: Any) -> Any:
        counted.append(there.service.manager.accounts.of("default").outstanding.backlog_bytes)
        return await read(*arguments, **options)

    monkeypatch.setattr(Collection, "get", get)
    async with quarantined() as (there, collection, member):
        (group,) = there.service.groups
        await until(lambda: not group.ledger.events)
        before = there.service.manager.accounts.of("default").outstanding.backlog_bytes
        collection.mark("a")
        await member.has(5)
        assert counted == [before + sum(each.event_bytes for each in collection.written.values())] * 4
        member.settle((2, 5))
        await until(lambda: not collection.pins)
        assert there.service.manager.accounts.of("default").outstanding.backlog_bytes == 0


@in_virtual_time
async def test_a_replay_begins_also_at_a_host_that_has_counted_letters_before_they_were_written() -> None:
    """Another server has written them, and what a server has counted it knows for a while."""
    async with quarantined() as (_, collection, member):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(collection, "usage", AsyncMock(return_value=Usage(0, 0, 0, 0.0)))
            collection.mark("a")
            await member.has(5)


@in_virtual_time
async def test_a_letter_that_fails_again_is_a_letter_again() -> None:
    async with quarantined(attempts_max=2) as (there, collection, member):
        collection.mark("a")
        await member.has(5)
        member.settle((2, 2))
        member.fail(3, reason="once", retry_after={})
        await member.has(8)
        assert member.attempts[5:] == [2, 1, 1], "the replay has attempts of its own"
        change(there, "a")
        member.fail(6, reason="twice")
        await until(lambda: [each.attempts for each in collection.in_order()] == [2, 0, 0, 0])
        assert collection.in_order()[0].reasons == ("once", "twice")
        await asyncio.sleep(3 * LOOK_S)
        assert len(member.events) == 8, "the key is quarantined again, and nobody has asked for another replay"
        collection.mark("a")
        await member.has(12)
        assert of(member, "a")[8:] == sorted(of(member, "a"))[-4:]
        member.settle((9, 12))
        await until(lambda: not collection.pins)


@in_virtual_time
async def test_a_letter_that_the_last_member_settles_before_it_closes_comes_to_nobody() -> None:
    async with quarantined() as (there, collection, member):
        collection.mark("a")
        await member.has(5)
        member.settle((2, 5))
        await member.close()
        await until(lambda: not there.service.groups)
        assert not collection.written


@in_virtual_time
async def test_a_server_that_drains_does_not_wait_for_letters_of_a_group_without_members() -> None:
    async with quarantined() as (there, collection, member):
        collection.mark("a")
        await member.has(5)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(collection, "discard", lambda *_: asyncio.sleep(3600))
            member.settle((2, 5))
            await member.close()
            assert there.service.groups
            there.service.groups.drain()
            assert not there.service.groups


@over("call", ["failed_again", "of_group_key"])
@in_virtual_time
async def test_a_replay_that_is_asked_for_while_the_one_before_it_ends_is_a_replay(call: str) -> None:
    """The one before it ends because its first letter has failed again, or is withheld."""
    async with quarantined() as (_, collection, member):
        first, is_withheld = collection.in_order()[0], call == "of_group_key"
        if is_withheld:
            await collection.withhold(first)
        before = getattr(collection, call)

        async def then_a_caller_asks(*arguments: Any) -> Any:
            setattr(collection, call, before)
            answer = await before(*arguments)
            if is_withheld:
                await collection.discard("default", "orders", [first.id])
            collection.mark("a")
            return answer

        setattr(collection, call, then_a_caller_asks)
        collection.mark("a")
        if not is_withheld:
            await member.has(5)
            reject(member, 2)
        await member.has(4 if is_withheld else 9)
        assert of(member, "a")[-3:] == sorted(of(member, "a"))[-3:]


@over("discarded", [False, True])
@in_virtual_time
async def test_a_letter_that_fails_again_quarantines_its_key_and_ends_the_replay_of_the_letters_after_it(
    discarded: bool,
) -> None:
    """Where it was discarded meanwhile, the replay continues with the letters that are left."""
    collection = Collection()
    async with group_served(collection) as there:
        member = await joined(there)
        change(there, "a", "a")
        await member.has(2)
        reject(member, 1)
        await member.has(3)
        reject(member, 3)
        await until(lambda: len(collection.written) == 2)
        quarantines = await changed(there, QUARANTINE)
        collection.mark("a")
        await quarantines.has(2)
        if discarded:
            await collection.discard("default", "orders", [collection.in_order()[0].id])
        reject(quarantines, 1)
        await until(lambda: collection.pins)
        if not discarded:
            await asyncio.sleep(3 * LOOK_S)
            assert len(quarantines.events) == 2, "nobody has asked for another replay"
            collection.mark("a")
        await quarantines.has(3 if discarded else 4)
        assert of(quarantines, "a")[2:] == of(quarantines, "a")[discarded:2]
        quarantines.settle((3, 3 if discarded else 4))
        await until(lambda: not collection.pins)
        await quarantines.close()


@in_virtual_time
async def test_letters_of_keys_that_go_on_are_replayed_in_order_after_what_is_there() -> None:
    collection = Collection()
    async with group_served(collection) as there:
        member = await joined(there)
        change(there, "a", "b", "a")
        assert await member.has(3) == ["a", "a", "b"]
        reject(member, 1)
        reject(member, 3)
        assert (await member.has(4))[3] == "a"
        reject(member, 4)
        await until(lambda: len(collection.written) == 3)
        change(there, "a")
        await member.has(5)
        collection.mark("a")
        await asyncio.sleep(2 * LOOK_S)
        assert len(member.events) == 5, "the key is at a member"
        member.settle((5, 5))
        await member.has(7)
        assert (member.events[5:], member.attempts[5:]) == (["a", "a"], [2, 2])
        assert of(member, "a")[-2:] == of(member, "a")[:2]
        member.settle((6, 7))
        await until(lambda: collection.keys == ["b"])
        await member.close()


@in_virtual_time
@pytest.mark.parametrize("after", [subscriptions_pb2.AFTER_DEAD_LETTER_SKIP, QUARANTINE])
async def test_letters_that_wait_for_another_try_hold_up_their_own_keys_only(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(replays, "LETTERS_MAX", 2)
    collection = Collection()
    async with group_served(collection, after_dead_letter=after) as there, asyncio.timeout(60):
        member = await joined(there)
        change(there, *"abcd")
        await member.has(4)
        for sequence in range(1, 5):
            reject(member, sequence)
        await until(lambda: len(collection.written) == 4)
        collection.mark(*"abcd")
        for sequence in range(5, 8):
            await member.has(sequence)
            member.fail(sequence, retry_after={"seconds": 3600})
        assert (await member.has(8))[4:] == [*"abcd"]
        member.settle((8, 8))
        change(there, "a", "d")
        await until(lambda: collection.keys == [*"abc"])
        assert (await member.has(9))[8:] == ["d"], "what comes after a letter in its key waits for it"
        await member.close()


@in_virtual_time
async def test_a_key_is_quarantined_for_as_long_as_its_letters_also_if_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quarantine, times = Collection.quarantine, list[float]()

    async def noted(self: Collection, *arguments: Any) -> None:
        times.append(arguments[-1])
        await quarantine(self, *arguments)

    monkeypatch.setattr(Collection, "quarantine", noted)
    monkeypatch.setattr(dead_letters, "wall_s", lambda: 1.0)
    async with quarantined() as (_, collection, _):
        assert round(max(times) * 1000) == max(each.failed_ms for each in collection.written.values())


@in_virtual_time
async def test_a_key_without_letters_is_released() -> None:
    async with quarantined() as (there, collection, member):
        await collection.discard("default", "orders", list(collection.written)[:1])
        await asyncio.sleep(2 * LOOK_S)
        change(there, "a")
        await until(lambda: len(collection.written) == 4)
        await collection.discard("default", "orders", list(collection.written))
        await until(lambda: not collection.pins)
        change(there, "a")
        assert await member.has(2) == ["a", "a"]


@in_virtual_time
async def test_a_key_whose_last_letters_are_discarded_while_its_host_looks_is_released() -> None:
    async with quarantined() as (_, collection, _):
        find = collection.of_group_key

        async def meanwhile(*arguments: Any) -> list[DeadLetter]:
            found = await find(*arguments)
            await collection.discard("default", "orders", list(collection.written))
            return found

        collection.of_group_key = meanwhile  # type: ignore[assignment, method-assign]
        await collection.discard("default", "orders", list(collection.written)[:1])
        await until(lambda: not collection.pins)


@in_virtual_time
async def test_what_comes_after_all_letters_were_discarded_does_not_keep_the_quarantine() -> None:
    async with quarantined() as (there, collection, member):
        await collection.discard("default", "orders", list(collection.written), complete=True)
        change(there, "a", "a")
        await until(lambda: len(collection.written) == 2)
        await member.has(3)
        change(there, "a")
        member.settle((2, 3))
        await member.has(4)
        assert numbers(member) == sorted(numbers(member)), "in order"
        assert member.attempts == [1, 1, 1, 1]
        await until(lambda: not collection.pins)


@in_virtual_time
async def test_many_keys_whose_letters_were_discarded_are_free_as_soon_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "CHECK_AT_ONCE", 1)
    monkeypatch.setattr(letters, "CHECK_AT_ONCE", 1)
    async with quarantined() as (there, collection, member):
        for sequence, key in ((2, "b"), (3, "c")):
            change(there, key)
            await member.has(sequence)
            reject(member, sequence)
        await until(lambda: len(collection.written) == 6)
        await collection.discard("default", "orders", list(collection.written), complete=True)
        await until(lambda: len(collection.pins) == 2)
        first_s = asyncio.get_running_loop().time()
        await until(lambda: not collection.pins)
        assert asyncio.get_running_loop().time() - first_s < LOOK_S / 2


@in_virtual_time
async def test_a_letter_that_fails_when_it_was_discarded_quarantines_its_key_no_more() -> None:
    async with quarantined() as (there, collection, member):
        change(there, "b")
        await member.has(2)
        reject(member, 2)
        await until(lambda: len(collection.pins) == 2)
        collection.mark("a")
        await member.has(6)
        of_a = [each.id for each in collection.written.values() if bson.decode(each.key) == {"_id": "a"}]
        await collection.discard("default", "orders", of_a, complete=True)
        await until(lambda: len(collection.pins) == 1)
        reject(member, 3)
        change(there, "a")
        await member.has(9)
        member.settle((7, 9))
        await member.has(10)
        assert (numbers(member)[-1], collection.keys) == (max(numbers(member)), ["b"])


@over("complete", [False, True])
@in_virtual_time
async def test_letters_that_were_there_keep_the_quarantine_when_others_are_discarded(complete: bool) -> None:
    async with quarantined() as (there, collection, member):
        letters = [each.id for each in collection.in_order()]
        # All letters of another `documentKey`, or the first ones.
        await collection.discard("default", "orders", letters[1:3] if complete else letters[:3], complete=complete)
        change(there, "a")
        await asyncio.sleep(3 * LOOK_S)
        assert (len(member.events), len(collection.pins)) == (1, 1)
        assert not any(collection.pins.values()), "the host has looked"


@in_virtual_time
async def test_a_key_without_letters_is_released_also_if_nobody_has_said_so() -> None:
    collection = Collection()
    await collection.pin(b"of a host that was lost")
    async with quarantined(collection) as (there, _, member):
        await until(lambda: len(collection.pins) == 1)
        await collection.stored.deleted({"tenant": "default"})
        await asyncio.sleep(replays._REREAD_S)
        await until(lambda: not collection.pins)
        change(there, "a")
        assert await member.has(2) == ["a", "a"]


async def changed(there: Served, after_dead_letter: int) -> Member:
    """A member of the group when it has changed."""
    await asyncio.sleep(2)  # what is not stored yet would come again
    await there.update("orders", group={"after_dead_letter": after_dead_letter})
    await until(lambda: not there.service.groups)
    return await joined(there)


@in_virtual_time
async def test_a_replay_goes_on_when_the_group_quarantines_no_longer() -> None:
    async with quarantined() as (there, collection, member):
        collection.mark("a")
        await member.has(5)
        member.settle((2, 3))
        await until(lambda: len(collection.written) == 2)
        skipping = await changed(there, subscriptions_pb2.AFTER_DEAD_LETTER_SKIP)
        await skipping.has(2)
        skipping.settle((1, 1))
        reject(skipping, 2)
        await until(lambda: len(collection.written) == 1 and not collection.marked & collection.written.keys())
        back = await changed(there, QUARANTINE)
        change(there, "a")
        await until(lambda: len(collection.written) == 2)
        await asyncio.sleep(3 * LOOK_S)
        assert back.events == [], "it has failed again, and nobody has asked for another replay"
        await back.close()


@in_virtual_time
async def test_at_the_bound_of_keys_the_key_is_held() -> None:
    async with quarantined(Collection(keys_max=1)) as (there, collection, member):
        change(there, "b", "b")
        await member.has(3)
        reject(member, 2)
        change(there, "c", "a")
        assert (await member.has(4))[3] == "c", "others are delivered"
        member.settle((4, 4))
        (group,) = there.service.groups
        await until(lambda: len(collection.written) == 5 and group.ledger.aside == 1)
        await collection.discard("default", "orders", list(collection.written))
        await until(lambda: collection.keys == ["b", "b"])
        assert len(member.events) == 4


@in_virtual_time
async def test_what_is_withheld_is_not_delivered_nor_what_comes_after_it_in_its_key() -> None:
    async with quarantined() as (_, collection, member):
        second = collection.in_order()[1]
        await collection.withhold(second)
        collection.mark("a")
        await member.has(2)
        member.settle((2, 2))
        await until(lambda: len(collection.written) == 3)
        await asyncio.sleep(3 * LOOK_S)
        assert len(member.events) == 2
        assert collection.marked == {second.id}
        assert not await collection.quarantined("default", "orders", to_replay=True)
        await collection.discard("default", "orders", [second.id])
        collection.mark("a")
        await member.has(4)
        assert of(member, "a") == sorted(of(member, "a")) or member.attempts[1] == 2
        member.settle((3, 4))
        await until(lambda: not collection.pins)


@in_virtual_time
async def test_a_group_that_quarantines_does_not_open_while_it_cannot_read_the_keys() -> None:
    collection = Collection()
    async with group_served(collection, after_dead_letter=QUARANTINE) as there:

        async def unavailable(*_: object, **__: object) -> list[bytes]:
            raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, "away")

        collection.take_over = unavailable  # type: ignore[method-assign]
        member = Member(there, subscription="orders", join=True, credit={"events": 10, "bytes": 1000})
        assert (await member.error()).reason is ErrorReason.SOURCE_UNAVAILABLE


@in_virtual_time
async def test_who_opens_a_group_is_charged_for_its_quarantined_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    collection = Collection(keys_max=500)
    await collection.pin(*(number.to_bytes(32) for number in range(500)))
    async with group_served(collection, after_dead_letter=QUARANTINE) as there:
        charged = list[int]()
        monkeypatch.setattr(there.service.admission, "charge_items", charged.append)
        one, other = await joined(there, "one"), await joined(there, "other")
        assert charged == [500], "the other one finds the group open"
        await one.close()
        await other.close()


@in_virtual_time
async def test_a_group_without_connected_members_looks_for_nothing(looks: list[float]) -> None:
    async with group_served(Collection(), after_dead_letter=QUARANTINE, reconnect_time={"seconds": 60}) as there:
        member = await joined(there, "one")
        change(there, "a")
        await member.has(1)
        await until(lambda: looks)
        await member.cut()
        looks.clear()
        await asyncio.sleep(8 * LOOK_S)
        assert (len(there.service.groups), looks) == (1, [])
        again = await joined(there, "one")
        await until(lambda: looks)
        await again.close()


class Hosted:
    """A group of which `count` keys are quarantined, with a letter each that a caller has marked. Its member lets each
    of them rest."""

    def __init__(self, count: int) -> None:
        self.collection, self.hand = Collection(keys_max=count), Hand()
        self.ledger = KeyLedger(START, 50_000)
        reader: Any = SimpleNamespace(ledger=self.ledger, replay=self.ledger.replay, unpin=self.ledger.unpin)
        collection: Any = self.collection
        group = HostedGroup("default", "orders", b"k", 1)
        self.lost = set[int]()
        """The numbers of the letters whose events MongoDB has lost by a restore."""
        has_lost = self.lost.__contains__
        self.replays = Replays(group, reader, lambda: None, collection, has_lost, quarantine=True)

    @classmethod
    async def of(cls, count: int) -> Self:
        self, keys = cls(count), [b"%08d" % number for number in range(count)]
        own: dict[str, Any] = {"tenant": "default", "subscription": "orders", "stream_key": b"k"}
        failed: dict[str, Any] = {"attempts": 1, "reasons": (), "member": "", "now_s": 0.0}
        for n, key in enumerate(keys):
            event = group_event(n, n)
            letter = dead_letter(event, cluster_time=n, group_key=key, place=key.decode(), **own, **failed)
            await self.collection.insert([letter])
        self.collection.mark()
        await self.collection.pin(*keys)
        for key in keys:
            self.ledger.pin(key)
        return self

    async def look(self) -> int:
        """Look once, and let what that loads rest. Returns how many lines that has run of the ledger and here."""
        with executed(key_ledger, replays) as lines:
            await self.replays.look()
        first, limits = self.hand.sequence + 1, {"payload_max": 1 << 20, "event_max": 1 << 20}
        while self.ledger.take(self.hand, events_max=1000, credit_bytes=1 << 20, runs_max=1000, **limits):
            pass
        for sequence in range(first, self.hand.sequence + 1):
            self.ledger.fail(self.hand, Failure(sequence, 80_000.0), 0.0)
        return lines.count


@over("whole_keys", [True, False])
@in_virtual_time
async def test_an_event_that_a_restore_has_lost_is_not_delivered_again(whole_keys: bool) -> None:
    hosted = await Hosted.of(4)
    hosted.lost |= {1, 2}
    if whole_keys:
        for key in hosted.collection.pins:
            await hosted.collection.mark_key("default", "orders", b"k", 1, key, to_replay=True)
    await hosted.look()
    assert hosted.ledger.resting.keys() == {b"%08d" % number for number in (0, 3)}
    assert len(hosted.collection.written) == 4


@over("count", [10, 100, 200])
@in_virtual_time
async def test_a_look_visits_each_quarantined_key_a_few_times(count: int) -> None:
    """However many there are, and however many of their letters rest. Each look loads some, until there is no room."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replays, "LETTERS_MAX", -(-count // 10))
        patched.setattr(replays, "ALL_LETTERS_MAX", count // 2)
        hosted = await Hosted.of(count)
        costs = [await hosted.look() for _ in range(8)]
        assert hosted.ledger.loaded_letters == hosted.ledger.resting_letters == count // 2
        assert max(costs) < 100 * count
        assert costs[-1] < 100, "there is no room"


@in_virtual_time
async def test_marked_letters_behind_thousands_that_rest_are_found_with_the_next_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replays, "LETTERS_MAX", 2)
    hosted = await Hosted.of(40)
    for _ in range(15):
        await hosted.look()
    hosted.collection.mark()  # all of them, once more
    for _ in range(8):
        await hosted.look()
    assert hosted.ledger.loaded_letters == 40
