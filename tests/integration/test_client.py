"""The Python client against the real server: resume tokens in each format, and Extended JSON through a small window."""

import asyncio
import json
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64

import feedmux
from tests.documents import Documents
from tests.integration.servers import Here
from tests.integration.wire import PATIENCE_S


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
