"""Errors on the wire: a gRPC status with `google.rpc` details, from the table in `core.errors`."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.telemetry.log import correlation_id
from feedmux_server.telemetry.observer import Observer

log = logging.getLogger(__name__)

DOMAIN = "feedmux"
_DETAILS_KEY = "grpc-status-details-bin"
_TEXT_BYTES_MAX = 1500
"""Limit for each text of an error, in the form in which gRPC transmits it. Above 8 KiB of metadata in all, clients
reject a status at random, and see another one in its place."""

Context = grpc.aio.ServicerContext[Any, Any]


def error_status(error: FeedmuxError) -> status_pb2.Status:
    """Make the `google.rpc.Status` of an error: always with ErrorInfo, and with further details where they apply."""
    message = _within_limit(error.message)
    status = status_pb2.Status(code=getattr(grpc.StatusCode, error.status).value[0], message=message)
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN)
    for name, value in error.metadata.items():
        info.metadata[name] = _within_limit(value)
    details: list[Any] = [info]
    if error.status == "INVALID_ARGUMENT" and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.status == "FAILED_PRECONDITION":
        broken = error_details_pb2.PreconditionFailure.Violation(type=error.reason.value, description=message)
        details.append(error_details_pb2.PreconditionFailure(violations=[broken]))
    if error.status == "RESOURCE_EXHAUSTED":
        quota = error_details_pb2.QuotaFailure.Violation(subject=error.metadata.get("quota", ""), description=message)
        details.append(error_details_pb2.QuotaFailure(violations=[quota]))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort(context: Context, error: FeedmuxError) -> NoReturn:
    """End the call with the error's status."""
    status = error_status(error)
    try:
        await context.abort(
            getattr(grpc.StatusCode, error.status),
            _percent_encoded_within_limit(status.message),
            ((_DETAILS_KEY, status.SerializeToString()),),
        )
    except grpc.aio.InternalError as failure:
        # The client has gone, or a message that it does not take is in the way.
        raise asyncio.CancelledError from failure
    raise AssertionError("abort returned")


def _within_limit(text: str) -> str:
    return text.encode("utf-8", "replace")[:_TEXT_BYTES_MAX].decode("utf-8", "ignore")


def _percent_encoded_within_limit(text: str) -> str:
    """gRPC sends a status's message with three bytes for each byte that is not printable ASCII."""
    data = text.encode()
    for at, size in enumerate(accumulate(1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3 for byte in data)):
        if size > _TEXT_BYTES_MAX:
            return data[:at].decode("utf-8", "ignore")
    return text


def internal_error(method: str) -> FeedmuxError:
    """Log the exception being handled, and return an error that gives the client only a reference to the log."""
    reference = correlation_id()
    log.error(
        "a call failed unexpectedly", exc_info=sys.exception(), extra={"correlation_id": reference, "method": method}
    )
    return FeedmuxError(
        ErrorReason.INTERNAL,
        "internal error; find its correlation id in the server's log",
        {"correlation_id": reference},
    )


def guarded(
    method: str,
    handler: Callable[[Any, Context], Awaitable[bytes | None]],
    refused: Callable[[str, Context, FeedmuxError], None],
    observer: Observer,
    service: str,
) -> Callable[[Any, Context], Awaitable[bytes | None]]:
    """Wrap a handler so that each failure becomes a documented status. `refused` is called for each failure,
    `observer` for all calls."""
    full_name = f"{service}/{method}"

    async def call(request: Any, context: Context) -> bytes | None:
        with observer.call(full_name, context.invocation_metadata) as seen:
            try:
                answer = await handler(request, context)
                seen.answered("OK")
                return answer
            except FeedmuxError as error:
                failure = error
            except grpc.aio.AbortError:
                raise
            except grpc.aio.InternalError as error:
                # A message could not be written: the client has gone, and gRPC is about to cancel the call.
                raise asyncio.CancelledError from error
            except Exception:  # noqa: BLE001 the last barrier: no internal text leaves the process
                failure = internal_error(method)
            seen.answered(failure.status, failure.reason.value)
            refused(method, context, failure)
            return await abort(context, failure)

    return call
