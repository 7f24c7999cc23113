"""The Python client against the real server: its asynchronous session, and resume tokens in each format."""

import asyncio
from typing import Any

import bson
from bson import Decimal128, Int64
from pymongo.database import Database

import feedmux
from tests.integration.servers import KEY_A, Here

Documents = Database[dict[str, Any]]


def insert(database: Documents, numbers: range) -> None:
    database.c.insert_many([{"n": n} for n in numbers])


async def test_async_session(tenants: Here, database: Documents, name: str) -> None:
    async with feedmux.AsyncClient(f"127.0.0.1:{tenants.api.data_port}", api_key=KEY_A, source="main") as client:
        await client.create_subscription(name, database=database.name, collection="c")
        insert(database, range(4))
        async with await client.subscription(name).open() as session:
            assert (await session.next()).document["fullDocument"]["n"] == 0
            event = await session.next()
            session.ack(event)
        async with await client.subscription(name).open() as session:
            assert (await session.next()).document["fullDocument"]["n"] == 2
        await client.delete_subscription(name)


async def test_a_resume_token_is_the_same_bytes_in_every_format(here: Here, database: Documents) -> None:
    ids = [Int64(1), -2.5, Decimal128("3.00"), Int64(-(2**53) - 1), -0.0, float("nan"), Decimal128("-0.10"), 8, "text"]
    tokens: dict[str, list[bytes]] = {}
    async with feedmux.AsyncClient(f"127.0.0.1:{here.api.data_port}") as client, asyncio.timeout(60):
        begin = (await client.resolve("latest")).cluster_time
        database.orders.insert_many([{"_id": each} for each in ids])
        feed = client.feed(database=database.name, collection="orders")
        for format_ in ("bson", "extended_json_canonical", "extended_json_relaxed"):
            async with feed.open(begin, format=format_) as session:
                events = [await session.next() for _ in ids]
            tokens[format_] = [bson.encode(event.resume_token or {}) for event in events]
            for number, event in enumerate(events[:-1]):
                async with feed.open(event.resume_token, format=format_) as session:
                    assert (await session.next()).raw == events[number + 1].raw
    assert tokens["extended_json_canonical"] == tokens["extended_json_relaxed"] == tokens["bson"]
