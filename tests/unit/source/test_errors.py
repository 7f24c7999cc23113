"""pymongo's exceptions as the errors that a client sees."""

from typing import Any

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
from feedmux_server.core.errors import ErrorReason
from feedmux_server.source.errors import as_error, judge, kind_of, rejects_login, why_rejected
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
        verdict = judge(error, during)  # type: ignore[arg-type]
        assert (verdict.action, verdict.error.reason) == (Action.RETRY, ErrorReason.SOURCE_UNAVAILABLE), during
        assert "Kerberos" not in verdict.error.message
