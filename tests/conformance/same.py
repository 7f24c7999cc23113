"""A feed read twice: straight from MongoDB by its own commands, and through feedmux. Both must say the same.

The direct reader builds its aggregate from the protobuf `Feed` on its own, so that a mistake of the server's builder
shows. It knows the end of what there is by the postBatchResumeToken, so that an event too many is seen as well.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import bson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure
from pymongo.read_preferences import make_read_preference, read_pref_mode_from_name

from feedmux.v1 import feed_pb2
from tests.conformance.conftest import Document, Site
from tests.integration.wire import PATIENCE_S, Receiver, Refused, at, feed, refused

Actions = Callable[[], object]

_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
_ANY: CodecOptions[Document] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_AUTO, unicode_decode_error_handler="replace"
)
_ONE_OF_START = ("resume_after", "start_after")
_CAMEL = {"resume_after": "resumeAfter", "start_after": "startAfter"}


@dataclass(slots=True)
class Reading:
    """What a change stream gave."""

    events: list[bytes] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    """The postBatchResumeToken of each reply, from the aggregate's on."""
    ended: bool = False
    """MongoDB closed the cursor."""
    error: OperationFailure | None = None
    last_act: Timestamp | None = None
    """Of the scenario; what follows is the sentinel's."""

    @property
    def documents(self) -> list[Document]:
        """The scenario's events."""
        documents = [decoded(event) for event in self.events]
        if self.last_act is None:
            return documents
        return [document for document in documents if token_time(document["_id"]) <= self.last_act]

    @property
    def kinds(self) -> list[str]:
        return [str(document["operationType"]) for document in self.documents]


def decoded(event: bytes) -> Document:
    """An event, also one with dates or texts that Python has no value for."""
    return bson.decode(event, _ANY)


def operation_time(site: Site) -> Timestamp:
    """A start before everything written next, and after everything written so far."""
    time_ = site.client.admin.command("ping")["operationTime"]
    assert isinstance(time_, Timestamp)
    return time_


def after(site: Site) -> feed_pb2.Start:
    """A start after everything that was written."""
    now = operation_time(site)
    return at(start_at_operation_time=feed_pb2.ClusterTime(seconds=now.time, increment=now.inc + 1))


def token_time(token: bytes | Document) -> Timestamp:
    """The cluster time of a resume token (BSON or document)."""
    data = bytes.fromhex((bson.decode(token) if isinstance(token, bytes) else token)["_data"])
    return Timestamp(int.from_bytes(data[1:5]), int.from_bytes(data[5:9]))


def scoped(scope: str, database: str, **options: Any) -> feed_pb2.Feed:
    """The feed of the database's collection `c`, of the database, or of the cluster."""
    return feed(*{"collection": (database, "c"), "database": (database,), "cluster": ()}[scope], **options)


def change_stream(feed: feed_pb2.Feed, start: feed_pb2.Start | None = None) -> Document:
    """The `$changeStream` stage's options."""
    options: Document = {}
    if feed.full_document:
        options["fullDocument"] = feed.full_document
    if feed.full_document_before_change:
        options["fullDocumentBeforeChange"] = feed.full_document_before_change
    if feed.show_expanded_events:
        options["showExpandedEvents"] = True
    if feed.match_collection_uuid_for_update_lookup:
        options["matchCollectionUUIDForUpdateLookup"] = True
    options |= dict.fromkeys(feed.extra_options, True)
    if not feed.database:
        options["allChangesForCluster"] = True
    kind = start.WhichOneof("at") if start is not None else None
    if start is not None and kind in _ONE_OF_START:
        options[_CAMEL[kind]] = bson.decode(getattr(start, kind), _RAW)
    elif start is not None and kind == "start_at_operation_time":
        time_ = start.start_at_operation_time
        options["startAtOperationTime"] = Timestamp(time_.seconds, time_.increment)
    elif kind is not None:
        raise ValueError(f"MongoDB has no start {kind}")
    return options


def aggregate(feed: feed_pb2.Feed, start: feed_pb2.Start | None = None) -> Document:
    """The aggregate command that the documents give for such a feed."""
    stages: Sequence[Any] = ()
    if feed.pipeline.bson:
        stages = bson.decode(feed.pipeline.bson, _RAW)["pipeline"]
    elif feed.pipeline.extended_json:
        assert "$regex" not in feed.pipeline.extended_json, "json_util reads it as a value"
        stages = json_util.loads(feed.pipeline.extended_json)
    command: Document = {
        "aggregate": feed.collection or 1,
        "pipeline": [{"$changeStream": change_stream(feed, start)}, *stages],
        "cursor": {"batchSize": feed.batch_size} if feed.batch_size else {},
    }
    if feed.collation:
        command["collation"] = bson.decode(feed.collation, _RAW)
    if feed.comment:
        command["comment"] = bson.decode(feed.comment, _RAW)["comment"]
    if feed.read_concern:
        command["readConcern"] = {"level": feed.read_concern}
    return command


