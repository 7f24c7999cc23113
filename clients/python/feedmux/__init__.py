"""feedmux: MongoDB change events through a shared, durable feed.

    client = feedmux.Client("localhost:7117", api_key="…")
    with client.subscription("orders-to-search").open() as session:
        for event in session:
            index(event.document)
            session.ack(event)

The names exported here are the public interface; other modules may change. Each name is imported when it is first used,
so that commands of `feedmux.cli` that need no connection start without gRPC.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from feedmux.async_client import AsyncClient
    from feedmux.async_member import AsyncMember
    from feedmux.async_session import AsyncSession
    from feedmux.async_watch import AsyncChangeStream
    from feedmux.batches import Batch, BsonBatch, Event, JsonBatch
    from feedmux.client import Client
    from feedmux.dead_letters import DeadLetter, Replay
    from feedmux.errors import (
        Aborted,
        DeadLettersUnavailable,
        EndedByOperator,
        FailedPrecondition,
        FeedInvalidated,
        FeedmuxError,
        Fenced,
        GroupMismatch,
        GroupsUnsupported,
        GroupUnsuitable,
        HistoryLost,
        InternalError,
        InvalidArgument,
        NotFound,
        OptionRefused,
        OutOfRange,
        PermissionDenied,
        PositionInvalid,
        ProtocolError,
        QuotaExceeded,
        SessionClosed,
        SnapshotUnsupported,
        SubscriptionBusy,
        SubscriptionExists,
        SubscriptionNotFound,
        TimelineForked,
        Unauthenticated,
        Unavailable,
    )
    from feedmux.feeds import (
        Explanation,
        Feed,
        Group,
        ResolvedPosition,
        SnapshotStatus,
        Start,
        SubscriptionInfo,
    )
    from feedmux.member import Member
    from feedmux.member_event import MemberEvent
    from feedmux.notices import (
        Degraded,
        Disconnected,
        Draining,
        Gap,
        HistoryAtRisk,
        Notice,
        Rewound,
        Skipped,
        SnapshotComplete,
        SnapshotProgress,
        Unacknowledged,
    )
    from feedmux.options import SessionOptions
    from feedmux.outcomes import Reject, RetryAfter
    from feedmux.positions import FeedPosition
    from feedmux.session import Session
    from feedmux.target import Tls
    from feedmux.watch import ChangeStream

__all__ = [
    "Aborted",
    "AsyncChangeStream",
    "AsyncClient",
    "AsyncMember",
    "AsyncSession",
    "Batch",
    "BsonBatch",
    "ChangeStream",
    "Client",
    "DeadLetter",
    "DeadLettersUnavailable",
    "Degraded",
    "Disconnected",
    "Draining",
    "EndedByOperator",
    "Event",
    "Explanation",
    "FailedPrecondition",
    "Feed",
    "FeedInvalidated",
    "FeedPosition",
    "FeedmuxError",
    "Fenced",
    "Gap",
    "Group",
    "GroupMismatch",
    "GroupUnsuitable",
    "GroupsUnsupported",
    "HistoryAtRisk",
    "HistoryLost",
    "InternalError",
    "InvalidArgument",
    "JsonBatch",
    "Member",
    "MemberEvent",
    "NotFound",
    "Notice",
    "OptionRefused",
    "OutOfRange",
    "PermissionDenied",
    "PositionInvalid",
    "ProtocolError",
    "QuotaExceeded",
    "Reject",
    "Replay",
    "ResolvedPosition",
    "RetryAfter",
    "Rewound",
    "Session",
    "SessionClosed",
    "SessionOptions",
    "Skipped",
    "SnapshotComplete",
    "SnapshotProgress",
    "SnapshotStatus",
    "SnapshotUnsupported",
    "Start",
    "SubscriptionBusy",
    "SubscriptionExists",
    "SubscriptionInfo",
    "SubscriptionNotFound",
    "TimelineForked",
    "Tls",
    "Unacknowledged",
    "Unauthenticated",
    "Unavailable",
]

_NAMES: Final = {
    "async_client": ("AsyncClient",),
    "async_member": ("AsyncMember",),
    "async_session": ("AsyncSession",),
    "async_watch": ("AsyncChangeStream",),
    "batches": ("Batch", "BsonBatch", "Event", "JsonBatch"),
    "client": ("Client",),
    "dead_letters": ("DeadLetter", "Replay"),
    "errors": (
        "Aborted",
        "DeadLettersUnavailable",
        "EndedByOperator",
        "FailedPrecondition",
        "FeedInvalidated",
        "FeedmuxError",
        "Fenced",
        "GroupMismatch",
        "GroupUnsuitable",
        "GroupsUnsupported",
        "HistoryLost",
        "InternalError",
        "InvalidArgument",
        "NotFound",
        "OptionRefused",
        "OutOfRange",
        "PermissionDenied",
        "PositionInvalid",
        "ProtocolError",
        "QuotaExceeded",
        "SessionClosed",
        "SnapshotUnsupported",
        "SubscriptionBusy",
        "SubscriptionExists",
        "SubscriptionNotFound",
        "TimelineForked",
        "Unauthenticated",
        "Unavailable",
    ),
    "feeds": (
        "Explanation",
        "Feed",
        "Group",
        "ResolvedPosition",
        "SnapshotStatus",
        "Start",
        "SubscriptionInfo",
    ),
    "member": ("Member",),
    "member_event": ("MemberEvent",),
    "notices": (
        "Degraded",
        "Disconnected",
        "Draining",
        "Gap",
        "HistoryAtRisk",
        "Notice",
        "Rewound",
        "Skipped",
        "SnapshotComplete",
        "SnapshotProgress",
        "Unacknowledged",
    ),
    "options": ("SessionOptions",),
    "outcomes": ("Reject", "RetryAfter"),
    "positions": ("FeedPosition",),
    "session": ("Session",),
    "target": ("Tls",),
    "watch": ("ChangeStream",),
}
"""The public names by module; a test compares them with the imports above."""
_MODULE_OF: Final = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
