"""When a session sends a heartbeat, and how it ends: at its client's wish, by an error, or because it is drained."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import bson
import pytest

from feedmux_server.core.delivery import ack_tracker
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk, Holder
from feedmux_server.core.events.copy_chunks import cut_documents
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.sessions.outputs import (
    CommittedMark,
    CopyMark,
    DrainingMark,
    GapMark,
    HistoryAtRiskMark,
    ProgressMark,
    UnacknowledgedMark,
)
from feedmux_server.sessions.session import ENDED_FEED_S, SessionPolicy
from feedmux_server.source.oplog import Oplog
from feedmux_server.source.reader import Batch
from feedmux_server.streams.key_streams import KeyStreams
from feedmux_server.streams.upstream import Reader
from tests.tables import over
from tests.unit.core.delivery.streams_support import mark, token
from tests.unit.streams.manager_support import Client, Forgetful, Log, LogReader, World, world
from tests.virtual_time import in_virtual_time, sim_loop

DEADLINE_S = 2.0


def followed(there: World, **options: Any) -> tuple[Log, Client]:
    """A feed of which no event is written yet, and a session of it."""
    key, log = there.feed("a")
    return log, there.session(key, "a", 0, **options)


def end_stream(client: Client, reason: str) -> None:
    stream = client.session.streams.stream_of(client.session.subscriber)
    assert stream is not None
    stream.end(FeedmuxError(ErrorReason(reason), "ended"))


@in_virtual_time
async def test_unacknowledged_events_hold_up_a_drain_until_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        log, client = followed(there, durable=True)
        log.write(10)
        await client.take(10)
        client.session.ack(4)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        client.session.drain(DEADLINE_S)
        mark = await client.next()
        assert isinstance(mark, DrainingMark)
        assert (mark.deadline_s, loop.time()) == (DEADLINE_S, began_s)
        with pytest.raises(FeedmuxError) as caught:
            await client.next()
        assert caught.value.reason is ErrorReason.DRAINING
        assert loop.time() - began_s == pytest.approx(DEADLINE_S, abs=0.02)


@pytest.mark.parametrize(("acks_after_s", "drains_after_s"), [(5.0, 99.0), (99.0, 99.0), (99.0, 3.0)])
@in_virtual_time
async def test_a_feed_that_has_ended_waits_for_the_acks_of_its_last_events(
    monkeypatch: pytest.MonkeyPatch, acks_after_s: float, drains_after_s: float
) -> None:
    async with world(monkeypatch) as there:
        log, client = followed(there, durable=True)
        log.write(10)
        await client.take(10)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        end_stream(client, "FEED_INVALIDATED")
        loop.call_later(acks_after_s, client.session.ack, 10)
        loop.call_later(drains_after_s, client.session.drain, 10.0)

        async def outputs() -> None:
            while True:
                await client.next()

        with pytest.raises(FeedmuxError) as caught:
            await outputs()
        assert caught.value.reason is ErrorReason.FEED_INVALIDATED
        assert loop.time() - began_s == pytest.approx(min(acks_after_s, drains_after_s + 10.0, ENDED_FEED_S), abs=0.5)


@in_virtual_time
async def test_a_heartbeat_comes_when_nothing_else_did_for_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    async with world(monkeypatch) as there:
        log, client = followed(there, heartbeat_s=10.0)
        began_s = loop.time()
        assert isinstance(await client.next(), ProgressMark)
        assert loop.time() - began_s == pytest.approx(10.0, abs=0.02)
        loop.call_later(7.0, log.write, 1)
        await client.take(1)
        delivered_s = loop.time()
        mark = await client.next()
        assert isinstance(mark, ProgressMark)
        assert loop.time() - delivered_s == pytest.approx(10.0, abs=0.02)
        assert mark.place.is_after(token(1))


@in_virtual_time
async def test_a_client_that_acknowledges_nothing_is_told_why_no_events_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    async with world(monkeypatch, unacked_max=10) as there:
        log, client = followed(there, durable=True, heartbeat_s=10.0)
        for last, told in ((10, "told"), (17, "told again after an ack"), (24, "and again")):
            log.write(10)
            await client.take(last)
            taken_s = loop.time()
            assert client.session.state.value == "unacknowledged"
            assert await client.next() == UnacknowledgedMark(10), told
            assert loop.time() - taken_s == pytest.approx(10.0, abs=0.02)
            for _ in range(3):  # the progress of that heartbeat, and later ones
                assert isinstance(await client.next(), ProgressMark)
            client.session.ack(last - 3)
            assert client.session.state.value == "live"
    [line] = [each for each in caplog.records if "limits.unacked_events" in each.getMessage()]
    assert line.__dict__["tenant"] == "a"


@in_virtual_time
async def test_a_client_that_acknowledges_within_an_interval_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    async with world(monkeypatch, unacked_max=10) as there:
        log, client = followed(there, durable=True, heartbeat_s=10.0)
        log.write(11)
        await client.take(10)
        loop.call_later(9.0, client.session.ack, 10)
        await client.take(11)
        assert isinstance(await client.next(), ProgressMark)


@in_virtual_time
async def test_notices_come_before_the_end_and_the_first_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        log, client = followed(there)
        log.write(1)
        client.session.notice(CommittedMark(1, b"p"))
        client.session.fail(FeedmuxError(ErrorReason.FENCED, "first"))
        client.session.fail(FeedmuxError(ErrorReason.INTERNAL, "second"))
        client.session.drain(DEADLINE_S)
        assert await client.next() == CommittedMark(1, b"p")
        for _ in range(2):
            with pytest.raises(FeedmuxError) as caught:
                await client.next()
            assert caught.value.reason is ErrorReason.FENCED


@in_virtual_time
async def test_the_client_is_told_of_each_threshold_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        _, client = followed(there)
        for headroom_s in (4_000.0, 3_000.0, 2_900.0, 500.0):
            client.session.has_headroom(headroom_s)
        assert [await client.next() for _ in range(2)] == [HistoryAtRiskMark(3_000.0), HistoryAtRiskMark(500.0)]
        assert isinstance(await client.next(), ProgressMark)


@in_virtual_time
async def test_the_time_for_which_a_rate_holds_events_back_is_the_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    async with world(monkeypatch, quotas=Quotas(events_per_s=10)) as there:
        log, client = followed(there)
        log.write(20)
        await client.take(20)
        log.write(1)
        began_s = loop.time()
        await client.take(21)
        waited_s = loop.time() - began_s
        assert waited_s == pytest.approx(1.0, abs=0.1)
        assert there.manager.accounts.of("a").throttled_s == pytest.approx(waited_s, abs=0.02)


@over(
    ("reason", "behind", "moves_back"),
    [("HISTORY_LOST", 9, False), ("HISTORY_LOST", 1, True), ("TIMELINE_FORKED", 9, True)],
)
@in_virtual_time
async def test_last_acks_count_after_a_copy_that_begins_after_all_that_was_sent(
    reason: str, behind: int, moves_back: bool
) -> None:
    """Only where the position moves back may one be of the history that was lost."""
    moved: list[bool] = []

    async def operation_time() -> int:
        return mark(behind).cluster_time

    def submit(*_: object, moves_back: bool = False) -> None:
        moved.append(moves_back)

    with pytest.MonkeyPatch.context() as patched:
        async with world(patched) as there:
            key, log = there.feed("a")
            patched.setattr(there.manager.source("main").clock, "operation_time", operation_time, raising=False)
            client = there.session(key, "a", 0, durable=True)
            client.session._policy = SessionPolicy(snapshot_on_history_lost=True)
            log.write(5)
            await client.take(5)
            patched.setattr(Forgetful, "submit", submit)
            patched.setattr(Forgetful, "flush", AsyncMock())
            end_stream(client, reason)
            while not moved:
                await client.next()
            assert moved == [moves_back]


@pytest.mark.parametrize("behind", [0, 3])
@in_virtual_time
async def test_lost_history_never_moves_a_feed_back(monkeypatch: pytest.MonkeyPatch, behind: int) -> None:
    """The oplog that decides may by now be that of another primary, which has the position."""
    async with world(monkeypatch) as there:
        log, client = followed(there)
        client.session._policy = SessionPolicy(earliest_on_history_lost=True)
        log.write(5)
        await client.take(5)
        subscriber = client.session.subscriber
        at = subscriber.at.place.cluster_time

        async def oldest_time() -> int:
            return at - behind

        there.manager.source("main").oplog = cast(Oplog, SimpleNamespace(oldest_time=oldest_time))
        end_stream(client, "HISTORY_LOST")
        log.write(1)
        outputs = []
        while len(client.events) < 6:
            outputs.append(await client.next())
        assert not any(isinstance(each, GapMark) for each in outputs)


@in_virtual_time
async def test_no_turn_of_the_event_loop_releases_much_where_history_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 events may be unacknowledged, each in a chunk of its own."""
    loop, released, moved = sim_loop(), Counter[int](), list[bool]()
    let_go, at_once = Chunk.let_go, 20

    def counted(chunk: Chunk, holder: Holder) -> None:
        released[loop.steps] += 1
        let_go(chunk, holder)

    def submit(*_: object, moves_back: bool = False) -> None:
        moved.append(moves_back)

    async def oldest_time() -> int:
        return mark(1).cluster_time

    monkeypatch.setattr(ack_tracker, "ENTRIES_AT_ONCE", at_once)
    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        there.manager.source("main").oplog = cast(Oplog, SimpleNamespace(oldest_time=oldest_time))
        client = there.session(key, "a", 0, durable=True)
        client.session._policy = SessionPolicy(earliest_on_history_lost=True)
        for count in range(1, 5 * at_once + 1):
            log.write(1)
            await client.take(count)
        subscriber = client.session.subscriber
        monkeypatch.setattr(Forgetful, "submit", submit)
        monkeypatch.setattr(Chunk, "let_go", counted)
        end_stream(client, "TIMELINE_FORKED")
        while not moved:
            await client.next()
        assert (sum(released.values()), max(released.values())) == (5 * at_once, at_once)
        assert subscriber.unacked == 0


