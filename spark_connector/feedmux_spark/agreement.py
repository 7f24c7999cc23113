"""Checks that the options, the stored subscription and the checkpoint define the same feed.

PlanRange uses the feed of the subscription, ReadRange that of the options. If they differed, planned events that the
options' pipeline does not match would be lost. So every PlanRange and ReadRange, and every offset, contains the
fingerprint of the options' feed: if a feed differs, the query fails before anything is read.
"""

import logging
from typing import Final

from feedmux import requests
from feedmux.errors import (
    FailedPrecondition,
    HistoryLost,
    InvalidArgument,
    SubscriptionExists,
    SubscriptionNotFound,
    TimelineForked,
)
from feedmux.feeds import Start
from feedmux.positions import FeedPosition
from feedmux.v1 import feed_pb2
from feedmux_spark.connection import Connection
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.offsets import Offset
from feedmux_spark.options import TABLE, Options
from feedmux_spark.planning import Planner

log = logging.getLogger("feedmux_spark")

FEED_CHANGED: Final = "FEED_CHANGED"
_COMPARED: Final = (
    "source", "database", "collection", "full_document", "full_document_before_change", "show_expanded_events",
    "match_collection_uuid_for_update_lookup", "extra_options", "collation", "read_concern",
)  # fmt: skip


class Agreement:
    """The feed comparison of one query, on the driver. Every method raises FeedmuxError, or FeedmuxSparkError if feeds
    differ."""

    def __init__(self, options: Options, connection: Connection, planner: Planner) -> None:
        self._options = options
        self._connection = connection
        self._planner = planner
        self._fingerprint = b""
        self._planned = False
        self._warned = False

    def fingerprint(self, position: bytes) -> bytes:
        """The fingerprint of the options' feed, requested once. `position` is any position in the feed's scope."""
        if not self._fingerprint:
            wanted = requests.feed_message(self._options.feed, self._options.source)
            self._fingerprint = self._fingerprint_of(wanted, position)
        return self._fingerprint

    def _fingerprint_of(self, feed: feed_pb2.Feed, position: bytes) -> bytes:
        try:
            return self._connection.locate_in(feed, Start.position(position)).feed
        except (HistoryLost, TimelineForked):  # the next plan fails too, and failOnDataLoss decides there
            return self._connection.locate_in(feed, Start.earliest()).feed

    def check(self, *offsets: Offset) -> bytes:
        """Returns the fingerprint of the options' feed. Raises if an offset has another feed and onFeedChange is
        `fail`.

        Accepts an offset without a fingerprint, which an older connector wrote. The next offset has a fingerprint.
        """
        fingerprint = self.fingerprint(offsets[0].position)
        if b"" in (offset.feed for offset in offsets) and not self._warned:
            self._warned = True
            log.warning(
                "the checkpoint does not contain a fingerprint of its feed, because an older connector wrote it. So the"
                " pipeline and the options were not compared with those of the checkpoint; they will be from the next"
                " batch on"
            )
        if all(offset.feed in (b"", fingerprint) for offset in offsets):
            return fingerprint
        if self._options.on_feed_change == "fail":
            raise self._error("the checkpoint was made with another pipeline or other options")
        if not self._planned:
            log.warning(
                "the feed changed: everything after the checkpoint is read with the new options (onFeedChange=update)"
            )
        return fingerprint

    def settle(self, error: FailedPrecondition) -> None:
        """Handles a rejected plan: sets the subscription's feed to the options' feed, if the user allows it.

        Does so only at the start of a query: a running query would undo a change that somebody else has just made.
        Raises the error for the user.
        """
        if error.reason != FEED_CHANGED:
            raise error
        if self._planned:
            raise self._error(f"subscription {self._options.consumer_name!r} was changed while the query ran")
        if self._options.on_feed_change == "fail":
            raise self._error(f"subscription {self._options.consumer_name!r} has another pipeline or other options")
        log.warning("subscription %s is changed to the new options (onFeedChange=update)", self._options.consumer_name)
        self._planner.update()

    def planned(self) -> None:
        """Records that a plan succeeded, so the subscription's feed is the options' feed."""
        self._planned = True

    def create(self, start: Start) -> FeedPosition:
        """Returns the stored position of the subscription, which is created at `start` if it does not exist."""
        try:
            return self._planner.create(start)
        except SubscriptionExists:
            feed, feed_position = self._planner.stored()
            if not self._differences(feed, feed_position.position):
                return feed_position
            if self._options.on_feed_change == "fail":
                raise
            return self._planner.update()

    def _differences(self, stored: feed_pb2.Feed, position: bytes) -> list[str]:
        wanted = requests.feed_message(self._options.feed, self._options.source)
        names = differences(stored, wanted)
        return names if self._same_pipeline(stored, wanted, position) else ["pipeline", *names]

    def _same_pipeline(self, stored: feed_pb2.Feed, wanted: feed_pb2.Feed, position: bytes) -> bool:
        """Asks the server where the texts differ: no other parser is certain to read a pipeline as the server does."""
        if stored.pipeline == wanted.pipeline:
            return True
        other = feed_pb2.Feed()
        other.CopyFrom(stored)
        other.pipeline.CopyFrom(wanted.pipeline)
        try:
            return self._fingerprint_of(stored, position) == self._fingerprint_of(other, position)
        except InvalidArgument:  # a newer server may reject what an older one stored
            return False

    def _error(self, what: str) -> FeedmuxSparkError:
        try:
            feed, feed_position = self._planner.stored()
        except SubscriptionNotFound:
            where = f"There is no subscription {self._options.consumer_name!r} that shows in what they differ."
        else:
            names = self._differences(feed, feed_position.position)
            where = (
                f"The subscription and the options differ in {', '.join(names)}."
                if names
                else "The subscription and the options agree; the checkpoint does not."
            )
        return FeedmuxSparkError(
            f"The feed changed: {what}. {where} Nothing was read. Either restore the former options of the query (and"
            " those of the subscription, with `feedmux subscriptions update`); or start the query with"
            " onFeedChange=update, which changes the subscription to the new options and reads everything after the"
            f" checkpoint with them; or use another consumerName and a new checkpoint. ({FEED_CHANGED})"
        )


def differences(stored: feed_pb2.Feed, wanted: feed_pb2.Feed) -> list[str]:
    """The options in which two feeds differ, without the pipeline."""
    shown = {option.field: option.name for option in TABLE}
    return [shown[name] for name in _COMPARED if getattr(stored, name) != getattr(wanted, name)]
