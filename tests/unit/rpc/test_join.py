"""Groups: what members and those who open may say, and what ends a group. The simulation shows the rest."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, operator_pb2, subscriptions_pb2
from feedmux_server.core.delivery import group_reader, key_ledger, retry
from feedmux_server.core.delivery.credit import CreditLimits
from feedmux_server.core.delivery.key_ledger import KeyLedger
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.delivery.retry import HELD_MAX_S, TRIES_BYTES
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position import Position, inspect_position
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.rpc import subscribe
from feedmux_server.rpc.group_checks import WINDOW_EVENTS_MAX, window_of
from feedmux_server.rpc.list_shared_streams import ListSharedStreams
from feedmux_server.rpc.plan_range import PlanRange
from feedmux_server.rpc.subscribe import SETTLE_BYTES_MAX, _applied_to_member
from feedmux_server.rpc.subscription_lease import open_lease, received
from feedmux_server.rpc.subscriptions import Subscriptions
from feedmux_server.sessions import member_session
from feedmux_server.sessions.member_session import MemberSession
from feedmux_server.streams.scheduler import GROUP_EVENT_BYTES, Scheduler
from tests.tables import over
from tests.unit.rpc.service_support import FEED, INLINE, Served, Stream, call, refused, served
from tests.virtual_time import in_virtual_time, sim_loop

WINDOW = {"events": 64, "bytes": 1 << 20}
JOIN: dict[str, Any] = {"subscription": "orders", "join": True, "credit": WINDOW}
GROUP: dict[str, Any] = {"group": {"reconnect_time": {"seconds": 5}}}
RECONNECT_S = 5.0


def change(there: Served, *keys: object) -> None:
    """Change documents one after the other; the event of each has its number."""
    mongo = there.mongo
    for key in keys:
        event = {"fullDocument": {"_id": key}, "ns": {"db": "db", "coll": "a"}, "documentKey": {"_id": key}}
        mongo._append("db", "a", mongo._tick(), {"operationType": "replace", **event}, key=mongo._next_number)
        mongo._written(whole=False)


class Member(Stream):
    """A member of the group, whose received events are by sequence."""

    @property
    def batches(self) -> list[wire.Batch]:
        return [each.batch for each in self.received if each.WhichOneof("message") == "batch"]

    @property
    def events(self) -> list[Any]:
        """The keys of all events received, in order."""
        return [event["fullDocument"]["_id"] for each in self.batches for event in bson.decode_all(each.bson)]

    @property
    def attempts(self) -> list[int]:
        return [n for each in self.batches for n in (each.attempts or [1] * each.event_count)]

    @property
    def committed(self) -> int:
        stored = [each.committed for each in self.received if each.WhichOneof("message") == "committed"]
        return stored[-1].delivery_sequence if stored else 0

    async def has(self, count: int) -> list[Any]:
        await until(lambda: len(self.events) >= count or self.task.done())
        if self.task.done():
            await self.task
        return self.events

    def settle(self, *ranges: tuple[int, int]) -> None:
        self.send(settle=wire.Settle(done=[wire.Settle.Range(first=first, last=last) for first, last in ranges]))

    def fail(self, sequence: int, **what: Any) -> None:
        self.send(settle=wire.Settle(failed=[wire.Settle.Failed(delivery_sequence=sequence, **what)]))

    async def cut(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def close(self) -> None:
        self.send(close=wire.Close())
        await self.task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):  # of virtual time
        while not condition():
            await asyncio.sleep(0.01)


async def joined(there: Served, instance_id: str = "", **fields: Any) -> Member:
    member = Member(there, **{**JOIN, "instance_id": instance_id, **fields})
    opened = await member.opened()
    assert opened.group.members > 0
    return member


@asynccontextmanager
async def group_served(letters: Any = None, **group: Any) -> AsyncIterator[Served]:
    """A server that commits, with the group `orders`."""
    async with served(letters=letters) as there:
        committing = asyncio.create_task(there.service.committer.run())
        await there.create("orders", group={**GROUP["group"], **group})
        yield there
        committing.cancel()
        await asyncio.wait([committing])


@asynccontextmanager
async def member_served(*keys: object, **fields: Any) -> AsyncIterator[tuple[Served, Member]]:
    """The same with a member that has received the events of these keys."""
    async with group_served() as there:
        member = await joined(there, **fields)
        change(there, *keys)
        await member.has(len(keys))
        yield there, member
        if not member.task.done():
            await member.close()


async def stored(there: Served) -> subscriptions_pb2.Subscription:
    request = subscriptions_pb2.GetSubscriptionRequest(name="orders")
    data = await call(Subscriptions(there.service).get, request)
    return subscriptions_pb2.Subscription.FromString(data)


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"feed": FEED, "subscription": None}, "MESSAGE_INVALID", "open.join"),
        ({"start": {"latest": {}}}, "START_CONFLICT", "open.start"),
        ({"last_acked": {"position": b"p", "epoch": 1}}, "MESSAGE_INVALID", "open.last_acked"),
        ({"takeover": True}, "MESSAGE_INVALID", "open.takeover"),
        ({"format": feed_pb2.FORMAT_EXTENDED_JSON_RELAXED}, "MESSAGE_INVALID", "open.format"),
        ({"credit": None}, "CREDIT_INVALID", "credit.events"),
        ({"credit": {"events": 1}}, "CREDIT_INVALID", "credit.bytes"),
        ({"subscription": "a/b"}, "NAME_INVALID", "subscription"),
        ({"subscription": "missing"}, "SUBSCRIPTION_NOT_FOUND", None),
        ({"subscription": "plain"}, "GROUP_MISMATCH", "open.join"),
        ({"join": False}, "GROUP_MISMATCH", None),
        ({"join": False, "takeover": True}, "GROUP_MISMATCH", None),
        (INLINE | {"subscription": None, "join": False, "held": [1]}, "MESSAGE_INVALID", "open.held"),
        (INLINE | {"subscription": None, "join": False, "epoch": 1}, "MESSAGE_INVALID", "open.epoch"),
        ({"held": [1]}, "MESSAGE_INVALID", "open.epoch"),
        ({"settled": [1], "epoch": -1}, "MESSAGE_INVALID", "open.epoch"),
    ],
)
@pytest.mark.parametrize("hosted", [False, True])
@in_virtual_time
async def test_what_open_may_not_say(fields: dict[str, Any], reason: str, field: str | None, hosted: bool) -> None:
    async with group_served() as there:
        await there.create("plain")
        plain = Stream(there, subscription="plain")
        await plain.opened()
        member = await joined(there, "one") if hosted else None
        given = {name: value for name, value in {**JOIN, **fields}.items() if value is not None}
        error = await Stream(there, **given).error()
        assert (error.reason, error.field) == (reason, field)
        if member is not None:
            change(there, "a")
            assert await member.has(1) == ["a"], "the group is not disturbed"
            await member.close()
        assert (len(there.service.groups), plain.task.done()) == (0, False)
        assert not (await stored(there)).active
        plain.send(close=wire.Close())
        await plain.task


@pytest.mark.parametrize("hosted", [False, True])
@in_virtual_time
async def test_a_bulk_read_of_a_group_is_rejected(hosted: bool) -> None:
    async with group_served() as there:
        member = await joined(there) if hosted else None
        for instance_id in ("one", (await stored(there)).owner or "group-host-1"):
            request = wire.PlanRangeRequest(subscription="orders", instance_id=instance_id, events_max=1, bytes_max=1)
            error = await refused(PlanRange(there.service), request)
            assert error.reason is ErrorReason.GROUP_MISMATCH
            await asyncio.sleep(1.0)
            assert (await stored(there)).active is hosted
        if member is not None:
            change(there, "a")
            assert await member.has(1) == ["a"], "the group is not disturbed"
            await member.close()


@in_virtual_time
async def test_what_is_free_of_a_window_is_filled_although_nothing_is_settled() -> None:
    async with member_served(credit={"events": 16, "bytes": 1 << 20}) as (there, member):
        for number in range(16):
            change(there, number)
            await member.has(number + 1)


RANGE = wire.Settle.Range
FAILED = wire.Settle.Failed


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"settle": wire.Settle(done=[RANGE(first=1, last=3)])}, "ACK_OUT_OF_RANGE"),
        ({"settle": wire.Settle(done=[RANGE(first=1 << 62, last=(1 << 63) - 1)])}, "ACK_OUT_OF_RANGE"),
        ({"settle": wire.Settle(done=[RANGE(first=2, last=1)])}, "MESSAGE_INVALID"),
        ({"settle": wire.Settle(done=[RANGE(first=0, last=1)])}, "MESSAGE_INVALID"),
        ({"settle": wire.Settle(failed=[FAILED(delivery_sequence=3)])}, "ACK_OUT_OF_RANGE"),
        ({"settle": wire.Settle(failed=[FAILED(delivery_sequence=1 << 62)])}, "ACK_OUT_OF_RANGE"),
        ({"settle": wire.Settle(failed=[FAILED(delivery_sequence=0)])}, "MESSAGE_INVALID"),
        ({"settle": wire.Settle(failed=[FAILED(delivery_sequence=-1)])}, "MESSAGE_INVALID"),
        ({"settle": wire.Settle(failed=[FAILED(delivery_sequence=1, retry_after={"nanos": -1})])}, "MESSAGE_INVALID"),
        ({"settle": wire.Settle(failed=[FAILED(delivery_sequence=1, reason="r" * 1025)])}, "MESSAGE_INVALID"),
        ({"settle": wire.Settle(failed=[FAILED(delivery_sequence=1)] * 1001)}, "MESSAGE_INVALID"),
        ({"settle": wire.Settle(failed=[FAILED(delivery_sequence=1, reject=True)])}, "DEAD_LETTERS_UNAVAILABLE"),
        ({"credit": wire.Credit(events=1, bytes=1)}, "MESSAGE_INVALID"),
        ({"ack": wire.Ack(delivery_sequence=1)}, "MESSAGE_INVALID"),
        ({"open": wire.Open(**JOIN)}, "OPEN_REQUIRED"),
    ],
)
@in_virtual_time
async def test_what_a_member_may_not_send(message: dict[str, Any], reason: str) -> None:
    async with member_served("a", "b") as (there, member):
        member.send(**message)
        assert (await member.error()).reason == reason
        other = await joined(there)
        assert await other.has(2) == ["a", "b"]
        await other.close()


@in_virtual_time
async def test_an_ordinary_session_cannot_settle_and_a_settle_has_a_size() -> None:
    async with group_served() as there:
        stream = Stream(there, **INLINE)
        await stream.opened()
        stream.send(settle=wire.Settle())
        assert (await stream.error()).reason is ErrorReason.MESSAGE_INVALID
        member = await joined(there)
        member.send_bytes(wire.SubscribeRequest(settle=wire.Settle()).SerializeToString() + bytes(SETTLE_BYTES_MAX))
        assert (await member.error()).reason is ErrorReason.MESSAGE_INVALID


@in_virtual_time
async def test_a_wait_has_a_bound_and_may_be_none() -> None:
    async with member_served("a") as (there, member):
        member.fail(1, retry_after={"seconds": 0})
        await member.has(2)
        member.fail(2, retry_after={"seconds": 10**9})
        (group,) = there.service.groups
        await until(lambda: group.ledger.retries.held)
        assert HELD_MAX_S - 10 < (group.ledger.retries.due_s or 0) - asyncio.get_running_loop().time() <= HELD_MAX_S
        assert member.attempts == [1, 2]


@in_virtual_time
async def test_many_failures_and_reasons_take_a_bounded_memory() -> None:
    async with member_served(*range(500), credit={"events": 500, "bytes": 1 << 20}) as (there, member):
        outstanding = there.service.manager.accounts.of("default").outstanding
        before = outstanding.backlog_bytes
        outstanding.bytes_max = before + 100_000
        for sequence in range(1, 501, 10):
            member.send(settle=wire.Settle(
                failed=[
                    FAILED(delivery_sequence=each, reason="é" * 512, retry_after={"seconds": 100})
                    for each in range(sequence, sequence + 10)
                ]
            ))  # fmt: skip
        (group,) = there.service.groups
        await until(lambda: group.ledger.retries.held == 500)
        assert 100_000 <= outstanding.backlog_bytes - before < 100_000 + 500 * TRIES_BYTES + 2_000
        outstanding.bytes_max = 1 << 30
        await asyncio.sleep(101.0)
        assert member.attempts[500:] == [2] * 500
        await member.close()
        assert outstanding.backlog_bytes == 0


def test_a_window_has_a_bound() -> None:
    assert window_of(wire.Credit(events=2**31 - 1, bytes=1), CreditLimits()).events == WINDOW_EVENTS_MAX
    assert window_of(wire.Credit(events=9, bytes=1), CreditLimits(events_max=8)).events == 8


@over("count", [10, 100, 300])
@in_virtual_time
async def test_no_turn_of_the_event_loop_visits_many_events(count: int) -> None:
    """Here more than 20, or 40 where some are read and others sent: they are read, sent, failed, due again, lost with
    their member and given back."""
    loop, visits = sim_loop(), Counter[int]()

    def counted(visited: Callable[..., Any], of: Callable[..., int]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            visits[loop.steps] += of(*arguments)
            return visited(*arguments, **more)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for module in (key_ledger, retry, group_reader):
            patched.setattr(module, "ENTRIES_AT_ONCE", 20)
        patched.setattr(subscribe, "_FAILURES_AT_ONCE", 20)
        patched.setattr(KeyLedger, "_record", counted(KeyLedger._record, lambda _, chunk, first, stop: stop - first))
        patched.setattr(KeyLedger, "_offer", counted(KeyLedger._offer, lambda *_: 1))
        patched.setattr(Hand, "sent", counted(Hand.sent, lambda _, numbers: len(numbers)))
        async with group_served() as there:
            one = await joined(there, "one", credit={"events": 2 * count, "bytes": 1 << 20})
            change(there, *range(count))
            await one.has(count)
            failed = [FAILED(delivery_sequence=each, retry_after={"seconds": 9}) for each in range(1, count + 1)]
            for begin in range(0, count, 200):
                one.send(settle=wire.Settle(failed=failed[begin : begin + 200]))
            await one.has(2 * count)
            await one.cut()
            other = await joined(there, "other", credit={"events": 2 * count, "bytes": 1 << 20})
            await other.has(count)
            assert set(other.events) == set(range(count))
            await other.close()
    assert min(count, 20) <= max(visits.values()) <= 40


@in_virtual_time
async def test_members_that_join_at_one_time_share_one_lease() -> None:
    async with group_served() as there:
        members = [Member(there, **JOIN) for _ in range(5)]
        members[0].task.cancel()
        epochs = {(await member.opened()).epoch for member in members[1:]}
        assert len(epochs) == 1
        assert max(member.received[0].opened.group.members for member in members[1:]) == 4
        for member in members[1:]:
            await member.close()


@in_virtual_time
async def test_the_end_of_the_feed_comes_after_everything_is_settled() -> None:
    async with group_served() as there:
        member, other = await joined(there), await joined(there)
        change(there, "a")
        await until(lambda: member.events or other.events)
        there.mongo.drop("db", "a")
        await asyncio.sleep(1.0)
        holder = member if member.events else other
        holder.settle((1, 1))
        count = 0
        while not holder.task.done():  # the drop and the invalidate event, each alone
            await asyncio.sleep(0.1)
            for each in (member, other):
                sequences = [batch.first_delivery_sequence for batch in each.batches]
                if sequences and not each.task.done():
                    each.settle((1, sequences[-1]))
            count = sum(batch.event_count for each in (member, other) for batch in each.batches)
        for each in (member, other):
            assert (await each.error()).reason is ErrorReason.FEED_INVALIDATED
        assert count == 3
        assert not (await stored(there)).active


@in_virtual_time
async def test_a_feed_that_continues_after_an_invalidate() -> None:
    async with group_served() as there:
        await there.update("orders", on_invalidate=feed_pb2.ON_INVALIDATE_CONTINUE)
        member = await joined(there)
        there.mongo.drop("db", "a")
        change(there, "a")
        for count in (1, 2, 3):
            while sum(each.event_count for each in member.batches) < count:
                await asyncio.sleep(0.1)
            member.settle((1, count))
        await until(lambda: member.committed == 3)
        await member.close()


@in_virtual_time
async def test_what_is_settled_does_not_come_again_when_history_that_the_primary_has_is_called_lost() -> None:
    async with group_served() as there:
        await there.update("orders", on_history_lost=feed_pb2.ON_HISTORY_LOST_EARLIEST)
        member = await joined(there)
        change(there, "a", "b")
        await member.has(2)
        member.settle((1, 2))
        await until(lambda: member.committed == 2)
        [streams] = there.service.manager.keyed()
        [stream] = streams.streams.open
        stream.end(FeedmuxError(ErrorReason.HISTORY_LOST, "lost"))
        change(there, "c")
        assert await member.has(3) == ["a", "b", "c"]
        assert not any(each.notice.HasField("gap") for each in member.received)
        member.settle((3, 3))
        await member.close()


@pytest.mark.parametrize("dropped", [False, True])
@in_virtual_time
async def test_a_restored_database_ends_the_group_before_events_that_wait(dropped: bool) -> None:
    """Also with a policy to continue: what waits for its key has not happened in the present history."""
    async with group_served() as there:
        await there.update("orders", on_history_lost=feed_pb2.ON_HISTORY_LOST_EARLIEST)
        member = await joined(there)
        change(there, "a", "a")
        await until(lambda: len(member.events) == 2)
        change(there, "a")
        if dropped:
            there.mongo.drop("db", "a")
        await asyncio.sleep(1.0)
        there.service.manager.source("main").timeline._announce(Fork(), is_own=True)
        member.settle((1, 2))
        assert (await member.error()).reason is ErrorReason.TIMELINE_FORKED
        assert len(member.events) == 2


@in_virtual_time
async def test_the_next_host_knows_what_members_had_although_nothing_is_settled() -> None:
    """If MongoDB is restored meanwhile, it can say that this is lost."""
    async with member_served("a") as (there, member):
        (event,) = bson.decode_all(member.batches[0].bson)
        await asyncio.sleep(30.0)  # the lease is renewed
        known = received(await there.service.store.get("default", "orders"))
        assert known is not None
        assert known.last_time >> 32 >= event["clusterTime"].time


@in_virtual_time
async def test_a_group_whose_grants_have_changed_is_opened_again() -> None:
    async with member_served("a", instance_id="one") as (there, member):
        await member.cut()
        (group,) = there.service.groups
        there.service.access.refusal = lambda *_: FeedmuxError(ErrorReason.GRANTS_CHANGED, "")  # type: ignore[method-assign]
        again = Member(there, **JOIN)
        with pytest.raises(FeedmuxError):
            await again.task
        assert group.ended


@in_virtual_time
async def test_unsettled_events_count_as_outstanding_and_a_full_backlog_does_not_stop_its_own_events() -> None:
    async with member_served(*"abc") as (there, member):
        outstanding = there.service.manager.accounts.of("default").outstanding
        in_hand = outstanding.bytes
        assert in_hand > 0
        member.settle((1, 1))
        await until(lambda: outstanding.bytes < in_hand)
        outstanding.bytes_max = outstanding.backlog_bytes  # nothing more may be read
        change(there, *"de")
        await asyncio.sleep(1.0)
        assert member.events == [*"abc"]
        member.settle((2, 3))
        assert await member.has(5) == [*"abcde"]
        await member.cut()
        assert outstanding.bytes == 0
        await asyncio.sleep(RECONNECT_S + 1)
        assert (outstanding.backlog_bytes, len(there.service.groups)) == (0, 0)


@in_virtual_time
async def test_events_do_not_wait_for_a_member_that_does_not_read() -> None:
    async with group_served() as there:
        loop, reads = asyncio.get_running_loop(), asyncio.Event()
        slow = Member(there, **JOIN, instance_id="slow")
        write = slow._context.write

        async def when_read(data: bytes) -> None:
            if slow.received:  # after Opened
                await reads.wait()
            await write(data)

        slow._context.write = when_read  # type: ignore[method-assign]
        await slow.opened()
        other = await joined(there, "other")
        change(there, *range(4))
        await asyncio.sleep(1.0)
        (member,) = (each for each in there.service.sessions if each.instance_id == "slow")
        stuck = member.session.subscriber.unacked
        assert stuck > 0
        for key in range(10, 20):
            before_s, count = loop.time(), len(other.events)
            change(there, key)
            await other.has(count + 1)
            assert loop.time() - before_s < 0.5, "nobody waits for the next heartbeat"
        assert member.session.subscriber.unacked == stuck
        reads.set()
        await until(lambda: len(slow.events) == stuck)
        await slow.close()
        await other.close()


@in_virtual_time
async def test_operators_see_the_members() -> None:
    async with group_served() as there:
        members = [await joined(there, instance_id) for instance_id in ("one", "other")]
        change(there, *"abc")
        await until(lambda: sum(len(member.events) for member in members) == 3)
        data = await call(ListSharedStreams(there.service), operator_pb2.ListSharedStreamsRequest())
        (stream,) = operator_pb2.ListSharedStreamsResponse.FromString(data).shared_streams
        assert [(each.subscription, each.instance_id) for each in stream.subscribers] == [
            ("orders", "one"), ("orders", "other"),
        ]  # fmt: skip
        assert sum(each.events_unacked for each in stream.subscribers) == 3
        for member in members:
            await member.close()


@in_virtual_time
async def test_many_events_are_settled_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of two events each."""
    monkeypatch.setattr(member_session, "ENTRIES_AT_ONCE", 2)
    async with member_served(*"abcdefgh") as (there, _):
        [live] = there.service.sessions
        session = cast(MemberSession, live.session)
        ranges = [wire.Settle.Range(first=first, last=last) for first, last in ((2, 2), (3, 7), (3, 4), (1, 1))]
        turns, outstanding = _applied_to_member(session, wire.SubscribeRequest(settle=wire.Settle(done=ranges))), [8]
        with suppress(StopIteration):
            while True:
                turns.send(None)
                outstanding.append(session.subscriber.unacked)
        assert [*outstanding, session.subscriber.unacked] == [8, 6, 4, 2, 1]
        for rejected in ((8, 9), (1, 9)):
            with pytest.raises(FeedmuxError, match="has delivered only 8"):
                await _applied_to_member(
                    session, wire.SubscribeRequest(settle={"done": [{"first": rejected[0], "last": rejected[1]}]})
                )
            assert session.subscriber.unacked == 1


