"""A server with one tenant for each view, and what a tenant's feed shows of a database's changes."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from feedmux.v1 import feed_pb2
from feedmux_server.tenants.registry import hash_key
from tests.documents import Documents
from tests.integration.servers import Here, serving, settings
from tests.integration.wire import Api, Receiver, Refused, at, refusal, seconds


def key_of(tenant: str) -> str:
    return f"key-of-{tenant}"


@asynccontextmanager
async def granted(
    mongo_uri: str, redis_url: str, folder: Path, grants: Mapping[str, list[dict[str, Any]] | None], **limits: Any
) -> AsyncIterator[Here]:
    """A server with these tenants; its client is the first one's."""
    configuration = settings(mongo_uri, redis_url, **limits)
    path = folder / "tenants.json.yaml"
    path.write_text(
        json.dumps(
            {
                "tenants": [
                    {"name": name, "api_key_hashes": [hash_key(key_of(name))], "pipelines": "any"}
                    | ({} if listed is None else {"grants": listed})
                    for name, listed in grants.items()
                ]
            }
        )
    )
    configuration["tenants_file"] = str(path)
    configuration["operator_key_hashes"] = [hash_key(key_of("operator"))]
    async with serving(configuration, key=key_of(next(iter(grants)))) as here:
        yield here


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that a tenant received."""

    events: list[dict[str, Any]]
    receiver: Receiver
    end: Refused | None
    """None: the feed continues."""

    @property
    def kinds(self) -> list[str]:
        return [each["operationType"] for each in self.events]

    def __contains__(self, canary: str) -> bool:
        """Whether the tenant received a text in any form: in an event, a token, a position, the status."""
        receiver = self.receiver
        data = [receiver.position, receiver.resume_token, repr(self.events).encode(), repr(self.end).encode()]
        messages = (*receiver.batches, *receiver.progress, *receiver.notices)
        data += [message.SerializeToString() for message in messages]
        tokens = [str(each["_id"]["_data"]).encode() for each in self.events]
        needles = (canary.encode(), canary.encode().hex().encode(), canary.encode().hex().upper().encode())
        return any(needle in each for needle in needles for each in (*data, *tokens))


async def see(api: Api, database: Documents, feed: feed_pb2.Feed, since: Any, **fields: Any) -> Seen:
    """What the tenant of `api` receives of the changes since a cluster time, until Progress is after all of them."""
    until = now(database)
    start = at(start_at_operation_time=feed_pb2.ClusterTime(seconds=since.time, increment=since.inc))
    receiver = api.watch(feed, start, heartbeat_interval=seconds(1), **fields)
    end: Refused | None = None
    try:
        await receiver.opened()
        await receiver.until(lambda: _reached(receiver, until))
    except grpc.aio.AioRpcError as error:
        end = refusal(error)
    finally:
        receiver.cancel()
    events = [event.document for event in await receiver.take(receiver.received)]
    return Seen(events, receiver, end)


def _reached(receiver: Receiver, until: Any) -> bool:
    if not receiver.progress:
        return False
    last = receiver.progress[-1].cluster_time
    return (last.seconds, last.increment) >= (until.time, until.inc)


def now(database: Documents) -> Any:
    """A cluster time after everything that was written so far, and before everything written later."""
    database["clock"].insert_one({})
    return database.client.admin.command("ping")["operationTime"]


def with_images(database: Documents, *names: str) -> None:
    for name in names:
        database.create_collection(name, changeStreamPreAndPostImages={"enabled": True})
