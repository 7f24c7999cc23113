"""The Python client against the real server: the examples of the README."""

import asyncio
from typing import Any

from pymongo.database import Database

import feedmux
from tests.integration.servers import KEY_A, Here

Documents = Database[dict[str, Any]]


def insert(database: Documents, numbers: range) -> None:
    database.c.insert_many([{"n": n} for n in numbers])


async def test_durable_session(tenants: Here, database: Documents, name: str) -> None:
    def run() -> None:
        with feedmux.Client(f"127.0.0.1:{tenants.api.data_port}", api_key=KEY_A, source="main") as client:
            client.create_subscription(name, database=database.name, collection="c")
            insert(database, range(10))
            with client.subscription(name).open() as session:
                for event in session:
                    session.ack(event)
                    if event.document["fullDocument"]["n"] == 5:
                        break
            seen = []
            with client.subscription(name).open() as session:
                for event in session:
                    seen.append(event.document["fullDocument"]["n"])
                    if seen[-1] == 9:
                        break
            assert seen == [6, 7, 8, 9]
            client.delete_subscription(name)

    await asyncio.to_thread(run)


async def test_watch_is_pymongos(tenants: Here, database: Documents) -> None:
    def run() -> None:
        with feedmux.Client(f"127.0.0.1:{tenants.api.data_port}", api_key=KEY_A, source="main") as client:
            with client[database.name]["c"].watch([{"$match": {"operationType": "insert"}}]) as stream:
                insert(database, range(3))
                changes = [stream.next() for _ in range(3)]
                token = stream.resume_token
            assert [change["fullDocument"]["n"] for change in changes] == [0, 1, 2]
            assert token == changes[-1]["_id"]
            with database.c.watch(resume_after=changes[0]["_id"]) as direct:
                assert [direct.next()["fullDocument"]["n"] for _ in range(2)] == [1, 2]

    await asyncio.to_thread(run)


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
