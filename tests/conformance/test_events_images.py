"""fullDocument and fullDocumentBeforeChange: every value, with and without images."""

import pytest

from tests.conformance.conftest import Site, on_both_versions
from tests.conformance.same import (
    after,
    assert_refused_alike,
    assert_same,
    check_refusal,
    operation_time,
    read_directly,
)
from tests.conformance.statements import DRIVERS, EVENTS, FEEDMUX, SERVER, UPDATES, shows
from tests.documents import Documents
from tests.integration.wire import at, feed

OPTIONS = "Driver API"
IMAGES = {"changeStreamPreAndPostImages": {"enabled": True}}
VALUES = [
    ("", ""),
    ("default", "off"),
    ("updateLookup", "whenAvailable"),
    ("whenAvailable", "required"),
    ("required", "whenAvailable"),
]
"""Of `fullDocument` and `fullDocumentBeforeChange`."""
KINDS = ["insert", "update", "update", "replace", "delete"]


@pytest.fixture
def pictured(database: Documents) -> Documents:
    """A database whose collection `c` keeps images."""
    database.command({"create": "c", **IMAGES})
    return database


def act(database: Documents) -> None:
    """One document's life. It ends deleted, so that a lookup finds nothing."""
    database.c.insert_one({"_id": 1, "name": "Alice", "n": 1})
    database.c.update_one({"_id": 1}, {"$set": {"n": 2}})
    database.c.update_one({"_id": 1}, {"$unset": {"name": ""}})
    database.c.replace_one({"_id": 1}, {"n": 3})
    database.c.delete_one({"_id": 1})


@shows(DRIVERS, OPTIONS, "fullDocument: not sent, default, updateLookup, whenAvailable or required")
@shows(DRIVERS, OPTIONS, "fullDocumentBeforeChange: not sent, off, whenAvailable or required")
@shows(SERVER, "`fullDocument`", "default: only inserts and replaces have fullDocument")
@shows(SERVER, "`fullDocumentBeforeChange`", "off, the default: the field is left out")
@shows(UPDATES, "Document Pre- and Post-Images", "both images may be asked for in one stream")
@pytest.mark.parametrize(("full", "before"), VALUES)
async def test_every_value_of_the_options(site: Site, pictured: Documents, full: str, before: str) -> None:
    wanted = feed(pictured.name, "c", full_document=full, full_document_before_change=before)
    seen = await assert_same(site, wanted, lambda: act(pictured), live=full != "updateLookup", kinds=KINDS)
    insert, update, _, replace, delete = seen.documents
    assert insert["fullDocument"] == {"_id": 1, "name": "Alice", "n": 1}
    assert replace["fullDocument"] == {"_id": 1, "n": 3}
    assert "fullDocument" not in delete
    match full:
        case "" | "default":
            assert "fullDocument" not in update
        case "updateLookup":
            assert update["fullDocument"] is None
        case _:
            assert update["fullDocument"] == {"_id": 1, "name": "Alice", "n": 2}
    if before in ("", "off"):
        assert not any("fullDocumentBeforeChange" in event for event in seen.documents)
    else:
        assert "fullDocumentBeforeChange" not in insert
        assert update["fullDocumentBeforeChange"] == {"_id": 1, "name": "Alice", "n": 1}
        assert delete["fullDocumentBeforeChange"] == {"_id": 1, "n": 3}


@shows(DRIVERS, "Response Format", "whenAvailable without an image: the field is null")
@shows(SERVER, "`fullDocument`", "whenAvailable: null where there is no post-image")
@shows(SERVER, "`fullDocumentBeforeChange`", "whenAvailable: null where there is no pre-image")
@shows(UPDATES, "Document Pre- and Post-Images", "no image of a change made while images were not enabled")
@shows(EVENTS, "update Event", "images are enabled with create or collMod, and exist from then on")
async def test_images_enabled_later(site: Site, database: Documents) -> None:
    def first() -> None:
        act(database)
        database.command({"collMod": "c", **IMAGES})
        act(database)

    wanted = feed(database.name, "c", full_document="whenAvailable", full_document_before_change="whenAvailable")
    seen = await assert_same(site, wanted, first, kinds=KINDS * 2)
    assert seen.documents[1]["fullDocument"] is None
    assert seen.documents[4]["fullDocumentBeforeChange"] is None
    assert seen.documents[6]["fullDocument"] == {"_id": 1, "name": "Alice", "n": 2}
    assert seen.documents[9]["fullDocumentBeforeChange"] == {"_id": 1, "n": 3}


