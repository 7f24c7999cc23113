"""The one error tree of the server: a reason, a message for the user, and facts.

Every refusal and every end of a stream is a `FeedmuxError`; `rpc` turns it into a gRPC status with
`google.rpc.ErrorInfo` by the table below, and nothing else decides a status code.
The reasons are those of `ErrorReason` in proto/feedmux/v1/errors.proto, without the prefix.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class ErrorReason(StrEnum):
    POSITION_INVALID = "POSITION_INVALID"
    POSITION_FOREIGN = "POSITION_FOREIGN"
    START_CONFLICT = "START_CONFLICT"
    PIPELINE_INVALID = "PIPELINE_INVALID"
    STAGE_NOT_ALLOWED = "STAGE_NOT_ALLOWED"
    NAME_INVALID = "NAME_INVALID"
    CREDIT_INVALID = "CREDIT_INVALID"
    ACK_OUT_OF_RANGE = "ACK_OUT_OF_RANGE"
    OPEN_REQUIRED = "OPEN_REQUIRED"
    MESSAGE_INVALID = "MESSAGE_INVALID"
    BSON_INVALID = "BSON_INVALID"
    OPTION_REFUSED = "OPTION_REFUSED"
    RESUME_TOKEN_MODIFIED = "RESUME_TOKEN_MODIFIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    NAMESPACE_DENIED = "NAMESPACE_DENIED"
    SOURCE_UNAUTHORIZED = "SOURCE_UNAUTHORIZED"
    METHOD_DENIED = "METHOD_DENIED"
    SUBSCRIPTION_NOT_FOUND = "SUBSCRIPTION_NOT_FOUND"
    SOURCE_NOT_FOUND = "SOURCE_NOT_FOUND"
    SUBSCRIBER_NOT_FOUND = "SUBSCRIBER_NOT_FOUND"
    DEAD_LETTER_NOT_FOUND = "DEAD_LETTER_NOT_FOUND"
    SUBSCRIPTION_EXISTS = "SUBSCRIPTION_EXISTS"
    HISTORY_LOST = "HISTORY_LOST"
    START_IN_FUTURE = "START_IN_FUTURE"
    EVENT_TOO_LARGE = "EVENT_TOO_LARGE"
    TIMELINE_FORKED = "TIMELINE_FORKED"
    START_AFTER_REQUIRED = "START_AFTER_REQUIRED"
    IMAGE_UNAVAILABLE = "IMAGE_UNAVAILABLE"
    RESUME_TOKEN_NOT_FOUND = "RESUME_TOKEN_NOT_FOUND"
    FEED_INVALIDATED = "FEED_INVALIDATED"
    PIPELINE_FAILED = "PIPELINE_FAILED"
    SUBSCRIPTION_BUSY = "SUBSCRIPTION_BUSY"
    SOURCE_UNSUITABLE = "SOURCE_UNSUITABLE"
    ETAG_MISMATCH = "ETAG_MISMATCH"
    FEED_CHANGED = "FEED_CHANGED"
    SNAPSHOT_UNSUITABLE = "SNAPSHOT_UNSUITABLE"
    FENCED = "FENCED"
    ENDED_BY_OPERATOR = "ENDED_BY_OPERATOR"
    GRANTS_CHANGED = "GRANTS_CHANGED"
    GROUP_MISMATCH = "GROUP_MISMATCH"
    GROUP_UNSUITABLE = "GROUP_UNSUITABLE"
    DEAD_LETTERS_UNAVAILABLE = "DEAD_LETTERS_UNAVAILABLE"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    DRAINING = "DRAINING"
    SOURCE_UNAVAILABLE = "SOURCE_UNAVAILABLE"
    STATE_UNAVAILABLE = "STATE_UNAVAILABLE"
    GROUP_ELSEWHERE = "GROUP_ELSEWHERE"
    INTERNAL = "INTERNAL"


_BY_STATUS: Final[Mapping[str, tuple[ErrorReason, ...]]] = {
    "INVALID_ARGUMENT": (
        ErrorReason.POSITION_INVALID,
        ErrorReason.POSITION_FOREIGN,
        ErrorReason.START_CONFLICT,
        ErrorReason.PIPELINE_INVALID,
        ErrorReason.STAGE_NOT_ALLOWED,
        ErrorReason.NAME_INVALID,
        ErrorReason.CREDIT_INVALID,
        ErrorReason.ACK_OUT_OF_RANGE,
        ErrorReason.OPEN_REQUIRED,
        ErrorReason.MESSAGE_INVALID,
        ErrorReason.BSON_INVALID,
        ErrorReason.OPTION_REFUSED,
        ErrorReason.RESUME_TOKEN_MODIFIED,
    ),
    "UNAUTHENTICATED": (ErrorReason.UNAUTHENTICATED,),
    "PERMISSION_DENIED": (
        ErrorReason.NAMESPACE_DENIED,
        ErrorReason.SOURCE_UNAUTHORIZED,
        ErrorReason.METHOD_DENIED,
    ),
    "NOT_FOUND": (
        ErrorReason.SUBSCRIPTION_NOT_FOUND,
        ErrorReason.SOURCE_NOT_FOUND,
        ErrorReason.SUBSCRIBER_NOT_FOUND,
        ErrorReason.DEAD_LETTER_NOT_FOUND,
    ),
    "ALREADY_EXISTS": (ErrorReason.SUBSCRIPTION_EXISTS,),
    "OUT_OF_RANGE": (
        ErrorReason.HISTORY_LOST,
        ErrorReason.START_IN_FUTURE,
        ErrorReason.EVENT_TOO_LARGE,
        ErrorReason.TIMELINE_FORKED,
    ),
    "FAILED_PRECONDITION": (
        ErrorReason.START_AFTER_REQUIRED,
        ErrorReason.IMAGE_UNAVAILABLE,
        ErrorReason.RESUME_TOKEN_NOT_FOUND,
        ErrorReason.FEED_INVALIDATED,
        ErrorReason.PIPELINE_FAILED,
        ErrorReason.SUBSCRIPTION_BUSY,
        ErrorReason.SOURCE_UNSUITABLE,
        ErrorReason.ETAG_MISMATCH,
        ErrorReason.FEED_CHANGED,
        ErrorReason.SNAPSHOT_UNSUITABLE,
        ErrorReason.GROUP_MISMATCH,
        ErrorReason.GROUP_UNSUITABLE,
        ErrorReason.DEAD_LETTERS_UNAVAILABLE,
    ),
    "ABORTED": (ErrorReason.FENCED, ErrorReason.ENDED_BY_OPERATOR, ErrorReason.GRANTS_CHANGED),
    "RESOURCE_EXHAUSTED": (ErrorReason.QUOTA_EXCEEDED,),
    "UNAVAILABLE": (
        ErrorReason.DRAINING,
        ErrorReason.SOURCE_UNAVAILABLE,
        ErrorReason.STATE_UNAVAILABLE,
        ErrorReason.GROUP_ELSEWHERE,
    ),
    "INTERNAL": (ErrorReason.INTERNAL,),
}

STATUS: Final[Mapping[ErrorReason, str]] = {
    reason: status for status, reasons in _BY_STATUS.items() for reason in reasons
}
"""The gRPC status code name of each reason."""


class FeedmuxError(Exception):
    """A refusal, or the end of a stream, as the client will see it.

    `message` goes to the client as it is: no token, document, password or Python text belongs in it.
    """

    def __init__(
        self,
        reason: ErrorReason,
        message: str,
        metadata: Mapping[str, str] | None = None,
        *,
        retry_after_s: float | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s
        self.field = field
        """Path of the offending request field, for `google.rpc.BadRequest`."""

    @property
    def status(self) -> str:
        return STATUS[self.reason]


class FragmentsChanged(FeedmuxError):
    """Ends a stream inside a split event: MongoDB splits the event in another way by now, or not at all. Its
    subscribers continue on another stream, so no client sees this error."""

    def __init__(self) -> None:
        super().__init__(ErrorReason.RESUME_TOKEN_NOT_FOUND, "MongoDB now splits the event in another way")


def invalid(field: str, rule: str, reason: ErrorReason = ErrorReason.MESSAGE_INVALID) -> FeedmuxError:
    """The refusal of a request because of one of its fields."""
    return FeedmuxError(reason, f"{field} {rule}", {"field": field}, field=field)


_FENCED: Final[Mapping[str, str]] = {
    "TAKEOVER": "another client has taken the subscription over; to take it back, open it with takeover",
    "SEEK": "the position of the subscription was moved; open it again to continue from there",
    "UPDATE": "the subscription was changed; open it again",
    "DELETE": "the subscription was deleted",
    "LEASE": "another session has opened the subscription, or the lease is over; open it again",
}


def fenced_error(cause: str) -> FeedmuxError:
    """The end of a session that lost its subscription because of `cause` (a `FenceCause`)."""
    return FeedmuxError(ErrorReason.FENCED, _FENCED[cause], {"cause": cause})
