"""docs/pymongo-compatibility.md: its examples run as they stand, against a server with keys."""

import asyncio
import contextlib
import re
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient

from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.statements import PYMONGO as DOCUMENT
from tests.conformance.statements import shows
from tests.integration.servers import KEY_A, Here, serving, settings, tenants_file

PAGE = Path(__file__).parents[2] / "docs" / "pymongo-compatibility.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest_asyncio.fixture(scope="module")
async def server(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Here]:
    configuration = settings(mongo.uri, redis_server.url)
    configuration["tenants_file"] = str(tenants_file(tmp_path_factory.mktemp("tenants")))
    async with serving(configuration, key=KEY_A) as here:
        yield here


@contextlib.contextmanager
def writing(mongo: ReplicaSet, database: str) -> Iterator[None]:
    """Somebody inserts orders, as long as it lasts."""
    done = threading.Event()

    def write() -> None:
        with MongoClient[dict[str, Any]](mongo.uri) as client:
            while not done.wait(0.05):
                client[database].orders.insert_one({"item": "book"})
            client.drop_database(database)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@shows(DOCUMENT, "Moving", "the examples of docs/pymongo-compatibility.md run")
@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
async def test_the_examples(server: Here, mongo: ReplicaSet, example: str) -> None:
    database = f"shop_{uuid.uuid4().hex[:8]}"
    text = example.replace("localhost:7117", f"127.0.0.1:{server.api.data_port}").replace("…", KEY_A)
    text = text.replace('["shop"]', f'["{database}"]').replace(".shop.", f".{database}.")
    assert "localhost" not in text
    with writing(mongo, database):
        async with asyncio.timeout(60):
            await asyncio.to_thread(exec, compile(text, PAGE.name, "exec"), {"MONGODB_URI": mongo.uri})


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
