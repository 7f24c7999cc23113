"""An oplog that is too small: what has left it is an error that says so, or an announced gap; never a silent skip."""

import uuid
from collections.abc import AsyncIterator
from itertools import pairwise

import bson
import pytest
import pytest_asyncio
from google.protobuf import timestamp_pb2
from pymongo import MongoClient

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, operator_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.conftest import NOT_AGAIN, Site
from tests.conformance.faults import INSERTS, insert, now, oldest, overrun, rfc3339
from tests.conformance.statements import DRIVERS, FEEDMUX, SERVER, shows
from tests.documents import Document, Documents
from tests.integration.servers import serving, settings, until
from tests.integration.wire import EARLIEST, Refused, Session, at, feed, seconds


@pytest_asyncio.fixture(scope="module", params=NOT_AGAIN)
async def shallow(request: pytest.FixtureRequest, redis_server: RedisServer) -> AsyncIterator[Site]:
    """A MongoDB whose oplog holds 8 MB and is cut every second."""
    binary = request.getfixturevalue("newer_mongod") if request.param == "6.0.27" else None
    async with ReplicaSet(oplog_mb=8, arguments=["--syncdelay", "1"], binary=binary) as mongo:
        with MongoClient[Document](mongo.uri) as client:
            version = tuple(client.server_info()["versionArray"][:3])
            async with serving(settings(mongo.uri, redis_server.url, unused_stream_s=0.05)) as here:
                yield Site(mongo, client, here, version)


@pytest.fixture
def documents(shallow: Site) -> Documents:
    return shallow.client[f"test_{uuid.uuid4().hex[:12]}"]


async def gone(shallow: Site, scope: str) -> None:
    """No ring holds what MongoDB no longer has."""

    async def unread() -> bool:
        return not await shallow.api.streams(scope)

    await until(unread)


async def rested(shallow: Site, scope: str) -> None:
    """MongoDB is not being asked: what was being read when the credit was used up has come."""

    async def paused() -> bool:
        return {stream.state for stream in await shallow.api.streams(scope)} == {operator_pb2.SharedStream.STATE_PAUSED}

    await until(paused)


def assert_history_lost(outcome: Refused, shallow: Site, first: bson.Timestamp) -> None:
    """`first`: the oldest entry of the oplog some time ago; it is cut at times of its own."""
    assert (outcome.code, outcome.reason, outcome.domain) == ("OUT_OF_RANGE", "HISTORY_LOST", "feedmux")
    assert outcome.metadata["code"] in ("286", "136")
    assert outcome.metadata["code_name"] in ("ChangeStreamHistoryLost", "CappedPositionLost")
    assert rfc3339(first) <= outcome.metadata["oldest_time"] <= rfc3339(oldest(shallow.client))
    assert "_data" not in outcome.message


def assert_gap(session: Session) -> tuple[bson.Timestamp, bson.Timestamp]:
    """The gap that was announced, in as many pieces as the oplog was cut in meanwhile."""
    gaps = [notice.gap for notice in session.notices]
    assert gaps
    assert {gap.reason for gap in gaps} == {"HISTORY_LOST"}
    for one, following in pairwise(gaps):
        assert getattr(following, "from") == one.to
    return _stamp(getattr(gaps[0], "from")), _stamp(gaps[-1].to)


@shows(
    SERVER,
    "Change Stream errors",
    "A start that the oplog does not reach back to is rejected, for every way of naming it",
)
@shows(DRIVERS, "resumeAfter", "A token that no longer exists in the oplog gets the server's error")
@shows(FEEDMUX, "Errors", "HISTORY_LOST says the oldest time that can still be had")
async def test_a_position_that_left_the_oplog_is_an_error(shallow: Site, documents: Documents) -> None:
    api, name, wanted = shallow.api, uuid.uuid4().hex, feed(documents.name, "c")
    await api.create(name, wanted)
    watch = api.watch(wanted)
    await watch.opened()
    begun = now(shallow.client)
    insert(documents, range(3))
    events = await watch.take(3)
    watch.cancel()
    token, position = bson.encode(events[1].document["_id"]), watch.position
    await gone(shallow, f"{documents.name}.c")
    high_water_mark = await api.resolve(wanted, at(start_at_operation_time=_time(begun)))
    first = await overrun(shallow.client)
    insert(documents, range(3, 6))
    starts = {
        "position": at(position=position),
        "position of a time": at(position=high_water_mark.position),
        "resume_after": at(resume_after=token),
        "start_after": at(start_after=token),
        "start_at_operation_time": at(start_at_operation_time=_time(begun)),
        "time": at(time=timestamp_pb2.Timestamp(seconds=begun.time - 5)),
    }
    for start in starts.values():
        assert_history_lost(await api.watch(wanted, start).end(), shallow, first)
    assert_history_lost(await (await api.session(name)).end(), shallow, first)
    # The subscription is unchanged: it can be moved, and then continues.
    await api.seek(name, EARLIEST)
    session = await api.open(name)
    assert await session.numbers(3) == [3, 4, 5]
    await session.close()


