"""Errors of a running stream and at resuming: the same exception, code, code name, labels and words as pymongo's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bson import Timestamp
from pymongo import errors

import feedmux
from tests.conformance.pymongo_support import ASYNC_FEEDMUX, FEEDMUX, Lockstep, Site
from tests.conformance.statements import PYMONGO as DOCUMENT
from tests.conformance.statements import shows

LOST: dict[str, Any] = {"start_at_operation_time": Timestamp(1, 1)}
"""A start that the oplog does not reach back to."""


@contextmanager
def failing(both: Site, command: str, **data: Any) -> Iterator[None]:
    """Every `command` fails, of whomever."""
    point = {"configureFailPoint": "failCommand"}
    both.mongo.admin.command({**point, "mode": "alwaysOn", "data": {"failCommands": [command], **data}})
    try:
        yield
    finally:
        both.mongo.admin.command({**point, "mode": "off"})


async def writer(both: Site, collection: Lockstep) -> Any:
    return both.mongo[(await collection.same(lambda each: each.database.name))]["c"]


async def fails(streams: Lockstep, *, words: bool = True) -> Any:
    """The next step fails in the same way, ends the stream, and is not retried."""
    raised = await streams.refused(lambda each: each.next(), words=words)
    assert await streams.same(lambda each: each.alive) is False
    assert await streams.same(lambda each: each.try_next()) is None
    assert (await streams.refused(lambda each: each.next())).kind == "StopIteration"
    await streams.same(lambda each: each.close())
    return raised


@shows(DOCUMENT, "Errors", "_id removed or changed: OperationFailure 280 with its label; the stream is closed")
@pytest.mark.parametrize("stage", [{"$project": {"_id": 0}}, {"$set": {"_id": 1}}, {"$unset": "_id"}], ids=str)
async def test_a_modified_token(both: Site, collection: Lockstep, stage: dict[str, Any]) -> None:
    streams = await collection.make(lambda each: each.watch([stage]))
    (await writer(both, collection)).insert_one({})
    raised = await fails(streams, words=False)  # MongoDB quotes the token
    assert (raised.code, raised.labels) == (280, ("NonResumableChangeStreamError",))


@shows(DOCUMENT, "Errors", "a stage that fails on an event: OperationFailure in MongoDB's words; the stream is closed")
async def test_a_failing_stage(both: Site, collection: Lockstep) -> None:
    streams = await collection.make(lambda each: each.watch([{"$set": {"a": {"$divide": [1, "$fullDocument.n"]}}}]))
    written = await writer(both, collection)
    written.insert_one({"n": 1})
    good = await streams.same(lambda each: each.next())
    written.insert_one({"n": 0})
    raised = await fails(streams)
    assert raised.code == 2
    await streams.tokens(good)


@shows(DOCUMENT, "Errors", "a required image that is missing: OperationFailure 47 in MongoDB's words")
async def test_a_missing_image(both: Site, collection: Lockstep) -> None:
    streams = await collection.make(lambda each: each.watch(full_document_before_change="required"))
    written = await writer(both, collection)
    written.insert_one({"_id": 1})
    await streams.same(lambda each: each.next())
    written.update_one({"_id": 1}, {"$set": {"a": 1}})
    assert (await fails(streams)).code == 47


@shows(DOCUMENT, "Errors", "a token that the pipeline hides: OperationFailure 280, once a later event comes")
@pytest.mark.parametrize("name", ["resume_after", "start_after"])
async def test_a_token_that_is_not_found(both: Site, collection: Lockstep, name: str) -> None:
    written = await writer(both, collection)
    with written.watch() as direct:
        written.insert_many([{"n": 1}, {"n": 3}])
        token = direct.next()["_id"]  # n = 1, which the pipeline hides
    pipeline = [{"$match": {"fullDocument.n": 2}}]
    start: dict[str, Any] = {name: token}
    streams = await collection.make(lambda each: each.watch(pipeline, **start))
    written.insert_one({"n": 2})
    raised = await fails(streams, words=False)  # MongoDB quotes the token
    assert (raised.code, raised.labels) == (280, ("NonResumableChangeStreamError",))


@shows(DOCUMENT, "Errors", "history lost: OperationFailure 286 with its label, at opening and at reading")
@pytest.mark.parametrize("command", ["aggregate", "getMore"])
async def test_history_lost(both: Site, collection: Lockstep, command: str) -> None:
    data = {"errorCode": 286, "errorLabels": ["NonResumableChangeStreamError"]}
    with failing(both, command, **data):
        if command == "aggregate":
            raised = await collection.refused(lambda each: each.watch(**LOST))
        else:
            raised = await fails(await collection.make(lambda each: each.watch(**LOST)))
    assert (raised.code, raised.code_name) == (286, "ChangeStreamHistoryLost")
    assert raised.labels == ("NonResumableChangeStreamError",)


@shows(DOCUMENT, "Errors", "any other code is passed on with its name and words")
@pytest.mark.parametrize("code", [2, 20, 96, 4567])
async def test_other_codes(both: Site, collection: Lockstep, code: int) -> None:
    streams = await collection.make(lambda each: each.watch())
    with failing(both, "getMore", errorCode=code):
        raised = await fails(streams)
    assert raised.code == code
    with failing(both, "aggregate", errorCode=code):
        raised = await collection.refused(lambda each: each.watch())
    assert raised.code == code


@shows(DOCUMENT, "Errors", "a resumable error is not seen: the stream continues after the last event")
async def test_resumable_errors(both: Site, collection: Lockstep) -> None:
    streams = await collection.make(lambda each: each.watch())
    written = await writer(both, collection)
    for n in range(3):
        written.insert_one({"n": n})
        assert (await streams.same(lambda each: each.next()))["fullDocument"]["n"] == n
        # CursorNotFound; after a code that says "shutting down" pymongo itself waits 10 s to look again.
        data = {"failCommands": ["getMore"], "errorCode": 43}
        both.mongo.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data})
    both.mongo.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


@shows(DOCUMENT, "Errors", "a server that cannot be reached: ServerSelectionTimeoutError, an AutoReconnect")
async def test_no_server() -> None:
    options = feedmux.SessionOptions(open_timeout_s=0.3)
    sides = {
        FEEDMUX: feedmux.Client("127.0.0.1:1", session=options),
        ASYNC_FEEDMUX: feedmux.AsyncClient("127.0.0.1:1", session=options),
    }
    clients = Lockstep(sides, [])
    for raised in (await clients.each(lambda client: client.shop.orders.watch())).values():
        assert isinstance(raised.error, errors.ServerSelectionTimeoutError)
        assert raised.timeout
    await clients.close()


CHECKS: list[tuple[str, Callable[[errors.OperationFailure], object]]] = [
    ("code", lambda error: error.code),
    ("timeout", lambda error: error.timeout),
    ("has_error_label", lambda error: error.has_error_label("NonResumableChangeStreamError")),
    ("details", lambda error: {"ok", "errmsg", "code", "codeName", "errorLabels"} <= set(error.details or {})),
    ("text", lambda error: str(error) == f"{(error.details or {})['errmsg']}, full error: {error.details}"),
]


@shows(DOCUMENT, "Errors", "code, details, labels and text of the exception are where pymongo's code looks for them")
async def test_the_exception_itself(both: Site, collection: Lockstep) -> None:
    with failing(both, "aggregate", errorCode=286, errorLabels=["NonResumableChangeStreamError"]):
        outcomes = await collection.each(lambda each: each.watch(**LOST))
    for name, check in CHECKS:
        said = {side: check(outcome.error) for side, outcome in outcomes.items()}
        assert len(set(said.values())) == 1, (name, said)
        assert next(iter(said.values())) is not None