REQUIRED = {
    "post-image": {"full_document": "required"},
    "pre-image": {"full_document_before_change": "required"},
}


@shows(DRIVERS, OPTIONS, "required: an error where the image is missing")
@shows(SERVER, "`fullDocument`", "required: the stream is aborted with NoMatchingDocument where there is no post-image")
@shows(SERVER, "`fullDocumentBeforeChange`", "required: the stream is aborted where there is no pre-image")
@pytest.mark.parametrize("image", REQUIRED)
@shows(FEEDMUX, "Errors", "IMAGE_UNAVAILABLE (47): a required image is missing; events before it were delivered")
async def test_required_image_is_missing(site: Site, database: Documents, image: str) -> None:
    wanted, start = feed(database.name, "c", **REQUIRED[image]), after(site)
    receiver = site.api.watch(wanted, start)
    database.c.insert_one({"_id": 1, "n": 1})
    # An insert needs no image.
    assert await receiver.numbers(1) == [1]
    database.c.update_one({"_id": 1}, {"$set": {"n": 2}})
    direct = read_directly(site, wanted, start, operation_time(site))
    assert direct.error is not None
    outcome = await receiver.end()
    check_refusal(outcome, direct.error)
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "IMAGE_UNAVAILABLE")
    # The position is still before the event without its image.
    goes_on = site.api.watch(feed(database.name, "c"), at(position=receiver.position))
    [event] = await goes_on.take(1)
    assert event.document["operationType"] == "update"
    goes_on.cancel()


@shows(DRIVERS, "Response Format", "updateLookup: the document as it is some time after the update, null if it is gone")
@shows(SERVER, "`fullDocument`", "updateLookup: the present version, found by _id, which may be newer than the event")
@shows(EVENTS, "update Event", "fullDocument of an update may differ from its updateDescription")
@shows(UPDATES, "Example", "a looked-up document shows later majority-committed changes as well")
async def test_lookup_sees_the_present(site: Site, database: Documents) -> None:
    def several() -> None:
        database.c.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 1}])
        for n in (2, 3):
            database.c.update_many({}, {"$set": {"n": n}})
        database.c.delete_one({"_id": 2})

    wanted = feed(database.name, "c", full_document="updateLookup")
    seen = await assert_same(site, wanted, several, live=False)
    looked_up = [event["fullDocument"] for event in seen.documents if event["operationType"] == "update"]
    assert looked_up == [{"_id": 1, "n": 3}, None, {"_id": 1, "n": 3}, None]


@shows(
    SERVER, "`matchCollectionUUIDForUpdateLookup`", "set: no document of a later collection of the same name, but null"
)
@shows(SERVER, "`matchCollectionUUIDForUpdateLookup`", "not set: the lookup does not compare collections")
@pytest.mark.parametrize("match", [False, True])
@on_both_versions
async def test_lookup_in_a_collection_created_again(site: Site, database: Documents, match: bool) -> None:
    def again() -> None:
        database.c.insert_one({"_id": 1, "n": 1})
        database.c.update_one({"_id": 1}, {"$set": {"n": 2}})
        database.c.drop()
        database.c.insert_one({"_id": 1, "n": "another"})

    wanted = feed(database.name, full_document="updateLookup", match_collection_uuid_for_update_lookup=match)
    if match and site.version < (6, 0, 6):
        await assert_refused_alike(site, wanted)  # a field it does not know
        return
    seen = await assert_same(site, wanted, again, live=False, kinds=["insert", "update", "drop", "insert"])
    if match:
        assert seen.documents[1]["fullDocument"] is None
