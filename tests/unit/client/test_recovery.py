"""The class of each error, how a session reacts to it, and how long it waits."""

import feedmux
from feedmux.errors import make_error
from feedmux.recovery import Backoff, Step, next_step
from tests.tables import over

REOPEN, STORED, RAISE = Step.REOPEN, Step.REOPEN_AT_STORED, Step.RAISE

CASES: list[tuple[str, str, dict[str, str], float | None, type[feedmux.FeedmuxError], Step]] = [
    ("UNAVAILABLE", "", {}, None, feedmux.Unavailable, REOPEN),
    ("UNAVAILABLE", "DRAINING", {}, 1.0, feedmux.Unavailable, REOPEN),
    ("UNAVAILABLE", "SOURCE_UNAVAILABLE", {}, 1.0, feedmux.Unavailable, REOPEN),
    ("DEADLINE_EXCEEDED", "", {}, None, feedmux.Unavailable, REOPEN),
    ("INTERNAL", "", {}, None, feedmux.InternalError, REOPEN),
    ("INTERNAL", "INTERNAL", {"correlation_id": "c"}, None, feedmux.InternalError, RAISE),
    ("UNKNOWN", "", {}, None, feedmux.FeedmuxError, REOPEN),
    ("CANCELLED", "", {}, None, feedmux.FeedmuxError, REOPEN),
    ("UNIMPLEMENTED", "", {}, None, feedmux.FeedmuxError, RAISE),
    ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", {}, 2.0, feedmux.QuotaExceeded, REOPEN),
    ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", {}, None, feedmux.QuotaExceeded, RAISE),
    ("ABORTED", "FENCED", {"cause": "SEEK"}, None, feedmux.Fenced, STORED),
    ("ABORTED", "FENCED", {"cause": "UPDATE"}, None, feedmux.Fenced, REOPEN),
    ("ABORTED", "FENCED", {"cause": "LEASE"}, None, feedmux.Fenced, REOPEN),
    ("ABORTED", "FENCED", {"cause": "TAKEOVER"}, None, feedmux.Fenced, RAISE),
    ("ABORTED", "FENCED", {"cause": "DELETE"}, None, feedmux.SubscriptionNotFound, RAISE),
    ("ABORTED", "FENCED", {}, None, feedmux.Fenced, RAISE),
    ("ABORTED", "GRANTS_CHANGED", {}, None, feedmux.Aborted, REOPEN),
    ("ABORTED", "ENDED_BY_OPERATOR", {}, None, feedmux.EndedByOperator, RAISE),
    ("OUT_OF_RANGE", "HISTORY_LOST", {}, None, feedmux.HistoryLost, RAISE),
    ("OUT_OF_RANGE", "TIMELINE_FORKED", {}, None, feedmux.TimelineForked, RAISE),
    ("OUT_OF_RANGE", "EVENT_TOO_LARGE", {}, None, feedmux.OutOfRange, RAISE),
    ("FAILED_PRECONDITION", "FEED_INVALIDATED", {}, None, feedmux.FeedInvalidated, RAISE),
    ("FAILED_PRECONDITION", "SUBSCRIPTION_BUSY", {}, None, feedmux.SubscriptionBusy, RAISE),
    ("NOT_FOUND", "SUBSCRIPTION_NOT_FOUND", {}, None, feedmux.SubscriptionNotFound, RAISE),
    ("NOT_FOUND", "SOURCE_NOT_FOUND", {}, None, feedmux.NotFound, RAISE),
    ("ALREADY_EXISTS", "SUBSCRIPTION_EXISTS", {}, None, feedmux.SubscriptionExists, RAISE),
    ("INVALID_ARGUMENT", "POSITION_FOREIGN", {}, None, feedmux.PositionInvalid, RAISE),
    ("INVALID_ARGUMENT", "OPTION_REFUSED", {}, None, feedmux.OptionRefused, RAISE),
    ("INVALID_ARGUMENT", "A_REASON_OF_THE_FUTURE", {}, None, feedmux.InvalidArgument, RAISE),
    ("UNAUTHENTICATED", "UNAUTHENTICATED", {}, None, feedmux.Unauthenticated, RAISE),
    ("PERMISSION_DENIED", "NAMESPACE_DENIED", {}, None, feedmux.PermissionDenied, RAISE),
]


@over(("status", "reason", "metadata", "retry_after_s", "kind", "step"), CASES)
def test_table(
    status: str,
    reason: str,
    metadata: dict[str, str],
    retry_after_s: float | None,
    kind: type[feedmux.FeedmuxError],
    step: Step,
) -> None:
    error = make_error(status, "said", reason, metadata, retry_after_s)
    assert type(error) is kind
    assert next_step(error) is step
    assert (error.reason, error.status, error.metadata) == (reason, status, metadata)
    assert "said" in str(error)


def test_a_token_that_can_be_renewed_is_asked_for_again() -> None:
    refused = make_error("UNAUTHENTICATED", "said", "UNAUTHENTICATED", {}, None)
    assert next_step(refused, has_other_credentials=True) is Step.REOPEN
    denied = make_error("PERMISSION_DENIED", "said", "NAMESPACE_DENIED", {}, None)
    assert next_step(denied, has_other_credentials=True) is RAISE


def test_a_violated_protocol_is_not_tried_again() -> None:
    assert next_step(feedmux.ProtocolError("gap")) is RAISE


def test_backoff_doubles_up_to_a_bound_and_adds_what_the_server_asks() -> None:
    backoff = Backoff(1.0, 5.0, lambda: 0.5)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 2.5, 2.5]
    assert backoff.next_s(10.0) == 12.5
    backoff.reset()
    assert backoff.next_s() == 0.5
    backoff.lived(5.0)
    assert backoff.next_s() == 1.0
    backoff.lived(5.1)  # a busy stream that never idled
    assert backoff.next_s() == 0.5
