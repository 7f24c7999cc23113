"""pymongo's exceptions as the facts that `core.delivery.resume_policy` judges."""

from typing import Literal

from bson.errors import BSONError
from pymongo.errors import AutoReconnect, ConnectionFailure, OperationFailure, PyMongoError, WaitQueueTimeoutError

from feedmux_server.core.delivery.resume_policy import MongoFailure, Verdict, classify
from feedmux_server.core.errors import ErrorReason, FeedmuxError

UNAUTHORIZED = 13
_LABELS_WIRE_VERSION = 9
"""MongoDB 4.4, from which on the server labels resumable errors; older ones are not supported."""
_MESSAGE_CHARS_MAX = 10_000
"""MongoDB's messages may quote values of documents and pipelines, of up to 16 MB. The error itself comes first."""

_WHY_CHARS_MAX = 200


def judge(error: PyMongoError, during: Literal["aggregate", "getMore"]) -> Verdict:
    """Decide what to do after `error`."""
    return classify(_facts(error, during))


def rejects_login(error: PyMongoError) -> bool:
    """Whether feedmux could not log in to MongoDB."""
    return _facts(error, "aggregate").rejects_login


def why_rejected(error: PyMongoError) -> str:
    """Why feedmux could not log in: MongoDB's name of the error, or what the driver says."""
    if isinstance(error, OperationFailure) and error.code is not None:
        return f"{kind_of(error)}, code {error.code}"
    return str(error)[:_WHY_CHARS_MAX]


def as_error(error: PyMongoError | BSONError, who: str, retry_after_s: float) -> FeedmuxError:
    """Turn an error of a plain command (ping, a check of the oplog) into the error that the client sees."""
    if isinstance(error, OperationFailure):
        return judge(error, "aggregate").error
    if isinstance(error, BSONError):  # its text may quote what somebody wrote
        said = f"MongoDB of {who} has sent an answer that cannot be decoded ({type(error).__name__})"
        return FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, said, retry_after_s=retry_after_s)
    return FeedmuxError(
        ErrorReason.SOURCE_UNAVAILABLE, f"MongoDB of {who} cannot be reached now", retry_after_s=retry_after_s
    )


def kind_of(error: PyMongoError) -> str:
    """A short name for statistics: MongoDB's own, or the driver's class."""
    details = error.details if isinstance(error, OperationFailure | AutoReconnect) else None
    name = details.get("codeName") if isinstance(details, dict) else None
    return str(name or type(error).__name__)


def _facts(error: PyMongoError, during: Literal["aggregate", "getMore"]) -> MongoFailure:
    details = error.details if isinstance(error, OperationFailure) else None
    labels = frozenset(str(label) for label in (details or {}).get("errorLabels", ()))
    return MongoFailure(
        code=error.code if isinstance(error, OperationFailure) else None,
        code_name=str((details or {}).get("codeName", "")),
        message=str((details or {}).get("errmsg", error))[:_MESSAGE_CHARS_MAX],
        labels=labels,
        network=isinstance(error, ConnectionFailure | WaitQueueTimeoutError),
        during=during,
        wire_version=_LABELS_WIRE_VERSION,
    )
