"""pymongo's interface: `client[database][collection].watch(…)` and its ChangeStream, over a Session.

Follows pymongo 4.20's modules `change_stream`, `collection` and `database`; docs/pymongo-compatibility.md lists the
differences. `async_watch` does the same for the asynchronous interface.
"""

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any, Self

from bson.errors import BSONError
from bson.timestamp import Timestamp
from pymongo.client_session import ClientSession

from feedmux.api import Api
from feedmux.batches import Event
from feedmux.errors import FeedInvalidated, FeedmuxError
from feedmux.mongo_errors import as_pymongo
from feedmux.session import Session
from feedmux.watch_options import WatchPlan, watch_plan
from feedmux.watch_state import WatchState
from feedmux.watch_target import ClientTarget, CollectionTarget, DatabaseTarget, WatchTarget


class ChangeStream(WatchState):
    """pymongo's ChangeStream: an iterator of change documents. `watch` returns it."""

    def __init__(self, api: Api, plan: WatchPlan) -> None:
        """Open the stream, and return when MongoDB has accepted it. Raises PyMongoError."""
        options = plan.session_options(api.settings.session)
        try:
            self._session = Session(api.transport, api.feed_opening(plan.feed, plan.start), options, None)
        except FeedmuxError as error:
            raise as_pymongo(error, opening=True) from error
        super().__init__(plan, self._session)
        self._undecoded: dict[int, Event] = {}
        """By thread, an event that it has taken and not returned."""
        self._no_event()

    def next(self) -> Any:
        """Return the next change, however long it takes.

        Raises StopIteration after `close()` or an invalidate, OperationFailure for what MongoDB rejected; then the
        stream is closed.
        """
        if self.alive:
            document = self._step(None)
            if document is not None:
                return document
        raise StopIteration

    def try_next(self) -> Any | None:
        """Return the next change if it arrives within `max_await_time_ms` (default 1 s), else None."""
        wait_s, self._wait_s = self._wait_s, self._await_s
        return self._step(wait_s) if self.alive else None

    def close(self) -> None:
        """End the stream. A thread that waits in `next` gets StopIteration."""
        self._session.close()

    def __iter__(self) -> Self:
        return self

    __next__ = next

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self, timeout_s: float | None) -> Any | None:
        thread = get_ident()
        try:
            # A signal handler may raise while the event is decoded: then it comes again.
            event = self._undecoded.get(thread) or self._session.next(timeout_s)
            self._undecoded[thread] = event
            document = event.document
        except (TimeoutError, FeedInvalidated, StopIteration):
            self._no_event()
            return None
        except FeedmuxError as error:
            self.close()
            raise as_pymongo(error) from error
        except BSONError:
            # The position stays before the event that cannot be decoded.
            self.close()
            raise
        self._event = event
        del self._undecoded[thread]
        return document


class Watchable(WatchTarget):
    """Provides `watch` for client, database and collection."""

    def watch(
        self,
        pipeline: Sequence[Mapping[str, Any]] | None = None,
        full_document: str | None = None,
        resume_after: Mapping[str, Any] | None = None,
        max_await_time_ms: int | None = None,
        batch_size: int | None = None,
        collation: Any | None = None,
        start_at_operation_time: Timestamp | None = None,
        session: ClientSession | None = None,
        start_after: Mapping[str, Any] | None = None,
        comment: Any | None = None,
        full_document_before_change: str | None = None,
        show_expanded_events: bool | None = None,
    ) -> ChangeStream:
        """Open a change stream, as pymongo's `watch` does; docs/pymongo-compatibility.md lists the few differences.

        Raises OperationFailure, with MongoDB's code and labels, for what MongoDB rejects; PyMongoError.
        """
        plan = watch_plan(
            self,
            ClientSession,
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
        return ChangeStream(self._api, plan)


class Collection(CollectionTarget["Database"], Watchable):
    """A collection to watch."""


class Database(DatabaseTarget[Watchable, Collection], Watchable):
    """A database to watch."""

    _collection_class = Collection


class WatchClient(ClientTarget[Database], Watchable):
    """The part of pymongo's client interface that feedmux clients have."""

    _database_class = Database
