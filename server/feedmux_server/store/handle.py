"""One session's side of committing: the newest acknowledged position not stored yet, and the state of the lease.

Invariant: at most one position waits, however many acks arrive and however long Redis is unavailable. State changes
here, in synchronous methods; `committer` does the input and output, and only `committer` calls the methods below the
line "For the committer".
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from feedmux_server.core.errors import fenced_error
from feedmux_server.store.model import (
    CommitRequest,
    FenceCause,
    Lease,
    RestoreRequest,
    StoredPlace,
    StoredSubscription,
)

_log = logging.getLogger(__name__)


class CommitListener(Protocol):
    """Called by the committer, from its task or from `flush`; must neither block nor await."""

    def committed(self, delivery_sequence: int, position: bytes) -> None:
        """Acks up to `delivery_sequence` are durable; `position` is what is stored."""

    def fenced(self, cause: str) -> None:
        """The session lost the subscription because of `cause` (a `FenceCause`), and commits nothing more. Called once
        at most."""

    def state_available(self, available: bool) -> None:
        """False when commits wait for Redis, True when Redis accepts them again. Never called twice with one value in a
        row."""


class Waiting(NamedTuple):
    place: StoredPlace
    delivery_sequence: int
    number: int
    """Counts submits, so that a flush knows when its own submit has been stored."""


class CommitterPort(Protocol):
    """What a handle needs of its committer."""

    def wake(self, handle: "CommitHandle") -> None: ...
    async def flush(self, handle: "CommitHandle", timeout_s: float) -> None: ...
    async def detach(self, handle: "CommitHandle", timeout_s: float) -> None: ...


class CommitHandle:
    """Made by `Committer.attach`."""

    __slots__ = (
        "_available", "_committer", "_listener", "_moved_back", "_stored", "answered", "attached", "confirmed_s",
        "delivered_time", "fence_cause", "lease", "members", "not_before_s", "stored_number", "stored_sequence",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        committer: CommitterPort,
        lease: Lease,
        stored: StoredSubscription,
        listener: CommitListener,
        now_s: float,
    ) -> None:
        self._committer = committer
        self._stored = stored
        self.answered = stored.position
        """What Redis has had by its last answer: another answer to a renewal shows that Redis has lost a commit."""
        self._moved_back = False
        """Whether a position was stored that is before the one before it."""
        self._listener = listener
        self._available = True
        self.lease = replace(lease, follows_lost=False)
        self.attached = True
        self.confirmed_s = now_s
        self.delivered_time = stored.delivered_time
        self.members: int | None = None
        self.fence_cause: FenceCause | None = None
        self.not_before_s = 0.0
        """End of the backoff after Redis rejected this key alone."""
        self.waiting: Waiting | None = None
        self.stored_number = 0
        self.stored_sequence = 0

    def submit(
        self, position: bytes, cluster_time: int, order: bytes, delivery_sequence: int, *, moves_back: bool = False
    ) -> None:
        """Submit `position` to be stored: all events up to `delivery_sequence` are processed. Replaces the position
        that waits. With `moves_back`, it may be before the stored position."""
        if not self.attached:
            return
        if moves_back:
            self.delivered_time = 0
        waiting = self.waiting
        if waiting is None:
            # The heartbeat of an idle feed repeats its position; the lease is renewed without a commit.
            if not moves_back and delivery_sequence <= self.stored_sequence and position == self._stored.position:
                return
            number = self.stored_number + 1
        elif delivery_sequence < waiting.delivery_sequence:
            return
        else:
            number = waiting.number + 1
            moves_back = moves_back or waiting.place.moves_back  # it was not stored yet
        self.waiting = Waiting(StoredPlace(position, cluster_time, order, moves_back), delivery_sequence, number)
        if waiting is None:
            self._committer.wake(self)

    def delivered(self, cluster_time: int) -> None:
        """Note that events up to this time are delivered. It is stored with the next commit or renewal."""
        self.delivered_time = max(self.delivered_time, cluster_time)

    def has_members(self, count: int) -> None:
        """Note how many members the group has, and store it soon."""
        if self.members != count:
            self.members = count
            if self.attached:
                self._committer.wake(self)

    async def flush(self, timeout_s: float) -> None:
        """Store now what was submitted before. Raises FENCED, or STATE_UNAVAILABLE after `timeout_s`."""
        await self._committer.flush(self, timeout_s)

    async def detach(self, timeout_s: float = 2.0) -> None:
        """Flush and release the lease as far as `timeout_s` allows, then forget the session. Does not raise."""
        await self._committer.detach(self, timeout_s)

    @property
    def available(self) -> bool:
        """False while Redis does not accept this session's commits."""
        return self._available

    # For the committer:

    def request(self) -> CommitRequest:
        place = None if self.waiting is None else self.waiting.place
        return CommitRequest(self.lease, place, self.delivered_time, self.members, self.answered)

    def restore_request(self) -> RestoreRequest:
        return RestoreRequest(self.lease, self._stored)

    def confirm(self, sent: Waiting | None, position: bytes, sent_s: float) -> None:
        """Note that the request made from `sent` at `sent_s` succeeded, and that Redis has `position`."""
        self.confirmed_s = sent_s
        self.not_before_s = 0.0
        self.tell_available(True)
        answered, self.answered = self.answered, position or self.answered
        if sent is None:
            if self.answered != answered and self.waiting is None:
                stored = self._stored
                place = StoredPlace(stored.position, stored.cluster_time, stored.order, self._moved_back)
                self.waiting = Waiting(place, self.stored_sequence, self.stored_number + 1)
            return
        if (self._moved_back or sent.place.moves_back) and position not in (sent.place.position, answered):
            # Redis has another position than it has answered: it has lost that the position was moved back, and takes
            # this one for older than what it has.
            newest = self.waiting or sent
            self.waiting = newest._replace(place=replace(newest.place, moves_back=True))
            return
        if self.waiting is not None and self.waiting.number == sent.number:
            self.waiting = None
        self.stored_number = sent.number
        self.stored_sequence = max(self.stored_sequence, sent.delivery_sequence)
        if position == sent.place.position:
            place = sent.place
            self._stored = replace(
                self._stored, position=place.position, cluster_time=place.cluster_time, order=place.order
            )
            if place.moves_back:
                self._moved_back = True
                self._stored = replace(self._stored, seek_epoch=self.lease.epoch)
        self._tell(lambda: self._listener.committed(sent.delivery_sequence, position))

    def fence(self, cause: FenceCause) -> None:
        if self.fence_cause is not None:
            return
        self.fence_cause = cause
        self.attached = False
        self.waiting = None
        self._tell(lambda: self._listener.fenced(cause.value))

    def raise_if_fenced(self) -> None:
        if self.fence_cause is not None:
            raise fenced_error(self.fence_cause.value)

    def tell_available(self, available: bool) -> None:
        if self._available != available:
            self._available = available
            self._tell(lambda: self._listener.state_available(available))

    def _tell(self, call: Callable[[], None]) -> None:
        # One session's defect must not stop the commits of all others.
        try:
            call()
        except Exception:  # noqa: BLE001
            _log.exception("commit listener failed: tenant=%s subscription=%s", self.lease.tenant, self.lease.name)
