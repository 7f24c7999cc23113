"""What the driver answers Spark, with the answers of a server: ends, slices, gaps, and what it asks for in advance."""

import json
import logging
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from feedmux.errors import (
    FailedPrecondition,
    FeedmuxError,
    HistoryLost,
    PositionInvalid,
    QuotaExceeded,
    TimelineForked,
)
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.offsets import Offset
from feedmux_spark.options import parse_options
from feedmux_spark.stream import QUIET_BATCH_S, Progress
from tests.unit.spark.answers import FEED, Answers, plan, resolved

START = Offset(b"start", (1000, 1), feed=FEED)
MANY = 1_000_000
BUSY = QuotaExceeded("too many", status="RESOURCE_EXHAUSTED", reason="QUOTA_EXCEEDED")


def progress(**more: str) -> Progress:
    return Progress(parse_options({"endpoint": "localhost:1", "consumerName": "q", **more}))


def begun(monkeypatch: pytest.MonkeyPatch, plans: list[Any], **more: str) -> tuple[Answers, Progress]:
    """A server with these answers to PlanRange, and a query that begins."""
    return Answers(monkeypatch, ResolvePosition=[resolved(b"start")], PlanRange=plans), progress(**more)


def test_a_planned_batch_is_read_as_planned_and_after_a_restart_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(
        monkeypatch,
        ResolvePosition=[resolved(b"start"), resolved(b"start")],
        PlanRange=[plan(b"end", 3, caught_up=True), plan(b"half", 2), plan(b"end", 1, caught_up=True)],
    )
    running = progress()
    end = running.advance(START, MANY)
    assert (end.position, end.feed, end.gaps) == (b"end", FEED, 0)
    assert [each.until for each in running.slices(START, end)] == [b"end"]
    assert server.methods().count("PlanRange") == 1
    assert [each.until for each in progress().slices(START, end)] == [b"half", b"end"]
    assert [request.until for method, request in server.asked if method == "PlanRange"] == [b"", b"end", b"end"]
    assert running.slices(end, end) == ()
    assert [request.processed for method, request in server.asked if method == "PlanRange"] == [b"start"] * 3


def test_of_a_backlog_the_next_range_is_asked_for_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    server, running = begun(
        monkeypatch, [plan(b"one", 5), plan(b"two", 5), plan(b"three", 5), plan(b"other", 5), plan(b"more", 5)]
    )
    one = running.advance(START, 5)
    assert [request.after for _, request in server.asked[1:]] == [b"start", b"one"]
    two = running.advance(one, 5)
    assert two.position == b"two"
    # With another limit, the plan in advance is of no use.
    assert running.advance(two, 7).position == b"other"
    assert [call.cancelled for call in server.calls] == [False, False, False, True, False, False]
    running.stop()
    assert server.calls[-1].cancelled


def test_a_plan_in_advance_that_failed_or_found_nothing_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for useless in (BUSY, plan(b"one", 0)):
        server, running = begun(monkeypatch, [plan(b"one", 5), useless, plan(b"two", 5, caught_up=True)])
        assert running.advance(running.advance(START, 5), 5).position == b"two"
        # So the server learns what was processed meanwhile.
        assert server.asked[-1][1].processed == b"one"


def test_a_quiet_feed_moves_the_checkpoint_only_before_it_would_leave_the_oplog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, running = begun(
        monkeypatch,
        [
            plan(b"a", seconds=1001, caught_up=True),
            plan(b"b", seconds=1000 + QUIET_BATCH_S - 1),
            plan(b"c", seconds=1000 + QUIET_BATCH_S),
        ],
    )
    assert running.advance(START, MANY) == START
    assert running.report() == {"clusterTime": "1970-01-01T00:16:40Z/1"}
    assert running.advance(START, MANY) == START
    end = running.advance(START, MANY)
    assert (end.position, running.slices(START, end)) == (b"c", ())
    # What was found empty is not read again.
    assert [request.after for _, request in server.asked[1:]] == [b"start", b"a", b"b"]


