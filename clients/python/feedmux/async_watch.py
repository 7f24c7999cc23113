"""pymongo's asynchronous interface: `await client[database][collection].watch(…)` and its AsyncChangeStream."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from bson.errors import BSONError
from bson.timestamp import Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession

from feedmux.api import Api
from feedmux.async_session import AsyncSession
from feedmux.errors import FeedInvalidated, FeedmuxError
from feedmux.mongo_errors import as_pymongo
from feedmux.watch_options import WatchPlan, watch_plan
from feedmux.watch_state import WatchState
from feedmux.watch_target import ClientTarget, CollectionTarget, DatabaseTarget, WatchTarget


class AsyncChangeStream(WatchState):
    """pymongo's AsyncChangeStream: an asynchronous iterator of change documents. `watch` returns it."""

    def __init__(self, api: Api, plan: WatchPlan) -> None:
        options = plan.session_options(api.settings.session)
        self._session = AsyncSession(api.transport, api.feed_opening(plan.feed, plan.start), options, None)
        super().__init__(plan, self._session)

    async def _open(self) -> Self:
        """Open the stream, and return when MongoDB has accepted it. Raises PyMongoError."""
        try:
            await self._session
        except FeedmuxError as error:
            raise as_pymongo(error, opening=True) from error
        self._no_event()
        return self

    async def next(self) -> Any:
        """Return the next change, however long it takes.

        Raises StopAsyncIteration after `close()` or an invalidate, OperationFailure for what MongoDB rejected; then
        the stream is closed.
        """
        if self.alive:
            document = await self._step(None)
            if document is not None:
                return document
        raise StopAsyncIteration

    async def try_next(self) -> Any | None:
        """Return the next change if it arrives within `max_await_time_ms` (default 1 s), else None."""
        wait_s, self._wait_s = self._wait_s, self._await_s
        return await self._step(wait_s) if self.alive else None

    async def close(self) -> None:
        """End the stream. A task that waits in `next` gets StopAsyncIteration."""
        await self._session.close()

    def __aiter__(self) -> Self:
        return self

    __anext__ = next

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _step(self, timeout_s: float | None) -> Any | None:
        try:
            event = await self._session.next(timeout_s)
            document = event.document
        except (TimeoutError, FeedInvalidated, StopAsyncIteration):
            self._no_event()
            return None
        except FeedmuxError as error:
            await self.close()
            raise as_pymongo(error) from error
        except BSONError:
            # The position stays before the event that cannot be decoded.
            await self.close()
            raise
        self._event = event
        return document


class AsyncWatchable(WatchTarget):
    """Provides `watch` for client, database and collection."""

    async def watch(
        self,
        pipeline: Sequence[Mapping[str, Any]] | None = None,
        full_document: str | None = None,
        resume_after: Mapping[str, Any] | None = None,
        max_await_time_ms: int | None = None,
        batch_size: int | None = None,
        collation: Any | None = None,
        start_at_operation_time: Timestamp | None = None,
        session: AsyncClientSession | None = None,
        start_after: Mapping[str, Any] | None = None,
        comment: Any | None = None,
        full_document_before_change: str | None = None,
        show_expanded_events: bool | None = None,
    ) -> AsyncChangeStream:
        """Open a change stream, as pymongo's asynchronous `watch` does; docs/pymongo-compatibility.md lists the few
        differences.

        Raises OperationFailure, with MongoDB's code and labels, for what MongoDB rejects; PyMongoError.
        """
        plan = watch_plan(
            self,
            AsyncClientSession,
            pipeline=pipeline,
            full_document=full_document,
            resume_after=resume_after,
            max_await_time_ms=max_await_time_ms,
            batch_size=batch_size,
            collation=collation,
            start_at_operation_time=start_at_operation_time,
            session=session,
            start_after=start_after,
            comment=comment,
            full_document_before_change=full_document_before_change,
            show_expanded_events=show_expanded_events,
        )
        return await AsyncChangeStream(self._api, plan)._open()


class AsyncCollection(CollectionTarget["AsyncDatabase"], AsyncWatchable):
    """A collection to watch."""


class AsyncDatabase(DatabaseTarget[AsyncWatchable, AsyncCollection], AsyncWatchable):
    """A database to watch."""

    _collection_class = AsyncCollection


class AsyncWatchClient(ClientTarget[AsyncDatabase], AsyncWatchable):
    """The part of pymongo's client interface that feedmux clients have."""

    _database_class = AsyncDatabase
