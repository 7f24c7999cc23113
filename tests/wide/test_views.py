"""Views of wide streams deliver what MongoDB's own streams deliver; and a server that does not would be found out."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pymongo import MongoClient

from feedmux_server.core import namespaces
from feedmux_server.core.resume_token import ResumeToken
from feedmux_server.embedded import RedisServer, ReplicaSet
from feedmux_server.fanout import view_reader, wide_stream
from tests.integration.servers import Here, serving, settings
from tests.wide.differential import Options, compare

Mongo = MongoClient[dict[str, Any]]
Serve = Callable[[], Any]


@pytest.fixture(scope="module")
async def wide(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"feeds_min": 2}}) as here:
        yield here


@pytest.fixture(scope="module")
async def narrow(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"enabled": False}}) as here:
        yield here


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (0, ()),
        (1, (("show_expanded_events", True),)),
        (2, (("full_document", "whenAvailable"), ("full_document_before_change", "whenAvailable"))),
    ],
)
async def test_views_deliver_what_mongodb_delivers(
    wide: Here, narrow: Here, mongo_client: Mongo, seed: int, options: Options
) -> None:
    found = await compare([wide.api, narrow.api], mongo_client, seed, steps=120, options=options, ddl=0.05)
    assert not found.differences
    assert found.views > 2
    assert found.hops


def ignore_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops and renames are taken for changes like any other."""
    monkeypatch.setattr(namespaces.Turn, "concerns", lambda *_: False)


def turn_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view's own cursor begins behind the event that it is to ask MongoDB about."""
    turn = view_reader.ViewReader.turn
    monkeypatch.setattr(
        view_reader.ViewReader,
        "turn",
        lambda self, place: turn(self, ResumeToken.high_water_mark(place.cluster_time + 1)),
    )


def attach_without_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events between the view's place and the head of the wide stream are left out."""
    monkeypatch.setattr(namespaces.NamespaceIndex, "events_of", lambda *_: [])


def cut_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours between two events of a namespace come with them."""
    monkeypatch.setattr(wide_stream, "runs", lambda indexes: [(indexes[0], indexes[-1] + 1)] if indexes else [])


def lose_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a turn, what was offered before it is dropped."""

    def turn(self: view_reader.ViewReader, place: Any) -> None:
        self._inbox.clear()
        self._wide = None
        self._turn_at = place
        self._signal.set()

    monkeypatch.setattr(view_reader.ViewReader, "turn", turn)


@pytest.mark.parametrize(
    "mutant", [ignore_turns, turn_too_late, attach_without_the_ring, cut_too_much, lose_what_waits]
)
async def test_the_comparison_finds_a_server_that_is_broken(
    mutant: Callable[[pytest.MonkeyPatch], None],
    mongo: ReplicaSet,
    redis_server: RedisServer,
    mongo_client: Mongo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    async with serving({**settings(mongo.uri, redis_server.url), "wide": {"feeds_min": 2}}) as here:
        for seed in range(100, 110):
            found = await compare([here.api], mongo_client, seed, steps=60, ddl=0.1, patience_s=3.0)
            if found.differences:
                return
    pytest.fail("no difference was found")
