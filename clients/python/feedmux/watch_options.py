"""Turns the arguments of pymongo's `watch` into a feed and a start.

Shared by both interfaces. The checks that pymongo makes run pymongo's own code; what MongoDB rejects and feedmux's
protocol cannot carry is rejected here as an OperationFailure.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import common
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.collation import validate_collation_or_none
from pymongo.errors import ConfigurationError, InvalidOperation
from pymongo.read_preferences import _ServerMode

from feedmux.feeds import Feed, FullDocument, FullDocumentBeforeChange, ReadPreference, Start
from feedmux.mongo_errors import failure
from feedmux.options import SessionOptions
from feedmux.watch_target import WatchTarget

DEFAULT_AWAIT_S: Final = 1.0
"""How long MongoDB waits in a getMore without max_await_time_ms."""
_INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """The checked arguments of a `watch` call."""

    feed: Feed
    start: Start | None
    given_token: Mapping[str, Any] | None
    await_s: float
    codec_options: CodecOptions[Any]

    def session_options(self, base: SessionOptions) -> SessionOptions:
        """Return the options of the underlying session."""
        return replace(base, codec_options=self.codec_options, format="bson")


def watch_plan(
    target: WatchTarget,
    session_kind: type[ClientSession] | type[AsyncClientSession],
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
    """Check the arguments, and raise as pymongo does.

    Raises TypeError, ValueError, InvalidDocument, InvalidOperation or OperationFailure, and ConfigurationError for a
    read preference with more than a mode.
    """
    stages = common.validate_list("pipeline", [] if pipeline is None else pipeline)
    common.validate_string_or_none("full_document", full_document)
    collation_document = validate_collation_or_none(collation)
    batch = common.validate_non_negative_integer_or_none("batchSize", batch_size)
    _check_no_bool("batch_size", batch)
    codec = target.codec_options
    _check_session(session, session_kind)
    # Of several starts pymongo sends one; resume_after replaces an empty start_after, which still decides the kind.
    token = copy.deepcopy(start_after or resume_after)
    start: Start | None = None
    if token is not None:
        _check_type("a resume token", token, Mapping)
        make = Start.start_after if start_after is not None else Start.resume_after
        start = make(RawBSONDocument(bson.encode(token, codec_options=codec)))
    elif start_at_operation_time is not None:
        _check_type("start_at_operation_time", start_at_operation_time, Timestamp)
        start = Start.operation_time(start_at_operation_time)
    _check_type("full_document_before_change", full_document_before_change, str)
    if full_document == "" or full_document_before_change == "":  # On the wire, this is an omitted option.
        raise failure(2, "BadValue", "full_document and full_document_before_change cannot be empty")
    if show_expanded_events:  # pymongo does not send what is false in Python
        _check_type("show_expanded_events", show_expanded_events, bool)
    if max_await_time_ms is not None:
        if not isinstance(max_await_time_ms, int):
            raise TypeError(f"max_await_time_ms must be an integer or None, not {type(max_await_time_ms)}")
        _check_no_bool("max_await_time_ms", max_await_time_ms)
        if not 0 <= max_await_time_ms <= _INT32_MAX:
            raise failure(2, "BadValue", f"{max_await_time_ms} value for maxTimeMS is out of range")
    for stage in stages:
        _check_type("a stage of the pipeline", stage, Mapping)
    database, collection = target._scope
    feed = Feed(
        database,
        collection,
        _encoded(stages, codec) if stages else None,
        # pymongo leaves it to MongoDB to reject other values.
        full_document=cast("FullDocument | None", full_document),
        full_document_before_change=cast("FullDocumentBeforeChange | None", full_document_before_change),
        show_expanded_events=bool(show_expanded_events),
        collation=collation_document,
        comment=_encoded(comment, codec),
        batch_size=min(batch or 0, _INT32_MAX),
        max_await_time_ms=int(max_await_time_ms or 0),
        read_preference=_mode(target._chosen_preference),
        read_concern=target.read_concern.level,
    )
    await_s = DEFAULT_AWAIT_S if max_await_time_ms is None else max_await_time_ms / 1000
    return WatchPlan(feed, start, token, await_s, codec)


def _check_type(what: str, value: Any, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise failure(14, "TypeMismatch", f"{what} is a {kind.__name__}, not a {type(value).__name__}")


def _check_no_bool(what: str, value: int | None) -> None:
    """pymongo takes a bool for an integer, and MongoDB does not."""
    if isinstance(value, bool):
        raise failure(14, "TypeMismatch", f"{what} is a number, not a bool")


def _check_session(session: Any, kind: type[ClientSession] | type[AsyncClientSession]) -> None:
    """Reject the sessions that pymongo and MongoDB reject.

    A change stream needs no session for causal consistency: feedmux asks the primary for its time after `watch` was
    called, so that no write acknowledged before the call appears as an event.
    """
    if session is None:
        return
    if not isinstance(session, kind):
        raise ValueError(f"'session' argument must be of type {kind.__name__} or None, not {type(session)}")
    if session.has_ended:
        raise InvalidOperation("Cannot use ended session")
    if session.in_transaction:
        raise failure(263, "OperationNotSupportedInTransaction", "a change stream cannot run in a transaction")
    if session.options.snapshot:
        raise failure(72, "InvalidOptions", "a change stream cannot run in a snapshot session")


def _encoded(value: Any, codec_options: CodecOptions[Any]) -> Any:
    """Encode with the target's options (UUIDs, custom types), so that later steps do not need them."""
    return RawBSONDocument(bson.encode({"": value}, codec_options=codec_options), DEFAULT_RAW_BSON_OPTIONS)[""]


def _mode(preference: _ServerMode | None) -> ReadPreference | None:
    if preference is None:
        return None
    if any(preference.tag_sets) or preference.max_staleness != -1 or preference.hedge:
        raise ConfigurationError(
            "feedmux takes the mode of a read preference, not tag sets, max_staleness or hedge: put them into the URI"
            " of the server's source"
        )
    return cast("ReadPreference", preference.mongos_mode)