DOCUMENTS, EACH_S = 100, 10


class CopyReader(LogReader):
    """A copy of `DOCUMENTS` documents, `EACH_S` each second."""

    async def open(self) -> None:
        await super().open()
        self._stream.documents_estimated = DOCUMENTS

    async def read(self) -> Batch:
        await asyncio.sleep(1.0)
        at = self._stream.ring.newest
        assert at.copied is not None
        if at.copied.documents == DOCUMENTS:
            return Batch([], at.copy_complete(), False, copy_complete=True)
        next_ = range(at.copied.documents, at.copied.documents + EACH_S)
        data = b"".join(bson.encode({"_id": {"_data": "82", "snapshot": {"_id": number}}}) for number in next_)
        chunks = cut_documents(data, at, at.copied, 0.0, bytes_max=1 << 20)
        return Batch([*chunks], chunks[-1].end, False)


def copying(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    def reader_at(_: KeyStreams, stream: SharedStream) -> Reader:
        return cast(Reader, (CopyReader if stream.copies else LogReader)(log, stream, 2000))

    monkeypatch.setattr(KeyStreams, "_reader_at", reader_at)


@in_virtual_time
@pytest.mark.parametrize("copied_before", [0, 40])
async def test_a_copy_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, copied_before: int) -> None:
    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        copying(monkeypatch, log)
        start = mark(0).while_copying(Copied(b"", copied_before))
        client = there.session(key, "a", JoinPoint(start, exact=True))
        await client.session.opened()
        opened = client.session.copy_status
        assert opened is not None
        assert (opened.documents, opened.documents_estimated) == (copied_before, DOCUMENTS)
        assert (opened.running, opened.remaining_s, opened.namespace) == (True, None, "a.c")
        marks: list[CopyMark] = []
        while not (marks and not marks[-1].status.running):
            output = await client.next()
            if isinstance(output, CopyMark):
                marks.append(output)
                assert output.status.documents == copied_before + len(client.events)
                assert output.status.bytes == sum(map(len, client.events))
        *running, done = (each.status for each in marks)
        for each in running:
            assert each.remaining_s == pytest.approx((DOCUMENTS - each.documents) / EACH_S, rel=0.01)
        # The client takes documents as they come, so every fifth batch is followed by a notice.
        assert [each.documents for each in running] == list(range(copied_before + 50, DOCUMENTS + 1, 50))
        assert (done.documents, done.remaining_s, done.read_time) == (DOCUMENTS, None, mark(0).cluster_time - 1)
        assert client.session.copy_status is None
        log.write(1)
        await client.take(len(client.events) + 1)