@in_virtual_time
async def test_a_large_event_comes_in_fragments() -> None:
    async with member_served(message_bytes_max=64 * 1024) as (there, member):
        there.mongo.insert("db", "a", 100_000)
        change(there, "a")
        await until(lambda: member.events == ["a"])
        fragments = [each.event_fragment for each in member.received if each.WhichOneof("message") == "event_fragment"]
        assert [(each.delivery_sequence, each.index, each.position) for each in fragments] == [
            (1, n, b"") for n in range(3)
        ]
        member.settle((1, 2))
        await until(lambda: member.committed == 2)


async def raw_position(there: Served) -> Position:
    return inspect_position((await there.service.store.get("default", "orders")).position)


async def other_host(there: Served) -> None:
    """Let the group lose its lease, as if its host had been killed after its last commit."""
    _, lease = await open_lease(there.service, "default", "orders", instance_id="group-host-other", takeover=True)
    await until(lambda: not len(there.service.groups))
    await there.service.store.leases.release(lease)


async def until_stored(there: Served, *attempts: int) -> None:
    """Wait until the position has holes with these attempts."""
    async with asyncio.timeout(600):  # of virtual time
        while (ahead := (await raw_position(there)).ahead) is None or (*ahead.holes.values(),) != attempts:
            await asyncio.sleep(0.1)


