"""Converts the client's errors into pymongo's: with MongoDB's message, code, code name and labels if it rejected the
request, else with the code that MongoDB would send and the server's message."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pymongo.errors import (
    AutoReconnect,
    CursorNotFound,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from feedmux.errors import (
    FailedPrecondition,
    FeedmuxError,
    InvalidArgument,
    OutOfRange,
    SessionClosed,
    Unavailable,
)

_CODES: Final[Mapping[str, tuple[int, str]]] = {
    "HISTORY_LOST": (286, "ChangeStreamHistoryLost"),
    "TIMELINE_FORKED": (286, "ChangeStreamHistoryLost"),
    "START_AFTER_REQUIRED": (260, "InvalidResumeToken"),
    "POSITION_INVALID": (260, "InvalidResumeToken"),
    "POSITION_FOREIGN": (260, "InvalidResumeToken"),
    "RESUME_TOKEN_NOT_FOUND": (280, "ChangeStreamFatalError"),
    "RESUME_TOKEN_MODIFIED": (280, "ChangeStreamFatalError"),
    "IMAGE_UNAVAILABLE": (47, "NoMatchingDocument"),
    "EVENT_TOO_LARGE": (10334, "BSONObjectTooLarge"),
    "STAGE_NOT_ALLOWED": (20, "IllegalOperation"),
    "NAME_INVALID": (73, "InvalidNamespace"),
    "UNAUTHENTICATED": (18, "AuthenticationFailed"),
    "NAMESPACE_DENIED": (13, "Unauthorized"),
    "SOURCE_UNAUTHORIZED": (13, "Unauthorized"),
    "METHOD_DENIED": (13, "Unauthorized"),
}
"""MongoDB's messages for errors that do not carry one."""

_BAD_VALUE: Final = (2, "BadValue")
_NON_RESUMABLE = "NonResumableChangeStreamError"
_KINDS: Final[Mapping[int, type[OperationFailure]]] = {43: CursorNotFound, 50: ExecutionTimeout}


def failure(code: int, code_name: str, message: str, labels: Sequence[str] = ()) -> OperationFailure:
    """Return the exception that pymongo makes from a reply of MongoDB with these facts."""
    details: dict[str, Any] = {"ok": 0.0, "errmsg": message, "code": code, "codeName": code_name}
    if labels:
        details["errorLabels"] = list(labels)
    return _KINDS.get(code, OperationFailure)(message, code, details)


def as_pymongo(error: FeedmuxError, *, opening: bool = False) -> PyMongoError:
    """Return pymongo's exception for an error of the client.

    OperationFailure for a rejected request, AutoReconnect if the server or MongoDB was unavailable, InvalidOperation
    for a closed client, else PyMongoError.
    """
    labels = [label for label in error.metadata.get("labels", "").split(",") if label]
    said = error.metadata.get("code", "")
    if said.lstrip("-").isdigit():
        code, name = int(said), error.metadata.get("code_name", "")
        message = error.metadata.get("errmsg", error.message)
    elif isinstance(error, SessionClosed):
        return InvalidOperation("Cannot use MongoClient after close")
    elif isinstance(error, Unavailable):
        return ServerSelectionTimeoutError(str(error)) if opening else AutoReconnect(str(error))
    else:
        refused = isinstance(error, InvalidArgument | OutOfRange | FailedPrecondition)
        code, name = _CODES.get(error.reason, _BAD_VALUE if refused else (0, ""))
        message = error.message
        if error.reason in ("HISTORY_LOST", "TIMELINE_FORKED"):
            labels = [_NON_RESUMABLE]
    return failure(code, name, message, labels) if code else PyMongoError(str(error), labels)
