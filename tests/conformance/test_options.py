"""Options: what reaches MongoDB, and how MongoDB treats values that it does not know."""

from typing import Any

import bson
import pytest
from bson import Int64

from feedmux_server.core.feeds.feed import EXTRA_OPTIONS
from tests.conformance.asked import logged
from tests.conformance.conftest import Document, Site
from tests.conformance.same import after, assert_refused_alike, assert_same
from tests.conformance.statements import DRIVERS, FEEDMUX, SERVER, shows
from tests.documents import Documents
from tests.integration.servers import until
from tests.integration.wire import feed

OPTIONS = "Driver API"
HELPER = "Helper Method"

STAGE_OPTIONS: dict[str, tuple[dict[str, Any], Document]] = {
    "none": ({}, {}),
    "full_document": ({"full_document": "updateLookup"}, {"fullDocument": "updateLookup"}),
    "default": ({"full_document": "default"}, {"fullDocument": "default"}),
    "before": ({"full_document_before_change": "off"}, {"fullDocumentBeforeChange": "off"}),
    "expanded": ({"show_expanded_events": True}, {"showExpandedEvents": True}),
}


@shows(DRIVERS, OPTIONS, "options of the $changeStream stage stand there; what the user does not set is not sent")
@pytest.mark.parametrize("case", STAGE_OPTIONS)
async def test_options_of_the_stage(site: Site, database: Documents, case: str) -> None:
    options, expected = STAGE_OPTIONS[case]
    with logged(database) as asked:
        receiver = site.api.watch(feed(database.name, "c", **options))
        await receiver.opened()
        receiver.cancel()
        [stage] = asked.stages
    # feedmux always says where it begins, also for "from now" (docs/adr/0003).
    stage.pop("startAtOperationTime")
    assert stage == expected


NEWER = {"showCommitTimestamp", "ignoreRemovedShards"}
"""MongoDB 6.0 does not know them."""


@shows(FEEDMUX, "MongoDB says", "an option of newer versions reaches MongoDB, and a version without it names it")
@pytest.mark.parametrize("name", EXTRA_OPTIONS)
async def test_options_of_newer_versions(site: Site, database: Documents, name: str) -> None:
    database.c.insert_one({"_id": 1})
    wanted = feed(database.name, "c", extra_options=[name])
    if name in NEWER and site.version < (8,):
        outcome = await assert_refused_alike(site, wanted)
        assert name in outcome.message
        return
    with logged(database) as asked:
        await assert_same(site, wanted, lambda: database.c.update_one({"_id": 1}, {"$set": {"n": 1}}), kinds=["update"])
        assert all(stage[name] is True for stage in asked.stages)


COMMENTS: dict[str, Any] = {
    "document": {"user": "é", "trace": [1, Int64(2**40), {"a": None}]},
    "false": False,
    "empty": "",
}


@shows(DRIVERS, OPTIONS, "comment may be any BSON value, on the aggregate and on every getMore")
@pytest.mark.parametrize("case", COMMENTS)
async def test_comment(site: Site, database: Documents, case: str) -> None:
    comment = COMMENTS[case]
    with logged(database) as asked:
        receiver = site.api.watch(feed(database.name, "c", comment=bson.encode({"comment": comment})))
        await receiver.opened()
        await until(lambda: len(asked.get_mores) > 1)
        receiver.cancel()
        [aggregate], get_mores = asked.aggregates, asked.get_mores
    assert aggregate["comment"] == comment
    assert all(command["comment"] == comment for command in get_mores)


@shows(DRIVERS, OPTIONS, "comment: not sent unless given")
@shows(DRIVERS, OPTIONS, "maxAwaitTimeMS is maxTimeMS of the getMores, and not on the aggregate")
async def test_what_stands_on_a_get_more(site: Site, database: Documents) -> None:
    with logged(database) as asked:
        receiver = site.api.watch(feed(database.name, "c"))
        await receiver.opened()
        await until(lambda: asked.get_mores)
        receiver.cancel()
        [aggregate], get_mores = asked.aggregates, asked.get_mores
    assert "comment" not in aggregate
    assert "maxTimeMS" not in aggregate
    assert all(command["maxTimeMS"] > 0 and "comment" not in command for command in get_mores)


WORDS = ("STRASSE", "Weg", "straße", "Straße", "ete", "ÉTÉ")