async def with_holes(there: Served) -> Member:
    """A member that has settled all events but those of "a", the first of which has failed."""
    member = await joined(there, "one")
    change(there, "a", "b", "a", "c", "b")
    await member.has(5)
    member.settle(*[(index + 1, index + 1) for index, key in enumerate(member.events) if key != "a"])
    member.fail(1 + member.events.index("a"), retry_after={"seconds": 1000})
    await until_stored(there, 2)
    return member


@in_virtual_time
async def test_clients_see_no_holes() -> None:
    async with group_served() as there:
        member = await with_holes(there)
        change(there, "e")
        await member.has(6)
        member.settle((6, 6))
        await asyncio.sleep(30.0)
        shown = (await stored(there)).position
        raw = await raw_position(there)
        assert (inspect_position(shown), raw.ahead is None) == (
            Position(raw.scope_fingerprint, raw.stream_key, raw.token),
            False,
        )
        progress = [each.progress.position for each in member.received if each.WhichOneof("message") == "progress"]
        committed = [each.committed.position for each in member.received if each.WhichOneof("message") == "committed"]
        assert progress
        assert progress[-1] == shown
        assert all(inspect_position(each).ahead is None for each in [*progress, *committed])
        data = await call(Subscriptions(there.service).list_, subscriptions_pb2.ListSubscriptionsRequest())
        (listed,) = subscriptions_pb2.ListSubscriptionsResponse.FromString(data).subscriptions
        assert listed.position == shown
        await member.close()


