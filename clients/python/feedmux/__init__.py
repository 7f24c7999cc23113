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

if TYPE_CHECKING:  # `as` says that a name is exported.
    from feedmux.async_client import AsyncClient as AsyncClient
    from feedmux.async_member import AsyncMember as AsyncMember
    from feedmux.async_session import AsyncSession as AsyncSession
    from feedmux.async_watch import AsyncChangeStream as AsyncChangeStream
    from feedmux.batches import Batch as Batch
    from feedmux.batches import BsonBatch as BsonBatch
    from feedmux.batches import Event as Event
    from feedmux.batches import JsonBatch as JsonBatch
    from feedmux.client import Client as Client
    from feedmux.dead_letters import DeadLetter as DeadLetter
    from feedmux.dead_letters import Replay as Replay
    from feedmux.errors import Aborted as Aborted
    from feedmux.errors import DeadLettersUnavailable as DeadLettersUnavailable
    from feedmux.errors import EndedByOperator as EndedByOperator
    from feedmux.errors import FailedPrecondition as FailedPrecondition
    from feedmux.errors import FeedInvalidated as FeedInvalidated
    from feedmux.errors import FeedmuxError as FeedmuxError
    from feedmux.errors import Fenced as Fenced
    from feedmux.errors import GroupMismatch as GroupMismatch
    from feedmux.errors import GroupsUnsupported as GroupsUnsupported
    from feedmux.errors import GroupUnsuitable as GroupUnsuitable
    from feedmux.errors import HistoryLost as HistoryLost
    from feedmux.errors import InternalError as InternalError
    from feedmux.errors import InvalidArgument as InvalidArgument
    from feedmux.errors import NotFound as NotFound
    from feedmux.errors import OptionRefused as OptionRefused
    from feedmux.errors import OutOfRange as OutOfRange
    from feedmux.errors import PermissionDenied as PermissionDenied
    from feedmux.errors import PositionInvalid as PositionInvalid
    from feedmux.errors import ProtocolError as ProtocolError
    from feedmux.errors import QuotaExceeded as QuotaExceeded
    from feedmux.errors import SessionClosed as SessionClosed
    from feedmux.errors import SnapshotUnsupported as SnapshotUnsupported
    from feedmux.errors import SubscriptionBusy as SubscriptionBusy
    from feedmux.errors import SubscriptionExists as SubscriptionExists
    from feedmux.errors import SubscriptionNotFound as SubscriptionNotFound
    from feedmux.errors import TimelineForked as TimelineForked
    from feedmux.errors import Unauthenticated as Unauthenticated
    from feedmux.errors import Unavailable as Unavailable
    from feedmux.feeds import Explanation as Explanation
    from feedmux.feeds import Feed as Feed
    from feedmux.feeds import Group as Group
    from feedmux.feeds import ResolvedPosition as ResolvedPosition
    from feedmux.feeds import SnapshotStatus as SnapshotStatus
    from feedmux.feeds import Start as Start
    from feedmux.feeds import SubscriptionInfo as SubscriptionInfo
    from feedmux.member import Member as Member
    from feedmux.member_event import MemberEvent as MemberEvent
    from feedmux.notices import Degraded as Degraded
    from feedmux.notices import Disconnected as Disconnected
    from feedmux.notices import Draining as Draining
    from feedmux.notices import Gap as Gap
    from feedmux.notices import HistoryAtRisk as HistoryAtRisk
    from feedmux.notices import Notice as Notice
    from feedmux.notices import Rewound as Rewound
    from feedmux.notices import Skipped as Skipped
    from feedmux.notices import SnapshotComplete as SnapshotComplete
    from feedmux.notices import SnapshotProgress as SnapshotProgress
    from feedmux.notices import Unacknowledged as Unacknowledged
    from feedmux.options import SessionOptions as SessionOptions
    from feedmux.outcomes import Reject as Reject
    from feedmux.outcomes import RetryAfter as RetryAfter
    from feedmux.positions import FeedPosition as FeedPosition
    from feedmux.session import Session as Session
    from feedmux.target import Tls as Tls
    from feedmux.watch import ChangeStream as ChangeStream

_NAMES: Final = {
    "async_client": ("AsyncClient",),
    "async_member": ("AsyncMember",),
    "async_session": ("AsyncSession",),
    "async_watch": ("AsyncChangeStream",),
    "batches": ("Batch", "BsonBatch", "Event", "JsonBatch"),
    "client": ("Client",),
    "dead_letters": ("DeadLetter", "Replay"),
    "errors": (
        "Aborted", "DeadLettersUnavailable", "EndedByOperator", "FailedPrecondition", "FeedInvalidated", "FeedmuxError",
        "Fenced", "GroupMismatch", "GroupUnsuitable", "GroupsUnsupported", "HistoryLost", "InternalError",
        "InvalidArgument", "NotFound", "OptionRefused", "OutOfRange", "PermissionDenied", "PositionInvalid",
        "ProtocolError", "QuotaExceeded", "SessionClosed", "SnapshotUnsupported", "SubscriptionBusy",
        "SubscriptionExists", "SubscriptionNotFound", "TimelineForked", "Unauthenticated", "Unavailable",
    ),
    "feeds": (
        "Explanation", "Feed", "Group", "ResolvedPosition", "SnapshotStatus", "Start", "SubscriptionInfo",
    ),
    "member": ("Member",),
    "member_event": ("MemberEvent",),
    "notices": (
        "Degraded", "Disconnected", "Draining", "Gap", "HistoryAtRisk", "Notice", "Rewound", "Skipped",
        "SnapshotComplete", "SnapshotProgress", "Unacknowledged",
    ),
    "options": ("SessionOptions",),
    "outcomes": ("Reject", "RetryAfter"),
    "positions": ("FeedPosition",),
    "session": ("Session",),
    "target": ("Tls",),
    "watch": ("ChangeStream",),
}  # fmt: skip
"""The public names by module; a test compares them with the imports above."""
_MODULE_OF: Final = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
