"""Subscribe: what Open and the messages after it may say, and what a rejected or ended session leaves."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.errors import ErrorReason
from feedmux_server.core.limits.account import Account
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.rpc.plan_range import PlanRange
from feedmux_server.rpc.read_range import ReadRange
from feedmux_server.rpc.subscribe import INSTANCE_BYTES_MAX, LATER_BYTES_MAX, _listen
from feedmux_server.sessions.session import HALF_CLOSED_S
from tests.tables import over
from tests.unit.rpc.service_support import INLINE, Served, Stream, refused, rejected, served
from tests.virtual_time import in_virtual_time

DURABLE: dict[str, Any] = {"subscription": "orders"}


def owner(there: Served) -> bytes:
    """The nonce of the subscription's lease; empty if nobody holds it."""
    stored = there.redis.hash_of(b"feedmux:1:{default/orders}")
    assert b"etag" in stored
    return stored.get(b"nonce", b"")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"instance_id": "i"}, "open"),
        (INLINE | {"instance_id": "i" * (INSTANCE_BYTES_MAX + 1)}, "open.instance_id"),
        (INLINE | {"last_acked": {"position": b"p"}}, "open.last_acked"),
        (INLINE | {"heartbeat_interval": {"seconds": 61}}, "heartbeat_interval"),
        (INLINE | {"credit": {"events": -1}}, "credit.events"),
        (DURABLE | {"start": {"latest": {}}}, "open.start"),
        (DURABLE | {"last_acked": {"epoch": 1}}, "open.last_acked"),
        (DURABLE | {"last_acked": {"position": b"p"}}, None),
        ({"subscription": "a/b"}, "subscription"),
    ],
)
@in_virtual_time
async def test_what_open_may_not_say(fields: dict[str, Any], field: str | None) -> None:
    async with served() as there:
        await there.create("orders")
        error = await Stream(there, **fields).error()
        assert (error.status, error.field) == ("INVALID_ARGUMENT", field)
        assert owner(there) == b""
        assert (there.service.manager.cursors, len(there.service.sessions)) == (0, 0)


NEWER_FIELD = b"\xc2\x3e\x01x"


@over("newer", [NEWER_FIELD, b"\x12\x04" + NEWER_FIELD, b"\x18\x63", b"\x20\x63"])
@in_virtual_time
async def test_what_a_newer_server_has_stored_and_this_one_does_not_know_is_not_left_out(newer: bytes) -> None:
    """A field of the subscription, or of its feed; a value of a policy."""
    async with served() as there:
        before = await there.create("orders")
        store = there.service.store
        stored = await store.get("default", "orders")
        await store.update(
            "default", "orders", definition=stored.definition + newer, etag="new", expected_etag=stored.etag
        )
        plan = wire.PlanRangeRequest(subscription="orders", instance_id="i", events_max=1, bytes_max=1)
        read = wire.ReadRangeRequest(subscription="orders", after=before.position, until=before.position)
        errors = [
            await Stream(there, **DURABLE).error(),
            await refused(PlanRange(there.service), plan),
            await refused(ReadRange(there.service), read),
            await rejected(there.seek("orders", latest={})),
        ]
        assert [(each.reason, each.metadata.get("redis_error")) for each in errors] == [
            ("STATE_UNAVAILABLE", "NEWER")
        ] * 4
        assert owner(there) == b""
        await there.update("orders", "on_invalidate", "on_history_lost", etag="new")
        assert (NEWER_FIELD in (await store.get("default", "orders")).definition) is (NEWER_FIELD in newer)


@in_virtual_time
async def test_open_comes_first_and_once() -> None:
    async with served() as there:
        first = Stream(there)
        first.send(ack=wire.Ack(delivery_sequence=1))
        assert (await first.error()).reason is ErrorReason.OPEN_REQUIRED
        second = Stream(there, **INLINE)
        await second.opened()
        second.send(open=wire.Open(**INLINE))
        assert (await second.error()).reason is ErrorReason.OPEN_REQUIRED


TOO_LONG = wire.SubscribeRequest(credit=wire.Credit(events=1, bytes=1)).SerializeToString() + (
    b"\xfa\x7f\x81\x08" + bytes(LATER_BYTES_MAX + 1)
)
"""A valid message with a field that no version knows."""


@pytest.mark.parametrize("data", [b"", b"\xff", TOO_LONG])
@in_virtual_time
async def test_a_later_message_that_is_none(data: bytes) -> None:
    async with served() as there:
        stream = Stream(there, **INLINE)
        await stream.opened()
        stream.send_bytes(data)
        assert (await stream.error()).reason is ErrorReason.MESSAGE_INVALID


@pytest.mark.parametrize(("credit", "count"), [(0, 0), (2, 2), (9, 3)])
@in_virtual_time
async def test_a_client_that_half_closes_gets_what_is_there_as_far_as_its_credit_goes(credit: int, count: int) -> None:
    async with served() as there:
        await there.create("orders")
        for number in range(3):
            there.mongo.insert("db", "a", 0, n=number)
        stream = Stream(there, **DURABLE, credit=wire.Credit(events=credit, bytes=1 << 20))
        stream.half_close()
        await stream.task
        batches = [each.batch for each in stream.received if each.HasField("batch")]
        assert sum(each.event_count for each in batches) == count
        assert stream.received[-1].HasField("progress")
        await asyncio.sleep(1.0)
        assert owner(there) == b""


@in_virtual_time
async def test_a_client_that_half_closes_waits_for_no_later_event_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as there:
        loop = asyncio.get_running_loop()
        for knows, least_s, most_s in ((True, 0.0, 30.0), (False, HALF_CLOSED_S, HALF_CLOSED_S + 1.0)):
            stream = Stream(there, **INLINE, credit=wire.Credit(events=9, bytes=1 << 20))
            await stream.opened()
            began_s = loop.time()
            stream.half_close()
            if not knows:  # whether the stream has read everything up to now
                monkeypatch.setattr(FeedStreams, "has_read", lambda *_: False)
            await stream.task
            assert least_s <= loop.time() - began_s < most_s


@in_virtual_time
async def test_a_bulk_read_of_another_feed_leaves_no_lease() -> None:
    async with served() as there:
        await there.create("orders")
        request = wire.PlanRangeRequest(
            subscription="orders", instance_id="one", events_max=1, bytes_max=1, feed_fingerprint=b"another"
        )
        error = await refused(PlanRange(there.service), request)
        assert error.reason is ErrorReason.FEED_CHANGED
        assert owner(there) == b""


@in_virtual_time
async def test_messages_above_the_rate_of_the_tenant_are_read_more_slowly() -> None:
    account, began_s = Account("t", Quotas(messages_per_s=10), monotonic_s()), monotonic_s()
    applied: list[Any] = []

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield wire.SubscribeRequest(credit={"events": 1}).SerializeToString()

    async def done(*arguments: Any) -> None:
        applied.append(arguments)

    session: Any = SimpleNamespace(half_closed=done, fail=applied.append)
    await _listen(requests(), session, account, done, LATER_BYTES_MAX)
    assert len(applied) == 51
    # Two seconds' worth may come at once.
    assert monotonic_s() - began_s >= 3.0
