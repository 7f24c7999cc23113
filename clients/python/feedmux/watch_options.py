"""pymongo's `watch` arguments, checked as pymongo checks them, as a feed and a start. Shared by both interfaces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp
from pymongo.errors import ConfigurationError

from feedmux.feeds import Feed, Start
from feedmux.options import SessionOptions

DEFAULT_AWAIT_S = 1.0
"""What MongoDB waits in a getMore without max_await_time_ms."""


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """A `watch` call."""

    feed: Feed
    start: Start | None
    given_token: Mapping[str, Any] | None
    await_s: float

    def session_options(self, base: SessionOptions, codec_options: CodecOptions[Any]) -> SessionOptions:
        """The options of the session beneath."""
        return replace(base, codec_options=codec_options, format="bson")


def watch_plan(
    database: str | None,
    collection: str | None,
    *,
    pipeline: Sequence[Mapping[str, Any]] | None,
    full_document: str | None,
    resume_after: Mapping[str, Any] | None,
    max_await_time_ms: int | None,
    batch_size: int | None,
    collation: Any,
    start_at_operation_time: Timestamp | None,
    session: Any,
    start_after: Mapping[str, Any] | None,
    comment: Any,
    full_document_before_change: str | None,
    show_expanded_events: bool | None,
) -> WatchPlan:
    """Raises TypeError and ValueError as pymongo does, ConfigurationError for a session."""
    if session is not None:
        raise ConfigurationError("feedmux reads with a session of its own: leave out `session`")
    if pipeline is not None and not isinstance(pipeline, list):
        raise TypeError(f"pipeline must be a list, not {type(pipeline).__name__}")
    for name, text in (
        ("full_document", full_document),
        ("full_document_before_change", full_document_before_change),
    ):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{name} must be a string or None, not {type(text).__name__}")
    for name, number in (("max_await_time_ms", max_await_time_ms), ("batch_size", batch_size)):
        if number is not None and not isinstance(number, int):
            raise TypeError(f"{name} must be an integer, not {type(number).__name__}")
        if number is not None and number < 0:
            raise ValueError(f"{name} must be 0 or more")
    if start_at_operation_time is not None and not isinstance(start_at_operation_time, Timestamp):
        raise TypeError("start_at_operation_time must be a bson.Timestamp")
    feed = Feed(
        database,
        collection,
        pipeline,
        full_document=full_document,
        full_document_before_change=full_document_before_change,
        show_expanded_events=bool(show_expanded_events),
        # pymongo's Collation knows its document.
        collation=getattr(collation, "document", collation),
        comment=comment,
        batch_size=batch_size or 0,
        max_await_time_ms=max_await_time_ms or 0,
    )
    # Of several starts pymongo sends one, in this order.
    start: Start | None = None
    if start_after is not None:
        start = Start.start_after(start_after)
    elif resume_after is not None:
        start = Start.resume_after(resume_after)
    elif start_at_operation_time is not None:
        start = Start.operation_time(start_at_operation_time)
    await_s = max_await_time_ms / 1000 if max_await_time_ms else DEFAULT_AWAIT_S
    return WatchPlan(feed, start, start_after if start_after is not None else resume_after, await_s)
