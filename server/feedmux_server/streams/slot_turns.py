"""Gives slots for reading history to the subscribers that wait, when one may have become free."""

import asyncio

from feedmux_server.core.delivery.slots import Slots

_ADMIT_AGAIN_S = 0.02


class SlotTurns:
    """Wakes the subscribers whose turn it is."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._timer: asyncio.TimerHandle | None = None

    @property
    def wanted(self) -> bool:
        """Whether a subscriber waits for a slot."""
        return self._slots.wanted

    def slot_free(self) -> None:
        """Note that a stream no longer needs its slot."""
        if self._timer is None and self._slots.admit():
            # A subscriber that was woken may have found another stream, or have left.
            self._timer = asyncio.get_running_loop().call_later(_ADMIT_AGAIN_S, self._again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._timer = None
        self.slot_free()
