"""Which starts are accepted, and how much MongoDB has to believe of them."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import bson
import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.positions.ahead import MARK_BYTES, Ahead
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.positions.resume_token import Copied, Given, ResumeToken
from feedmux_server.core.positions.start import Start, StartKind
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.source.deployment import Source
from feedmux_server.source.timeline import SourceTimeline
from feedmux_server.streams.resolve_start import StartResolver
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.events import BEGIN, event_token
from tests.unit.core.delivery.streams_support import mark, token

KNOWN, LATEST, OLDEST = BEGIN + 100, BEGIN + 200, BEGIN - 100
SPEC = FeedSpec(Scope("main", "shop", "orders"))
KEY, NARROWED = stream_key(SPEC), stream_key(SPEC, b"policy")
OTHER = stream_key(replace(SPEC, full_document="updateLookup"))
KEYS = PositionKeys([bytes(32)])


class Clock:
    """MongoDB's time, and how often it was asked."""

    known_time = KNOWN

    def __init__(self) -> None:
        self.asked = 0

    async def operation_time(self) -> int:
        return LATEST

    async def latest_time(self) -> int:
        self.asked += 1
        return LATEST


async def oldest_time() -> int:
    return OLDEST


def resolver(key: Any = KEY, tenant: str = "a") -> tuple[StartResolver, Clock]:
    clock = Clock()
    commands: Any = SimpleNamespace(name="main")
    oplog: Any = SimpleNamespace(oldest_time=oldest_time)
    source = SimpleNamespace(
        source_id="rs0", clock=clock, oplog=oplog, timeline=SourceTimeline(commands, oplog, NOBODY)
    )
    return StartResolver(cast(Source, source), key, tenant, KEYS, int), clock


def start(kind: StartKind, at: ResumeToken) -> Start:
    return Start(kind, data=at.raw)


def utc(cluster_time: int) -> str:
    return datetime.fromtimestamp(cluster_time >> 32, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("time", "accepted", "asked"),
    [
        (KNOWN + 1, True, 0),
        (KNOWN + 2, True, 1),
        (LATEST, True, 1),
        (LATEST + 1, False, 1),
        (LATEST + (5 << 32), False, 1),
    ],
)
async def test_a_start_that_mongodb_has_not_reached(time: int, accepted: bool, asked: int) -> None:
    """MongoDB is asked only about a time later than any that it has shown."""
    starts, clock = resolver()
    if accepted:
        await starts.resolve(Start(StartKind.OPERATION_TIME, time=time))
    else:
        with pytest.raises(FeedmuxError) as caught:
            await starts.resolve(Start(StartKind.OPERATION_TIME, time=time))
        assert (caught.value.reason, caught.value.field) == (ErrorReason.START_IN_FUTURE, "start")
        times = f"{utc(time)}, and the source's clock is at {utc(LATEST)}"
        assert caught.value.message == f"start is in the future: {times}"
    assert clock.asked == asked


@pytest.mark.parametrize("at", [token(1), mark(1)])
async def test_a_position_is_exact_on_its_own_feed_alone(at: ResumeToken) -> None:
    position = resolver()[0].encoder().encode(at)
    same = await resolver()[0].position(position, "p")
    assert (same.place, same.exact) == (at, True)
    for key in (OTHER, NARROWED):
        other = await resolver(key)[0].position(position, "p")
        assert (other.place, other.exact, other.native) == (at, False, None)
        assert other.place.given is (Given.AS_TIME if at == token(1) else Given.BY_MONGODB)
    with pytest.raises(FeedmuxError) as caught:
        await resolver(tenant="b")[0].position(position, "p")
    assert caught.value.reason is ErrorReason.POSITION_FOREIGN


async def test_a_group_does_not_take_as_settled_what_may_have_another_key_now() -> None:
    """It follows a hole in the key that it had, and only its key says so."""
    stages = {"pipeline": [{"$set": {"documentKey": {"_id": "$fullDocument.customer"}}}]}
    computed = replace(SPEC, pipeline=bson.encode(stages))
    ahead = Ahead(token(3), {bytes(MARK_BYTES): 1})
    for spec, known in ((computed, ahead), (replace(computed, full_document="updateLookup"), None)):
        starts, _ = resolver(stream_key(spec))
        position = starts.encoder().encode_ahead(token(1), lambda _: ahead)
        assert (await starts.position_of_group(position))[1] == known


async def test_a_group_does_not_take_as_settled_what_has_the_times_of_a_lost_history() -> None:
    """The clock of the restored deployment was behind: events before the fork may be others than those before it in the
    lost history, up to whose time a group has settled everything."""
    starts, _ = resolver()
    ahead = Ahead(token(3), {bytes(MARK_BYTES): 1})
    position = starts.encoder().encode_ahead(token(1), lambda _: ahead)
    at, found = await starts.position_of_group(position)
    assert (at.place, found) == (token(1), ahead)
    starts.source.timeline.forks.append(Fork(token(2).cluster_time, token(4).cluster_time))
    with pytest.raises(FeedmuxError) as caught:
        await starts.position_of_group(position)
    assert caught.value.reason is ErrorReason.TIMELINE_FORKED


