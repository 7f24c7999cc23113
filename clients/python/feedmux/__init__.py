"""feedmux: MongoDB change events through a shared, durable feed.

    client = feedmux.Client("localhost:7117", api_key="…")
    with client.subscription("orders-to-search").open() as session:
        for event in session:
            index(event.document)
            session.ack(event)

What is named here is the interface; other modules may change.
"""

from feedmux.async_client import AsyncClient
from feedmux.async_session import AsyncSession
from feedmux.async_watch import AsyncChangeStream
from feedmux.batches import Batch, BsonBatch, Event, JsonBatch
from feedmux.client import Client
from feedmux.errors import (
    Aborted,
    EndedByOperator,
    FailedPrecondition,
    FeedInvalidated,
    FeedmuxError,
    Fenced,
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
    SubscriptionBusy,
    SubscriptionExists,
    SubscriptionNotFound,
    Unauthenticated,
    Unavailable,
)
from feedmux.feeds import Explanation, Feed, ResolvedPosition, Start, SubscriptionInfo
from feedmux.link import Tls
from feedmux.notices import Degraded, Disconnected, Draining, Gap, HistoryAtRisk, Notice, Rewound
from feedmux.options import SessionOptions
from feedmux.places import Place
from feedmux.session import Session
from feedmux.watch import ChangeStream

__all__ = [
    "Aborted",
    "AsyncChangeStream",
    "AsyncClient",
    "AsyncSession",
    "Batch",
    "BsonBatch",
    "ChangeStream",
    "Client",
    "Degraded",
    "Disconnected",
    "Draining",
    "EndedByOperator",
    "Event",
    "Explanation",
    "FailedPrecondition",
    "Feed",
    "FeedInvalidated",
    "FeedmuxError",
    "Fenced",
    "Gap",
    "HistoryAtRisk",
    "HistoryLost",
    "InternalError",
    "InvalidArgument",
    "JsonBatch",
    "NotFound",
    "Notice",
    "OptionRefused",
    "OutOfRange",
    "PermissionDenied",
    "Place",
    "PositionInvalid",
    "ProtocolError",
    "QuotaExceeded",
    "ResolvedPosition",
    "Rewound",
    "Session",
    "SessionClosed",
    "SessionOptions",
    "Start",
    "SubscriptionBusy",
    "SubscriptionExists",
    "SubscriptionInfo",
    "SubscriptionNotFound",
    "Tls",
    "Unauthenticated",
    "Unavailable",
]
