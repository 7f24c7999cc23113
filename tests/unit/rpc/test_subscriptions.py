"""The calls of the Subscriptions service: what is stored, what is rejected, and how the error names it."""

import asyncio
from typing import Any

import pytest

from feedmux.requests import snapshot_value
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.rates import Rates
from feedmux_server.rpc.subscriptions import DEFINITION_BYTES_MAX, Subscriptions, _checked
from feedmux_server.streams import resolve_start
from feedmux_server.telemetry.audit import AuditEvent
from tests.unit.rpc.service_support import FEED, Stream, call, refused, rejected, served
from tests.virtual_time import in_virtual_time

Subscription = subscriptions_pb2.Subscription
CONTINUE = feed_pb2.ON_INVALIDATE_CONTINUE
GROUP = "subscription.group"
OTHER_SCOPE = feed_pb2.Feed(source="main", database="db", collection="b")


def shown(message: Subscription, name: str) -> Any:
    """A field's value; None for a group that is not set."""
    return getattr(message, name) if name != "group" or message.HasField(name) else None


@in_virtual_time
async def test_a_subscription_that_exists_is_told_with_what_differs() -> None:
    async with served() as there:
        made = await there.create("s")
        assert await there.create("s") == made
        other = feed_pb2.Feed(source="main", database="db", collection="x" * 300, collation=b"\x05\0\0\0\0")
        error = await rejected(there.create("s", feed=other, on_invalidate=CONTINUE))
        assert error.reason is ErrorReason.NAME_INVALID
        other.collection = "b"
        error = await rejected(there.create("s", feed=other, on_invalidate=CONTINUE))
        assert error.reason is ErrorReason.SUBSCRIPTION_EXISTS
        assert 'feed.collection is "a", not "b"; feed.collation differs; on_invalidate is' in error.message
        assert error.message.endswith("ON_INVALIDATE_UNSPECIFIED, not ON_INVALIDATE_CONTINUE")


@pytest.mark.parametrize(
    ("paths", "fields", "changed"),
    [
        (["on_invalidate"], {"on_invalidate": CONTINUE}, {"on_invalidate"}),
        ([], {"on_invalidate": CONTINUE}, {"on_invalidate"}),
        (["feed"], {"feed": FEED, "on_invalidate": CONTINUE}, set()),
        (["*"], {"feed": FEED, "on_invalidate": CONTINUE}, {"on_invalidate"}),
        (
            ["*"],
            {"feed": feed_pb2.Feed(source="main", database="db", collection="a", full_document="default")},
            {"feed"},
        ),
        (["group"], {"group": {}}, {"group"}),
        ([], {"group": {"reconnect_time": {"seconds": 60}}}, {"group"}),
        (["group"], {}, set()),
    ],
)
@in_virtual_time
async def test_an_update_changes_what_its_mask_names(paths: list[str], fields: Any, changed: set[str]) -> None:
    async with served() as there:
        before = await there.create("s")
        after = await there.update("s", *paths, **fields)
        names = ("feed", "on_invalidate", "on_history_lost", "group")
        assert {name for name in names if shown(before, name) != shown(after, name)} == changed
        assert (after.position, after.etag == before.etag) == (before.position, not changed)


@in_virtual_time
async def test_a_group_becomes_an_ordinary_subscription_and_differs_from_it() -> None:
    async with served() as there:
        before = await there.create("s", group={})
        assert await there.create("s", group={}) == before
        for group, difference in ((None, "group is set"), ({"reconnect_time": {}}, "group differs")):
            error = await rejected(there.create("s", group=group))
            assert error.message.endswith(difference)
        after = await there.update("s", "group")
        assert (after.HasField("group"), after.position, after.etag != before.etag) == (False, before.position, True)