@shows(DRIVERS, OPTIONS, "collation decides how the pipeline compares")
@pytest.mark.parametrize("locale", ["de", "simple"])
async def test_collation(site: Site, database: Documents, locale: str) -> None:
    collation: Document = {"locale": locale} if locale == "simple" else {"locale": locale, "strength": 1}
    match = '[{"$match": {"fullDocument.word": {"$in": ["straße", "été"]}}}]'
    wanted = feed(database.name, "c", match, collation=bson.encode(collation))
    seen = await assert_same(
        site, wanted, lambda: database.c.insert_many([{"_id": n, "word": word} for n, word in enumerate(WORDS)])
    )
    if locale == "de":
        assert [event["fullDocument"]["word"] for event in seen.documents] == [
            "STRASSE",
            "straße",
            "Straße",
            "ete",
            "ÉTÉ",
        ]
    else:
        assert [event["fullDocument"]["word"] for event in seen.documents] == ["straße"]


@shows(DRIVERS, OPTIONS, "the collation is the option's, not the collection's own")
async def test_a_collection_with_a_collation(site: Site, database: Documents) -> None:
    database.create_collection("c", collation={"locale": "de", "strength": 1})
    wanted = feed(database.name, "c", '[{"$match": {"fullDocument.word": "STRASSE"}}]')
    await assert_same(site, wanted, lambda: database.c.insert_many([{"word": word} for word in WORDS]))


UNKNOWN: dict[str, dict[str, Any]] = {
    "fullDocument": {"full_document": "sometimes"},
    "fullDocumentBeforeChange": {"full_document_before_change": "updateLookup"},
    "readConcern": {"read_concern": "local"},
    "collation": {"collation": bson.encode({"locale": "de", "mood": 1})},
}


@shows(DRIVERS, OPTIONS, "values that a driver does not know are the server's to judge")
@shows(DRIVERS, HELPER, "a read concern other than majority is rejected by the server")
@shows(SERVER, "Change Stream Parameters", "invalid parameters are rejected at once")
@pytest.mark.parametrize("case", UNKNOWN)
@shows(FEEDMUX, "Errors", "OPTION_REFUSED: a bad option, with MongoDB's words, code, code name and labels")
async def test_unknown_values(site: Site, database: Documents, case: str) -> None:
    outcome = await assert_refused_alike(site, feed(database.name, "c", **UNKNOWN[case]))
    assert outcome.code == "INVALID_ARGUMENT"


@shows(DRIVERS, HELPER, "read concern majority, or none")
@pytest.mark.parametrize("level", ["", "majority"])
async def test_read_concern(site: Site, database: Documents, level: str) -> None:
    with logged(database) as asked:
        wanted = feed(database.name, "c", read_concern=level)
        await assert_same(site, wanted, lambda: database.c.insert_one({"_id": 1}), kinds=["insert"])
        concerns = [command.get("readConcern", {}).get("level", "") for command in asked.aggregates]
    assert set(concerns) == {level}


@shows(DRIVERS, "ChangeStream", "the read preference is that of the feed")
@pytest.mark.parametrize("mode", ["primary", "primaryPreferred", "secondaryPreferred", "nearest"])
async def test_read_preference(site: Site, database: Documents, mode: str) -> None:
    with logged(database) as asked:
        wanted = feed(database.name, "c", read_preference=mode)
        await assert_same(site, wanted, lambda: database.c.insert_one({"_id": 1}), kinds=["insert"])
        sent = [command.get("$readPreference", {}).get("mode", "primary") for command in asked.aggregates]
    assert sent
    # A single primary serves all of these; drivers then ask for it by primaryPreferred.
    assert set(sent) <= {mode, "primaryPreferred"}


@shows(DRIVERS, OPTIONS, "batchSize: events of a batch at most")
@shows(SERVER, "Consuming Events from a Change Stream", "a batch has at most batchSize events, or less")
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_batch_size(site: Site, database: Documents, size: int) -> None:
    start = after(site)
    database.c.insert_many([{"n": n} for n in range(10)])
    receiver = site.api.watch(feed(database.name, "c", batch_size=size), start)
    assert await receiver.numbers(10) == list(range(10))
    counts = [batch.event_count for batch in receiver.batches]
    assert max(counts) <= size
    assert len(counts) >= -(-10 // size)
    receiver.cancel()


@shows(DRIVERS, OPTIONS, "feeds that differ in batchSize and maxAwaitTimeMS have the same events")
async def test_batch_size_does_not_separate(site: Site, database: Documents) -> None:
    receivers = [
        site.api.watch(feed(database.name, "c", batch_size=size, max_await_time_ms=wait))
        for size, wait in ((0, 0), (1, 1), (2**31 - 1, 2**31 - 1))
    ]
    for receiver in receivers:
        await receiver.opened()
    database.c.insert_many([{"n": n} for n in range(5)])
    for receiver in receivers:
        assert await receiver.numbers(5) == [0, 1, 2, 3, 4]
    assert len(await site.api.streams(f"{database.name}.c")) == 1
    for receiver in receivers:
        receiver.cancel()
