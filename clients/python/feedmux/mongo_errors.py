"""The client's errors as pymongo would have raised them, with MongoDB's code, code name and labels."""

from collections.abc import Mapping
from typing import Any, Final

from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from feedmux.errors import FeedmuxError, Unavailable

_CODES: Final[Mapping[str, tuple[int, str]]] = {
    "HISTORY_LOST": (286, "ChangeStreamHistoryLost"),
    "START_AFTER_REQUIRED": (260, "InvalidResumeToken"),
    "RESUME_TOKEN_NOT_FOUND": (280, "ChangeStreamFatalError"),
    "RESUME_TOKEN_MODIFIED": (280, "ChangeStreamFatalError"),
    "IMAGE_UNAVAILABLE": (47, "NoMatchingDocument"),
    "EVENT_TOO_LARGE": (10334, "BSONObjectTooLarge"),
    "STAGE_NOT_ALLOWED": (20, "IllegalOperation"),
    "PIPELINE_INVALID": (14, "TypeMismatch"),
    "UNAUTHENTICATED": (18, "AuthenticationFailed"),
    "NAMESPACE_DENIED": (13, "Unauthorized"),
    "SOURCE_UNAUTHORIZED": (13, "Unauthorized"),
    "METHOD_DENIED": (13, "Unauthorized"),
}
"""What MongoDB would have said, where the error does not carry its words."""

_NON_RESUMABLE = "NonResumableChangeStreamError"


def as_pymongo(error: FeedmuxError) -> PyMongoError:
    """OperationFailure for what MongoDB refused, AutoReconnect for what was away, else PyMongoError."""
    code, name = _CODES.get(error.reason, (0, ""))
    said = error.metadata.get("code", "")
    if said.lstrip("-").isdigit():
        code, name = int(said), error.metadata.get("code_name", name)
    labels = [label for label in error.metadata.get("labels", "").split(",") if label]
    if not labels and error.reason == "HISTORY_LOST":
        labels = [_NON_RESUMABLE]
    if code:
        details: dict[str, Any] = {"ok": 0.0, "errmsg": error.message, "code": code, "codeName": name}
        if labels:
            details["errorLabels"] = labels
        return OperationFailure(error.message, code, details)
    if isinstance(error, Unavailable):
        return AutoReconnect(str(error))
    return PyMongoError(str(error), labels)
