"""Events of many megabytes, and those over 16: delivered whole, split by MongoDB, or rejected with a clear error."""

import bson
import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_embedded import RedisServer
from feedmux_server.core.positions.position import inspect_position
from tests.conformance.conftest import Site, on_both_versions
from tests.conformance.faults import insert, watching
from tests.conformance.statements import DRIVERS, FEEDMUX, SERVER, shows
from tests.documents import Document, Documents
from tests.integration.servers import serving, settings
from tests.integration.wire import Event, at, feed, seconds

SPLIT = '[{"$changeStreamSplitLargeEvent": {}}]'
IMAGES = {"full_document": "required", "full_document_before_change": "required"}
HALF = 9 << 20
"""Two of these, a pre- and a post-image, do not fit into one event."""
ALMOST_HALF = 8_188 << 10


@pytest.fixture
def splitting(site: Site) -> Site:
    if site.version < (6, 0, 9):
        pytest.skip("this MongoDB has no $changeStreamSplitLargeEvent")
    return site


def prepared(database: Documents, size: int = HALF) -> None:
    """A document of some megabytes, in a collection that keeps images."""
    database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    database.c.insert_one({"_id": 1, "n": 0, "pad": "x" * size})


def changed(database: Documents) -> None:
    """A change of it, whose event with both images does not fit into 16 MB; then a small one."""
    database.c.update_one({"_id": 1}, {"$set": {"n": 1}})
    insert(database, [2])


def joined(parts: list[Event]) -> Document:
    """The fragments of a split event as one document, as MongoDB's manual says."""
    whole: Document = {}
    for index, part in enumerate(parts):
        document = part.document
        assert document.pop("splitEvent") == {"fragment": index + 1, "of": len(parts)}
        document.pop("_id")
        whole |= document
    return whole


@shows(SERVER, "Large Events", "An event of just under 16 MB is delivered whole, in fragments of the message size")
@on_both_versions
async def test_just_under_16_mb(site: Site, database: Documents) -> None:
    prepared(database, ALMOST_HALF)
    wanted = feed(database.name, "c", **IMAGES)
    watch = await watching(site, wanted)
    neighbour = await watching(site, feed(database.name, "d"))
    session = await site.api.open(feed=wanted, credit=wire.Credit(events=2, bytes=1024), heartbeat_interval=seconds(1))
    changed(database)
    insert(database, range(2), "d")
    assert await neighbour.numbers(2) == [0, 1]
    large, behind = await watch.take(2)
    assert len(large.data) > 15.9 * (1 << 20)
    assert large.fragments >= 16
    assert len(large.document["fullDocumentBeforeChange"]["pad"]) == ALMOST_HALF
    assert (large.n, behind.n) == (1, 2)
    # One event may overdraw the byte credit, and the debt is paid first.
    assert (await session.take(1))[0].data == large.data
    heartbeats = len(session.progress)
    await session.until(lambda: len(session.progress) > heartbeats)
    assert session.received == 1
    await session.credit(1, 17 << 20)
    assert await session.numbers(1) == [2]
    for receiver in (watch, neighbour, session):
        receiver.cancel()


@shows(SERVER, "Large Events", "An event over 16 MB is BSONObjectTooLarge where the pipeline does not split")
@shows(DRIVERS, "Notes and Restrictions", "Images can make an event over 16 MB; the cursor closes with an error")
@shows(FEEDMUX, "Errors", "EVENT_TOO_LARGE ends that feed only, says what helps, and comes again at that position")
@on_both_versions
async def test_too_large_without_splitting(site: Site, database: Documents) -> None:
    prepared(database)
    wanted = feed(database.name, "c", **IMAGES)
    watch = await watching(site, wanted)
    neighbours = [
        await watching(site, feed(database.name, "c")),
        await watching(site, feed(database.name)),
        await watching(site, feed(database.name, "c", full_document="required")),
    ]
    insert(database, [1])
    assert await watch.numbers(1) == [1]
    changed(database)
    for _ in range(2):
        outcome = await watch.end()
        assert (outcome.code, outcome.reason, outcome.domain) == ("OUT_OF_RANGE", "EVENT_TOO_LARGE", "feedmux")
        assert (outcome.metadata["code"], outcome.metadata["code_name"]) == ("10334", "BSONObjectTooLarge")
        assert "$changeStreamSplitLargeEvent" in outcome.message
        assert "_data" not in outcome.message, "a token holds the document's key"
        position = watch.position
        watch = site.api.watch(wanted, at(position=position))
    for neighbour in neighbours:
        assert [event.document["operationType"] for event in await neighbour.take(3)] == ["insert", "update", "insert"]
        neighbour.cancel()
    # After the event the feed works as before.
    time = neighbours[0].batches[-1].cluster_time
    behind = await watching(site, wanted, at(start_at_operation_time=time))
    assert await behind.numbers(1) == [2]
    behind.cancel()


