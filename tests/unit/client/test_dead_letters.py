"""The calls for dead letters, against a scripted server."""

import asyncio
from collections.abc import Callable
from typing import Any

import bson
import pytest

import feedmux
from feedmux.v1 import subscriptions_pb2 as wire
from tests.unit.client.beside import using
from tests.unit.client.scripted_server import ScriptedServer

IDS = [bytes([number]) * 16 for number in range(3)]


class Server:
    """What was asked, and the answers."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.discards = [wire.DiscardDeadLettersResponse(discarded=1_000, more=True)]
        self.calls = {
            "ListDeadLetters": self._reply(wire.ListDeadLettersRequest, self._page),
            "GetDeadLetter": self._reply(wire.GetDeadLetterRequest, self._one),
            "DiscardDeadLetters": self._reply(wire.DiscardDeadLettersRequest, self._discard),
            "ReplayDeadLetters": self._reply(wire.ReplayDeadLettersRequest, self._replay),
        }

    def _reply(self, kind: Any, answer: Callable[[Any], Any]) -> Callable[[bytes], Any]:
        def respond(raw: bytes) -> Any:
            self.asked.append(kind.FromString(raw))
            return answer(self.asked[-1])

        return respond

    def _page(self, request: Any) -> Any:
        letters = [wire.DeadLetter(id=each, key=bson.encode({"_id": 5})) for each in IDS[:2]]
        if request.page_token:
            return wire.ListDeadLettersResponse(dead_letters=[wire.DeadLetter(id=IDS[2], withheld=True)])
        return wire.ListDeadLettersResponse(dead_letters=letters, next_page_token="next")

    def _one(self, request: Any) -> Any:
        return wire.DeadLetter(id=request.id, event=bson.encode({"_id": 1}), reasons=["one", "two"], attempts=3)

    def _discard(self, request: Any) -> Any:
        return self.discards.pop(0) if self.discards else wire.DiscardDeadLettersResponse(discarded=7)

    def _replay(self, request: Any) -> Any:
        return wire.ReplayDeadLettersResponse(
            chosen=5, withheld=2, more=sum(each == request for each in self.asked) < 2
        )


async def asked_by(work: Callable[[feedmux.Client], Any]) -> list[Any]:
    scripted = Server()
    async with ScriptedServer(unary=scripted.calls) as server:
        await using(server, work)
    return scripted.asked


async def test_discard_repeats_until_nothing_is_left() -> None:
    def work(client: feedmux.Client) -> None:
        letters = client.dead_letters("orders")
        assert letters.discard(everything=True) == 1_007
        assert letters.discard(key={"_id": 5}) == 7
        assert letters.discard([IDS[0].hex()] * 1_001) == 14

    asked = await asked_by(work)
    assert [each.WhichOneof("which") for each in asked] == ["all", "all", "key", "ids", "ids"]
    assert [len(each.ids.ids) for each in asked[3:]] == [1_000, 1]


async def test_replay_repeats_until_nothing_is_left() -> None:
    def work(client: feedmux.Client) -> None:
        letters = client.dead_letters("orders")
        assert letters.replay(everything=True) == feedmux.Replay(chosen=10, withheld=2)
        assert letters.replay([each.hex() for each in IDS] * 500) == feedmux.Replay(chosen=10, withheld=4)

    asked = await asked_by(work)
    assert [each.WhichOneof("which") for each in asked] == ["all", "all", "ids", "ids"]


async def test_discard_wants_exactly_one_choice() -> None:
    def work(client: feedmux.Client) -> None:
        letters = client.dead_letters("orders")
        with pytest.raises(ValueError, match="either ids"):
            letters.discard()
        with pytest.raises(ValueError, match="either ids"):
            letters.discard([], everything=True)
        with pytest.raises(TypeError):
            letters.discard(IDS[0].hex())

    assert not await asked_by(work)


async def test_the_asynchronous_calls() -> None:
    scripted = Server()
    async with (
        asyncio.timeout(120),
        ScriptedServer(unary=scripted.calls) as server,
        feedmux.AsyncClient(server.address) as client,
    ):
        letters = client.dead_letters("orders")
        assert [each.id async for each in letters.list()] == [each.hex() for each in IDS]
        assert (await letters.get(IDS[0].hex())).document == {"_id": 1}
        assert (await letters.replay(key={"_id": 5})).chosen == 10
        assert await letters.discard(everything=True) == 1_007
