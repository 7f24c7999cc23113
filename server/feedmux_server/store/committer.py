"""Makes acks durable: one task commits for all sessions of the process and renews their leases.

Invariant: one pass at a time; a pass writes each subscription at most once and sends many in one round trip,
so the load on Redis depends on the number of sessions and the interval, not on the event rate. While Redis is
unavailable, the newest position of each session waits, and the pauses between passes grow. The commit script, not the
clock of this process, decides who owns a subscription.
Neighbours: sessions submit through their `CommitHandle`; `commit_queue` decides; `lease_store` runs the scripts.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.commit_queue import CommitQueue
from feedmux_server.store.errors import RETRY_AFTER_S
from feedmux_server.store.handle import CommitHandle, CommitListener, Waiting
from feedmux_server.store.lease_store import LeaseStore
from feedmux_server.store.model import CommitOutcome, CommitRequest, Lease, StoredSubscription
from feedmux_server.telemetry import metrics

_log = logging.getLogger(__name__)

CHUNK_MAX: Final = 500
"""The most requests in one round trip: Redis answers 500 in a few milliseconds, so other calls do not wait long."""
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0


class Committer:
    def __init__(self, leases: LeaseStore, *, interval_s: float, clock: Callable[[], float] = monotonic_s) -> None:
        """`interval_s`: the longest wait of an ack. A shorter one sends `Committed` sooner, at more work for Redis."""
        self._leases = leases
        self._interval_s = interval_s
        self._clock = clock
        self._queue = CommitQueue(leases.rules, clock())
        self._urgent: dict[CommitHandle, None] = {}
        self._wake = asyncio.Event()
        self._pass_lock = asyncio.Lock()
        self._backoff_s = 0.0

    @property
    def available(self) -> bool:
        """False while commits wait for Redis."""
        return self._backoff_s == 0.0

    @property
    def waiting(self) -> int:
        """The number of sessions with acks that are not stored yet."""
        return len(self._queue.with_acks())

    def attach(self, lease: Lease, stored: StoredSubscription, listener: CommitListener) -> CommitHandle:
        """Attach a session soon after `open`. Fences an older session of the subscription in this process."""
        handle = CommitHandle(self, lease, stored, listener, self._clock())
        if not self._queue.add(handle):
            self.wake(handle)
        return handle

    def recheck(self, tenant: str, name: str) -> None:
        """Check soon who owns the subscription: after an update, seek or delete through this process."""
        handle = self._queue.newest(tenant, name)
        if handle is not None:
            self.wake(handle)

    async def restore(self, tenant: str, name: str) -> None:
        """Let an open session of this process restore the subscription now if Redis has lost it: before a call that
        would take it for one that does not exist."""
        handle = self._queue.newest(tenant, name)
        if handle is not None:
            await self._renew(handle)

    def wake(self, handle: CommitHandle) -> None:
        self._queue.make_due(handle)
        self._wake.set()

    async def run(self) -> None:
        """Commit again and again until cancelled; the server owns this task. Does not flush at its end: see
        `flush_all`."""
        while True:
            if self._queue.has_due:
                self._wake.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._leases.rules.check_every_s):
                    await self._wake.wait()
            async with self._pass_lock:
                self._wake.clear()
                done = await self._pass(self._queue.ready(self._clock()))
            # At random, so that not all servers of a deployment try again at one time.
            await asyncio.sleep(self._interval_s if done else self._backoff_s * random.uniform(0.5, 1.0))

    async def flush(self, handle: CommitHandle, timeout_s: float) -> None:
        handle.raise_if_fenced()
        if handle.waiting is None:
            return
        number = handle.waiting.number
        self._urgent[handle] = None
        try:
            async with asyncio.timeout(timeout_s):
                while handle.attached and handle.stored_number < number:
                    async with self._pass_lock:
                        # Another flush of the handle, which members of a group share, may have ended, and taken it out.
                        self._urgent[handle] = None
                        # The calls that waited for the lock share the round trip of the first call.
                        done = handle.stored_number >= number or await self._pass(list(self._urgent))
                    if not done or handle.not_before_s > self._clock():
                        await asyncio.sleep(BACKOFF_FIRST_S)
        except TimeoutError:
            raise FeedmuxError(
                ErrorReason.STATE_UNAVAILABLE,
                "Redis did not store the last acks in time; events that were not committed will be delivered again",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        finally:
            self._urgent.pop(handle, None)
        handle.raise_if_fenced()

    async def flush_all(self, timeout_s: float) -> int:
        """Store waiting acks as far as `timeout_s` allows; return how many sessions have acks left."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while waiting := self._queue.with_acks():
                    async with self._pass_lock:
                        done = await self._pass(waiting)
                    if not done or any(self._queue.is_due(handle) for handle in waiting):
                        await asyncio.sleep(BACKOFF_FIRST_S)
        return len(self._queue.with_acks())

    async def detach(self, handle: CommitHandle, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                if handle.attached and not await self._released(handle, timeout_s):
                    # Redis has lost what it had confirmed, and nobody else knows it.
                    await self._renew(handle)
                    await self._released(handle, timeout_s)
        except (FeedmuxError, TimeoutError):
            # The lease expires by itself, and the client reports its last ack when it reconnects.
            _log.warning(
                "session ended without its last commit: tenant=%s subscription=%s epoch=%d",
                handle.lease.tenant,
                handle.lease.name,
                handle.lease.epoch,
            )
        finally:
            handle.attached = False
            handle.waiting = None
            self._queue.forget(handle)

    async def _released(self, handle: CommitHandle, timeout_s: float) -> bool:
        """Store what waits, and release the lease; False if Redis has lost the lease or the position."""
        await self.flush(handle, timeout_s)
        # A renewal still under way may find the lease released: nobody needs to know any more.
        handle.attached = False
        released = await self._leases.release_unless_lost(handle.lease, handle.delivered_time, handle.answered)
        handle.attached = not released and handle.fence_cause is None
        return released

    async def _renew(self, handle: CommitHandle) -> None:
        async with self._pass_lock:
            await self._pass([handle])

    async def _pass(self, handles: Sequence[CommitHandle]) -> bool:
        """Commit or renew each handle once; False if Redis as a whole failed. The caller holds `_pass_lock`."""
        try:
            for start in range(0, len(handles), CHUNK_MAX):
                missing = await self._commit(handles[start : start + CHUNK_MAX])
                if missing:
                    await self._leases.restore_many([handle.restore_request() for handle in missing])
                    for handle in await self._commit(missing):
                        self._queue.put_off(handle, self._clock())
        except FeedmuxError as error:
            self._note_unavailable(error.message)
            return False
        except Exception:
            self._note_unavailable("writing to Redis failed unexpectedly")
            raise
        if handles:
            self._back()
        return True

    async def _commit(self, handles: Iterable[CommitHandle]) -> list[CommitHandle]:
        """Commit handles; return those whose state Redis lost and that may restore it."""
        sent: list[tuple[CommitHandle, Waiting | None]] = [(h, h.waiting) for h in handles if h.attached]
        sent_s = self._clock()
        outcomes = await self._commit_many([handle.request() for handle, _ in sent])
        missing: list[CommitHandle] = []
        answered = [handle for handle, _ in sent if handle.available]
        for (handle, waiting), outcome in zip(sent, outcomes, strict=True):
            if handle.attached and self._queue.answered(handle, waiting, outcome, sent_s, self._clock()):
                missing.append(handle)
        refused = [handle.lease for handle in answered if not handle.available]
        if refused:
            first = refused[0]
            _log.error(
                "Redis does not accept the commits of %d subscriptions now, among them tenant=%s subscription=%s",
                len(refused),
                first.tenant,
                first.name,
            )
        return missing

    async def _commit_many(self, requests: Sequence[CommitRequest]) -> Sequence[CommitOutcome]:
        observer, began_s = self._leases.observer, monotonic_s()
        try:
            with observer.span("feedmux commit", {"feedmux.commit.count": len(requests)}):
                outcomes = await self._leases.commit_many(requests)
        except FeedmuxError:
            observer.count(metrics.COMMITS, len(requests), "unavailable")
            raise
        observer.measured(metrics.COMMIT_TIME, monotonic_s() - began_s)
        for status, count in Counter(outcome.status for outcome in outcomes).items():
            observer.count(metrics.COMMITS, count, status.value.lower())
        return outcomes

    def _note_unavailable(self, why: str) -> None:
        if self.available:
            _log.error("commits are waiting for Redis: %s", why)
        self._backoff_s = min(BACKOFF_MAX_S, self._backoff_s * 2 or BACKOFF_FIRST_S)
        for handle in self._queue:
            handle.tell_available(False)

    def _back(self) -> None:
        if self.available:
            return
        _log.warning("Redis accepts commits again")
        self._backoff_s = 0.0
        now_s = self._clock()
        for handle in self._queue:
            if handle.not_before_s <= now_s:
                handle.tell_available(True)
