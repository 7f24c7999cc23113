"""pymongo's asynchronous interface over a session; its rules are tested with the synchronous one."""

import grpc
import pytest
from pymongo.errors import OperationFailure

import feedmux
from tests.unit.client.scripted_server import Call, ScriptedServer, invalidated, token


async def test_asynchronously() -> None:
    async with ScriptedServer(invalidated) as server:
        client = feedmux.AsyncClient(server.address)
        async with await client["shop"]["orders"].watch() as stream:
            assert (await stream.next())["n"] == 1
            assert stream.resume_token == token(1)
            assert [change["n"] async for change in stream] == [2]
            assert not stream.alive
            assert await stream.try_next() is None
        await client.close()


async def test_a_refused_stream_is_an_operation_failure() -> None:
    async def refused(call: Call) -> None:
        await call.abort(grpc.StatusCode.INVALID_ARGUMENT, "OPTION_REFUSED", code="40324", code_name="Location40324")

    async with ScriptedServer(refused) as server, feedmux.AsyncClient(server.address) as client:
        with pytest.raises(OperationFailure) as caught:
            await client.shop.orders.watch([{"$nope": 1}])
        assert caught.value.code == 40324