@shows(FEEDMUX, "Policies", "on_history_lost EARLIEST continues at the oldest entry, and announces the gap first")
async def test_earliest_continues_after_an_announced_gap(shallow: Site, documents: Documents) -> None:
    api, name = shallow.api, uuid.uuid4().hex
    await api.create(name, feed(documents.name, "c"), on_history_lost=feed_pb2.ON_HISTORY_LOST_EARLIEST)
    session = await api.open(name)
    insert(documents, range(4))
    await session.take(4)
    await session.ack_and_wait(2)
    await session.close()
    await gone(shallow, f"{documents.name}.c")
    stored = (await api.get(name)).cluster_time
    first = await overrun(shallow.client)
    insert(documents, range(4, 7))
    again = await api.open(name)
    assert await again.numbers(3) == [4, 5, 6]
    gap_from, gap_to = assert_gap(again)
    assert gap_from == _stamp(stored)
    assert first <= gap_to <= oldest(shallow.client)
    await again.ack_and_wait(3)
    await again.close()
    # After the gap there is no further gap.
    insert(documents, range(7, 8))
    third = await api.open(name)
    assert await third.numbers(1) == [7]
    assert not third.notices
    await third.close()


@pytest.mark.parametrize("policy", ["FAIL", "EARLIEST"])
@shows(SERVER, "Change Stream errors", "A cursor that the oplog overtakes while it rests loses its history")
async def test_the_oplog_overtakes_a_session_without_credit(shallow: Site, documents: Documents, policy: str) -> None:
    api, name = shallow.api, uuid.uuid4().hex
    await api.create(name, feed(documents.name, "c"), on_history_lost=f"ON_HISTORY_LOST_{policy}")
    session = await api.open(name, credit=wire.Credit(events=2, bytes=1 << 20))
    neighbour = await api.open(feed=feed(documents.name))
    insert(documents, range(2))
    assert await session.numbers(2) == [0, 1]
    await session.ack_and_wait(2)
    await rested(shallow, f"{documents.name}.c")
    first = await overrun(shallow.client)
    insert(documents, range(2, 5))
    await session.credit(100)
    if policy == "FAIL":
        assert_history_lost(await session.end(), shallow, first)
    else:
        assert await session.numbers(3) == [2, 3, 4]
        assert_gap(session)
        await session.close()
    # A reader that kept up has lost nothing.
    assert await neighbour.numbers(5) == [0, 1, 2, 3, 4]
    neighbour.cancel()


@pytest.mark.parametrize("case", ["nothing happens", "nothing matches", "all acknowledged"])
@shows(
    DRIVERS,
    "Exposing All Resume Tokens",
    "Resume tokens come also while nothing matches, so that the position does not leave the oplog",
)
@shows(FEEDMUX, "Progress", "An idle subscription's stored position moves forward, so that it stays in the oplog")
async def test_an_idle_subscription_stays_inside_the_oplog(shallow: Site, documents: Documents, case: str) -> None:
    api, name = shallow.api, uuid.uuid4().hex
    pipeline = '[{"$match": {"fullDocument.n": {"$gte": 0}}}]'
    await api.create(name, feed(documents.name, "" if case == "nothing matches" else "c", pipeline))
    session = await api.open(name, heartbeat_interval=seconds(1))
    if case == "all acknowledged":
        insert(documents, range(100, 103))
        await session.take(3)
        await session.ack_and_wait(3)
    before = (await api.get(name)).cluster_time
    for _ in range(2):
        first = await overrun(shallow.client, documents.name if case == "nothing matches" else "padding")
    end = now(shallow.client)
    await session.until(lambda: session.progress and _stamp(session.progress[-1].cluster_time) >= end)
    await session.close()
    await gone(shallow, documents.name)
    stored = (await api.get(name)).cluster_time
    assert _stamp(before) < first < end <= _stamp(stored)
    insert(documents, range(3))
    again = await api.open(name)
    assert await again.numbers(3) == [0, 1, 2]
    assert not again.notices
    await again.close()


@shows(FEEDMUX, "Start", "`earliest` is the oldest entry that the oplog still has")
@shows(FEEDMUX, "Start", "`earliest` moves with the oplog until the first event, and announces what it passed")
async def test_earliest_moves_with_the_oplog_until_the_first_event(shallow: Site, documents: Documents) -> None:
    api, wanted = shallow.api, feed(documents.name, "c", INSERTS)
    session = await api.open(feed=wanted, start=EARLIEST, credit=wire.Credit())
    await rested(shallow, f"{documents.name}.c")
    first = await overrun(shallow.client)
    insert(documents, range(3))
    await session.credit(3)
    assert await session.numbers(3) == [0, 1, 2]
    _, gap_to = assert_gap(session)
    assert first <= gap_to
    # From then on the oplog is the reader's to keep up with.
    await rested(shallow, f"{documents.name}.c")
    first = await overrun(shallow.client)
    insert(documents, range(3, 4))
    await session.credit(3)
    assert_history_lost(await session.end(), shallow, first)


def _time(time: bson.Timestamp) -> feed_pb2.ClusterTime:
    return feed_pb2.ClusterTime(seconds=time.time, increment=time.inc)


def _stamp(time: feed_pb2.ClusterTime) -> bson.Timestamp:
    return bson.Timestamp(time.seconds, time.increment)
