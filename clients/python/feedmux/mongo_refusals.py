"""Rejects `watch` arguments that MongoDB rejects and feedmux's protocol cannot carry, with MongoDB's messages.

`watch_options` calls these checks, `mongo_errors` makes the exceptions. The messages are those of mongod 6.0.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.errors import InvalidOperation

from feedmux.mongo_errors import failure

_BSON_TYPES: Final[Mapping[int, str]] = {
    1: "double",
    2: "string",
    3: "object",
    4: "array",
    5: "binData",
    7: "objectId",
    8: "bool",
    9: "date",
    11: "regex",
    16: "int",
    17: "timestamp",
    18: "long",
    19: "decimal",
}
_INT32_MAX: Final = 2**31 - 1
_INTERNAL_DATABASES: Final = ("admin", "local", "config")


def check_namespace(database: str | None, collection: str | None) -> None:
    """Reject MongoDB's internal databases and collections."""
    if database in _INTERNAL_DATABASES:
        what = f"{database} database"
    elif collection and collection.startswith("system."):
        what = f"{database}.{collection} collection"
    else:
        return
    raise failure(73, "InvalidNamespace", f"$changeStream may not be opened on the internal {what}")


def check_stages(stages: Sequence[Any]) -> None:
    """Reject stages that do not have the form of a stage."""
    for stage in stages:
        if not isinstance(stage, Mapping):
            raise failure(14, "TypeMismatch", "Each element of the 'pipeline' array must be an object")
        if len(stage) != 1:
            message = "A pipeline stage specification object must contain exactly one field."
            raise failure(40323, "Location40323", message)


def check_await(max_await_time_ms: Any) -> None:
    """Check max_await_time_ms: its type as pymongo does, its range as MongoDB does."""
    if max_await_time_ms is None:
        return
    if not isinstance(max_await_time_ms, int):
        raise TypeError(f"max_await_time_ms must be an integer or None, not {type(max_await_time_ms)}")
    if not 0 <= max_await_time_ms <= _INT32_MAX:
        raise failure(2, "BadValue", f"{int(max_await_time_ms)} value for maxTimeMS is out of range")


def check_type(option: str, value: Any, kind: type, expected: str, codec_options: CodecOptions[Any]) -> None:
    """Reject an option whose type is not the one MongoDB expects."""
    if value is not None and not isinstance(value, kind):
        found = _type_name(value, codec_options)
        message = f"BSON field '$changeStream.{option}' is the wrong type '{found}', expected type '{expected}'"
        raise failure(14, "TypeMismatch", message)


def check_not_empty(option: str, value: Any) -> None:
    """Reject an empty string, which on the wire would look like an omitted option."""
    if value == "":
        raise failure(2, "BadValue", f"Enumeration value '' for field '$changeStream.{option}' is not a valid value.")


def check_expanded(value: Any, codec_options: CodecOptions[Any]) -> None:
    """Check showExpandedEvents, which pymongo sends only if it is true in Python."""
    if value and not isinstance(value, bool):
        found = _type_name(value, codec_options)
        message = f"Field 'showExpandedEvents' should be a boolean value, but found: {found}"
        raise failure(14, "TypeMismatch", message)


def check_token(option: str, token: Any, codec_options: CodecOptions[Any]) -> None:
    """Reject an invalid resume token. Unlike MongoDB, the message does not quote the token, which may hold a key."""
    check_type(option, token, Mapping, "object", codec_options)
    data = token.get("_data")
    if not isinstance(data, str | bytes):
        message = "Bad resume token: _data of missing or of wrong type. Expected string"
        raise failure(40647, "Location40647", message)
    if not data:
        raise failure(40649, "Location40649", "invalid empty resume token")
    if isinstance(data, str):
        try:
            bytes.fromhex(data)
        except ValueError:
            raise failure(9, "FailedToParse", "resume token string was not a valid hex string") from None


def check_operation_time(value: Any, codec_options: CodecOptions[Any]) -> None:
    """Reject a start that is not a timestamp."""
    check_type("startAtOperationTime", value, Timestamp, "timestamp", codec_options)


def check_session(session: Any, kind: type[ClientSession] | type[AsyncClientSession]) -> None:
    """Reject the sessions that pymongo and MongoDB reject.

    A change stream needs no session for causal consistency: feedmux asks the primary for its time after `watch` was
    called, so that no write acknowledged before the call appears as an event.
    """
    if session is None:
        return
    if not isinstance(session, kind):
        a_kind = "an AsyncClientSession" if kind is AsyncClientSession else "a ClientSession"
        raise ValueError(f"'session' argument must be {a_kind} or None, not {type(session)}")
    if session.has_ended:
        raise InvalidOperation("Cannot use ended session")
    if session.in_transaction:
        message = (
            "Operation not permitted in transaction :: caused by :: Aggregation stage $changeStream cannot run within"
            " a multi-document transaction."
        )
        raise failure(263, "OperationNotSupportedInTransaction", message)
    if session.options.snapshot:
        message = (
            'Command aggregate does not support { readConcern: { level: "snapshot", provenance: "clientSupplied" } }'
            " :: caused by :: Aggregation stage $changeStream cannot run with a readConcern other than 'majority'."
            " Current readConcern: snapshot"
        )
        raise failure(72, "InvalidOptions", message)


def _type_name(value: Any, codec_options: CodecOptions[Any]) -> str:
    kind = bson.encode({"": value}, codec_options=codec_options)[4]
    return _BSON_TYPES.get(kind, str(kind))