@shows(SERVER, "Large Events", "With $changeStreamSplitLargeEvent as the last stage the event comes in several")
@on_both_versions
async def test_split_by_mongodb(splitting: Site, database: Documents) -> None:
    prepared(database)
    watch = await watching(splitting, feed(database.name, "c", SPLIT, **IMAGES))
    insert(database, [1])
    changed(database)
    before, *parts, behind = await watch.take(4)
    assert (before.n, behind.n) == (1, 2)
    assert all(part.fragments > 1 for part in parts)
    whole = joined(parts)
    assert whole["operationType"] == "update"
    assert (whole["fullDocumentBeforeChange"]["n"], whole["fullDocument"]["n"]) == (0, 1)
    assert {len(whole[image]["pad"]) for image in ("fullDocument", "fullDocumentBeforeChange")} == {HALF}
    assert "splitEvent" not in before.document
    watch.cancel()


@shows(SERVER, "Large Events", "A split event's fragments have tokens of their own, after which a stream resumes")
@on_both_versions
async def test_resuming_inside_a_split_event(splitting: Site, database: Documents) -> None:
    prepared(database)
    wanted = feed(database.name, "c", SPLIT, **IMAGES)
    watch = await watching(splitting, wanted)
    changed(database)
    parts = await watch.take(3)
    watch.cancel()
    for option in ("resume_after", "start_after"):
        # Another comment, and so another stream: MongoDB is asked, not a ring.
        wanted = feed(database.name, "c", SPLIT, comment=bson.encode({"comment": option}), **IMAGES)
        again = await watching(splitting, wanted, at(**{option: bson.encode(parts[0].document["_id"])}))
        second, behind = await again.take(2)
        assert second.document["splitEvent"] == {"fragment": 2, "of": 2}
        assert second.data == parts[1].data
        assert behind.n == 2
        again.cancel()
    # On a feed that does not split there is no such event.
    wanted = feed(database.name, "c", full_document="required")
    outcome = await splitting.api.watch(wanted, at(resume_after=bson.encode(parts[0].document["_id"]))).end()
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "RESUME_TOKEN_NOT_FOUND")


@shows(FEEDMUX, "Positions", "A position inside a split event is never stored: all its fragments come again")
@shows(FEEDMUX, "Positions", "A position inside a split event is not stored by `last_acked`, a range or a seek either")
@pytest.mark.parametrize("by", ["resume_token", "position"])
@on_both_versions
async def test_crashing_inside_a_split_event(splitting: Site, database: Documents, by: str) -> None:
    prepared(database)
    api, name = splitting.api, f"sub-{database.name}"
    await api.create(name, feed(database.name, "c", SPLIT, **IMAGES))
    stored = (await api.get(name)).position
    session = await api.open(name, instance_id="first", credit=wire.Credit(events=1, bytes=1 << 30))
    changed(database)
    [fragment] = await session.take(1)
    epoch = (await api.get(name)).epoch
    await session.ack(1)
    session.cancel()
    places = {"resume_token": bson.encode(fragment.document["_id"]), "position": session.position}
    # The same process reconnects, crashes before it has the second fragment, and reconnects again.
    for _ in range(2):
        acked = wire.LastAcked(epoch=epoch, **{by: places[by]})
        again = await api.session(
            name, instance_id="first", last_acked=acked, heartbeat_interval=seconds(1), credit=wire.Credit()
        )
        assert (await again.opened()).at_last_acked
        assert (await again.message()).WhichOneof("message") == "progress"
        await again.credit(1)
        [second] = await again.take(1)
        assert second.document["splitEvent"] == {"fragment": 2, "of": 2}
        assert (await api.get(name)).position == stored
        again.cancel()
    # A range that ends there, and a seek to it.
    inside = (await api.resolve(feed(database.name, "c", SPLIT, **IMAGES), at(position=session.position))).position
    await api.plan(subscription=name, instance_id="first", after=stored, processed=inside, events_max=1)
    assert (await api.get(name)).position == stored
    for place in (at(position=inside), at(resume_after=places["resume_token"])):
        await api.seek(name, place)
        assert inspect_position((await api.get(name)).position).token.is_high_water_mark
    another = await api.open(name, instance_id="second", takeover=True)
    parts = await another.take(3)
    assert [part.document.get("splitEvent") for part in parts[:2]] == [{"fragment": n, "of": 2} for n in (1, 2)]
    await another.ack_and_wait(2)
    await another.close()
    last = await api.open(name)
    assert await last.numbers(1) == [2]
    await last.close()