def test_lost_history_ends_the_query_or_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = HistoryLost("gone", reason="HISTORY_LOST", metadata={"oldest_time": "2026-11-21T15:00:00Z"})
    Answers(monkeypatch, ResolvePosition=[resolved(b"start")], PlanRange=[lost])
    with pytest.raises(FeedmuxSparkError, match="which now begins at 2026-11-21T15:00:00Z"):
        progress().advance(START, MANY)
    found = [resolved(b"start"), resolved(b"oldest", 2000)]
    server = Answers(monkeypatch, ResolvePosition=found, PlanRange=[lost, plan(b"end", 1, caught_up=True)])
    with caplog.at_level(logging.WARNING, "feedmux_spark"):
        end = progress(failOnDataLoss="false").advance(START, MANY)
    assert (end.gaps, server.asked[-1][1].after) == (1, b"oldest")
    assert "from 1970-01-01T00:16:40Z/1 to 1970-01-01T00:33:20Z/1" in caplog.text


def test_a_restored_database_ends_the_query_or_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = TimelineForked("gone", reason="TIMELINE_FORKED", metadata={"last_common_time": "2026-11-21T15:00:00Z"})
    Answers(monkeypatch, ResolvePosition=[resolved(b"start")], PlanRange=[lost])
    with pytest.raises(FeedmuxSparkError, match="that was read since 2026-11-21T15:00:00Z"):
        progress().advance(START, MANY)
    end = plan(b"pinned again", 1, caught_up=True)
    for plans, found, allowed in (
        ([lost, end], (0, b"start"), "true"),  # only the former end is lost
        ([lost, lost, end], (1, b"oldest"), "false"),
    ):
        positions = resolved(b"pinned"), resolved(b"start"), resolved(b"pinned again", 3000), resolved(b"oldest", 500)
        server = Answers(monkeypatch, ResolvePosition=list(positions), PlanRange=plans)
        running = progress(failOnDataLoss=allowed)
        running.pin()
        gaps, wanted = running.advance(START, MANY).gaps, server.asked[-1][1]
        assert ((gaps, wanted.after), wanted.until) == (found, b"pinned again")


def test_a_query_starts_after_its_database_was_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = TimelineForked("gone", reason="TIMELINE_FORKED")
    found = [lost, resolved(b"oldest", 2000), resolved(b"oldest", 2000)]
    Answers(monkeypatch, ResolvePosition=[*found], PlanRange=[lost, plan(b"end", 1, caught_up=True)])
    assert progress(failOnDataLoss="false").advance(START, MANY).gaps == 1
    # Without a checkpoint: the stored position is lost.
    stored, copying = (
        subscriptions_pb2.Subscription(position=b"stored", snapshot=copy)
        for copy in (None, feed_pb2.SnapshotStatus(documents=5))
    )
    for subscription, options, says in (
        (stored, {}, "was restored"),
        (copying, {"failOnDataLoss": "false"}, "not within a copy"),
        (stored, {"failOnDataLoss": "false"}, ""),
    ):
        found = [lost, resolved(b"oldest", 2000), lost, resolved(b"oldest", 2000)]
        Answers(monkeypatch, CreateSubscription=[stored], GetSubscription=[subscription], ResolvePosition=found)
        with pytest.raises(FeedmuxSparkError, match=says) if says else nullcontext():
            begin = progress(**options).begin()
            assert (begin.position, begin.gaps) == (b"oldest", 1)


def test_a_gap_in_a_batch_that_comes_again_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = HistoryLost("gone", reason="HISTORY_LOST")
    plans = [lost, plan(b"end", 1, caught_up=True), plan(b"end", caught_up=True), plan(b"end", caught_up=True)]
    Answers(monkeypatch, ResolvePosition=[resolved(b"start"), resolved(b"oldest", 2000)], PlanRange=plans)
    running, end = progress(failOnDataLoss="false"), Offset(b"end", (3000, 1), feed=FEED)
    assert [each.until for each in running.slices(START, end)] == [b"end"]
    counted = running.advance(end, MANY)
    assert counted == Offset(b"end", (1000, 1), 1, FEED)
    assert running.advance(counted, MANY) == counted