def read_directly(site: Site, feed: feed_pb2.Feed, start: feed_pb2.Start | None, until: Timestamp) -> Reading:
    """All that MongoDB gives up to a time, by the commands of the server overview."""
    reading, database = Reading(), site.client[feed.database or "admin"]
    mode = make_read_preference(read_pref_mode_from_name(feed.read_preference or "primary"), None)
    end_s = time.monotonic() + PATIENCE_S
    with site.client.start_session() as session:
        try:
            reply = database.command(aggregate(feed, start), read_preference=mode, session=session, codec_options=_RAW)[
                "cursor"
            ]
            batch = "firstBatch"
            while True:
                reading.events += [bytes(event.raw) for event in reply[batch]]
                reading.tokens.append(bytes(reply["postBatchResumeToken"].raw))
                cursor = reply["id"]
                reading.ended = not cursor
                if not cursor:
                    return reading
                if token_time(reading.tokens[-1]) >= until:
                    break
                assert time.monotonic() < end_s, f"MongoDB did not come to {until}"
                collection = reply["ns"].partition(".")[2]
                get_more = {"getMore": cursor, "collection": collection, "maxTimeMS": 100}
                reply = database.command(get_more, read_preference=mode, session=session, codec_options=_RAW)["cursor"]
                batch = "nextBatch"
        except OperationFailure as error:
            reading.error = error
            return reading
        with suppress(OperationFailure):
            database.command({"killCursors": collection_of(feed), "cursors": [cursor]}, session=session)
    return reading


def collection_of(feed: feed_pb2.Feed) -> str:
    """What a getMore names as its collection."""
    return feed.collection or "$cmd.aggregate"


async def read_through(receiver: Receiver, expected: Reading) -> list[bytes]:
    """The events that are expected; where MongoDB ended the stream, the end is awaited too."""
    events = [event.data for event in await receiver.take(len(expected.events))]
    if expected.ended:
        outcome = await receiver.end()
        assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "FEED_INVALIDATED")
        events += [event.data for event in await receiver.take(0)]
        assert receiver.received == len(expected.events)
    elif expected.error is not None:
        check_refusal(await receiver.end(), expected.error)
        assert receiver.received == len(expected.events)
    return events


async def assert_same(
    site: Site,
    feed: feed_pb2.Feed,
    actions: Actions,
    *,
    start: feed_pb2.Start | None = None,
    live: bool = True,
    kinds: Sequence[str] | None = None,
) -> Reading:
    """Runs `actions`, and compares, event by event and byte by byte, what MongoDB and feedmux give from `start` on.

    Without `start` it is the moment before the actions. feedmux is read by a subscriber who was there before, unless
    not `live` (an update lookup sees what is there when it looks), and by one who comes after. `kinds`, if given, are
    the operation types to be seen, so that a scenario cannot pass on nothing.
    """
    start = start or after(site)
    before = None
    if live:
        before = site.api.watch(feed, start)
        await before.opened()
    await asyncio.to_thread(actions)
    last_act = operation_time(site)
    # An event too many would stand before this one.
    sentinel = {"insert": feed.collection or "sentinels", "documents": [{"sentinel": True}]}
    await asyncio.to_thread(site.client[feed.database or "sentinels"].command, sentinel)
    expected = await asyncio.to_thread(read_directly, site, feed, start, operation_time(site))
    expected.last_act = last_act
    if expected.error is not None and not expected.events:
        raise expected.error
    if kinds is not None:
        assert expected.kinds == list(kinds)
    assert expected.documents, "nothing to compare"
    behind = site.api.watch(feed, start)
    for receiver in (before, behind):
        if receiver is not None:
            try:
                check_events(await read_through(receiver, expected), expected)
            finally:
                receiver.cancel()
    return expected


def check_events(events: Sequence[bytes], expected: Reading) -> None:
    """Equal, with the first difference as documents."""
    for number, (event, wanted) in enumerate(zip(events, expected.events, strict=True)):
        assert event == wanted, f"event {number}: {decoded(event)} is not {decoded(wanted)}"


_QUOTED = re.compile(r"\{ ?_(?:data|id):|First element: |Expected: \{")


def check_refusal(outcome: Refused, error: OperationFailure) -> None:
    """feedmux's refusal holds MongoDB's code, its name, the labels and the words."""
    details = error.details or {}
    assert outcome.domain == "feedmux"
    assert outcome.metadata["code"] == str(error.code)
    assert outcome.metadata.get("code_name", "") == details.get("codeName", "")
    labels = set(outcome.metadata.get("labels", "").split(",")) - {""}
    assert labels == set(details.get("errorLabels", ()))
    # The words before the cause say which command failed, and the direct reader's first batch may be the aggregate's.
    # From where it quotes a token or an event they are left out.
    words = _QUOTED.split(str(details["errmsg"]))[0].rpartition(" :: caused by :: ")[2].strip()[:1000]
    assert words in outcome.message


async def assert_refused_alike(site: Site, feed: feed_pb2.Feed) -> Refused:
    """MongoDB refuses the feed, and feedmux does with MongoDB's words, code and labels."""
    direct = await asyncio.to_thread(read_directly, site, feed, None, operation_time(site))
    assert direct.error is not None, "MongoDB accepts it"
    outcome = await refused(site.api.watch(feed).opened())
    check_refusal(outcome, direct.error)
    assert outcome.reason == "OPTION_REFUSED"
    return outcome
