"""A server with a tenants file that a test may change."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.tenants.registry import hash_key
from tests.integration.servers import OPERATOR_KEY, Here, serving, settings, until
from tests.integration.wire import Refused, feed, refused

RELOAD_S = 0.1


def entry(name: str, *keys: str, expires_s: float | None = None, **more: Any) -> dict[str, Any]:
    """A tenant of the file."""
    made: list[dict[str, Any]] = [{"sha256": hash_key(key), "label": f"label of {name}"} for key in keys]
    if expires_s is not None:
        for each in made:
            each["expires"] = datetime.fromtimestamp(expires_s, UTC).isoformat()
    return {"name": name, "api_keys": made, **more}


@dataclass(slots=True)
class Tenancy:
    here: Here
    path: Path

    def write(self, *entries: dict[str, Any]) -> None:
        self.write_text(json.dumps({"tenants": entries}))

    def write_text(self, text: str) -> None:
        """Replace the file as an editor does: write a new file, then rename it."""
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        beside.replace(self.path)

    async def outcome(self, key: str) -> Refused:
        """The status that Watch returns for this key."""
        async with self.here.api.with_key(key) as api:
            receiver = api.watch(feed("d"))
            try:
                return await refused(receiver.opened())
            except AssertionError:
                return Refused("OK", "")
            finally:
                receiver.cancel()

    async def accepts(self, key: str) -> bool:
        return (await self.outcome(key)).code == "OK"

    async def refuses(self, key: str) -> bool:
        return (await self.outcome(key)).code == "UNAUTHENTICATED"

    async def until_live(self, count: int) -> None:
        await until(lambda: len(self.here.server.service.sessions) == count)


def configuration(mongo: ReplicaSet, redis: RedisServer, folder: Path, *entries: dict[str, Any]) -> dict[str, Any]:
    path = folder / "tenants.yaml"
    path.write_text(json.dumps({"tenants": entries}))
    return {
        **settings(mongo.uri, redis.url),
        "tenants_file": str(path),
        "operator_key_hashes": [hash_key(OPERATOR_KEY)],
        "reload_s": RELOAD_S,
        "audit": {"file": str(folder / "audit.jsonl")},
    }


@asynccontextmanager
async def tenancy(configured: dict[str, Any], key: str) -> AsyncIterator[Tenancy]:
    async with serving(configured, key=key) as here:
        yield Tenancy(here, Path(configured["tenants_file"]))
