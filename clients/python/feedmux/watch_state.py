"""What a change stream says of itself after each step, by pymongo's rules: `resume_token` and `alive`.

Shared by both interfaces, which own the session and do the stepping. Nothing is worked out before it is asked for, so
that a step costs one attribute.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from feedmux.batches import Event
from feedmux.places import Place, from_invalidate
from feedmux.seat import Seat
from feedmux.watch_options import WatchPlan

FIRST_ANSWER_S: Final = 2.0
"""What the first `try_next` of a stream with a start waits at least. MongoDB answers it with the events that there are,
however short its wait; here they come over a server, and a program that drains with a short wait must not take the time
that needs for the end."""


class WatchState:
    """The last step of a stream: an event, or a place without one."""

    def __init__(self, plan: WatchPlan, session: Seat) -> None:
        self._seat = session
        self._await_s = plan.await_s
        self._wait_s = plan.await_s if plan.start is None else max(plan.await_s, FIRST_ANSWER_S)
        """Of the next `try_next`."""
        self._given_token = plan.given_token
        self._token_options: CodecOptions[Any] = plan.codec_options
        if plan.codec_options.type_registry._decoder_map:
            # As in pymongo, which decodes events a second time where there are custom decoders.
            self._token_options = plan.codec_options.with_options(document_class=RawBSONDocument)
        self._event: Event | None = None
        self._place = Place()

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        """The token to resume after: of the last document returned, or a later one where all have been returned."""
        event = self._event
        if event is None:
            token = self._place.token
        elif event.index + 1 < len(event.batch):
            token = event.batch.event_key(event.index)
        else:
            token = event.batch.place.token or event.batch.event_key(event.index)
        return bson.decode(token, self._token_options) if token else copy.deepcopy(self._given_token)

    @property
    def alive(self) -> bool:
        """Whether `next` may still return a document."""
        if self._seat.closed:
            return False
        event = self._event
        # The invalidate, or what a pipeline has left of the batch that ends with it.
        return event is None or event.index + 1 < len(event.batch) or not from_invalidate(event.batch.place.token)

    def _no_event(self) -> None:
        """A step ended without an event: the place is as far as everything has been handed out."""
        self._event, self._place = None, self._seat.progress
