"""Errors on the wire: each status has the details that belong to it, and no internal text leaves the process."""

import asyncio
import base64
import logging
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.status import abort, error_status, guarded
from feedmux_server.telemetry.observer import NOBODY
from tests.tables import over

INFO, BAD, BROKEN, QUOTA, RETRY = "ErrorInfo", "BadRequest", "PreconditionFailure", "QuotaFailure", "RetryInfo"


@over(
    ("reason", "more", "details"),
    [
        (ErrorReason.NAME_INVALID, {"field": "name"}, [INFO, BAD]),
        (ErrorReason.NAME_INVALID, {}, [INFO]),
        (ErrorReason.HISTORY_LOST, {"field": "start"}, [INFO]),
        (ErrorReason.ETAG_MISMATCH, {}, [INFO, BROKEN]),
        (ErrorReason.QUOTA_EXCEEDED, {"retry_after_s": 1.5}, [INFO, QUOTA, RETRY]),
        (ErrorReason.DRAINING, {"retry_after_s": 0.2}, [INFO, RETRY]),
        (ErrorReason.INTERNAL, {}, [INFO]),
    ],
)
def test_the_details_of_an_error(reason: ErrorReason, more: dict[str, Any], details: list[str]) -> None:
    status = error_status(FeedmuxError(reason, "why", {"quota": "calls"}, **more))
    assert [each.TypeName().removeprefix("google.rpc.") for each in status.details] == details
    assert (status.message, grpc.StatusCode[FeedmuxError(reason, "").status].value[0]) == ("why", status.code)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    status.details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == (reason.value, "feedmux", {"quota": "calls"})
    if RETRY in details:
        status.details[-1].Unpack(retry)
        assert retry.retry_delay.ToMilliseconds() == more["retry_after_s"] * 1000


def test_details_stay_within_what_grpc_transmits() -> None:
    long = "x" * 100_000
    status = error_status(
        FeedmuxError(ErrorReason.STAGE_NOT_ALLOWED, long, {"operator": long, "path": long}, field="feed")
    )
    assert len(status.SerializeToString()) < 9_000


@pytest.mark.parametrize("text", ["x", "\u00e9", "\U0001f600", "\n", "%", "\ud800"])
async def test_the_metadata_of_an_error_stay_within_what_clients_accept(text: str) -> None:
    error = FeedmuxError(ErrorReason.OPTION_REFUSED, text * 20_000, {"errmsg": text * 20_000}, field="feed")
    context: Any = Context()
    with pytest.raises(Aborted):
        await abort(context, error)
    _, message, ((_, details),) = context.aborted
    assert message
    printable = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
    assert len(quote(message, safe=printable)) + len(base64.b64encode(details)) < 8 * 1024


class Aborted(Exception): ...


class Context:
    """Keeps the status with which a call is aborted."""

    def __init__(self) -> None:
        self.aborted: tuple[Any, ...] = ()

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, *with_: Any) -> None:
        self.aborted = with_
        raise Aborted


async def outcome(error: Exception) -> tuple[Context, list[str]]:
    async def handler(request: Any, context: Any) -> bytes:
        raise error

    noted: list[str] = []
    context: Any = Context()
    call = guarded("Watch", handler, lambda method, _, failure: noted.append(failure.reason.value), NOBODY, "a.B")
    with pytest.raises((Aborted, grpc.aio.AbortError)):
        await call(b"", context)
    return context, noted


async def test_what_nobody_expected_is_told_by_its_reference_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        context, noted = await outcome(ValueError("canary"))
    code, message, ((_, data),) = context.aborted
    assert (code, noted) == (grpc.StatusCode.INTERNAL, ["INTERNAL"])
    assert b"canary" not in data
    reference = caplog.records[0].__dict__["correlation_id"]
    assert reference.encode() in data
    assert "canary" not in message


async def test_a_call_that_was_aborted_already_is_left_alone() -> None:
    context, noted = await outcome(grpc.aio.AbortError("done"))
    assert (context.aborted, noted) == ((), [])


async def test_a_client_that_leaves_while_it_is_written_to_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(asyncio.CancelledError):
        await outcome(grpc.aio.InternalError("execute_batch"))
    assert not caplog.records


async def test_a_status_that_cannot_be_written_is_no_defect() -> None:
    class Left(Context):
        async def abort(self, *_: Any) -> None:
            raise grpc.aio.InternalError("execute_batch")

    there: Any = Left()
    with pytest.raises(asyncio.CancelledError):
        await abort(there, FeedmuxError(ErrorReason.METHOD_DENIED, "no"))
