"""Credit for Extended JSON is what the client returns: the bytes of the texts that it sees."""

from typing import Any, cast

import bson
from hypothesis import given
from hypothesis import strategies as st

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.taken import Delivery, NeedsRender
from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.rpc.response_encoder import FRAME_BYTES, ResponseEncoder
from feedmux_server.workers import render_worker
from feedmux_server.workers.render_worker import json_rendition, rendition_of, request_head
from feedmux_server.workers.rendering import CANONICAL, RELAXED
from tests.unit.core.delivery.streams_support import Feed, behind, mark, opened, token

_VALUES: st.SearchStrategy[Any] = st.one_of(st.integers(0, 9), st.text(max_size=150), st.binary(max_size=300))
PAYLOADS = st.lists(st.dictionaries(st.sampled_from("abc"), _VALUES, max_size=3), min_size=1, max_size=12)


class NoPositions:
    """A stand-in for the position encoder."""

    def encode(self, token: ResumeToken) -> bytes:
        return token.raw


@given(PAYLOADS, st.booleans())
def test_a_view_counts_its_texts_alone(payloads: list[dict[str, Any]], canonical: bool) -> None:
    rendition = json_rendition(b"".join(map(bson.encode, payloads)), canonical)
    for first in range(len(payloads)):
        for stop in range(first + 1, len(payloads) + 1):
            batch = wire.Batch.FromString(rendition.cut(first, stop))
            assert len(batch.json) == stop - first
            assert rendition.event_bytes[stop] - rendition.event_bytes[first] == sum(
                len(text.encode()) for text in batch.json
            )


@given(
    st.lists(PAYLOADS, min_size=1, max_size=4),
    st.sampled_from((RELAXED, CANONICAL)),
    st.integers(1, 900),
    st.integers(60, 900),
)
def test_a_client_that_returns_the_texts_bytes_gets_everything(
    batches: list[list[dict[str, Any]]], wire_format: str, window: int, payload_max: int
) -> None:
    """The server once charged for tags and lengths too, which no client returns: in the end no window had room."""
    feed = Feed()
    subscriber = feed.subscriber(behind(0), wire_format=wire_format, events=1000, size=window, payload_max=payload_max)
    stream, number = opened(feed.stream_of(subscriber)), 0
    for payloads in batches:
        data = b""
        for payload in payloads:
            number += 1
            data += bson.encode({"_id": bson.decode(token(number).raw), **payload, "n": number})
        stream.append(cut_batch(data, stream.ring.newest, mark(number), 0.0, bytes_max=10**6), mark(number))
    encoder = ResponseEncoder(cast(PositionEncoder, NoPositions()), wire_format, payload_max + FRAME_BYTES)
    texts: list[str] = []
    while len(texts) < number:
        taken = feed.take(subscriber)
        if isinstance(taken, NeedsRender):
            assert taken.chunk.bson is not None
            answer = json_rendition(taken.chunk.bson.data, wire_format == CANONICAL)
            taken.chunk.rendered[wire_format] = answer
            continue
        assert isinstance(taken, Delivery), "the session is stuck"
        got, fragments = list[str](), b""
        for frame in encoder.frames(taken):
            response = wire.SubscribeResponse.FromString(frame)
            assert len(response.batch.json) or response.HasField("event_fragment")
            got += response.batch.json
            fragments += response.event_fragment.data
        got += [fragments.decode()] if fragments else []
        received = sum(len(text.encode()) for text in got)
        assert (taken.size, taken.count) == (received, len(got))
        feed.grant(subscriber, len(got), received)
        texts += got
    assert subscriber.credit.bytes == window
    for n, text in enumerate(texts, 1):
        assert text.endswith((f'"n":{n}}}', f'"n":{{"$numberInt":"{n}"}}}}'))


def test_a_view_travels_between_the_processes() -> None:
    data = b"".join(bson.encode({"n": n, "s": "é" * n}) for n in range(300))
    rendition = json_rendition(data, canonical=True)
    numbers = [list(rendition.offsets), list(rendition.event_bytes)]
    travelled = rendition_of(render_worker.answer(request_head(canonical=True) + data))
    assert travelled is not None
    assert (travelled.data, [list(travelled.offsets), list(travelled.event_bytes)]) == (rendition.data, numbers)
    assert rendition_of(render_worker.answer(request_head(canonical=True) + b"\x05\0\0\0\1")) is None
