"""A session's acks on their way to Redis: no ack is forgotten, whatever happens between a request and its answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.lease import LeaseRules
from feedmux_server.store.committer import Committer
from feedmux_server.store.handle import CommitHandle
from feedmux_server.store.model import (
    CommitOutcome,
    CommitRequest,
    CommitStatus,
    FenceCause,
    Lease,
    RestoreRequest,
    StoredPlace,
    StoredSubscription,
)
from feedmux_server.telemetry.observer import NOBODY
from tests.integration.state_support import Recorder, place, running, submit
from tests.virtual_time import in_virtual_time

LEASE = Lease("t", "s", 7, "nonce", "me")
LEASE_S = 30.0
SOON_S = 5.0
"""Much longer than the commit interval, and before a lease is renewed."""


def stored_at(number: int) -> StoredSubscription:
    at = place(number)
    return StoredSubscription("s", b"", "e", at.position, at.cluster_time, at.order, 7, 0, 0, "me", True, 0, 0, 0)


class Woken:
    """A Committer that counts wake-ups."""

    def __init__(self) -> None:
        self.count = 0

    def wake(self, handle: CommitHandle) -> None:
        self.count += 1

    async def flush(self, handle: CommitHandle, timeout_s: float) -> None: ...

    async def detach(self, handle: CommitHandle, timeout_s: float) -> None: ...


def handle_with(recorder: Recorder) -> tuple[CommitHandle, Woken]:
    woken = Woken()
    return CommitHandle(woken, LEASE, stored_at(0), recorder, 0.0), woken


def test_an_ack_between_request_and_answer_still_waits() -> None:
    recorder = Recorder()
    handle, woken = handle_with(recorder)
    submit(handle, 1)
    sent = handle.waiting
    assert handle.request().place == place(1)
    submit(handle, 2)
    handle.confirm(sent, place(1).position, 5.0)
    assert handle.waiting is not None
    assert handle.request().place == place(2)
    assert (handle.restore_request().stored.position, handle.stored_sequence, handle.confirmed_s) == (
        place(1).position,
        1,
        5.0,
    )
    assert recorder.commits == [(1, place(1).position)]
    handle.confirm(handle.waiting, place(2).position, 6.0)
    assert handle.request().place is None
    assert (handle.restore_request().stored.position, handle.stored_sequence) == (place(2).position, 2)
    assert recorder.commits == [(1, place(1).position), (2, place(2).position)]
    assert woken.count == 1
    submit(handle, 3)
    assert woken.count == 2


def test_a_renewal_confirms_no_ack() -> None:
    recorder = Recorder()
    handle, _ = handle_with(recorder)
    sent = handle.waiting
    submit(handle, 1)
    handle.confirm(sent, b"", 5.0)
    assert handle.request().place == place(1)
    assert (handle.confirmed_s, handle.stored_sequence, recorder.commits) == (5.0, 0, [])


def test_what_redis_has_instead_is_not_taken_for_what_was_sent() -> None:
    """Restoring a lost subscription must bring back the position that this session knows to be stored."""
    recorder = Recorder()
    handle, _ = handle_with(recorder)
    submit(handle, 1)
    handle.confirm(handle.waiting, place(9).position, 5.0)
    assert recorder.commits == [(1, place(9).position)]
    assert handle.restore_request().stored == stored_at(0)


def test_which_submits_are_news() -> None:
    recorder = Recorder()
    handle, woken = handle_with(recorder)
    at = place(0)
    handle.submit(at.position, at.cluster_time, at.order, 0)
    assert handle.waiting is None, "a heartbeat of an idle feed"
    submit(handle, 3)
    submit(handle, 2)
    assert handle.request().place == place(3), "an older ack does not replace it"
    at = place(4)
    handle.submit(at.position, at.cluster_time, at.order, 3)
    assert handle.request().place == place(4), "the position of a heartbeat after the same ack replaces it"
    handle.confirm(handle.waiting, place(4).position, 1.0)
    handle.submit(at.position, at.cluster_time, at.order, 3)
    assert handle.waiting is None
    at = place(5)
    handle.submit(at.position, at.cluster_time, at.order, 3)
    assert handle.request().place == place(5)
    handle.confirm(handle.waiting, place(5).position, 1.0)
    handle.submit(at.position, at.cluster_time, at.order, 4)
    assert handle.request().place == place(5), "an ack inside a split event: the same position, another sequence"
    assert woken.count == 3


def test_after_the_fence_nothing_is_taken_and_it_is_told_once() -> None:
    recorder = Recorder()
    handle, woken = handle_with(recorder)
    submit(handle, 1)
    handle.fence(FenceCause.SEEK)
    handle.fence(FenceCause.DELETE)
    submit(handle, 2)
    assert (handle.waiting, handle.attached, recorder.causes, woken.count) == (None, False, ["SEEK"], 1)
    with pytest.raises(FeedmuxError) as caught:
        handle.raise_if_fenced()
    assert caught.value.metadata == {"cause": "SEEK"}


def test_availability_is_told_when_it_changes_and_ended_by_an_answer() -> None:
    recorder = Recorder()
    handle, _ = handle_with(recorder)
    for available in (True, False, False, True):
        handle.tell_available(available)
    handle.tell_available(False)
    handle.not_before_s = 9.0
    handle.confirm(None, b"", 5.0)
    assert (recorder.available, handle.not_before_s) == ([False, True, False, True], 0.0)


@dataclass
class SlowStore:
    """A store that answers when the test lets it, and records what it received."""

    rules: LeaseRules = field(default_factory=lambda: LeaseRules(lease_s=LEASE_S, tombstone_s=3600.0))
    observer: Any = NOBODY
    sent: list[StoredPlace | None] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    trips: list[tuple[float, int]] = field(default_factory=list)
    """The time of each request, and its number of sessions."""
    asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    answers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    outcome: CommitOutcome | FeedmuxError | None = None
    restored: list[RestoreRequest] = field(default_factory=list)
    released: list[Lease] = field(default_factory=list)

    async def commit_many(self, requests: Sequence[CommitRequest]) -> Sequence[CommitOutcome]:
        self.sent += [request.place for request in requests]
        self.leases += [request.lease for request in requests]
        self.trips.append((asyncio.get_running_loop().time(), len(requests)))
        self.asked.release()
        await self.answers.acquire()
        if isinstance(self.outcome, FeedmuxError):
            raise self.outcome
        return [
            self.outcome or CommitOutcome(CommitStatus.OK, request.place.position if request.place else b"")
            for request in requests
        ]

    async def was_asked(self) -> None:
        """Wait for one more request."""
        await self.asked.acquire()

    async def restore_many(self, requests: Sequence[RestoreRequest]) -> None:
        self.restored += requests

    async def release(self, lease: Lease, delivered_time: int) -> None:
        self.released.append(lease)


def unrun(answers: int = 1000) -> tuple[SlowStore, Committer]:
    """A committer whose task does not run, and a store that answers `answers` requests at once."""
    store: Any = SlowStore()
    store.answers = asyncio.Semaphore(answers)
    return store, Committer(store, interval_s=0.001, clock=asyncio.get_running_loop().time)


@asynccontextmanager
async def slow() -> AsyncIterator[tuple[SlowStore, Committer, CommitHandle, Recorder]]:
    """A running committer with one session, and a store that answers nothing yet."""
    store, committer = unrun(answers=0)
    recorder = Recorder()
    handle = committer.attach(LEASE, stored_at(0), recorder)
    async with running(committer):
        yield store, committer, handle, recorder


@in_virtual_time
async def test_a_flush_meanwhile_waits_for_its_own_ack() -> None:
    async with slow() as (store, _, handle, recorder):
        submit(handle, 1)
        await store.was_asked()
        submit(handle, 2)
        flushing = asyncio.create_task(handle.flush(2 * SOON_S))
        store.answers.release()
        await store.was_asked()
        await asyncio.sleep(SOON_S)
        assert not flushing.done(), "the answer to the first request does not answer the second"
        store.answers.release()
        await flushing
        assert recorder.commits == [(1, place(1).position), (2, place(2).position)]
        await handle.flush(5.0)
        assert len(store.sent) == 2


@in_virtual_time
async def test_a_flush_ends_in_time_and_with_the_fence() -> None:
    async with slow() as (store, _, handle, recorder):
        submit(handle, 1)
        with pytest.raises(FeedmuxError) as caught:
            await handle.flush(0.05)
        assert asyncio.get_running_loop().time() == 0.05
        assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE
        assert handle.request().place == place(1), "the ack still waits"
        store.outcome = CommitOutcome(CommitStatus.FENCED, cause=FenceCause.UPDATE)
        flushing = asyncio.create_task(handle.flush(5.0))
        for _ in range(3):
            store.answers.release()
        with pytest.raises(FeedmuxError) as fenced:
            await flushing
        assert (fenced.value.reason, recorder.causes) == (ErrorReason.FENCED, ["UPDATE"])


@in_virtual_time
async def test_an_answer_that_comes_after_the_detach_fences_nobody() -> None:
    async with slow() as (store, _, handle, recorder):
        submit(handle, 1)
        await store.was_asked()
        await handle.detach(0.02)
        store.outcome = CommitOutcome(CommitStatus.FENCED, cause=FenceCause.LEASE)
        store.answers.release()
        await asyncio.sleep(SOON_S)
        assert (recorder.causes, recorder.commits) == ([], [])


OTHER = replace(LEASE, name="other")


@in_virtual_time
async def test_a_flush_sends_what_others_flush_at_the_same_time_and_not_what_was_flushed_before() -> None:
    store, committer = unrun()
    one = committer.attach(LEASE, stored_at(0), Recorder())
    other = committer.attach(OTHER, stored_at(0), Recorder())
    submit(one, 1)
    await one.flush(1.0)
    submit(other, 1)
    await other.flush(1.0)
    assert store.leases == [LEASE, OTHER]
    store.answers = asyncio.Semaphore(0)
    third = committer.attach(replace(LEASE, name="third"), stored_at(0), Recorder())
    flushing = []
    for handle in (one, other, third):
        submit(handle, 2)
        flushing.append(asyncio.create_task(handle.flush(1.0)))
    await asyncio.sleep(0.5)
    for _ in range(2):
        store.answers.release()
    await asyncio.gather(*flushing)
    assert [count for _, count in store.trips[2:]] == [1, 2], "one round trip serves both waiting sessions"


@in_virtual_time
async def test_after_an_outage_a_refused_key_is_not_told_that_it_is_available() -> None:
    store, committer = unrun()
    recorders = Recorder(), Recorder()
    refused, fine = (
        committer.attach(LEASE, stored_at(0), recorders[0]),
        committer.attach(OTHER, stored_at(0), recorders[1]),
    )
    store.outcome = CommitOutcome(CommitStatus.FAILED)
    submit(refused, 1)
    await committer.flush_all(0.05)
    store.outcome = FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "away")
    submit(fine, 1)
    with pytest.raises(FeedmuxError):
        await fine.flush(0.05)
    store.outcome = None
    await fine.flush(1.0)
    assert [each.available for each in recorders] == [[False], [False, True]]


@in_virtual_time
async def test_the_end_does_not_wait_for_a_redis_that_never_answers() -> None:
    store, committer = unrun(answers=0)
    loop = asyncio.get_running_loop()
    handles = [committer.attach(replace(LEASE, name=f"s{n}"), stored_at(0), Recorder()) for n in range(100)]
    for handle in handles:
        submit(handle, 1)
    assert await committer.flush_all(0.3) == 100
    assert loop.time() == 0.3
    await asyncio.gather(*(handle.detach(0.3) for handle in handles))
    assert loop.time() == 0.6, "all of them together, not one after the other"
    assert (store.released, committer.waiting) == ([], 0)


@in_virtual_time
async def test_a_move_back_is_not_forgotten_for_a_later_ack() -> None:
    _, committer = unrun()
    handle = committer.attach(LEASE, stored_at(5), Recorder())
    handle.submit(b"back", 1, b"", 0, moves_back=True)
    handle.submit(b"next", 2, b"", 1)
    assert handle.waiting is not None
    assert handle.waiting.place == StoredPlace(b"next", 2, b"", moves_back=True)
