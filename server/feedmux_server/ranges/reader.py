"""Reads a feed from a given position, as far as its caller asks: a subscriber without a session.

Used by `ranges` to plan, and by ReadRange for events no longer retained. Shares its stream like any subscriber.
"""

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.cached_range import as_chunk, trimmed
from feedmux_server.core.delivery.copy_range import has_documents, is_of_one_step
from feedmux_server.core.delivery.taken import BSON, Delivery, Ended
from feedmux_server.core.errors import ErrorReason
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.wakeup import Wakeup

_LOOK_EVERY_S = 5.0
"""A stream wakes its subscribers when it changes; they check again after this time at the latest."""


class RangeReader:
    """A reader of one feed. End it with `close`."""

    def __init__(self, manager: StreamManager, key: StreamKey, tenant: str, at: JoinPoint, payload_max: int) -> None:
        self._manager = manager
        self._key = key
        self._signal = Wakeup()
        self._streams = manager.streams_of(key).streams
        self._subscriber = manager.subscriber(
            key,
            tenant,
            at,
            self._signal.set,
            durable=False,
            payload_max=payload_max,
            wire_format=BSON,
            wants_progress=True,
        )
        self.passed = False
        """An event after `until`, or after the step of a copy, was met: the range is complete, and this reader is
        somewhere after its end."""
        self._began = at.place
        self._in_copy = at.place.copied is not None and at.place.copied.until is None
        """It plans a step of a copy."""
        self._last: Delivery | None = None
        """The last events of the step."""
        self._next: ResumeToken | None = None
        """The position before the first event after the step."""

    @property
    def place(self) -> ResumeToken:
        """The position up to which every event was returned or does not match the feed."""
        return self._subscriber.progress()

    def has_read(self, cluster_time: int) -> bool:
        """Whether every event at or before this time was returned or does not match the feed. Not within a copy, where
        documents follow."""
        return self.place.copied is None and self._streams.has_read(self._subscriber, cluster_time)

    def has_reached(self, mark: ResumeToken) -> bool:
        """Whether every event at or before a position was returned or does not match the feed."""
        return self.place.reaches(mark) or (mark.is_high_water_mark and self.has_read(mark.cluster_time - 1))

    def end_of_step(self) -> ResumeToken:
        """Where the range ends that began within a copy."""
        place = self._next or self.place
        if place.copied is None:
            return place.before_time().after_documents()
        if self._last is not None:
            return self._last.end
        return place.before_time() if has_documents(self._began, place) else place

    @property
    def can_receive(self) -> bool:
        return self._subscriber.can_receive

    def grant(self, events: int, size: int) -> None:
        self._streams.grant(self._subscriber, events, size)

    def revoke(self) -> None:
        """Take back unused credit, so that nothing is read ahead without need. The next range starts without debt."""
        credit = self._subscriber.credit
        credit.events = credit.bytes = 0

    async def next(
        self, deadline_s: float, *, until: ResumeToken | None = None, target: int | None = None
    ) -> Delivery | None:
        """Return the next events at or before `until`; None if there are no more, the credit is used up, or the time is
        up.

        Also returns None once every event at or before the cluster time `target` is known. Raises the error that ended
        the feed.
        """
        while not self.passed:
            start = self._subscriber.at.place
            taken = self._streams.take(self._subscriber)
            if isinstance(taken, Delivery) and self._in_copy:
                if not self._is_of_step(taken):
                    self.passed, self._next = True, as_chunk(taken, start).token(0).before_time()
                    return None
                self._last = taken
                return taken
            if self._in_copy and self.place.copied is None:
                self.passed = True
                return None
            if isinstance(taken, Delivery):
                cut = trimmed(taken, start, until) if until is not None else taken
                self.passed = cut is not taken
                return cut
            is_complete = until is not None and self.has_reached(until)
            # What ends the feed after the range does not concern it, unless MongoDB was restored.
            if isinstance(taken, Ended):
                if not is_complete or taken.error.reason is ErrorReason.TIMELINE_FORKED:
                    raise taken.error
                return None
            if is_complete or not self.can_receive:
                return None
            if target is not None and self.has_read(target):
                return None
            left_s = deadline_s - monotonic_s()
            if left_s <= 0:
                return None
            await self._signal.wait(min(left_s, _LOOK_EVERY_S))
        return None

    def _is_of_step(self, taken: Delivery) -> bool:
        """Whether events belong to the step of the copy that this reader plans (`core.delivery.copy_range`)."""
        last = self._last
        if taken.are_documents:
            return last is None or not last.are_documents or is_of_one_step(last.end, taken.end, documents=True)
        return (last is None or not last.are_documents) and is_of_one_step(self._began, taken.end, documents=False)

    def close(self) -> None:
        self._manager.release(self._key, self._subscriber)
