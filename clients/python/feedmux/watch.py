"""pymongo's interface: `client[database][collection].watch(…)` and its ChangeStream, over a Session.

Follows pymongo 4.20's `change_stream.py`, `collection.py` and `database.py`; docs/pymongo-compatibility.md says where
not. `async_watch` is the same for the asynchronous interface.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.timestamp import Timestamp
from pymongo.client_session import ClientSession
from pymongo.errors import ConfigurationError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import _ServerMode
from pymongo.write_concern import WriteConcern

from feedmux.api import Api
from feedmux.errors import FeedInvalidated, FeedmuxError
from feedmux.mongo_errors import as_pymongo
from feedmux.session import Session
from feedmux.watch_options import WatchPlan, watch_plan
from feedmux.watch_state import WatchState
from feedmux.watch_target import CollectionTarget, DatabaseTarget, WatchTarget, no_attribute


class ChangeStream(WatchState):
    """pymongo's ChangeStream: an iterator of change documents. Made by `watch`."""

    def __init__(self, api: Api, plan: WatchPlan) -> None:
        """Opens the stream; returns when MongoDB has accepted it. Raises PyMongoError."""
        options = plan.session_options(api.settings.session)
        try:
            self._session = Session(api.link, api.feed_opening(plan.feed, plan.start), options, None)
        except FeedmuxError as error:
            raise as_pymongo(error, opening=True) from error
        super().__init__(plan, self._session)
        self._no_event()

    def next(self) -> Any:
        """The next change, however long it takes.

        Raises StopIteration after `close()` or an invalidate, OperationFailure for what MongoDB refused; then the
        stream is closed.
        """
        if self.alive:
            document = self._step(None)
            if document is not None:
                return document
        raise StopIteration

    def try_next(self) -> Any | None:
        """The next change if it comes within `max_await_time_ms` (1 s), else None."""
        wait_s, self._wait_s = self._wait_s, self._await_s
        return self._step(wait_s) if self.alive else None

    def close(self) -> None:
        """Ends the stream; whoever waits in `next`, in whatever thread, gets StopIteration."""
        self._session.close()

    def __iter__(self) -> Self:
        return self

    __next__ = next

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self, timeout_s: float | None) -> Any | None:
        try:
            event = self._session.next(timeout_s)
            document = event.document
        except TimeoutError:
            self._no_event()
            return None
        except (FeedInvalidated, StopIteration):
            self._no_event()
            return None
        except FeedmuxError as error:
            self.close()
            raise as_pymongo(error) from error
        except BSONError:
            # The place stays before the event that cannot be decoded.
            self.close()
            raise
        self._event = event
        return document


class Watchable(WatchTarget):
    """`watch`, for client, database and collection."""

    _scope: tuple[str | None, str | None] = None, None

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
        """As pymongo's `watch`; docs/pymongo-compatibility.md has the few differences.

        Raises OperationFailure, with MongoDB's code and labels, for what MongoDB refuses; PyMongoError.
        """
        plan = watch_plan(
            self._options,
            *self._scope,
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


class Collection(CollectionTarget, Watchable):
    """A collection to watch."""

    _database: "Database"

    @property
    def _scope(self) -> tuple[str, str]:  # type: ignore[override]
        return self._database.name, self._name

    @property
    def database(self) -> "Database":
        """The database it is in."""
        return self._database

    def with_options(
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> "Collection":
        """The same collection with other options."""
        options = self._options.having(codec_options, read_preference, write_concern, read_concern)
        return Collection(self._database, self._name, options)

    def __getitem__(self, name: str) -> "Collection":
        return Collection(self._database, f"{self._name}.{name}", self._options)

    def __getattr__(self, name: str) -> "Collection":
        if name.startswith("_"):
            raise no_attribute(self, name, f"{self._name}.{name}")
        return self[name]


class Database(DatabaseTarget, Watchable):
    """A database to watch."""

    _client: Watchable

    @property
    def _scope(self) -> tuple[str, None]:  # type: ignore[override]
        return self._name, None

    @property
    def client(self) -> Watchable:
        """The client it belongs to."""
        return self._client

    def with_options(
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> "Database":
        """The same database with other options."""
        options = self._options.having(codec_options, read_preference, write_concern, read_concern)
        return Database(self._client, self._name, options)

    def get_collection(
        self,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> Collection:
        """A collection, with options of its own."""
        options = self._options.having(codec_options, read_preference, write_concern, read_concern)
        return Collection(self, name, options)

    def __getitem__(self, name: str) -> Collection:
        return Collection(self, name, self._options)

    def __getattr__(self, name: str) -> Collection:
        if name.startswith("_"):
            raise no_attribute(self, name, name)
        return self[name]


class WatchClient(Watchable):
    """What a client has of pymongo's."""

    def get_database(
        self,
        name: str | None = None,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> Database:
        """A database, with options of its own. As there is no URI to name one, it has to be named."""
        if name is None:
            raise ConfigurationError("No default database defined")
        options = self._options.having(codec_options, read_preference, write_concern, read_concern)
        return Database(self, name, options)

    def __getitem__(self, name: str) -> Database:
        return Database(self, name, self._options)

    def __getattr__(self, name: str) -> Database:
        if name.startswith("_"):
            raise no_attribute(self, name, name)
        return self[name]
