"""Positions of a feed for callers that need one before they read: a mirror is copied after taking the position."""

import json
from collections.abc import Mapping

from feedmux.feeds import Start
from feedmux_spark.connection import Connection
from feedmux_spark.offsets import Offset
from feedmux_spark.options import parse_options


def latest_offsets(options: Mapping[str, str]) -> str:
    """Returns the current offset for `startingOffsets`: what MongoDB has committed, in the feed of these options.

    Raises FeedmuxSparkError.
    """
    return _offsets(options, Start.latest())


def snapshot_offsets(options: Mapping[str, str]) -> str:
    """Returns the offset at which a copy of the existing documents begins, for `startingOffsets` and `Mirror.sweep`.

    Raises FeedmuxSparkError.
    """
    return _offsets(options, Start.snapshot())


def _offsets(options: Mapping[str, str], start: Start) -> str:
    parsed = parse_options({name.lower(): value for name, value in options.items()})
    connection = Connection(parsed)
    with connection.explaining():
        found = connection.locate(parsed, start)
        return json.dumps(Offset.at(found.feed_position, found.feed, copied=found.copied).as_json())
