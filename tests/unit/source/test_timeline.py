"""A restored deployment differs from one that was restarted or rolled back, that lags, or whose oplog is short."""

import asyncio

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.timeline import Fork, OplogEntry
from feedmux_server.source.oplog import DENIED_S
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.metrics import Metric
from feedmux_server.telemetry.observer import Observer
from tests.sim.events import event_token
from tests.sim.mongo import SimSource
from tests.unit.simulated import sim_mongo
from tests.virtual_time import in_virtual_time


class Forks(Observer):
    def __init__(self) -> None:
        self.sources: list[str] = []

    def count(self, metric: Metric, number: int, *attributes: str) -> None:
        if metric is metrics.FORKS:
            self.sources.extend(attributes)


class Site:
    """A source that knows an entry of the oplog, with an event after the time `copied`."""

    def __init__(self) -> None:
        self.mongo = sim_mongo()
        self.observer = Forks()
        self.source = SimSource(self.mongo, self.observer)
        self.timeline = self.source.timeline
        self.found: list[Fork] = []
        self.timeline.listeners.append(self.found.append)
        self.copied = 0

    async def begin(self) -> "Site":
        await self.source.connect()
        await asyncio.sleep(15)
        self.mongo.insert("db", "a", 0)
        self.copied = self.mongo.latest
        await asyncio.sleep(15)
        self.mongo.insert("db", "a", 0)
        await self.timeline.check()
        return self

    async def restore(self) -> None:
        await asyncio.sleep(15)
        self.mongo.restore(self.copied)


@in_virtual_time
async def test_a_restore_is_found_once_and_its_times_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Fork) -> None:
        raise RuntimeError

    site = await Site().begin()
    site.timeline.listeners.insert(0, broken)  # the others are called all the same
    await site.restore()
    await site.timeline.check()
    await site.timeline.check()
    [fork] = site.found
    assert (fork.after, fork.is_exact) == (site.copied, True)
    assert site.observer.sources == ["main"]
    assert "restored from an older copy" in caplog.text
    lost = site.timeline.lost(event_token(site.copied + 1, key=1))
    assert lost is not None
    assert lost.reason is ErrorReason.TIMELINE_FORKED
    assert site.timeline.lost(event_token(site.copied, key=1)) is None
    assert site.timeline.start_of(site.copied + 9) == site.copied + 1
    assert site.timeline.start_of(site.mongo.latest) == site.mongo.latest


@in_virtual_time
@pytest.mark.parametrize("is_primary", [False, True])
async def test_a_secondary_may_lag_and_a_primary_may_not(monkeypatch: pytest.MonkeyPatch, *, is_primary: bool) -> None:
    async def entry_at(time: int) -> None:
        return None

    async def around(time: int) -> tuple[OplogEntry, None]:
        return OplogEntry(site.copied, 1), None

    site = await Site().begin()
    site.mongo.is_primary = is_primary
    site.mongo.insert("db", "a", 0)
    monkeypatch.setattr(site.source.oplog, "entry_at", entry_at)
    monkeypatch.setattr(site.source.oplog, "around", around)
    await site.timeline.check()
    assert len(site.found) == is_primary


@in_virtual_time
async def test_a_primary_that_was_cut_off_and_is_replaced_between_two_questions_is_no_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = await Site().begin()
    known = site.timeline._known
    assert known is not None
    answers = [None, known]

    async def entry_at(time: int) -> OplogEntry | None:
        return answers.pop(0)

    async def around(time: int) -> tuple[OplogEntry, OplogEntry]:
        return OplogEntry(time - 1, known.term), OplogEntry(time + 1, known.term)

    site.mongo.insert("db", "a", 0)
    monkeypatch.setattr(site.source.oplog, "entry_at", entry_at)
    monkeypatch.setattr(site.source.oplog, "around", around)
    await site.timeline.check()
    assert (site.found, answers) == ([], [])


@in_virtual_time
async def test_without_the_oplog_events_that_this_process_has_read_are_a_sign_and_an_older_one_is_none() -> None:
    site = await Site().begin()
    site.mongo.oplog_readable = False
    await site.restore()
    await site.timeline.check()
    assert site.found == [], "the newest entry is later than the known one, and no other can be read"
    old, newest = event_token(site.copied, key=1), event_token(site.mongo.latest, key=1)
    for place, stream in ((old, b"1"), (newest, b"2"), (newest.before_time(), b"2"), (newest, b"1")):
        error = await site.timeline.missing(place, stream)
        assert (error.reason, site.found) == (ErrorReason.TIMELINE_FORKED, []), "one event or stream, or lost long ago"
    await site.timeline.missing(event_token(site.mongo.latest + 1, key=1), b"1")
    assert site.found == [Fork()]


@in_virtual_time
async def test_all_who_are_in_doubt_share_a_look_that_begins_after_their_doubt() -> None:
    site = await Site().begin()
    looks = 0
    look = site.timeline._look

    async def counted() -> None:
        nonlocal looks
        looks += 1
        await look()

    site.timeline._look = counted  # type: ignore[method-assign]
    await site.timeline.verify()
    assert looks == 0, "nothing is in doubt"
    site.timeline.doubt()
    first = asyncio.create_task(site.timeline.verify())
    await asyncio.sleep(0)
    await site.restore()
    site.timeline.doubt()
    await asyncio.gather(first, *(site.timeline.verify() for _ in range(50)))
    assert (looks, len(site.found)) == (2, 1)


@in_virtual_time
async def test_a_look_that_fails_settles_no_doubt() -> None:
    site = await Site().begin()
    await site.restore()
    site.mongo.away = True
    with pytest.raises(FeedmuxError) as caught:
        await site.timeline.check()
    assert caught.value.reason is ErrorReason.SOURCE_UNAVAILABLE
    site.mongo.away = False
    await site.timeline.verify()
    assert len(site.found) == 1


@in_virtual_time
async def test_a_new_primary_that_does_not_know_yet_what_a_majority_had_is_no_fork() -> None:
    site = await Site().begin()
    site.mongo.oplog_readable = False
    await site.timeline.check()
    site.mongo.lag_s = 100.0
    site.mongo.insert("db", "a", 0)
    # The primary before it had told that a majority had the entry.
    site.timeline._known = OplogEntry(site.mongo.latest, 1)
    await site.timeline.check()
    assert site.found == []


@in_virtual_time
async def test_an_oplog_that_may_be_read_again_shows_a_restore() -> None:
    site = await Site().begin()
    site.mongo.oplog_readable = False
    site.mongo.insert("db", "a", 0)
    await site.timeline.check()
    site.mongo.insert("db", "a", 0)
    await site.timeline.check()
    site.mongo.oplog_readable = True
    await asyncio.sleep(DENIED_S)
    await site.restore()
    await site.timeline.check()
    assert len(site.found) == 1