@shows(
    FEEDMUX,
    "Positions",
    "A subscription that met an event too large continues once its feed splits, and loses nothing",
)
@on_both_versions
async def test_a_subscription_begins_to_split(splitting: Site, database: Documents) -> None:
    prepared(database)
    api, name = splitting.api, f"sub-{database.name}"
    await api.create(name, feed(database.name, "c", **IMAGES))
    session = await api.open(name)
    insert(database, [1])
    assert await session.numbers(1) == [1]
    await session.ack_and_wait(1)
    changed(database)
    assert (await session.end()).reason == "EVENT_TOO_LARGE"
    await api.update(["feed"], name=name, feed=feed(database.name, "c", SPLIT, **IMAGES))
    again = await api.open(name)
    *parts, behind = await again.take(3)
    assert joined(parts)["fullDocument"]["n"] == 1
    assert behind.n == 2
    await again.ack_and_wait(3)
    await again.close()
    # And back.
    await api.update(["feed"], name=name, feed=feed(database.name, "c", **IMAGES))
    insert(database, [3])
    third = await api.open(name)
    assert await third.numbers(1) == [3]
    await third.close()


COMMENT = {"comment": bson.encode({"comment": 1})}


@shows(FEEDMUX, "Positions", "After a change of the feed between two fragments, the event comes again from its start")
@pytest.mark.parametrize("by", ["position", "resume_token"])
@on_both_versions
async def test_a_feed_that_changes_inside_a_split_event(splitting: Site, database: Documents, by: str) -> None:
    api, name = splitting.api, f"sub-{database.name}"
    prepared(database)
    await api.create(name, feed(database.name, "c", SPLIT, **IMAGES))
    session = await api.session(name, credit=wire.Credit(events=1, bytes=1 << 30))
    epoch = (await session.opened()).epoch
    changed(database)
    [part] = await session.take(1)
    assert part.document["splitEvent"] == {"fragment": 1, "of": 2}
    place = {"position": session.position, "resume_token": bson.encode(part.document["_id"])}
    session.cancel()
    first = {"fragment": 1, "of": 2}, {"fragment": 2, "of": 2}
    for images, expected in ((IMAGES | COMMENT, first), ({"full_document": "required"}, (None, None))):
        await api.update(["feed"], name=name, feed=feed(database.name, "c", SPLIT, **images))
        for _ in range(2):  # nothing was acknowledged, so the second time is as the first
            acked = wire.LastAcked(epoch=epoch, **{by: place[by]})
            again = await api.open(name, takeover=True, last_acked=acked)
            assert tuple([each.document.get("splitEvent") for each in await again.take(2)]) == expected
            assert again.notices == []
            again.cancel()


@shows(FEEDMUX, "Positions", "What was acknowledged does not come again in other fragments, nor whole")
@pytest.mark.parametrize("first", ["whole", "split"])
@on_both_versions
async def test_a_feed_that_changes_after_a_large_event(splitting: Site, database: Documents, first: str) -> None:
    api, name = splitting.api, f"sub-{database.name}"
    feeds = [feed(database.name, "c", SPLIT, full_document="required"), feed(database.name, "c", SPLIT, **IMAGES)]
    count = 1 + (first == "split")
    prepared(database)
    await api.create(name, feeds[count - 1])
    session = await api.open(name, credit=wire.Credit(events=count, bytes=1 << 30))
    changed(database)
    parts = await session.take(count)
    assert [("splitEvent" in each.document) for each in parts] == [first == "split"] * count
    await session.ack_and_wait(count)
    await session.close()
    await api.update(["feed"], name=name, feed=feeds[2 - count])
    assert (await api.plan(subscription=name, instance_id="i", wait=10, events_max=1)).event_count == 1
    again = await api.open(name, instance_id="i")
    assert await again.numbers(1) == [2]
    await again.close()


@shows(FEEDMUX, "Positions", "If MongoDB finds another document and splits the event no more, it comes again whole")
@pytest.mark.parametrize("by", ["position", "resume_token"])
@on_both_versions
async def test_a_lookup_that_changes_a_split_event(
    splitting: Site, redis_server: RedisServer, database: Documents, by: str
) -> None:
    api, name = splitting.api, f"sub-{database.name}"
    wanted = feed(database.name, "c", SPLIT, full_document="updateLookup", full_document_before_change="required")
    prepared(database)
    await api.create(name, wanted)
    session = await api.session(name, credit=wire.Credit(events=1, bytes=1 << 30))
    epoch = (await session.opened()).epoch
    changed(database)
    [part] = await session.take(1)
    assert part.document["splitEvent"] == {"fragment": 1, "of": 2}
    place = {"position": session.position, "resume_token": bson.encode(part.document["_id"])}
    session.cancel()
    database.c.update_one({"_id": 1}, {"$set": {"pad": ""}})
    # Another server, which has no fragments in a ring.
    async with serving(settings(splitting.mongo.uri, redis_server.url)) as fresh:
        acked = wire.LastAcked(epoch=epoch, **{by: place[by]})
        again = await fresh.api.open(name, takeover=True, last_acked=acked)
        whole, behind, second = await again.take(3)
        assert (whole.document["fullDocument"]["n"], whole.document["fullDocument"]["pad"]) == (1, "")
        assert (behind.n, second.document["operationType"]) == (2, "update")
        assert again.notices == []
        await again.ack_and_wait(1)
        again.cancel()
        once_more = await fresh.api.open(name, takeover=True)
        assert await once_more.numbers(1) == [2]
        once_more.cancel()
