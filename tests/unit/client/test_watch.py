"""pymongo's interface over a session."""

import asyncio
from collections.abc import Callable
from typing import Any

import bson
import grpc
import pytest
from bson.timestamp import Timestamp
from pymongo.collation import Collation
from pymongo.errors import InvalidOperation, OperationFailure

import feedmux
from tests.unit.client.scripted_server import Call, ScriptedServer, batch, opened, play, token


async def using(server: ScriptedServer, work: Callable[[feedmux.Client], Any]) -> Any:
    def run() -> Any:
        with feedmux.Client(server.address) as client:
            return work(client)

    async with asyncio.timeout(120):
        return await asyncio.to_thread(run)


async def test_what_is_asked_for() -> None:
    def work(client: feedmux.Client) -> None:
        client["shop"]["orders"].watch(
            [{"$match": {"n": 1}}],
            full_document="updateLookup",
            resume_after=token(3),
            max_await_time_ms=50,
            batch_size=7,
            collation=Collation("de"),
            comment={"why": 1},
            full_document_before_change="whenAvailable",
            show_expanded_events=True,
        ).close()
        client.shop.watch(start_at_operation_time=Timestamp(5, 6)).close()
        client.watch(start_after=token(2), resume_after=token(1)).close()

    async with ScriptedServer(play(opened())) as server:
        await using(server, work)
        one, two, three = (call.open for call in server.calls)
    feed = one.feed
    assert (feed.source, feed.database, feed.collection) == ("main", "shop", "orders")
    assert bson.decode(feed.pipeline.bson) == {"pipeline": [{"$match": {"n": 1}}]}
    assert (feed.full_document, feed.full_document_before_change) == ("updateLookup", "whenAvailable")
    assert (feed.max_await_time_ms, feed.batch_size, feed.show_expanded_events) == (50, 7, True)
    assert bson.decode(feed.collation)["locale"] == "de"
    assert bson.decode(feed.comment) == {"comment": {"why": 1}}
    assert bson.decode(one.start.resume_after) == token(3)
    assert (two.feed.database, two.feed.collection) == ("shop", "")
    assert two.start.start_at_operation_time.increment == 6
    assert three.feed.database == ""
    assert bson.decode(three.start.start_after) == token(2)


async def test_closing_the_client_is_pymongo_s_invalid_operation() -> None:
    def work(client: feedmux.Client) -> None:
        stream = client.shop.orders.watch()
        assert stream.next()["n"] == 1
        client.close()
        with pytest.raises(InvalidOperation, match="after close"):
            stream.next()
        assert not stream.alive
        with pytest.raises(StopIteration):
            stream.next()

    async with ScriptedServer(play(opened(), batch(1, [1]))) as server:
        await using(server, work)


async def test_failures_are_pymongo_s() -> None:
    async def refused(call: Call) -> None:
        await call.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "OPTION_REFUSED", code="40324", code_name="Location40324", labels="A,B"
        )

    def work(client: feedmux.Client) -> None:
        with pytest.raises(OperationFailure) as caught:
            client.shop.orders.watch([{"$nope": 1}])
        assert caught.value.code == 40324
        assert caught.value.details is not None
        assert caught.value.details["codeName"] == "Location40324"
        assert caught.value.has_error_label("B")

    async with ScriptedServer(refused) as server:
        await using(server, work)
