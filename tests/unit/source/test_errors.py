"""pymongo's exceptions as the errors that a client sees."""

from typing import Any

from pymongo.errors import (
    AutoReconnect,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from feedmux_server.core.errors import ErrorReason
from feedmux_server.source.errors import as_error, judge, kind_of
from tests.tables import over


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
