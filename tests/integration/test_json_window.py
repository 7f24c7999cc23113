"""Extended JSON through a small window, by the real server and the real Python client: it never stalls."""

import asyncio
import json
from typing import Any

import pytest
from pymongo.database import Database

import feedmux
from tests.integration.servers import Here
from tests.integration.wire import PATIENCE_S

Documents = Database[dict[str, Any]]
WINDOW_BYTES = 32 * 1024
SMALL, LARGE = 12_500, 6


@pytest.mark.parametrize("wire_format", ["extended_json_relaxed", "extended_json_canonical"])
async def test_a_small_window_never_runs_dry(here: Here, database: Documents, wire_format: Any) -> None:
    """A window of 32 KiB was used up by framing after some 6,000 events."""
    options: dict[str, Any] = {"window_bytes": WINDOW_BYTES, "message_bytes_max": 64 * 1024}
    async with feedmux.AsyncClient(f"127.0.0.1:{here.api.data_port}", source="main") as client:
        feed = client.feed(database=database.name, collection="c")
        async with await feed.open(format=wire_format, **options) as session:
            for first in range(0, SMALL, 2_500):
                database.c.insert_many([{"n": n} for n in range(first, first + 2_500)])
            # In fragments, and with letters of several bytes.
            database.c.insert_many([{"n": SMALL + n, "pad": "é" * 100_000} for n in range(LARGE)])
            database.c.insert_one({"n": SMALL + LARGE})
            for wanted in range(SMALL + LARGE + 1):
                async with asyncio.timeout(PATIENCE_S):
                    event = await session.next()
                found = json.loads(event.raw)["fullDocument"]["n"]
                assert (int(found["$numberInt"]) if isinstance(found, dict) else found) == wanted