@pytest.mark.parametrize(
    ("path", "fields", "reason", "field"),
    [
        ("feed", {"feed": OTHER_SCOPE}, "MESSAGE_INVALID", "subscription.feed"),
        ("name", {}, "MESSAGE_INVALID", "update_mask"),
        ("on_invalidate", {"on_invalidate": 99}, "MESSAGE_INVALID", "on_invalidate"),
        ("on_invalidate", {"on_invalidate": CONTINUE, "etag": "old"}, "ETAG_MISMATCH", None),
        ("group", {"group": {"reconnect_time": {"seconds": 61}}}, "MESSAGE_INVALID", f"{GROUP}.reconnect_time"),
    ],
)
@in_virtual_time
async def test_updates_that_are_rejected(path: str, fields: Any, reason: str, field: str | None) -> None:
    async with served() as there:
        before = await there.create("s")
        error = await rejected(there.update("s", path, **fields))
        assert (error.reason, error.field) == (reason, field)
        get = subscriptions_pb2.GetSubscriptionRequest(name="s")
        assert Subscription.FromString(await call(Subscriptions(there.service).get, get)) == before


@in_virtual_time
async def test_changes_that_wait_for_a_replica_are_made_if_each_answer_of_redis_takes_more_than_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as there:
        there.redis.replicas = 1
        monkeypatch.setattr(there.redis, "_way_s", lambda: 0.8)  # in each direction
        before = await there.create("s")
        assert (await there.seek("s", latest={})).epoch > before.epoch


def test_a_definition_that_is_too_large_says_how_to_make_it_smaller() -> None:
    assert _checked(bytes(DEFINITION_BYTES_MAX))
    with pytest.raises(FeedmuxError, match="fewer bytes in BSON") as caught:
        _checked(bytes(DEFINITION_BYTES_MAX + 1))
    assert (caught.value.reason, caught.value.field) == (ErrorReason.MESSAGE_INVALID, "subscription")


@in_virtual_time
async def test_the_subscriptions_of_a_page_count_as_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[float] = []
    async with served() as there:
        for number in range(60):
            await there.create(f"s{number}")
        monkeypatch.setattr(Rates, "charge", lambda _, requests, now_s: charged.append(requests))
        for size in (1, 60):
            await call(Subscriptions(there.service).list_, subscriptions_pb2.ListSubscriptionsRequest(page_size=size))
    assert charged == pytest.approx([0, 59 / 50])


@pytest.mark.parametrize("method", ["create", "update", "delete"])
@in_virtual_time
async def test_a_call_that_is_cancelled_leaves_nothing_half_done(method: str) -> None:
    """Whenever the client leaves, what is stored is listed and counted, and nothing else is."""
    async with served() as there:
        store, outcomes = there.service.store, set[bool]()
        calls = Subscriptions(there.service)
        for number in range(80):
            name = f"s{number}"
            if method == "create":
                work = there.create(name)
            else:
                await there.create(name)
                commented = feed_pb2.Feed(source="main", database="db", collection="a", comment=b"x")
                work = (
                    there.update(name, feed=commented)
                    if method == "update"
                    else call(calls.delete, subscriptions_pb2.DeleteSubscriptionRequest(name=name))
                )
            task = asyncio.create_task(work)
            await asyncio.sleep(0.0002 * number)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(30)
            stored = (await store._scripts.run("get", "default", name))[0] == b"OK"
            assert await store.names.has("default", name) == stored
            sizes = (await store.sizes.sums(["default"]))["default"]
            page, _ = await store.list("default", page_size=1000)
            assert sizes == sum(len(each.definition) for each in page)
            outcomes.add(stored)
    assert outcomes == ({True} if method == "update" else {True, False})


@in_virtual_time
async def test_deletes_and_seeks_are_audited_once_they_are_made() -> None:
    async with served() as there:
        calls = Subscriptions(there.service)
        delete = subscriptions_pb2.DeleteSubscriptionRequest(name="s")
        assert (await refused(calls.delete, delete)).reason is ErrorReason.SUBSCRIPTION_NOT_FOUND
        nowhere = subscriptions_pb2.SeekSubscriptionRequest(name="s")
        assert (await refused(calls.seek, nowhere)).field == "to"
        assert there.audit.events == []
        before = await there.create("s")
        there.mongo.insert("db", "a", 0)
        assert (await there.seek("s", latest={})).epoch > before.epoch
        await call(calls.delete, delete)
        delete.allow_missing = True
        await call(calls.delete, delete)
        assert there.audit.events == [(AuditEvent.SEEK, "s"), (AuditEvent.DELETE, "s"), (AuditEvent.DELETE, "s")]


