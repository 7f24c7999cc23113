"""The pump of a stream: what a defect and its tenant's quota make it do."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest
from pymongo.errors import AutoReconnect

from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.sessions.outputs import ProgressMark
from feedmux_server.source.reader import Batch, Failed
from feedmux_server.streams.key_streams import KeyStreams
from feedmux_server.streams.upstream import Reader
from tests.unit.core.delivery.streams_support import mark
from tests.unit.streams.manager_support import Client, Log, LogReader, World, world
from tests.virtual_time import in_virtual_time


class Scripted(LogReader):
    """Raises these instead of reading; afterwards it reads."""

    def __init__(self, log: Log, stream: SharedStream, *failures: Exception) -> None:
        super().__init__(log, stream, 2000)
        self._failures = list(failures)
        self.reads: list[float] = []
        self.opens: list[float] = []
        self.charge: Callable[[], None] = lambda: None
        """Called for each opening."""

    async def open(self) -> None:
        self.opens.append(asyncio.get_running_loop().time())
        self.charge()
        await super().open()

    async def read(self) -> Batch:
        self.reads.append(asyncio.get_running_loop().time())
        if self._failures:
            self.is_open = False
            raise self._failures.pop(0)
        return await super().read()


def begin(
    there: World,
    monkeypatch: pytest.MonkeyPatch,
    *failures: Exception,
    at: int | JoinPoint = 0,
    opening: int = 0,
    **more: Any,
) -> tuple[Client, Log, list[Scripted]]:
    key, log = there.feed("a")
    readers: list[Scripted] = []

    def reader_at(self: KeyStreams, stream: SharedStream) -> Reader:
        readers.append(Scripted(log, stream, *failures))
        accounts, tenants = there.manager.accounts, list(stream.account.tenants)
        readers[-1].charge = partial(accounts.read, tenants, opening)
        return cast(Reader, readers[-1])

    monkeypatch.setattr(KeyStreams, "_reader_at", reader_at)
    return there.session(key, "a", at, **more), log, readers


@in_virtual_time
async def test_what_nobody_expected_is_logged_and_told_by_its_reference_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(monkeypatch) as there:
        client, _, _ = begin(there, monkeypatch, ValueError("canary"))
        with caplog.at_level(logging.ERROR):
            assert isinstance(await client.next(), ProgressMark)
            with pytest.raises(FeedmuxError) as caught:
                await client.next()
        error = caught.value
        assert (error.reason, error.message) == (ErrorReason.INTERNAL, "internal error")
        (record,) = [each for each in caplog.records if each.getMessage() == "a stream failed unexpectedly"]
        assert record.__dict__["correlation_id"] == error.metadata["correlation_id"]
        client.close()
        await asyncio.sleep(1.0)
        assert not list(there.manager.keyed())


@pytest.mark.parametrize(
    ("reads_singly", "says"),
    [
        (True, "a batch is too large for MongoDB, and its events are read singly"),
        (False, "a change stream is resumed after an error"),
    ],
)
@in_virtual_time
async def test_the_log_says_why_a_cursor_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reads_singly: bool, says: str
) -> None:
    async with world(monkeypatch) as there:
        failure = Failed(AutoReconnect(), at_once=True, reads_singly=reads_singly)
        client, log, _ = begin(there, monkeypatch, failure)
        log.write(1)
        await client.take(1)
        assert [each.getMessage() for each in caplog.records if each.name.endswith("pump")] == [says]


@in_virtual_time
async def test_a_stream_that_finds_a_restore_itself_ends_and_its_subscribers_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(monkeypatch) as there:
        client, log, readers = begin(there, monkeypatch)
        opened = Scripted.open

        async def open_(self: Scripted) -> None:
            await opened(self)
            if len(readers) == 1:  # it was restored after the position of the stream
                for each in there.manager.keyed():
                    each.fork(Fork(1 << 63, (1 << 63) + 1, is_exact=True))

        monkeypatch.setattr(Scripted, "open", open_)
        asyncio.get_running_loop().call_later(5.0, log.write, 1)
        await client.take(1)
        assert len(readers) == 2
        assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@in_virtual_time
async def test_openings_of_copies_follow_the_quota_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is closed at once has still caused the count of all documents."""
    async with world(monkeypatch, quotas=Quotas(reads_per_s=10)) as there:
        opens = list[float]()
        for _ in range(5):
            copy = JoinPoint(mark(0).while_copying(Copied()))
            client, _, readers = begin(there, monkeypatch, at=copy, opening=100)
            while not (readers and readers[0].opens):
                await asyncio.sleep(0.01)
            client.close()
            opens += readers[0].opens
        assert all(later - earlier > 9 for earlier, later in pairwise(opens))


@in_virtual_time
async def test_reads_of_a_tenant_follow_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, quotas=Quotas(reads_per_s=2)) as there:
        client, log, readers = begin(there, monkeypatch)
        asyncio.get_running_loop().call_later(20.0, log.write, 1)
        await client.take(1)
        reads = [at for at in readers[0].reads if at > 5.0]
        assert 28 <= len(reads) <= 32


@in_virtual_time
async def test_nothing_is_read_while_rings_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch) as there:
        client, log, readers = begin(there, monkeypatch)
        there.manager.memory.evicting = True
        log.write(1)
        await client.take(1)
        for _ in range(100):
            await asyncio.sleep(0)
        (reader,) = readers
        assert len(reader.reads) == 1
        there.manager.memory.evicting = False
        log.write(1)
        await client.take(2)
