"""Read the time of an event from its bytes."""

from datetime import UTC, datetime
from typing import Any

import bson
from bson.timestamp import Timestamp

from feedmux_server.core.events.event_time import event_time_s
from tests.tables import over

AT = datetime(2026, 3, 4, 5, 6, 7, 89_000, UTC)
TIMES: dict[str, Any] = {"clusterTime": Timestamp(5, 1), "wallTime": AT}
HEAD: dict[str, Any] = {"_id": {"_data": "82"}, "operationType": "insert"}


def test_it_is_mongodbs_wall_clock() -> None:
    before, event = bson.encode({"n": 1}), bson.encode({**HEAD, **TIMES, "fullDocument": {"wallTime": 1}})
    assert event_time_s(before + event, len(before), len(before) + len(event)) == AT.timestamp()


@over(
    "event",
    [
        HEAD,
        {**HEAD, "clusterTime": Timestamp(5, 1)},
        {**HEAD, "clusterTime": Timestamp(5, 1), "fullDocument": TIMES},
        {**HEAD, "wallTime": AT, "clusterTime": Timestamp(5, 1)},
    ],
)
def test_where_it_does_not_stand_it_is_not_guessed(event: dict[str, Any]) -> None:
    data = bson.encode(event)
    assert event_time_s(data, 0, len(data)) == 0.0


def test_a_neighbours_time_is_not_taken() -> None:
    event, neighbour = bson.encode({**HEAD, "clusterTime": Timestamp(5, 1)}), bson.encode({**HEAD, **TIMES})
    assert event_time_s(event + neighbour, 0, len(event)) == 0.0
