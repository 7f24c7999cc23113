"""The state of a change stream after each step, by pymongo's rules: `resume_token` and `alive`.

Shared by both interfaces, which own the session and take the steps. Values are computed only on request, so that a step
costs one attribute.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from feedmux.batches import Event
from feedmux.positions import FeedPosition, from_invalidate
from feedmux.session_base import SessionBase
from feedmux.watch_options import WatchPlan

FIRST_ANSWER_S: Final = 2.0
"""The least wait of the first `try_next` of a stream with a start. MongoDB answers with the available events, however
short the wait. Here the events come through a server, which takes longer; a program that drains with a short wait must
not mistake that delay for the end."""


class WatchState:
    """The last step of a stream: an event, or a position without an event."""

    def __init__(self, plan: WatchPlan, session: SessionBase) -> None:
        self._session_base = session
        self._await_s = plan.await_s
        self._wait_s = plan.await_s if plan.start is None else max(plan.await_s, FIRST_ANSWER_S)
        """The wait of the next `try_next`."""
        self._given_token = plan.given_token
        self._token_options: CodecOptions[Any] = plan.codec_options
        if plan.codec_options.type_registry._decoder_map:
            # As in pymongo, which decodes events a second time if there are custom decoders.
            self._token_options = plan.codec_options.with_options(document_class=RawBSONDocument)
        self._event: Event | None = None
        self._feed_position = FeedPosition()

    @property
    def resume_token(self) -> Mapping[str, Any] | None:
        """The token to resume after: that of the last returned document, or a later one once all have been returned."""
        event = self._event
        if event is None:
            token = self._feed_position.token
        elif event.index + 1 < len(event.batch):
            token = event.batch.event_key(event.index)
        else:
            token = event.batch.feed_position.token or event.batch.event_key(event.index)
        return bson.decode(token, self._token_options) if token else copy.deepcopy(self._given_token)

    @property
    def alive(self) -> bool:
        """Whether `next` may still return a document."""
        if self._session_base.closed:
            return False
        event = self._event
        # The invalidate, or what a pipeline has left of the batch that ends with the invalidate.
        return (
            event is None or event.index + 1 < len(event.batch) or not from_invalidate(event.batch.feed_position.token)
        )

    def _no_event(self) -> None:
        """Record a step without an event: the position up to which everything has been delivered."""
        feed_position = self._session_base.progress
        # Without a token, it is the position after the last event, whose token is long: the server omits that.
        if feed_position.token or self._event is None:
            self._event, self._feed_position = None, feed_position