@pytest.mark.parametrize("kind", [StartKind.RESUME_AFTER, StartKind.START_AFTER])
async def test_mongodb_checks_a_clients_token_unless_a_policy_withholds_events(kind: StartKind) -> None:
    at = await resolver()[0].resolve(start(kind, token(1)))
    assert (at.place, at.place.given, at.native) == (token(1), Given.BY_CLIENT, kind.value)
    narrowed = await resolver(NARROWED)[0].resolve(start(kind, token(1)))
    assert (narrowed.place.given, narrowed.native) == (Given.AS_TIME, None), "finding the token would show a change"
    time = await resolver()[0].resolve(start(kind, mark(1)))
    assert (time.place.given, time.native) == (Given.AS_TIME, None)


async def test_a_stored_token_of_a_client_is_checked_once_more() -> None:
    starts, _ = resolver()
    position = starts.encoder().encode(token(1).given_as(Given.BY_CLIENT))
    assert (await starts.position(position, "p")).native == "start_after"


async def test_an_acked_token_is_a_time_whatever_it_names() -> None:
    starts, _ = resolver()
    at = await starts.acked_token(token(1).raw, "last_acked")
    assert (at.place, at.place.given, at.exact, at.native) == (token(1), Given.AS_TIME, False, None)
    with pytest.raises(FeedmuxError) as caught:
        await starts.acked_token(token(1_000).raw, "last_acked")
    assert (caught.value.reason, caught.value.field) == (ErrorReason.START_IN_FUTURE, "last_acked")


async def test_another_feed_has_other_fragments() -> None:
    """After a fragment, the event comes again from its start, unless it was the last. A whole event is passed."""
    whole, part = event_token(BEGIN, version=2), event_token(BEGIN, fragment=1)
    splits = stream_key(replace(SPEC, pipeline=bson.encode({"pipeline": [{"$changeStreamSplitLargeEvent": {}}]})))
    for token_, key, start, stored in (
        (part, KEY, part, part),
        (part, OTHER, part.event_start(), part.after_event()),
        (part, splits, part.event_start(), part.after_event()),
        (whole, OTHER, whole, whole),
        (whole, splits, whole.after_event(), whole.after_event()),
    ):
        position = resolver()[0].encoder().encode(token_)
        starts, _ = resolver(key)
        is_other = key is not KEY
        at = await starts.position(position, "p")
        assert (at.place, at.exact, at.of_mongodb) == (start, not is_other, is_other and token_ is whole)
        at = await starts.stored_position(position, "p")
        assert (at.place, at.exact, at.ends_event, at.of_mongodb) == (stored, not is_other, not is_other, is_other)
        at = await starts.acked_token(token_.raw, "p", of_other_feed=is_other)
        assert (at.place, at.exact) == (start, False)
        again = starts.encoder().encode(start.given_as(Given.AS_TIME))  # as `Opened` says it
        assert (await starts.position(again, "p")).place == start
        if is_other:
            assert (await resolver(NARROWED)[0].position(again, "p")).place == start


async def test_what_is_no_token_of_mongodb() -> None:
    with pytest.raises(FeedmuxError) as caught:
        await resolver()[0].resolve(Start(StartKind.RESUME_AFTER, data=b"\x05\0\0\0\0"))
    assert (caught.value.reason, caught.value.field) == (ErrorReason.POSITION_INVALID, "start.resume_after")


COPYING = [mark(1).while_copying(Copied(b"", 3)), token(1).while_copying(Copied(b"", 3))]


@pytest.mark.parametrize("at", COPYING)
async def test_a_position_within_a_copy_needs_a_feed_that_may_be_copied(at: ResumeToken) -> None:
    """Also if somebody presents it for another feed. Under other grants or with another pipeline, the rest of the copy
    is read with these."""
    position = resolver()[0].encoder().encode(at)
    assert (await resolver()[0].position(position, "p")).place.copied == Copied(b"", 3)
    filtered = stream_key(replace(SPEC, pipeline=bson.encode({"pipeline": [{"$match": {}}]})))
    for key in (NARROWED, filtered):
        assert (await resolver(key)[0].position(position, "p")).place.copied == Copied(b"", 3)
    collated = stream_key(replace(SPEC, collation=bson.encode({"locale": "fr"})))
    with pytest.raises(FeedmuxError) as caught:
        await resolver(collated)[0].position(position, "p")
    assert (caught.value.reason, caught.value.metadata["kind"]) == (ErrorReason.SNAPSHOT_UNSUITABLE, "collation")
    with pytest.raises(FeedmuxError) as caught:
        await resolver(tenant="b")[0].position(position, "p")
    assert caught.value.reason is ErrorReason.POSITION_FOREIGN


async def test_the_id_of_a_copied_document_is_a_time_in_an_ack_and_no_start() -> None:
    raw = bson.encode({**bson.decode(mark(1).raw), "snapshot": {"_id": 5}})
    assert (await resolver()[0].acked_token(raw, "last_acked")).place == mark(1)
    with pytest.raises(FeedmuxError, match="a position of the copy"):
        await resolver()[0].resolve(Start(StartKind.START_AFTER, data=raw))
