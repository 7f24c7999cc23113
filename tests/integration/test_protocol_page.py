"""docs/protocol.md is correct: its commands run as written, and its table of errors matches the client."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from pymongo import MongoClient

from feedmux.errors import make_error
from feedmux.recovery import Step, next_step
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.errors import STATUS, ErrorReason
from tests.conftest import ReplicaSetFactory
from tests.integration.servers import KEY_A, REPOSITORY, Here, serving, settings, tenants_file

PAGE = (REPOSITORY / "docs" / "protocol.md").read_text("utf-8")
NAME = re.compile(r"`([A-Z_]{3,})`")


@pytest_asyncio.fixture
async def shop(
    replica_set_factory: ReplicaSetFactory, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[tuple[Here, ReplicaSet]]:
    """A MongoDB of its own, because the page says which collection it reads."""
    mongo = await replica_set_factory(oplog_mb=128)
    configuration = settings(mongo.uri, redis_server.url)
    configuration["tenants_file"] = str(tenants_file(tmp_path))
    async with serving(configuration, key=KEY_A) as here:
        yield here, mongo


async def test_the_commands(shop: tuple[Here, ReplicaSet]) -> None:
    here, mongo = shop
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        client.shop.orders.insert_many([{"n": n} for n in (1, 2, 3)])
    script = "set -eu\n" + "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL))
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        script,
        env=os.environ
        | {
            "FEEDMUX": f"http://127.0.0.1:{here.api.data_port}",
            "FEEDMUX_API_KEY": KEY_A,
            "PAUSE": "5",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, errors = (each.decode() for each in await process.communicate())
    assert process.returncode == 0, output + errors
    # Once each from Watch and from Subscribe.
    assert len(re.findall(r'\\"n\\": ?1\b', output)) == 2, output
    assert '"committed"' in output
    session = await here.api.open("orders-by-hand")
    assert await session.numbers(1) == [3]
    session.cancel()
    await here.api.delete("orders-by-hand")


def test_the_table_of_errors() -> None:
    # | status | reasons | then |
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| [A-Z_]{4,}", line)]
    named: set[str] = set()
    for status, reasons, then in (row for row in rows if NAME.search(row[1])):
        for reason in NAME.findall(reasons):
            named.add(reason)
            assert STATUS[ErrorReason(reason)] == status
            for cause in re.findall(r"\b(UPDATE|LEASE|SEEK|TAKEOVER|DELETE)\b", reasons) or [""]:
                error = make_error(status, "", reason, {"cause": cause}, 1.0 if "RetryInfo" in then else None)
                step = next_step(error, has_other_credentials="fresh token" in then)
                assert step is _step(then), f"{reason} {cause}: {then}"
            if "else end" in then:
                assert next_step(make_error(status, "", reason)) is Step.RAISE
    assert named == {each.value for each in ErrorReason}
    for row in (row for row in rows if "no reason" in row[1] or row[0] == "DEADLINE_EXCEEDED"):
        for status in row[0].split(", "):
            assert next_step(make_error(status, "")) is _step(row[-1])


def _step(then: str) -> Step:
    if then.startswith("reopen without"):
        return Step.REOPEN_AT_STORED
    return Step.REOPEN if then.startswith("reopen") else Step.RAISE