@in_virtual_time
async def test_a_copy_whose_history_a_restore_has_lost_is_not_said_to_be_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(monkeypatch) as there:
        key, _ = there.feed("a")
        client = there.session(key, "a", JoinPoint(mark(0).while_copying(Copied(b"", 40)), exact=True), durable=True)
        subscriber = client.session.subscriber
        subscriber.received = mark(5)  # by an earlier session
        there.manager.source("main").timeline._forks.append(Fork(mark(4).cluster_time, mark(6).cluster_time))
        with pytest.raises(FeedmuxError) as caught:
            await client.next()
        assert caught.value.reason is ErrorReason.TIMELINE_FORKED
        copied = subscriber.at.place.copied
        assert copied is not None
        assert copied.documents == 40


@in_virtual_time
async def test_a_copy_whose_beginning_cannot_be_stored_sends_no_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reconnect at the older stored position, the rest of the copy would not come."""

    async def fail(_: Forgetful, timeout_s: float) -> None:
        raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "Redis is unavailable")

    async def operation_time() -> int:
        return mark(9).cluster_time

    async with world(monkeypatch) as there:
        key, log = there.feed("a")
        copying(monkeypatch, log)
        monkeypatch.setattr(Forgetful, "flush", fail)
        source = there.manager.source("main")
        monkeypatch.setattr(source.clock, "operation_time", operation_time, raising=False)
        client = there.session(key, "a", 0, durable=True)
        client.session._policy = SessionPolicy(snapshot_on_history_lost=True)
        client.session.subscriber.received = mark(5)  # by an earlier session
        source.timeline._forks.append(Fork(mark(4).cluster_time, mark(6).cluster_time))
        with pytest.raises(FeedmuxError, match="Redis") as caught:
            await client.take(1)
        assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE
