"""Converts gRPC statuses into the client's errors, with ErrorInfo and RetryInfo from the trailing metadata."""

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from feedmux.errors import FeedmuxError, make_error

_DETAILS_KEY = "grpc-status-details-bin"
_DOMAIN = "feedmux"


def error_from_status(code: grpc.StatusCode, message: str, trailing: Iterable[Any] | None) -> FeedmuxError:
    """Return the error for a status that is not OK. Unreadable details, and those of another domain, are ignored."""
    reason = ""
    metadata: dict[str, str] = {}
    retry_after_s: float | None = None
    for detail in _details(trailing):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo()
            detail.Unpack(info)
            if info.domain == _DOMAIN:
                reason = info.reason.removeprefix("ERROR_REASON_")
                metadata = dict(info.metadata)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_s = max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
    return make_error(code.name, message, reason, metadata, retry_after_s)


def error_from_call(error: Any) -> FeedmuxError:
    """Return the error for a failed call."""
    return error_from_status(error.code(), error.details() or "", error.trailing_metadata())


def _details(trailing: Iterable[Any] | None) -> list[any_pb2.Any]:
    for key, value in trailing or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                return []
    return []
