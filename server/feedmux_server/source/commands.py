"""Commands to one MongoDB deployment, each within the time that a request may wait for its answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from bson.errors import BSONError
from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from feedmux_server.cancellation import cancellable
from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.source.errors import as_error
from feedmux_server.telemetry.observer import Observer, Span

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2.0
_STALE_S = 20.0
"""Longer than an election takes, with MongoDB's time-out of 10 s."""

T = TypeVar("T")
Client = AsyncMongoClient[Mapping[str, Any]]


class SourceCommands:
    """Sends commands to one deployment."""

    def __init__(
        self,
        name: str,
        client: Client,
        wait_s: float,
        observer: Observer,
        new_client: Callable[[], Client] | None = None,
    ) -> None:
        self.name = name
        self.client = client
        self.wait_s = wait_s
        self._observer = observer
        self._new_client = new_client
        self._stale_since_s: float | None = None

    async def answer(self, command: Awaitable[T]) -> T:
        """MongoDB's answer. Raises FeedmuxError, also when a frozen mongod does not answer in time."""
        try:
            async with asyncio.timeout(self.wait_s):
                answer = await cancellable(command)
            self._stale_since_s = None
            return answer
        except TimeoutError:
            self._renew_if_stale()
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAVAILABLE,
                f"MongoDB of source {self.name!r} did not answer within {self.wait_s:g} s",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        except (PyMongoError, BSONError) as error:
            self._renew_if_stale()
            raise self.unavailable(error) from error

    def _renew_if_stale(self) -> None:
        """Replace the client if it has taken the primary for a deposed one for long.

        The driver rejects a primary of an election older than the newest that it knows, for the life of the client. A
        restored deployment counts its elections from those of the copy. A primary that was really deposed notices so
        within seconds.
        """
        servers = self.client.topology_description.server_descriptions().values() if self._new_client else ()
        if not any("electionId" in str(server.error) for server in servers):
            self._stale_since_s = None
            return
        now_s = monotonic_s()
        if self._stale_since_s is None:
            self._stale_since_s = now_s
        elif now_s - self._stale_since_s > _STALE_S and self._new_client is not None:
            log.warning("MongoDB counts elections from a lower number: connecting again", extra={"source": self.name})
            self._stale_since_s = None
            try:
                new = self._new_client()
            except Exception as error:  # noqa: BLE001 a file of TLS that is being replaced; it is tried again
                log.error("feedmux could not connect again: %s", type(error).__name__, extra={"source": self.name})
                return
            self._closing, self.client = asyncio.ensure_future(self.client.close()), new

    def unavailable(self, error: PyMongoError | BSONError) -> FeedmuxError:
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
