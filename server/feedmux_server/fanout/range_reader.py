"""Reads a feed from a place on, as far as it is asked to: a subscriber without a session.

Used by `ranges` to plan, and by ReadRange for what is not kept any more. Shares its stream like any subscriber.
"""

from feedmux_server.clock import monotonic_s
from feedmux_server.core.pinned_range import trimmed
from feedmux_server.core.resume_token import ResumeToken
from feedmux_server.core.stream_key import StreamKey
from feedmux_server.core.subscriber import BSON, Delivery, Ended, JoinPoint
from feedmux_server.fanout.hub import Hub
from feedmux_server.fanout.signal import Signal

_LOOK_EVERY_S = 5.0
"""What a stream does wakes its subscribers; at the latest after so long they look again."""


class RangeReader:
    """To be ended with `close`."""

    def __init__(self, hub: Hub, key: StreamKey, tenant: str, at: JoinPoint, payload_max: int) -> None:
        self._hub = hub
        self._key = key
        self._signal = Signal()
        self._subscriber = hub.subscriber(
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
        """An event behind `until` was met: the range is complete, and this reader stands somewhere behind it."""

    @property
    def place(self) -> ResumeToken:
        """Everything up to here was returned, or matches nothing."""
        return self._subscriber.progress()

    @property
    def can_receive(self) -> bool:
        return self._subscriber.can_receive

    def grant(self, events: int, size: int) -> None:
        self._subscriber.grant(events, size)

    def revoke(self) -> None:
        """Takes back what was not used: nothing is read ahead for nobody. The next range has no debt to pay."""
        credit = self._subscriber.credit
        credit.events = credit.bytes = 0

    async def next(
        self, deadline_s: float, *, until: ResumeToken | None = None, target: ResumeToken | None = None
    ) -> Delivery | None:
        """The next events at or before `until`. None when there are no more, no credit, or the time is up.

        Also None once everything up to `target` is known. Raises what ended the feed.
        """
        while not self.passed:
            start = self._subscriber.at.place
            taken = self._subscriber.take()
            if isinstance(taken, Delivery):
                cut = trimmed(taken, start, until) if until is not None else taken
                self.passed = cut is not taken
                return cut
            if isinstance(taken, Ended):
                raise taken.error
            place = self.place
            if not self.can_receive or any(mark and not mark.is_after(place) for mark in (until, target)):
                return None
            left_s = deadline_s - monotonic_s()
            if left_s <= 0:
                return None
            await self._signal.wait(min(left_s, _LOOK_EVERY_S))
        return None

    def close(self) -> None:
        self._hub.release(self._key, self._subscriber)
