"""Commands to one MongoDB deployment, each within the time that a request may wait for its answer."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from feedmux_server.cancellation import cancellable
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.source.errors import as_error
from feedmux_server.telemetry.observer import Observer, Span

RETRY_AFTER_S = 2.0

T = TypeVar("T")
Client = AsyncMongoClient[Mapping[str, Any]]


class SourceCommands:
    """Sends commands to one deployment."""

    def __init__(self, name: str, client: Client, wait_s: float, observer: Observer) -> None:
        self.name = name
        self.client = client
        self._wait_s = wait_s
        self._observer = observer

    async def answer(self, command: Awaitable[T]) -> T:
        """MongoDB's answer. Raises FeedmuxError, also when a frozen mongod does not answer in time."""
        try:
            async with asyncio.timeout(self._wait_s):
                return await cancellable(command)
        except TimeoutError:
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAVAILABLE,
                f"MongoDB of source {self.name!r} did not answer within {self._wait_s:g} s",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        except PyMongoError as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: PyMongoError) -> FeedmuxError:
        return as_error(error, f"source {self.name!r}", RETRY_AFTER_S)

    def span(self, operation: str, database: str, collection: str = "") -> Span:
        """The span of a command, by the conventions for databases. The getMores of streams have none: there are too
        many."""
        attributes = {"db.system.name": "mongodb", "db.operation.name": operation, "db.namespace": database}
        if collection:
            attributes["db.collection.name"] = collection
        attributes["feedmux.source"] = self.name
        name = f"{operation} {database}.{collection}" if collection else f"{operation} {database}"
        return self._observer.span(name, attributes, client=True)
