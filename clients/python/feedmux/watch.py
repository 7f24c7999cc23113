"""pymongo's interface: `client[database][collection].watch(…)` and its ChangeStream, over a Session.

Follows pymongo 4's `change_stream.py`: arguments, iteration, `resume_token` and exceptions.
"""

import copy
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp

from feedmux.api import Api
from feedmux.errors import FeedInvalidated, FeedmuxError
from feedmux.mongo_errors import as_pymongo
from feedmux.session import Session
from feedmux.watch_options import WatchPlan, watch_plan


class ChangeStream:
    """pymongo's ChangeStream: an iterator of change documents."""

    def __init__(self, api: Api, plan: WatchPlan, codec_options: CodecOptions[Any]) -> None:
        options = plan.session_options(api.settings.session, codec_options)
        self._await_s = plan.await_s
        self._given_token = plan.given_token
        try:
            self._session = Session(api.link, api.feed_opening(plan.feed, plan.start), options, None)
        except FeedmuxError as error:
            raise as_pymongo(error) from error

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        """The token to resume after: of the last document returned, or a later one where all have been returned."""
        token = self._session.resume_token
        return copy.deepcopy(self._given_token if token is None else token)

    @property
    def alive(self) -> bool:
        """Whether `next` may still return a document."""
        return not self._session.closed

    def next(self) -> Any:
        """The next change, however long it takes. Raises StopIteration after `close()` or an invalidate."""
        return self._next(None)

    def try_next(self) -> Any | None:
        """The next change if it comes within `max_await_time_ms` (1 s), else None."""
        try:
            return self._next(self._await_s)
        except (TimeoutError, StopIteration):
            return None

    def close(self) -> None:
        """Ends the stream."""
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

    def _next(self, timeout_s: float | None) -> Any:
        try:
            return self._session.next(timeout_s).document
        except FeedInvalidated:
            raise StopIteration from None
        except FeedmuxError as error:
            raise as_pymongo(error) from error


class Watcher:
    """What every `watch()` of a client needs."""

    def __init__(self, api: Api) -> None:
        self.api = api


class WatchMixin:
    """`watch` and the codec options, for client, database and collection."""

    def __init__(
        self,
        watcher: Watcher,
        codec_options: CodecOptions[Any],
        database: str | None = None,
        collection: str | None = None,
    ) -> None:
        self._watcher = watcher
        self._database_name = database
        self._collection_name = collection
        self.codec_options = codec_options

    def watch(
        self,
        pipeline: Sequence[Mapping[str, Any]] | None = None,
        full_document: str | None = None,
        resume_after: Mapping[str, Any] | None = None,
        max_await_time_ms: int | None = None,
        batch_size: int | None = None,
        collation: Any = None,
        start_at_operation_time: Timestamp | None = None,
        session: Any = None,
        start_after: Mapping[str, Any] | None = None,
        comment: Any = None,
        full_document_before_change: str | None = None,
        show_expanded_events: bool | None = None,
    ) -> ChangeStream:
        """As pymongo's `watch`. `session` must be None: feedmux reads with a session of its own.

        Raises OperationFailure, with MongoDB's code and labels, for what MongoDB refuses; PyMongoError.
        """
        plan = watch_plan(
            self._database_name,
            self._collection_name,
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
        return ChangeStream(self._watcher.api, plan, self.codec_options)


class Collection(WatchMixin):
    """A collection to watch."""

    def __init__(self, watcher: Watcher, database: str, name: str, codec_options: CodecOptions[Any]) -> None:
        super().__init__(watcher, codec_options, database, name)
        self.name = name
        self.full_name = f"{database}.{name}"
        self._database = database

    def with_options(self, codec_options: CodecOptions[Any] | None = None) -> "Collection":
        """The same collection, read with other codec options."""
        return Collection(self._watcher, self._database, self.name, codec_options or self.codec_options)

    def __getitem__(self, name: str) -> "Collection":
        return Collection(self._watcher, self._database, f"{self.name}.{name}", self.codec_options)

    def __getattr__(self, name: str) -> "Collection":
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]


class Database(WatchMixin):
    """A database to watch."""

    def __init__(self, watcher: Watcher, name: str, codec_options: CodecOptions[Any]) -> None:
        super().__init__(watcher, codec_options, name)
        self.name = name

    def with_options(self, codec_options: CodecOptions[Any] | None = None) -> "Database":
        """The same database, read with other codec options."""
        return Database(self._watcher, self.name, codec_options or self.codec_options)

    def get_collection(self, name: str, codec_options: CodecOptions[Any] | None = None) -> Collection:
        """A collection."""
        return Collection(self._watcher, self.name, name, codec_options or self.codec_options)

    def __getitem__(self, name: str) -> Collection:
        return self.get_collection(name)

    def __getattr__(self, name: str) -> Collection:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]
