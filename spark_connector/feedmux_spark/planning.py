"""Requests plans for the driver: where the next micro-batch ends, and into which slices it is divided.

A plan is the response to PlanRange. The requests of a stream name its subscription, which stores the start before the
first batch, and the position up to which Spark has processed, which the server stores.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import duration_pb2, field_mask_pb2

from feedmux import requests
from feedmux.errors import Unavailable
from feedmux.feeds import Start
from feedmux.positions import FeedPosition
from feedmux.v1 import change_feed_pb2, feed_pb2, subscriptions_pb2
from feedmux_spark.connection import Call, Connection
from feedmux_spark.options import Options
from feedmux_spark.ranges import Slice

PINNED_WAIT_S: Final = 10.0
"""While nothing is written, MongoDB's clock advances only with a no-op every 10 s; then a pinned end is reached."""
EVENTS_MAX: Final = 2**31 - 1
"""No limit: as many events as a plan may have."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The range after a position, up to `end`."""

    end: FeedPosition
    count: int
    slices: Sequence[Slice]
    caught_up: bool
    """No more events were available, or the pinned end is reached."""
    latest: tuple[int, int]
    """The cluster time up to which MongoDB had committed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of a plan."""

    after: bytes
    feed: bytes
    """The fingerprint that the feed must have."""
    until: bytes = b""
    events_max: int = EVENTS_MAX
    bytes_max: int = 2**40
    wait_s: float = 0.0


class Planner:
    """Requests plans; if there is a consumer name, under its subscription."""

    def __init__(
        self, options: Options, connection: Connection, consumer_name: str = "", instance_id: str = ""
    ) -> None:
        self._options = options
        self._connection = connection
        self._feed = requests.feed_message(options.feed, options.source)
        self._consumer_name = consumer_name
        self._instance_id = instance_id
        self._after = b""
        self.requested_s = float("-inf")
        """When a plan was last requested: each opens the subscription, which renews its lease."""

    def create(self, start: Start) -> FeedPosition:
        """Returns the stored position of the subscription, and creates it at `start` if it does not exist. Raises
        FeedmuxError."""
        request = subscriptions_pb2.CreateSubscriptionRequest(
            subscription=subscriptions_pb2.Subscription(name=self._consumer_name, feed=self._feed),
            start=requests.start_message(start),
        )
        return _feed_position(self._subscription("CreateSubscription", request, "storing the start"))

    def stored(self) -> tuple[feed_pb2.Feed, FeedPosition]:
        """Returns the subscription's feed and stored position. Raises FeedmuxError."""
        found = self._get()
        return found.feed, _feed_position(found)

    def copying(self) -> bool:
        """Whether the stored position is within a copy of existing documents. Raises FeedmuxError."""
        return self._get().HasField("snapshot")

    def _get(self) -> subscriptions_pb2.Subscription:
        request = subscriptions_pb2.GetSubscriptionRequest(name=self._consumer_name)
        return self._subscription("GetSubscription", request, "asking for the subscription")

    def update(self) -> FeedPosition:
        """Sets the subscription's feed to the options' feed; the stored position stays. Raises FeedmuxError."""
        request = subscriptions_pb2.UpdateSubscriptionRequest(
            subscription=subscriptions_pb2.Subscription(name=self._consumer_name, feed=self._feed),
            update_mask=field_mask_pb2.FieldMask(paths=["feed"]),
        )
        return _feed_position(self._subscription("UpdateSubscription", request, "updating the subscription"))

    def _subscription(self, method: str, request: Any, what: str) -> subscriptions_pb2.Subscription:
        found: subscriptions_pb2.Subscription = self._connection.retrying(
            lambda: self._connection.unary("Subscriptions", method, request, subscriptions_pb2.Subscription), what
        )
        return found

    def start(self, wanted: Wanted, processed: bytes = b"") -> Call:
        """Sends the request and does not wait for the response."""
        self._after, self.requested_s = wanted.after, time.monotonic()
        return self._connection.start(
            "ChangeFeed",
            "PlanRange",
            self._request(wanted, processed),
            change_feed_pb2.PlanRangeResponse,
            wait_s=wanted.wait_s,
        )

    def renew(self) -> None:
        """Renews the lease of the subscription, with a plan of nothing. Raises FeedmuxError."""
        if self._after:
            self.start(Wanted(self._after, b"", until=self._after, events_max=1, bytes_max=1)).result()

    def plan(self, wanted: Wanted, processed: bytes = b"") -> Plan:
        """Returns the plan; retries while the server is unavailable. Raises FeedmuxError."""
        return self._connection.retrying(
            lambda: as_plan(self.start(wanted, processed).result()), "planning the next range"
        )

    def through(
        self, after: FeedPosition, feed: bytes, until: bytes, most_bytes: int, processed: bytes = b""
    ) -> list[Slice]:
        """Returns the slices of (after, until], planned at most `most_bytes` at a time. Raises FeedmuxError."""
        slices: list[Slice] = []
        while True:
            wanted = Wanted(after.position, feed, until, bytes_max=most_bytes, wait_s=PINNED_WAIT_S)
            plan = self.plan(wanted, processed)
            slices += plan.slices
            if plan.caught_up:
                return slices
            after = plan.end

    def _request(self, wanted: Wanted, processed: bytes) -> change_feed_pb2.PlanRangeRequest:
        wait = duration_pb2.Duration()
        wait.FromMilliseconds(int(wanted.wait_s * 1000))
        target: dict[str, Any] = {"feed": self._feed}
        if self._consumer_name:
            target = {"subscription": self._consumer_name, "instance_id": self._instance_id, "processed": processed}
        return change_feed_pb2.PlanRangeRequest(
            after=wanted.after,
            until=wanted.until,
            events_max=wanted.events_max,
            bytes_max=wanted.bytes_max,
            slices=self._options.slices,
            wait=wait,
            feed_fingerprint=wanted.feed,
            **target,
        )


def _feed_position(found: subscriptions_pb2.Subscription) -> FeedPosition:
    return FeedPosition(found.position, time=(found.cluster_time.seconds, found.cluster_time.increment))


def as_plan(answer: change_feed_pb2.PlanRangeResponse) -> Plan:
    """Converts the response to a plan. Raises Unavailable, so that it is retried, if a server did not compare feeds."""
    if not answer.feed_fingerprint:
        raise Unavailable(
            "a server that is older than this connector planned the range: it does not compare the feed with the feed"
            " of the checkpoint, so changes of another feed might be read. Update all replicas of feedmux",
            status="UNAVAILABLE",
        )
    return Plan(
        FeedPosition(answer.end, time=(answer.cluster_time.seconds, answer.cluster_time.increment)),
        answer.event_count,
        [Slice(each.after, each.until, answer.routing_key, answer.feed_fingerprint) for each in answer.slices],
        answer.caught_up,
        (answer.latest.seconds, answer.latest.increment),
    )
