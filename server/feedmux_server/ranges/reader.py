"""Reads a feed from a given position, as far as its caller asks: a subscriber without a session.

Used by `ranges` to plan, and by ReadRange for events no longer retained. Shares its stream like any subscriber.
"""

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.cached_range import trimmed
from feedmux_server.core.delivery.taken import BSON, Delivery, Ended
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
        """An event after `until` was met: the range is complete, and this reader is somewhere after its end."""

    @property
    def place(self) -> ResumeToken:
        """The position up to which every event was returned or does not match the feed."""
        return self._subscriber.progress()

    def has_read(self, cluster_time: int) -> bool:
        """Whether every event at or before this time was returned or does not match the feed."""
        return self._streams.has_read(self._subscriber, cluster_time)

    def has_reached(self, mark: ResumeToken) -> bool:
        """Whether every event at or before a position was returned or does not match the feed."""
        return self.place.reaches(mark) or (mark.is_high_water_mark and self.has_read(mark.cluster_time - 1))

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
            if isinstance(taken, Delivery):
                cut = trimmed(taken, start, until) if until is not None else taken
                self.passed = cut is not taken
                return cut
            if isinstance(taken, Ended):
                raise taken.error
            if not self.can_receive or (until is not None and self.has_reached(until)):
                return None
            if target is not None and self.has_read(target):
                return None
            left_s = deadline_s - monotonic_s()
            if left_s <= 0:
                return None
            await self._signal.wait(min(left_s, _LOOK_EVERY_S))
        return None

    def close(self) -> None:
        self._manager.release(self._key, self._subscriber)
