"""The token and the life of a change stream after each step, by pymongo's rules."""

from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from feedmux.batches import BsonBatch, Event
from feedmux.feeds import Feed, Start
from feedmux.positions import FeedPosition
from feedmux.session_base import SessionBase
from feedmux.session_buffer import SessionBuffer
from feedmux.watch_options import WatchPlan
from feedmux.watch_state import FIRST_ANSWER_S, WatchState
from tests.tables import over
from tests.unit.client.scripted_server import event, token

INVALIDATE = {"_data": "82000003E9000000012B022C0100296F5A1004"}
GIVEN = token(0)


def state(*, await_s: float = 1.0, start: Start | None = None, document_class: Any = dict) -> WatchState:
    plan = WatchPlan(Feed("shop"), start, GIVEN, await_s, CodecOptions(document_class=document_class))
    return WatchState(plan, SessionBase(SessionBuffer(lambda _: None, list), None))


def events(end: dict[str, str] | None) -> tuple[Event, Event]:
    """Two events in one batch, whose end has this token."""
    position = FeedPosition(b"P", bson.encode(end) if end else b"")
    one, two = BsonBatch(memoryview(event(1) + event(2)), 2, position, 0, CodecOptions())
    return one, two


def test_the_token_is_that_of_the_event_or_of_the_end_of_its_batch() -> None:
    stream, (one, two) = state(), events(token(7))
    assert stream.resume_token == GIVEN
    stream._event = one
    assert stream.resume_token == token(1)
    stream._event = two
    assert stream.resume_token == token(7)
    (_, stream._event) = events(None)
    assert stream.resume_token == token(2)


def test_a_token_is_a_copy_and_of_the_class_of_documents() -> None:
    stream = state(document_class=RawBSONDocument)
    assert stream.resume_token is not GIVEN
    stream._event, _ = events(None)
    assert isinstance(stream.resume_token, RawBSONDocument)


def test_without_an_event_the_token_is_that_of_the_progress() -> None:
    stream = state()
    stream._session_base._buffer.opened = FeedPosition(b"P", bson.encode(token(5)))
    stream._event, _ = events(None)
    stream._no_event()
    assert stream.resume_token == token(5)


def test_a_stream_ends_with_the_last_event_of_a_batch_that_ends_with_an_invalidate() -> None:
    stream, (one, two) = state(), events(INVALIDATE)
    assert stream.alive
    for current, alive in ((one, True), (two, False)):
        stream._event = current
        assert stream.alive is alive


def test_a_closed_session_ends_the_stream() -> None:
    stream = state()
    stream._session_base._buffer.closing = True
    assert not stream.alive


@over(
    ("await_s", "start", "first_s"),
    [(0.1, None, 0.1), (0.1, Start.earliest(), FIRST_ANSWER_S), (5.0, Start.earliest(), 5.0)],
)
def test_what_there_is_at_a_start_has_time_to_come(await_s: float, start: Start | None, first_s: float) -> None:
    assert state(await_s=await_s, start=start)._wait_s == first_s
