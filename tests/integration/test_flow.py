"""Credit and acks on the wire: what the server may send, what it stores, what it delivers again."""

from typing import Any

import pytest
from pymongo.database import Database
from redis.asyncio import Redis

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.rpc.live_sessions import LiveSession
from feedmux_server.sessions.outputs import DegradedMark
from feedmux_server.sessions.session import Session
from tests.integration.servers import Here, until
from tests.integration.wire import EARLIEST, MANY, Api, Event, Receiver, at, feed, refused, seconds

Documents = Database[dict[str, Any]]


def insert(database: Documents, numbers: range, pad: int = 0) -> None:
    database.c.insert_many([{"n": n, "pad": "x" * pad} for n in numbers])


def sessions_of(here: Here, database: Documents) -> list[LiveSession]:
    return [each for each in here.server.service.sessions if each.key.spec.scope.database == database.name]


async def sent_before_rest(here: Here, database: Documents, session: Receiver, written: int) -> list[Event]:
    """The events that come before the server sends no more, of those `written` to the only session's feed.

    Waits until the session's task has seen all of them, or an event that the task does not send yet, and waits for a
    change; then has a message sent after whatever was sent.
    """
    [live] = sessions_of(here, database)
    subscriber, signal = live.session.subscriber, live.session._signal

    def at_rest() -> bool:
        seen = subscriber.lag_events() > 0 or subscriber.events_sent >= written
        return seen and signal._waiter is not None and not signal._waiter.done()

    await until(at_rest)
    live.session.notice(DegradedMark("marker", unavailable=False))
    await session.until(lambda: any(notice.degraded.dependency == "marker" for notice in session.notices))
    session.notices.clear()
    return await session.take(session.received - session.taken)


