"""Commands end within the time that a request may wait; their errors name the source and quote nothing."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from feedmux_server.core.delivery.resume_policy import Action
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.errors import as_error, judge, kind_of, rejects_login, why_rejected
from feedmux_server.source.logins import Logins
from feedmux_server.telemetry.observer import NOBODY
from tests.tables import over
from tests.virtual_time import in_virtual_time

WAIT_S = 1.5


async def answered(failure: PyMongoError | None) -> None:
    if failure is not None:
        raise failure
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("failure", "message", "after_s"),
    [(None, "did not answer within 1.5 s", WAIT_S), (AutoReconnect("canary"), "cannot be reached now", 0.0)],
)
@in_virtual_time
async def test_what_does_not_answer_is_unavailable(failure: PyMongoError | None, message: str, after_s: float) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    commands = SourceCommands("main", None, WAIT_S, NOBODY)  # type: ignore[arg-type]
    with pytest.raises(FeedmuxError, match=message) as caught:
        await commands.answer(answered(failure))
    assert loop.time() - began_s == after_s
    assert (caught.value.reason, caught.value.retry_after_s) == (ErrorReason.SOURCE_UNAVAILABLE, 2.0)
    assert "'main'" in caught.value.message
    assert "canary" not in caught.value.message
    assert await commands.answer(asyncio.sleep(0, "answer")) == "answer"


@in_virtual_time
async def test_a_client_that_takes_the_primary_for_a_deposed_one_for_long_is_replaced() -> None:
    """pymongo never accepts a primary of an older election, and a restored deployment counts from a lower number."""

    class Client:
        def __init__(self, error: str) -> None:
            server = SimpleNamespace(error=AutoReconnect(error))
            self.topology_description = SimpleNamespace(server_descriptions=lambda: {("here", 1): server})
            self.closed = False

        async def close(self) -> None:
            self.closed = True

    stale, fresh = clients = (
        Client("primary marked stale due to electionId/setVersion mismatch"),
        Client("connection refused"),
    )
    new: Any = fresh
    old: Any = stale
    made: Iterator[Any] = iter([FileNotFoundError("ca.crt"), new])

    def new_client() -> Any:
        client = next(made)
        if isinstance(client, Exception):
            raise client
        return client

    commands = SourceCommands("main", old, WAIT_S, NOBODY, new_client)
    for _ in range(14):
        with pytest.raises(FeedmuxError):
            await commands.answer(answered(None))
    assert commands.client is old, "an election takes up to ten seconds"
    for _ in range(50):
        with pytest.raises(FeedmuxError):
            await commands.answer(answered(None))
    assert commands.client is new, "the first attempt has failed"
    assert [each.closed for each in clients] == [True, False]


class Client:
    def __init__(self, *login: str) -> None:
        if "no file" in login:
            raise FileNotFoundError("ca.crt")
        self.login = login
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class Cursor:
    """Anything that a weak reference can refer to."""


@in_virtual_time
async def test_a_client_is_closed_when_its_last_cursor_is_gone() -> None:
    first: Any = Client()
    new_client: Any = Client
    commands = SourceCommands("main", first, 1.0, NOBODY)
    logins = Logins(commands, new_client, "a", "1")
    cursor: Any = Cursor()
    logins.cursors.add(cursor)
    assert not logins.is_former(cursor)
    logins.use("user", "password")
    second: Any = commands.client
    assert (second.login, logins.is_former(cursor)) == (("user", "password"), True)
    await asyncio.sleep(1000)
    await logins.close_unused()
    assert not first.closed
    del cursor
    await logins.close_unused()
    assert (first.closed, second.closed) == (True, False)
    with pytest.raises(FileNotFoundError):
        logins.use("user", "no file")
    await asyncio.sleep(1000)
    await logins.close_unused()
    assert (commands.client, second.closed) == (second, False)
    logins.use("user", "again")
    await logins.close_unused()
    assert not second.closed, "a command may still use it"
    await logins.close()
    assert second.closed


def failure(code: int, name: str = "", *labels: str) -> OperationFailure:
    details: dict[str, Any] = {"codeName": name, "errmsg": "canary", "errorLabels": list(labels)}
    return OperationFailure("canary", code, details)


@over(
    ("error", "kind"),
    [
        (failure(43, "CursorNotFound"), "CursorNotFound"),
        (OperationFailure("no", 7), "OperationFailure"),
        (AutoReconnect("no"), "AutoReconnect"),
        (NetworkTimeout("no"), "NetworkTimeout"),
    ],
)
def test_statistics_get_mongodbs_name_or_the_drivers(error: PyMongoError, kind: str) -> None:
    assert kind_of(error) == kind


@over(
    ("error", "reason"),
    [
        (AutoReconnect("canary"), ErrorReason.SOURCE_UNAVAILABLE),
        (ServerSelectionTimeoutError("canary"), ErrorReason.SOURCE_UNAVAILABLE),
        (WaitQueueTimeoutError("canary"), ErrorReason.SOURCE_UNAVAILABLE),
        (failure(13, "Unauthorized"), ErrorReason.SOURCE_UNAUTHORIZED),
        (failure(18, "AuthenticationFailed"), ErrorReason.SOURCE_UNAVAILABLE),
    ],
)
def test_a_plain_command_that_fails(error: PyMongoError, reason: ErrorReason) -> None:
    told = as_error(error, "source 'main'", 2.0)
    assert told.reason is reason
    assert "canary" not in told.message


@over(
    ("error", "resumes"),
    [
        (AutoReconnect("no"), True),
        (failure(9999, "New", "ResumableChangeStreamError"), True),
        (failure(9999, "New"), False),
        (failure(280, "ChangeStreamFatalError"), False),
    ],
)
def test_mongodbs_label_says_whether_a_stream_goes_on(error: PyMongoError, resumes: bool) -> None:
    verdict = judge(error, "getMore")
    assert (verdict.error.status == "UNAVAILABLE") == resumes


@over(
    ("error", "why"),
    [
        (failure(18, "AuthenticationFailed"), "AuthenticationFailed, code 18"),
        (failure(334, "MechanismUnavailable"), "MechanismUnavailable, code 334"),
        (OperationFailure("Kerberos context failed to initialize."), "Kerberos context failed to initialize."),
        (ConfigurationError("The DNS query name does not exist: mongo"), "The DNS query name does not exist: mongo"),
    ],
)
def test_a_login_that_fails_ends_no_feed_and_the_operator_reads_why(error: PyMongoError, why: str) -> None:
    assert rejects_login(error)
    assert why_rejected(error) == why
    for during in ("aggregate", "getMore"):
        verdict = judge(error, during)
        assert (verdict.action, verdict.error.reason) == (Action.RETRY, ErrorReason.SOURCE_UNAVAILABLE), during
        assert "Kerberos" not in verdict.error.message
