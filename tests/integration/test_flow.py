"""Credit and acks on the wire: what the server may send, what it stores, what it delivers again."""

from typing import Any

import pytest
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_server.rpc.live_sessions import LiveSession
from feedmux_server.sessions.outputs import DegradedMark
from tests.integration.servers import Here, until
from tests.integration.wire import MANY, Api, Event, Receiver, at, feed, refused

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