@pytest.mark.parametrize("error", [HistoryLost, TimelineForked])
def test_the_batch_after_one_that_is_lost_as_a_whole_begins_at_the_oldest_change(
    monkeypatch: pytest.MonkeyPatch, error: type[FeedmuxError]
) -> None:
    """Its events come once, and the gap counts once."""
    rest = [plan(b"oldest", caught_up=True)] * (error is HistoryLost)
    plans = [error("gone", reason="LOST"), *rest, plan(b"more", 5), plan(b"even more", 5)]
    server = Answers(monkeypatch, ResolvePosition=[resolved(b"start"), resolved(b"oldest", 2000)], PlanRange=plans)
    running, end = progress(failOnDataLoss="false"), Offset(b"end", (1500, 1), feed=FEED)
    assert not running.slices(START, end)
    more = running.advance(end, 5)
    assert (more.position, more.gaps) == (b"more", 1)
    assert [request.after for _, request in server.asked[-2:]] == [b"oldest", b"more"]


def test_a_position_that_the_primary_has_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of the set lost it. At the oldest change, what was read would come again."""
    lost = HistoryLost("gone", reason="HISTORY_LOST")
    Answers(monkeypatch, ResolvePosition=[resolved(b"start"), resolved(b"oldest", 1000)], PlanRange=[lost])
    with pytest.raises(FeedmuxSparkError, match="HISTORY_LOST"):
        progress(failOnDataLoss="false").advance(START, MANY)


def test_a_first_batch_without_its_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an empty batch: the events before the new start would be missing."""
    Answers(monkeypatch, ResolvePosition=[resolved(b"start")])
    with pytest.raises(FeedmuxSparkError, match="start of the first micro-batch is lost"):
        progress().slices(replace(START, time=(1000, 2)), Offset(b"end", (1000, 1), feed=FEED))


def test_a_copy_is_read_in_steps_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    copying = Offset(b"copying", (1000, 1), feed=FEED, copied=5)
    server = Answers(
        monkeypatch,
        ResolvePosition=[
            resolved(b"pinned", 3000),
            resolved(b"copying"),
            resolved(b"more", copied=9),
            resolved(b"end"),
        ],
        PlanRange=[plan(b"more", 4), *[plan(b"end", seconds=3000)] * 2],  # the one in advance is asked for again
    )
    running = progress()
    running.pin()
    more = running.advance(copying, MANY)
    assert (more.copied, [each.copying for each in running.slices(copying, more)]) == (9, [True])
    end = running.advance(more, MANY)
    assert (end.position, end.copied, running.slices(more, end)) == (b"end", None, ()), "the end of a copy is a batch"
    # With `until`, a range would have all the rest of the documents.
    assert [request.until for method, request in server.asked if method == "PlanRange"] == [b""] * 3
    with pytest.raises(FeedmuxSparkError, match="use the trigger availableNow"):
        running.advance(copying, None)


def test_a_query_that_is_started_again_begins_no_other_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that takes its offset anew would sweep what the former one has copied."""
    for copied in (5, None):
        checkpoint = Offset(b"checkpoint", (2000, 1), feed=FEED, copied=copied)
        for begin, says in (
            (Offset(b"begin", (2000, 1), copied=0), ""),
            (Offset(b"begin", (2000, 2), copied=0), "startingOffsets is a later beginning of a copy"),
            (Offset(b"begin", (2000, 2)), ""),
        ):
            server = Answers(
                monkeypatch,
                ResolvePosition=[resolved(b"copying"), resolved(b"end", copied=copied)],
                PlanRange=[plan(b"end", 1, caught_up=True)],
            )
            running = progress(startingOffsets=json.dumps(begin.as_json()))
            with pytest.raises(FeedmuxSparkError, match=says) if says else nullcontext():
                assert running.advance(checkpoint, MANY).position == b"end"
            with pytest.raises(FeedmuxSparkError, match=says) if says else nullcontext():
                running.slices(checkpoint, Offset(b"end", (2000, 1), feed=FEED, copied=copied))
            assert not says or not server.asked


def test_history_lost_within_a_copy_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest change would not bring the documents that are missing."""
    lost = HistoryLost("gone", reason="HISTORY_LOST")
    Answers(monkeypatch, ResolvePosition=[resolved(b"start")], PlanRange=[lost])
    with pytest.raises(FeedmuxSparkError, match="not within a copy"):
        progress(failOnDataLoss="false").advance(Offset(b"copying", feed=FEED, copied=5), MANY)


