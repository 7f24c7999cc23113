"""The messages of a session: what surrounds the events, and how an event that is too large is cut."""

import tracemalloc
from typing import Any, cast

import bson

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.copy_progress import CopyStatus
from feedmux_server.core.delivery.taken import BSON, Delivery
from feedmux_server.core.events.batch_fields import json_field
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.rpc.response_encoder import FRAME_BYTES, ResponseEncoder
from feedmux_server.sessions import outputs
from tests.tables import over
from tests.unit.core.delivery.streams_support import mark, token
from tests.unit.workers.test_render_worker import NoPositions

PAYLOAD_MAX = 100


def encoder() -> ResponseEncoder:
    return ResponseEncoder(cast(PositionEncoder, NoPositions()), BSON, PAYLOAD_MAX + FRAME_BYTES)


def sent(output: Any) -> list[wire.SubscribeResponse]:
    return [wire.SubscribeResponse.FromString(frame) for frame in encoder().frames(output)]


def delivery(*parts: bytes, end: ResumeToken | None = None) -> Delivery:
    size = sum(map(len, parts))
    return Delivery(7, len(parts), parts, size, size, end or token(9), 1.5)


def test_a_batch_holds_the_bytes_of_mongodb_unchanged() -> None:
    parts = [bson.encode({"n": number}) for number in (1, 2)]
    (message,) = sent(delivery(*parts))
    batch = message.batch
    assert (batch.bson, batch.first_delivery_sequence, batch.event_count) == (b"".join(parts), 7, 2)
    assert (batch.position, batch.resume_token) == (token(9).raw, token(9).raw)
    assert (batch.read_time.seconds, batch.read_time.nanos) == (1, 500_000_000)


@over(("size", "pieces"), [(100, 0), (101, 2), (200, 2), (201, 3)])
def test_only_a_larger_event_comes_in_fragments_and_the_last_has_the_position(size: int, pieces: int) -> None:
    messages = sent(delivery(bytes(size)))
    if not pieces:
        assert [message.WhichOneof("message") for message in messages] == ["batch"]
        return
    fragments = [message.event_fragment for message in messages]
    assert [(each.index, each.count, each.delivery_sequence) for each in fragments] == [
        (index, pieces, 7) for index in range(pieces)
    ]
    assert b"".join(each.data for each in fragments) == bytes(size)
    assert [bool(each.position) for each in fragments] == [False] * (pieces - 1) + [True]


@over("wire_format", [BSON, "extended_json_relaxed"])
def test_a_fragment_is_copied_once(wire_format: str) -> None:
    """Each copy of a message of 4 MB may hold the event loop for milliseconds, and one of the event for longer."""
    event = b'"' + b"x" * 400_000 + b'"'
    part = event if wire_format == BSON else json_field(event)
    whole = Delivery(7, 1, (part,), len(event), len(part), token(9), 1.5)
    positions = cast(PositionEncoder, NoPositions())
    frames = ResponseEncoder(positions, wire_format, 40_000 + FRAME_BYTES).frames(whole)
    tracemalloc.start()
    try:
        first = next(frames)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60_000
    fragments = [wire.SubscribeResponse.FromString(frame).event_fragment for frame in (first, *frames)]
    assert b"".join(fragment.data for fragment in fragments) == event


def test_a_token_that_would_not_fit_is_left_out_and_the_position_stays() -> None:
    data = bson.decode(token(1).raw)["_data"]
    huge = ResumeToken.decode(bson.encode({"_data": data[:-2] + "FF" * FRAME_BYTES + "0004"}))
    for message in (sent(delivery(b"x", end=huge))[0].batch, sent(outputs.ProgressMark(huge))[0].progress):
        assert (message.resume_token, bool(message.position)) == (b"", True)


MARKS = [
    (outputs.ProgressMark(mark(1)), "progress", ""),
    (outputs.CommittedMark(3, b"p"), "committed", ""),
    (outputs.DrainingMark(2.0, mark(1)), "notice", "draining"),
    (outputs.DegradedMark("redis", True), "notice", "degraded"),
    (outputs.RewoundMark(mark(1), 5 << 32), "notice", "rewound"),
    (outputs.SkippedMark(mark(1), mark(2)), "notice", "skipped"),
    (outputs.GapMark(mark(1), mark(2), "HISTORY_LOST"), "notice", "gap"),
    (outputs.HistoryAtRiskMark(60.0), "notice", "history_at_risk"),
    (outputs.UnacknowledgedMark(7), "notice", "unacknowledged"),
    (outputs.CopyMark(CopyStatus(True, 5, "db.c")), "notice", "snapshot"),
]


@over(("output", "kind", "notice"), MARKS)
def test_every_mark_has_its_message(output: Any, kind: str, notice: str) -> None:
    (message,) = sent(output)
    assert message.WhichOneof("message") == kind
    if notice:
        assert message.notice.ListFields()[-1][0].name == notice


def test_the_two_ends_of_a_gap_are_not_exchanged() -> None:
    (message,) = sent(outputs.GapMark(mark(1), mark(2), "HISTORY_LOST"))
    gap = message.notice.gap
    begin, end = getattr(gap, "from"), gap.to
    assert (begin.increment, end.increment) == tuple(mark(n).cluster_time & 0xFFFF_FFFF for n in (1, 2))
    assert gap.reason == "HISTORY_LOST"
