"""Which errors a stream survives, how often it retries, and which commands it sends to MongoDB when it resumes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from feedmux.v1 import feed_pb2
from tests.conformance.conftest import Site, on_both_versions
from tests.conformance.faults import RESUMABLE, failing, insert, now, profiled
from tests.conformance.statements import DRIVERS, FEEDMUX, shows
from tests.documents import Documents
from tests.integration.servers import cursors, until
from tests.integration.wire import Receiver, Session, at, feed, refused, seconds

NOT_WRITABLE_PRIMARY = 10107
"""Of the list for servers older than 4.4, which do not label their errors. All codes of the tables are in
`tests/unit/core/delivery/test_resume_policy.py`."""
ENDING: dict[str, tuple[int, str, str]] = {
    "BadValue": (2, "FAILED_PRECONDITION", "PIPELINE_FAILED"),
    "Unauthorized": (13, "PERMISSION_DENIED", "SOURCE_UNAUTHORIZED"),
}
"""The stream ends, and says why. BSONObjectTooLarge (10334) ends it if a single event is too large:
`test_large_events`. Lost history: `test_history`."""


@asynccontextmanager
async def reading(site: Site, database: Documents, **fields: Any) -> AsyncIterator[Session]:
    """A session that has had the numbers 0 to 2."""
    session = await site.api.open(feed=feed(database.name, "c", **fields))
    insert(database, range(3))
    assert await session.numbers(3) == [0, 1, 2]
    yield session
    session.cancel()


async def goes_on(session: Receiver, database: Documents) -> None:
    insert(database, range(3, 6))
    assert await session.numbers(3) == [3, 4, 5]


async def resumes(site: Site, database: Documents) -> int:
    [stream] = await site.api.streams(f"{database.name}.c")
    return stream.resumes


# --- Which errors.


@shows(
    DRIVERS,
    "Resumable Error",
    "On servers from 4.4 on, every getMore error with the label ResumableChangeStreamError is resumable;"
    " MongoDB itself gives it to those of the allow-list, such as NotWritablePrimary",
)
@on_both_versions
async def test_what_the_server_labels_is_resumed(site: Site, database: Documents) -> None:
    async with reading(site, database) as session:
        with failing(site.client, f"{database.name}.c", "getMore", errorCode=NOT_WRITABLE_PRIMARY) as point:
            await point.hit()
            await goes_on(session, database)
        assert point.met == 1
        assert await resumes(site, database) >= 1


def survived(statement: pytest.MarkDecorator, **errors: dict[str, Any]) -> list[Any]:
    """Failures of a getMore that a stream survives, by name."""
    return [pytest.param(how, marks=statement, id=name) for name, how in errors.items()]


SURVIVED = [
    *survived(
        shows(DRIVERS, "Resumable Error", "The label decides, not the code: the server can add codes of its own"),
        label={"errorCode": 987_654, "errorLabels": [RESUMABLE]},
    ),
    *survived(
        shows(DRIVERS, "Resumable Error", "CursorNotFound (43) is resumable without the label"),
        CursorNotFound={"errorCode": 43, "errorLabels": []},
    ),
    *survived(
        shows(DRIVERS, "Resumable Error", "An error that is not the server's (network, timeout) is resumable"),
        network={"closeConnection": True},
    ),
    *survived(
        shows(
            FEEDMUX,
            "Resuming",
            "A getMore that an operator kills does not end the sessions of all who share it (docs/adr/0005)",
        ),
        CursorKilled={"errorCode": 237, "errorLabels": []},
    ),
    *survived(
        shows(FEEDMUX, "Resuming", "A member that says that history is lost is not believed if the primary has it"),
        ChangeStreamHistoryLost={"errorCode": 286, "errorLabels": ["NonResumableChangeStreamError"]},
    ),
    *survived(
        shows(
            FEEDMUX,
            "Resuming",
            "A code of the old allow-list without the label is no reason to end the sessions:"
            " tried again after a backoff",
        ),
        NotWritablePrimary={"errorCode": NOT_WRITABLE_PRIMARY, "errorLabels": []},
    ),
]


@pytest.mark.parametrize("how", SURVIVED)
async def test_a_stream_survives(site: Site, database: Documents, how: dict[str, Any]) -> None:
    async with reading(site, database) as session:
        with failing(site.client, f"{database.name}.c", "getMore", **how) as point:
            await point.hit()
            await goes_on(session, database)
        assert await resumes(site, database) >= 1


@pytest.mark.parametrize("name", ENDING)
@shows(DRIVERS, "Resumable Error", "Any other error ends the stream, and is reported with its code and name")
async def test_any_other_error_ends_the_stream(site: Site, database: Documents, name: str) -> None:
    code, status, reason = ENDING[name]
    async with reading(site, database) as session:
        position = session.position
        with failing(site.client, f"{database.name}.c", "getMore", times=2, errorCode=code, errorLabels=[]) as point:
            outcome = await session.end()
        assert point.met == 1, "no attempt to resume"
        assert (outcome.code, outcome.reason, outcome.domain) == (status, reason, "feedmux")
        assert outcome.metadata["code"] == str(code)
        assert outcome.metadata["code_name"] == name
        # The position did not cause the error: the feed continues there.
        again = await site.api.open(feed=feed(database.name, "c"), start=at(position=position))
        await goes_on(again, database)
        again.cancel()


# --- How often.


@shows(DRIVERS, "ChangeStream", "One attempt to resume for each error, at once; then feedmux waits between attempts")
async def test_attempts_are_spaced_while_mongodb_fails(site: Site, database: Documents) -> None:
    scope = f"{database.name}.c"
    async with reading(site, database) as session:
        how: dict[str, Any] = {"errorCode": 6, "errorLabels": [RESUMABLE]}
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        with failing(site.client, scope, "getMore", "aggregate", times=None, **how) as point:
            # The getMore and the attempt at once, then attempts after 0.2, 0.4 and 0.8 s, or half as long by jitter.
            # pymongo sends each aggregate twice.
            await point.hit(9)
        assert now_s() - began_s >= 0.7
        await goes_on(session, database)


@shows(DRIVERS, "Resume Process", "Consecutive attempts can succeed without any change received between them")
async def test_failures_again_and_again_without_events(site: Site, database: Documents) -> None:
    async with reading(site, database) as session:
        for count in range(1, 5):
            with failing(site.client, f"{database.name}.c", "getMore", errorCode=43):
                await until(lambda count=count: _reached(site, database, count))  # type: ignore[misc]
        await goes_on(session, database)


@shows(DRIVERS, "Resume Process", "An attempt can succeed also before the first change, from the start it was given")
async def test_failures_before_the_first_event(site: Site, database: Documents) -> None:
    session = await site.api.open(feed=feed(database.name, "c"))
    with failing(site.client, f"{database.name}.c", "getMore", times=3, errorCode=43):
        insert(database, range(3))
        assert await session.numbers(3) == [0, 1, 2]
    session.cancel()


@shows(DRIVERS, "Resumable Error", "An aggregate that fails at the start is rejected, not resumed")
async def test_an_aggregate_error_at_the_start(site: Site, database: Documents) -> None:
    with failing(site.client, f"{database.name}.c", "aggregate", times=None, errorCode=2, errorLabels=[]) as point:
        outcome = await refused(site.api.watch(feed(database.name, "c")).opened())
    assert point.met == 1
    assert (outcome.code, outcome.reason) == ("INVALID_ARGUMENT", "OPTION_REFUSED")
    assert outcome.metadata["code"] == "2"


@shows(DRIVERS, "Resumable Error", "An aggregate that fails while resuming ends the stream with its own error")
async def test_an_aggregate_error_while_resuming(site: Site, database: Documents) -> None:
    scope = f"{database.name}.c"
    async with reading(site, database) as session:
        with failing(site.client, scope, "aggregate", times=None, errorCode=13, errorLabels=[]) as point:
            database.command("killCursors", "c", cursors=list(cursors(site.client, scope)))
            outcome = await session.end()
        assert point.met == 1
        assert (outcome.code, outcome.metadata["code"]) == ("PERMISSION_DENIED", "13")


@shows(
    FEEDMUX,
    "Resuming",
    "An aggregate that says `not now` is retried after a backoff while a client waits, and the session is"
    " notified that MongoDB is unavailable and available again",
)
async def test_an_aggregate_with_a_temporary_error(site: Site, database: Documents) -> None:
    scope = f"{database.name}.c"
    session = await site.api.open(feed=feed(database.name, "c"), heartbeat_interval=seconds(1))
    insert(database, range(3))
    assert await session.numbers(3) == [0, 1, 2]
    with failing(site.client, scope, "aggregate", times=None, errorCode=11601) as point:
        database.command("killCursors", "c", cursors=list(cursors(site.client, scope)))
        await session.until(lambda: session.notices)
        assert session.notices[0].degraded.unavailable
    assert 1 <= point.met <= 20
    await goes_on(session, database)
    await session.until(lambda: len(session.notices) == 2)
    assert not session.notices[1].degraded.unavailable
    session.cancel()


# --- What MongoDB is asked.


@shows(DRIVERS, "Resume Process", "A start at an operation time is asked for again until there is a token")
async def test_resuming_a_start_at_a_time(site: Site, database: Documents) -> None:
    insert(database, range(1))
    time = now(site.client)
    start = at(start_at_operation_time=feed_pb2.ClusterTime(seconds=time.time, increment=time.inc))
    with profiled(database) as profile:
        # Before the first answer there is no token.
        with failing(site.client, f"{database.name}.c", "getMore", times=1, errorCode=43):
            watch = site.api.watch(feed(database.name, "c"), start)
            await watch.opened()
            await until(lambda: len(profile.starts()) == 2)
        insert(database, range(1, 3))
        assert (await watch.numbers(3))[-2:] == [1, 2]
        watch.cancel()
        assert profile.starts() == [{"startAtOperationTime": time}] * 2


@shows(DRIVERS, "Resume Process", "The cursor that failed is killed on the server that holds it")
async def test_the_old_cursor_is_killed(site: Site, database: Documents) -> None:
    scope = f"{database.name}.c"
    with profiled(database) as profile:
        async with reading(site, database) as session:
            [old] = cursors(site.client, scope)
            with failing(site.client, scope, "getMore", errorCode=262) as point:
                await point.hit()
                await goes_on(session, database)
            await until(lambda: any(old in each["cursors"] for each in profile.commands("killCursors")))
            assert len(cursors(site.client, scope)) == 1


@shows(DRIVERS, "Resume Process", "Errors while the old cursor is killed are suppressed")
async def test_a_cursor_that_cannot_be_killed(site: Site, database: Documents) -> None:
    scope = f"{database.name}.c"
    async with reading(site, database) as session:
        with failing(site.client, scope, "getMore", "killCursors", times=2, closeConnection=True) as point:
            await point.hit()
            await goes_on(session, database)


@shows(DRIVERS, "ChangeStream", "The read preference given at the start is that of every attempt to resume")
async def test_the_original_read_preference(site: Site, database: Documents) -> None:
    with profiled(database) as profile:
        async with reading(site, database, read_preference="nearest") as session:
            with failing(site.client, f"{database.name}.c", "getMore", errorCode=43) as point:
                await point.hit()
                await goes_on(session, database)
        asked = [command["$readPreference"]["mode"] for command in profile.commands("aggregate")]
    assert asked == ["nearest", "nearest"]


async def _reached(site: Site, database: Documents, count: int) -> bool:
    return await resumes(site, database) >= count