@in_virtual_time
async def test_after_a_change_of_the_pipeline_everything_after_the_position_comes() -> None:
    async with group_served() as there:
        member = await with_holes(there)
        feed = feed_pb2.Feed(source="main", database="db", collection="a")
        feed.pipeline.extended_json = '[{"$match": {"operationType": "replace"}}]'
        await there.update("orders", feed=feed)
        await member.error()
        again = await joined(there, "one")
        assert sorted(await again.has(5)) == ["a", "a", "b", "b", "c"]
        await again.close()


@in_virtual_time
async def test_what_an_earlier_host_has_settled_is_read_in_portions() -> None:
    async with group_served() as there:
        member = await joined(there, "one", credit={"events": 10_000, "bytes": 1 << 24})
        change(there, "a", *range(3_000))
        await until(lambda: member.batches and sum(each.event_count for each in member.batches) == 3_001)
        member.settle((2, 3_001))
        await until_stored(there, 1)
        await other_host(there)
        await member.error()
        again = await joined(there, "one")
        change(there, "z")
        assert await again.has(2) == ["a", "z"]
        await again.close()


@in_virtual_time
async def test_what_happens_before_a_new_host_has_read_on_is_stored_too() -> None:
    """An event that ends its worker each time is the only one that it gets."""
    async with group_served(reconnect_time={}) as there:
        member = await joined(there, "one", credit={"events": 1_000, "bytes": 1 << 24})
        change(there, "a", "a", *range(900))
        await until(lambda: member.batches and sum(each.event_count for each in member.batches) == 902)
        member.settle((3, 902))
        await until_stored(there, 1)
        await other_host(there)
        await member.error()
        for attempt in (1, 2, 3):
            member = await joined(there, f"one {attempt}", credit={"events": 1, "bytes": 1 << 24})
            await member.has(1)
            assert (member.events, member.attempts) == (["a"], [attempt])
            (group,) = there.service.groups
            await until(lambda group=group: not group.ledger.restores)  # type: ignore[misc]
            await member.cut()
            await until_stored(there, attempt + 1)


@in_virtual_time
async def test_settles_take_turns_with_deliveries() -> None:
    """Else the settles of many members, each of a thousand events, would be applied in one round of the event loop."""
    settled, turns = list[Any](), Scheduler(1_000 * GROUP_EVENT_BYTES)

    async def settle() -> None:
        gate = SimpleNamespace(turns=turns, turn=lambda: turns.wait("a"))
        session: Any = SimpleNamespace(
            gate=gate, has_letters=False, parts_of_settle=lambda ranges: [list(ranges)], settle=settled.append
        )
        await _applied_to_member(session, wire.SubscribeRequest(settle={"done": [{"first": 1, "last": 1_000}]}))

    settling = [asyncio.create_task(settle()) for _ in range(5)]
    rounds: list[int] = []
    next_round = turns._next_round

    def count() -> None:
        rounds.append(len(settled))
        next_round()

    turns._next_round = count  # type: ignore[method-assign]
    await asyncio.gather(*settling)
    assert (rounds[0], len(settled)) == (1, 5)
