"""Whoever reads history takes a turn at MongoDB, from the first batch on and however little matches."""

from typing import Any

import pytest
from pymongo.database import Database

from feedmux_server.source import history_reads, reader
from tests.integration.servers import Here, until
from tests.integration.wire import LATEST, Api, at, feed

Documents = Database[dict[str, Any]]


def now_s(database: Documents) -> int:
    """MongoDB's clock, which only writes move."""
    database.marks.insert_one({})
    return int(database.client.admin.command("hello")["operationTime"].time)


@pytest.mark.parametrize("pipeline", ["", '[{"$match": {"fullDocument.n": 2}}]'])
async def test_history_waits_for_a_turn_and_the_head_does_not(
    here: Here, api: Api, database: Documents, monkeypatch: pytest.MonkeyPatch, pipeline: str
) -> None:
    monkeypatch.setattr(history_reads, "TURN_MAX_S", 3600.0)
    monkeypatch.setattr(reader, "HISTORY_S", 2)
    reads = here.server.service.hub.source("main").history_reads
    old = (await api.resolve(feed(database.name, "c"), LATEST)).position
    database.c.insert_many([{"n": n} for n in range(3)])
    begin_s = now_s(database)
    await until(lambda: now_s(database) > begin_s + 3)
    head = api.watch(feed=feed(database.name, "c"), start=LATEST)
    await head.opened()
    turns = []
    while (turn := reads.try_begin()) is not None:
        turns.append(turn)
    late = api.watch(feed=feed(database.name, "c", pipeline), start=at(position=old))
    await until(lambda: bool(reads._waiting))
    database.c.insert_one({"n": 3})
    assert [event.n for event in await head.take(1)] == [3]
    for turn in turns:
        turn.end()
    assert [event.n for event in await late.take(1)] == [2 if pipeline else 0]