def test_a_checkpoint_of_no_use_says_where_to_begin_so_that_nothing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the time of a position within a copy, the documents that it had not read would be missing."""
    lost = PositionInvalid("its key is lost", status="INVALID_ARGUMENT", reason="POSITION_INVALID")
    copying = replace(START, copied=7)
    for start, advice in (
        (START, "startingOffsets 1970-01-01T00:16:40Z"),
        (copying, "not read all existing documents: read them again, with startingOffsets=snapshot"),
    ):
        Answers(monkeypatch, ResolvePosition=[lost, lost])
        with pytest.raises(FeedmuxSparkError, match=advice):
            progress().advance(start, MANY)
        with pytest.raises(FeedmuxSparkError, match=advice):
            progress().slices(start, replace(start, position=b"end"))


def test_a_server_without_copies_stores_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(monkeypatch, ResolvePosition=[resolved(b"latest")])
    with pytest.raises(FeedmuxSparkError, match=r"does not know the start `snapshot`.*Upgrade all replicas"):
        progress(startingOffsets="snapshot").begin()
    assert server.methods() == ["ResolvePosition"]
    no_ranges = FailedPrecondition("no", reason="SNAPSHOT_UNSUITABLE", metadata={"kind": "mode"})
    server = Answers(monkeypatch, ResolvePosition=[resolved(b"copying", copied=0)], PlanRange=[no_ranges])
    with pytest.raises(FeedmuxSparkError, match="upgrade all replicas of feedmux"):
        progress(startingOffsets="snapshot").begin()
    assert server.methods() == ["ResolvePosition", "PlanRange"]


def test_a_trigger_without_a_limit_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(
        monkeypatch,
        ResolvePosition=[resolved(b"start"), resolved(b"latest", 3000), resolved(b"latest", 3000)],
        PlanRange=[
            plan(b"none"),
            plan(b"one", 2),
            plan(b"latest", 3, seconds=3000, caught_up=True),
            plan(b"latest", seconds=3000, caught_up=True),
        ],
    )
    running = progress()
    end = running.advance(START, None)
    assert (end.position, end.time) == (b"latest", (3000, 1))
    assert [each.until for each in running.slices(START, end)] == [b"one", b"latest"]
    assert running.advance(end, None) == end
    plans = [request for method, request in server.asked if method == "PlanRange"]
    assert {request.until for request in plans} == {b"latest"}
    # What Spark asks for after an offset is in the sink up to that offset, however many ranges a batch has.
    assert [request.processed for request in plans] == [b"start", b"none", b"none", b"latest"]


@pytest.mark.parametrize("trigger", ["once", "availableNow"])
def test_a_run_without_events_moves_the_checkpoint(monkeypatch: pytest.MonkeyPatch, trigger: str) -> None:
    """Nobody knows when the next run comes, nor whether the oplog reaches back to this one by then."""
    server = Answers(
        monkeypatch,
        ResolvePosition=[resolved(b"latest", 1001)] * 4,
        PlanRange=[plan(b"half", seconds=1001), *[plan(b"latest", seconds=1001, caught_up=True)] * 3],
    )
    running, events_max = progress(), None if trigger == "once" else MANY
    if trigger == "availableNow":
        running.pin()
    end = running.advance(START, events_max)
    assert (end.position, running.slices(START, end)) == (b"latest", ())
    assert running.advance(end, events_max) == end
    assert server.asked[-1][1].processed == b"latest"
    # A run that had events moves the checkpoint with them.
    assert running.advance(START, events_max) == START
