"""The client's error classes. Tables map each reason, and each status without a reason, to its class.

Every error caused by a server, the network or a protocol violation is a `FeedmuxError`. Users catch the subclasses and
need not parse messages. `recovery` decides which errors a session survives; `status` makes them from gRPC statuses.
"""

from collections.abc import Mapping
from typing import Final


class FeedmuxError(Exception):
    """Base class of the client's errors.

    `reason` is a name of `ErrorReason` without its prefix (`HISTORY_LOST`), or empty if the error had no reason;
    `status` is the gRPC status name (`OUT_OF_RANGE`); `metadata` holds the facts that the reason's documentation names;
    `retry_after_s` is the number of seconds that the server asked the client to wait, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        status: str = "UNKNOWN",
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.status = status
        self.metadata: dict[str, str] = dict(metadata or {})
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.reason or self.status}: {self.message}"


class InvalidArgument(FeedmuxError):
    """The request itself is invalid; `reason` says why."""


class PositionInvalid(InvalidArgument):
    """A position cannot be decoded, or belongs to another tenant, source or scope."""


class OptionRefused(InvalidArgument):
    """MongoDB rejected the pipeline or an option. Metadata: `code`, `code_name`, `labels`."""


class Unauthenticated(FeedmuxError):
    """The request had no credentials, or credentials that the server does not know."""


class PermissionDenied(FeedmuxError):
    """The credentials do not cover this namespace or method."""


class NotFound(FeedmuxError):
    """The requested object does not exist."""


class SubscriptionNotFound(NotFound):
    """The subscription does not exist, or was deleted during the session."""


class SubscriptionExists(FeedmuxError):
    """A subscription of this name exists with a different definition."""


class FailedPrecondition(FeedmuxError):
    """The request does not fit the present state; `reason` says why."""


class SubscriptionBusy(FailedPrecondition):
    """Another client has the subscription open. Open with `takeover=True` to replace that client. Metadata: `owner`."""


class GroupMismatch(FailedPrecondition):
    """The subscription is a group and the call does not join it, or the call joins what is not a group."""


class GroupUnsuitable(FailedPrecondition):
    """A group cannot share this feed."""


class DeadLettersUnavailable(FailedPrecondition):
    """The server has no place for dead letters, which `reject` and some options of a group need."""


class FeedInvalidated(FailedPrecondition):
    """The feed ended with an invalidate (drop, rename, dropDatabase).

    `position` is the last position of the session; pass it to `Start.position` to continue after the invalidate.
    `resume_token` is MongoDB's token for that position, for `Start.start_after`; None where it is not known.
    """

    position: bytes = b""
    resume_token: Mapping[str, object] | None = None


class OutOfRange(FeedmuxError):
    """A position cannot be read; `reason` says why."""


class HistoryLost(OutOfRange):
    """The position has left MongoDB's oplog. Metadata: `oldest_time` where it is known."""


class TimelineForked(OutOfRange):
    """MongoDB was restored from an older copy, or replaced, and does not have the history of the position: seek to
    another one. Metadata: `last_common_time`, up to which the two histories are equal, where it is known."""


class Aborted(FeedmuxError):
    """The server ended the session."""


class Fenced(Aborted):
    """The session lost its subscription, for example to a takeover. Metadata: `cause`."""


class EndedByOperator(Aborted):
    """An operator ended the session. The subscription or feed may be opened again."""


class QuotaExceeded(FeedmuxError):
    """The request would exceed a quota of the tenant or a limit of the server."""


class Unavailable(FeedmuxError):
    """The server, or a service that it depends on, cannot be reached now."""


class InternalError(FeedmuxError):
    """A defect of the server. Metadata: `correlation_id`."""


class ProtocolError(FeedmuxError):
    """The server broke the protocol: a gap in the sequence, more than the credit, a batch over the limit, fragments
    out of order, lengths that do not add up, or an undecodable message."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="", status="INTERNAL")


class SnapshotUnsupported(FeedmuxError):
    """The server is older than the copy of existing documents, and would begin, or has begun, at the present instead.
    It has stored nothing."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the server does not know the start `snapshot`, and {what}. Upgrade all replicas of the server first",
            status="UNIMPLEMENTED",
        )


class GroupsUnsupported(FeedmuxError):
    """The server is older than groups. Nothing was settled."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the server {what}. Upgrade all replicas of the server first", status="UNIMPLEMENTED")


class SessionClosed(FeedmuxError):
    """The session was used after `close()`, or its client was closed."""

    def __init__(self, message: str = "the session is closed") -> None:
        super().__init__(message, status="CANCELLED")


BY_REASON: Final[Mapping[str, type[FeedmuxError]]] = {
    "POSITION_INVALID": PositionInvalid,
    "POSITION_FOREIGN": PositionInvalid,
    "OPTION_REFUSED": OptionRefused,
    "UNAUTHENTICATED": Unauthenticated,
    "NAMESPACE_DENIED": PermissionDenied,
    "SOURCE_UNAUTHORIZED": PermissionDenied,
    "METHOD_DENIED": PermissionDenied,
    "SUBSCRIPTION_NOT_FOUND": SubscriptionNotFound,
    "SUBSCRIPTION_EXISTS": SubscriptionExists,
    "HISTORY_LOST": HistoryLost,
    "TIMELINE_FORKED": TimelineForked,
    "FEED_INVALIDATED": FeedInvalidated,
    "SUBSCRIPTION_BUSY": SubscriptionBusy,
    "GROUP_MISMATCH": GroupMismatch,
    "GROUP_UNSUITABLE": GroupUnsuitable,
    "DEAD_LETTERS_UNAVAILABLE": DeadLettersUnavailable,
    "FENCED": Fenced,
    "ENDED_BY_OPERATOR": EndedByOperator,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "DRAINING": Unavailable,
    "SOURCE_UNAVAILABLE": Unavailable,
    "STATE_UNAVAILABLE": Unavailable,
    "INTERNAL": InternalError,
}
"""Reasons that have their own class. Any other reason, known or not, falls back to its status."""

BY_STATUS: Final[Mapping[str, type[FeedmuxError]]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": SubscriptionExists,
    "FAILED_PRECONDITION": FailedPrecondition,
    "OUT_OF_RANGE": OutOfRange,
    "ABORTED": Aborted,
    "RESOURCE_EXHAUSTED": QuotaExceeded,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": Unavailable,
    "INTERNAL": InternalError,
}


def make_error(
    status: str,
    message: str,
    reason: str = "",
    metadata: Mapping[str, str] | None = None,
    retry_after_s: float | None = None,
) -> FeedmuxError:
    """Return the error for a gRPC status name and, if there was an ErrorInfo, its reason and metadata."""
    kind = BY_REASON.get(reason) or BY_STATUS.get(status, FeedmuxError)
    if kind is Fenced and (metadata or {}).get("cause") == "DELETE":
        kind = SubscriptionNotFound
    return kind(message, reason=reason, status=status, metadata=metadata, retry_after_s=retry_after_s)