@in_virtual_time
async def test_a_subscription_says_that_its_client_does_not_acknowledge() -> None:
    """Nothing else tells its owner why events no longer come."""
    async with served(limits={"unacked_events": 10}) as there:
        await there.create("s")
        await there.create("other")

        async def state(name: str = "s") -> tuple[str, int]:
            request = subscriptions_pb2.GetSubscriptionRequest(name=name)
            found = Subscription.FromString(await call(Subscriptions(there.service).get, request))
            return found.session_state, found.unacked_events

        assert await state() == ("", 0)
        credit = wire.Credit(events=1000, bytes=1 << 20)
        stream = Stream(there, subscription="s", credit=credit)
        await stream.opened()
        assert await state() == ("live", 0)
        for _ in range(20):
            there.mongo.insert("db", "a", 0)
        await asyncio.sleep(5)
        assert await state() == ("unacknowledged", 10)
        assert await state("other") == ("", 0)
        listed = await call(Subscriptions(there.service).list_, subscriptions_pb2.ListSubscriptionsRequest())
        found = subscriptions_pb2.ListSubscriptionsResponse.FromString(listed).subscriptions
        assert [each.session_state for each in found] == ["", "unacknowledged"]
        stream.send(ack=wire.Ack(delivery_sequence=10))
        await asyncio.sleep(5)
        assert (await state())[1] == 10, "the next ones have come"
        stream.send(ack=wire.Ack(delivery_sequence=20))
        await asyncio.sleep(5)
        assert await state() == ("live", 0)
        stream.half_close()
        await asyncio.wait([stream.task])
        assert await state() == ("", 0)


@in_virtual_time
async def test_the_time_left_of_a_copy_is_that_of_what_is_acknowledged() -> None:
    """As its documents are. The session is ahead of that, by as much as its client does not acknowledge."""
    async with served() as there:
        for _ in range(100):
            there.mongo.insert("db", "a", 0)
        await there.create("s", start={"snapshot": {}})
        stream = Stream(there, subscription="s", credit=wire.Credit(events=5, bytes=1 << 20))
        await stream.opened()
        for _ in range(12):
            stream.send(credit=wire.Credit(events=5, bytes=1 << 20))
            await asyncio.sleep(1)
        get = call(Subscriptions(there.service).get, subscriptions_pb2.GetSubscriptionRequest(name="s"))
        status = snapshot_value(Subscription.FromString(await get).snapshot)
        assert (status.documents, status.documents_estimated) == (0, 100)
        assert status.documents_per_s == pytest.approx(5, rel=0.1)
        stream.half_close()
        await asyncio.wait([stream.task])


@pytest.mark.parametrize("resolved", [False, True])
@in_virtual_time
async def test_a_later_copy_has_a_greater_generation_also_if_nothing_was_written(
    resolved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what a changed pipeline drops would not be swept. Clients ask for the position of the beginning first. The
    server's clock is behind that of MongoDB."""
    monkeypatch.setattr(resolve_start, "wall_s", float)
    async with served() as there:
        there.mongo.insert("db", "a", 0)
        generations = list[int]()
        await there.create("s", start={"snapshot": {}})
        for pipeline in ("insert", "update", "insert"):
            wanted = feed_pb2.Feed(source="main", database="db", collection="a")
            wanted.pipeline.extended_json = f'[{{"$match": {{"operationType": "{pipeline}"}}}}]'
            await there.update("s", feed=wanted)
            start: dict[str, Any] = {"snapshot": {}}
            to = {"position": await there.position(feed=wanted, start=start)} if resolved else start
            generations.append((await there.seek("s", **to)).snapshot.generation)
        assert generations == sorted(set(generations))
        assert max(generations) < 1 << 53