@pytest.fixture
def granted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Credit in events of each grant that a session of a server in this process has taken."""
    found: list[int] = []
    grant = Session.grant

    def counted(session: Session, events: int, size: int, **options: Any) -> None:
        grant(session, events, size, **options)
        found.append(events)

    monkeypatch.setattr(Session, "grant", counted)
    return found


# --- Credit.


async def test_no_more_events_than_credit(here: Here, api: Api, database: Documents) -> None:
    session = await api.session(feed=feed(database.name, "c"), credit=wire.Credit(events=3, bytes=1 << 20))
    await session.opened()
    insert(database, range(10))
    assert await session.numbers(3) == [0, 1, 2]
    assert not await sent_before_rest(here, database, session, 10)
    await session.credit(1)
    await session.credit(1)
    assert await session.numbers(2) == [3, 4]
    assert not await sent_before_rest(here, database, session, 10)
    await session.credit(100)
    assert await session.numbers(5) == [5, 6, 7, 8, 9]
    session.cancel()


async def test_zero_credit_is_a_pause(here: Here, api: Api, database: Documents) -> None:
    session = await api.session(feed=feed(database.name, "c"))
    await session.opened()
    # Without credit nothing is read for it, once the first read has brought nothing: another has the events read.
    other = await api.open(feed=feed(database.name, "c"))
    insert(database, range(3))
    assert await other.numbers(3) == [0, 1, 2]
    other.cancel()
    await until(lambda: len(sessions_of(here, database)) == 1)
    assert not await sent_before_rest(here, database, session, 3)
    await session.credit(10)
    assert await session.numbers(3) == [0, 1, 2]
    session.cancel()


async def test_one_event_may_overdraw_and_the_debt_is_paid_first(
    here: Here, api: Api, database: Documents, granted: list[int]
) -> None:
    session = await api.session(feed=feed(database.name, "c"), credit=wire.Credit(events=100, bytes=1))
    await session.opened()
    insert(database, range(4), pad=10_000)
    first = (await session.take(1))[0]
    assert not await sent_before_rest(here, database, session, 4)
    debt = len(first.data) - 1
    await session.credit(7, debt)  # exactly paid: nothing left
    await until(lambda: 7 in granted)
    assert not await sent_before_rest(here, database, session, 4)
    await session.credit(1, 1)
    assert await session.numbers(1) == [1]
    assert not await sent_before_rest(here, database, session, 4)
    await session.credit(1)
    assert await session.numbers(2) == [2, 3]
    session.cancel()


async def test_byte_credit_counts_the_events_bytes(here: Here, api: Api, database: Documents) -> None:
    session = await api.session(feed=feed(database.name, "c"), credit=wire.Credit(events=1000, bytes=50_000))
    await session.opened()
    insert(database, range(100), pad=5_000)
    sizes = [len(event.data) for event in await sent_before_rest(here, database, session, 100)]
    assert sum(sizes[:-1]) < 50_000 <= sum(sizes)
    session.cancel()


async def test_unused_credit_is_clamped(small: Here, database: Documents, granted: list[int]) -> None:
    session = await small.api.session(feed=feed(database.name, "c"), credit=MANY)
    opened = await session.opened()
    assert (opened.limits.credit_events_max, opened.limits.credit_bytes_max) == (5000, 2 << 20)
    for _ in range(3):
        await session.credit(2**31 - 1, 2**40)
    await until(lambda: granted.count(2**31 - 1) == 3)
    insert(database, range(400), pad=10_000)
    # 2 MiB, and no more until there is credit again.
    sent = await sent_before_rest(small, database, session, 400)
    assert 2 << 20 <= sum(len(each.data) for each in sent) < (2 << 20) + 11_000
    session.cancel()


# --- Acks on an inline feed.


async def test_acks_of_an_inline_feed_are_accepted_and_stored_nowhere(api: Api, database: Documents) -> None:
    session = await api.open(feed=feed(database.name, "c"))
    insert(database, range(5))
    await session.take(5)
    await session.ack(3)
    # The server reads Close after the ack, and ends after it has stored what there is to store.
    await session.close()
    assert not session.committed


@pytest.mark.parametrize("wire_format", [feed_pb2.FORMAT_BSON, feed_pb2.FORMAT_EXTENDED_JSON_RELAXED])
async def test_a_tool_that_half_closes_at_once_gets_what_is_there(
    api: Api, database: Documents, wire_format: feed_pb2.Format
) -> None:
    """As `grpcurl -d` does."""
    watching = api.watch(feed(database.name, "c"))
    await watching.opened()
    insert(database, range(5))
    await watching.take(5)
    watching.cancel()
    start = at(position=watching.batches[0].position)
    left = 5 - watching.batches[0].event_count
    insert(database, range(5, 8))
    session = await api.session(feed=feed(database.name, "c"), start=start, format=wire_format, credit=MANY)
    await session.call.done_writing()
    await session.opened()
    assert len(await session.rest()) == left + 3


# --- Durable subscriptions.


async def test_acked_never_comes_again_and_unacked_all_does(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(10))
    session = await api.open(name)
    await session.take(10)
    await session.ack_and_wait(4)
    stored = await api.get(name)
    assert stored.position == session.committed[-1].position
    assert stored.active
    await session.close()
    assert not (await api.get(name)).active
    again = await api.open(name)
    assert await again.numbers(6) == [4, 5, 6, 7, 8, 9]
    # A lower ack changes nothing; an ack of everything does.
    await again.ack(2)
    await again.ack(1)
    await again.ack_and_wait(6)
    await again.close()
    last = await api.open(name)
    insert(database, range(10, 11))
    assert await last.numbers(1) == [10]
    await last.close()


async def test_close_commits_without_waiting_for_the_interval(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(3))
    session = await api.open(name)
    await session.take(3)
    await session.ack(3)
    await session.close()
    assert [each.delivery_sequence for each in session.committed] == [3]
    assert (await api.get(name)).position == session.position


async def test_a_cancelled_session_commits_what_was_acked(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(3))
    session = await api.open(name, instance_id="one")
    await session.take(3)
    await session.ack_and_wait(2)
    session.cancel()
    again = await api.open(name, instance_id="one")
    assert await again.numbers(1) == [2]
    await again.close()


async def test_acks_in_many_small_steps(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(50))
    done = 0
    while done < 50:
        session = await api.open(name, credit=wire.Credit(events=9, bytes=1 << 20))
        expected = list(range(done, min(done + 9, 50)))
        assert await session.numbers(len(expected)) == expected
        acked = min(7, len(expected))
        await session.ack(acked)
        await session.close()
        done += acked
    assert done == 50


@pytest.mark.parametrize("kind", ["position", "resume_token"])
async def test_last_acked_wins_over_an_older_stored_position(
    api: Api, database: Documents, name: str, kind: str
) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(6))
    session = await api.session(name, credit=wire.Credit(events=4, bytes=1 << 20))
    opened = await session.opened()
    assert await session.numbers(4) == [0, 1, 2, 3]
    position, token = session.position, session.resume_token
    await session.close()
    # The acks were lost; the client's position is newer.
    place: dict[str, Any] = {"position": position} if kind == "position" else {"resume_token": token}
    again = await api.session(name, credit=MANY, last_acked=wire.LastAcked(epoch=opened.epoch, **place))
    reopened = await again.opened()
    assert reopened.at_last_acked
    assert reopened.epoch > opened.epoch
    assert await again.numbers(2) == [4, 5]
    await again.close()
    stored = (await api.get(name)).position
    assert inspect_position(stored).token.raw == token
    # Only a position that MongoDB's own answer was made of is trusted as a token; the other one is a time.
    assert (stored == position) == (kind == "position")


async def test_a_seek_wins_over_last_acked(api: Api, database: Documents, name: str) -> None:
    created = await api.create(name, feed(database.name, "c"))
    insert(database, range(4))
    session = await api.session(name, credit=MANY)
    opened = await session.opened()
    await session.take(4)
    await session.ack(4)
    await session.close()
    await api.seek(name, at(position=created.position))
    last_acked = wire.LastAcked(epoch=opened.epoch, position=session.position)
    again = await api.session(name, credit=MANY, last_acked=last_acked)
    assert not (await again.opened()).at_last_acked
    assert await again.numbers(4) == [0, 1, 2, 3]
    assert [notice.WhichOneof("kind") for notice in again.notices] == ["rewound"]
    await again.close()


async def test_what_another_session_has_acked_is_said_to_be_skipped(api: Api, database: Documents, name: str) -> None:
    """The first client stood still for longer than its lease, and comes back after another one."""
    await api.create(name, feed(database.name, "c"))
    insert(database, range(5))
    first = await api.session(name, credit=MANY)
    opened = await first.opened()
    await first.take(2)
    await first.ack_and_wait(2)
    last_acked = wire.LastAcked(epoch=opened.epoch, position=first.committed[-1].position)
    await first.close()
    second = await api.open(name, instance_id="second", credit=MANY)
    await second.take(3)
    await second.ack_and_wait(2)
    moved_to = second.committed[-1].position
    await second.close()
    again = await api.session(name, credit=MANY, last_acked=last_acked)
    reopened = await again.opened()
    assert not reopened.at_last_acked
    assert await again.numbers(1) == [4]
    (notice,) = again.notices
    assert (notice.skipped.from_position, notice.skipped.to_position) == (last_acked.position, moved_to)
    assert notice.skipped.to == reopened.cluster_time
    await again.close()


async def test_its_own_acks_and_progress_skip_nothing(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(3))
    session = await api.session(name, credit=MANY, heartbeat_interval=seconds(1))
    opened = await session.opened()
    await session.take(3)
    last_acked = wire.LastAcked(epoch=opened.epoch, resume_token=session.resume_token)
    await session.ack_and_wait(3)
    database.elsewhere.insert_one({})
    await session.until(lambda: session.committed[-1].position != session.committed[0].position)
    await session.close()
    # It was opened once more, and the answer was lost.
    await (await api.open(name, credit=MANY)).close()
    again = await api.session(name, credit=MANY, last_acked=last_acked)
    assert not (await again.opened()).at_last_acked
    insert(database, range(3, 4))
    assert await again.numbers(1) == [3]
    assert not again.notices
    await again.close()


async def test_a_seek_past_what_was_acked_is_said_to_skip(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(4))
    session = await api.session(name, credit=MANY)
    opened = await session.opened()
    await session.take(2)
    await session.ack_and_wait(1)
    last_acked = wire.LastAcked(epoch=opened.epoch, position=session.committed[-1].position)
    await session.take(2)
    to = session.position
    await session.close()
    await api.seek(name, at(position=to))
    insert(database, range(4, 5))
    again = await api.session(name, credit=MANY, last_acked=last_acked)
    assert await again.numbers(1) == [4]
    (notice,) = again.notices
    assert (notice.skipped.from_position, notice.skipped.to_position) == (last_acked.position, to)
    await again.close()


async def test_delivery_pauses_at_the_bound_of_unacked_events(small: Here, database: Documents, name: str) -> None:
    api = small.api
    await api.create(name, feed(database.name, "c"))
    insert(database, range(250))
    session = await api.session(name, credit=MANY)
    assert (await session.opened()).limits.unacked_events_max == 100
    assert await session.numbers(100) == list(range(100))
    assert not await sent_before_rest(small, database, session, 250)
    await session.ack(30)
    assert await session.numbers(30) == list(range(100, 130))
    assert not await sent_before_rest(small, database, session, 250)
    await session.ack(130)
    assert await session.numbers(100) == list(range(130, 230))
    await session.ack(230)
    assert await session.numbers(20) == list(range(230, 250))
    await session.close()


async def test_progress_moves_an_idle_subscription(api: Api, database: Documents, name: str) -> None:
    created = await api.create(name, feed(database.name, "c", '[{"$match": {"fullDocument.n": -1}}]'))
    session = await api.open(name, heartbeat_interval=seconds(1))
    insert(database, range(5))
    await session.until(lambda: session.committed)
    stored = await api.get(name)
    assert stored.position == session.committed[-1].position != created.position
    assert stored.cluster_time.seconds >= created.cluster_time.seconds
    await session.close()


async def test_progress_does_not_pass_what_is_unacked(api: Api, database: Documents, name: str) -> None:
    created = await api.create(name, feed(database.name, "c"))
    session = await api.open(name, heartbeat_interval=seconds(1))
    insert(database, range(3))
    await session.take(3)
    database.elsewhere.insert_one({})
    await session.until(lambda: len(session.progress) >= 2)
    assert (await api.get(name)).position == created.position
    await session.ack_and_wait(3)
    before = (await api.get(name)).position
    database.elsewhere.insert_one({})
    await session.until(lambda: session.committed[-1].position != before)
    await session.close()


# --- One subscriber for each subscription.


async def test_busy_then_takeover(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    first = await api.open(name, instance_id="one")
    insert(database, range(4))
    await first.take(4)
    await first.ack_and_wait(1)
    outcome = await refused((await api.session(name, instance_id="two")).opened())
    assert (outcome.code, outcome.reason) == ("FAILED_PRECONDITION", "SUBSCRIPTION_BUSY")
    assert outcome.metadata["owner"] == "one"
    assert (await api.get(name)).owner == "one"
    second = await api.open(name, instance_id="two", takeover=True)
    assert await second.numbers(3) == [1, 2, 3]
    outcome = await first.end()
    assert (outcome.code, outcome.reason, outcome.metadata["cause"]) == ("ABORTED", "FENCED", "TAKEOVER")
    await second.ack_and_wait(3)
    await second.close()


async def test_the_same_instance_replaces_itself(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    first = await api.open(name, instance_id="one")
    second = await api.open(name, instance_id="one")
    assert (await first.end()).reason == "FENCED"
    insert(database, range(1))
    assert await second.numbers(1) == [0]
    await second.close()


async def test_instances_without_a_name_are_not_the_same(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    first = await api.open(name)
    outcome = await refused((await api.session(name)).opened())
    assert outcome.reason == "SUBSCRIPTION_BUSY"
    await first.close()
    await (await api.open(name)).close()


@pytest.mark.parametrize("cause", ["SEEK", "UPDATE", "DELETE"])
async def test_changes_end_the_open_session(api: Api, database: Documents, name: str, cause: str) -> None:
    wanted = feed(database.name, "c")
    created = await api.create(name, wanted)
    session = await api.open(name)
    insert(database, range(3))
    await session.take(3)
    await session.ack_and_wait(2)
    match cause:
        case "SEEK":
            await api.seek(name, at(position=created.position))
        case "UPDATE":
            await api.update(name=name, feed=feed(database.name, "c", '[{"$match": {"fullDocument.n": {"$gt": 1}}}]'))
        case "DELETE":
            await api.delete(name)
    outcome = await session.end()
    assert (outcome.code, outcome.reason, outcome.metadata["cause"]) == ("ABORTED", "FENCED", cause)
    if cause == "DELETE":
        outcome = await refused((await api.session(name)).opened())
        assert (outcome.code, outcome.reason) == ("NOT_FOUND", "SUBSCRIPTION_NOT_FOUND")
        return
    again = await api.open(name)
    assert await again.numbers(3 if cause == "SEEK" else 1) == ([0, 1, 2] if cause == "SEEK" else [2])
    await again.close()


async def test_a_changed_filter_keeps_the_place(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c", '[{"$match": {"fullDocument.n": {"$lt": 3}}}]'))
    insert(database, range(3))
    session = await api.open(name)
    await session.take(3)
    await session.ack(3)
    await session.close()
    insert(database, range(3, 6))
    # The new pipeline hides the event of the stored token.
    changed = feed(database.name, "c", '[{"$match": {"fullDocument.n": {"$gte": 3}}}]')
    await api.update(["feed"], name=name, feed=changed)
    again = await api.open(name)
    assert await again.numbers(3) == [3, 4, 5]
    await again.close()


# --- The control service.


async def test_create_get_list_update_delete(tenants: Here, database: Documents, name: str) -> None:
    api = tenants.api
    names = [f"{name}-{n}" for n in range(5)]
    created = [await api.create(each, feed(database.name, "c")) for each in names]
    assert (await api.create(names[0], feed(database.name, "c"))).position == created[0].position
    page = await api.page(2)
    found = list(page.subscriptions)
    while page.next_page_token:
        page = await api.page(2, page.next_page_token)
        assert len(page.subscriptions) <= 2
        found += page.subscriptions
    assert [each.name for each in found if each.name.startswith(name)] == names
    updated = await api.update(["on_invalidate"], name=names[0], on_invalidate=2)
    assert updated.etag != created[0].etag
    assert updated.position == created[0].position
    await api.delete(names[0], etag=updated.etag)
    outcome = await refused(api.get(names[0]))
    assert (outcome.code, outcome.reason) == ("NOT_FOUND", "SUBSCRIPTION_NOT_FOUND")
    await api.delete(names[0], allow_missing=True)
    for each in names[1:]:
        await api.delete(each)


async def test_create_stores_the_start_at_once(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    insert(database, range(2))
    session = await api.open(name)
    assert await session.numbers(2) == [0, 1]
    await session.close()


async def test_seek_forwards_and_to_earliest(api: Api, database: Documents, name: str) -> None:
    pipeline = '[{"$match": {"operationType": "insert"}}]'
    insert(database, range(3))
    await api.create(name, feed(database.name, "c", pipeline))
    await api.seek(name, EARLIEST)
    session = await api.open(name)
    assert await session.numbers(3) == [0, 1, 2]
    await session.close()
    now = await api.resolve(feed(database.name, "c"), at(latest={}))
    insert(database, range(3, 5))
    await api.seek(name, at(position=now.position))
    session = await api.open(name)
    assert await session.numbers(2) == [3, 4]
    await session.close()


async def test_a_lease_is_renewed(
    here: Here, api: Api, redis_server: RedisServer, database: Documents, name: str
) -> None:
    await api.create(name, feed(database.name, "c"))
    session = await api.open(name)
    key = here.server.service.store._scripts.key("default", name)
    async with Redis.from_url(redis_server.url) as redis:

        async def lease_until_ms() -> int:
            found: Any = await redis.hget(key, "lease_until_ms")
            return int(found)

        first_ms = await lease_until_ms()

        async def renewed() -> bool:
            return await lease_until_ms() > first_ms

        await until(renewed)
    insert(database, range(1))
    await session.take(1)
    await session.ack_and_wait(1)
    await session.close()
    await until(lambda: not_active(api, name))


async def not_active(api: Api, name: str) -> bool:
    return not (await api.get(name)).active
