from dataclasses import replace

import pytest

from feedmux_server.core.delivery.resume_policy import RESUMABLE_LABEL, Action, MongoFailure, classify, without_words
from feedmux_server.core.errors import ErrorReason
from tests.tables import over

GET_MORE = MongoFailure(1, "InternalError", "something", frozenset(), False, "getMore", 17)
AGGREGATE = replace(GET_MORE, during="aggregate")
BEFORE_LABELS = [6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436]
# Messages of mongod 6.0.5.
MODIFIED = (
    "Executor error during getMore :: caused by :: Encountered an event whose _id field, which contains the resume "
    "token, was modified by the pipeline. Modifying the _id field of an event makes it impossible to resume the stream"
)
NOT_FOUND = (
    "Executor error during getMore :: caused by :: cannot resume stream; the resume token was not found. "
    '{_data: "826B01668F000000062B022C0100296E5A10043FA84551962E4ED5920EA84AE47D5E67463C5F6964003C7A7A000004"}'
)
FROM_INVALIDATE = (
    "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification"
)


@over(("failure", "action"), [(GET_MORE, Action.RESUME), (AGGREGATE, Action.RETRY)])
def test_network_errors(failure: MongoFailure, action: Action) -> None:
    verdict = classify(replace(failure, network=True, code=None, code_name="", message="host:27017: refused"))
    assert verdict.action is action
    assert verdict.error.reason is ErrorReason.SOURCE_UNAVAILABLE
    assert verdict.error.retry_after_s
    assert "27017" not in verdict.error.message


@over("code", [1, 2, *BEFORE_LABELS])
def test_labelled_errors_are_resumable_from_4_4_on(code: int) -> None:
    labelled = replace(GET_MORE, code=code, labels=frozenset({RESUMABLE_LABEL}))
    assert classify(replace(labelled, wire_version=9)).action is Action.RESUME
    unlabelled = classify(replace(labelled, labels=frozenset(), wire_version=9))
    assert unlabelled.action is (Action.RETRY if code in BEFORE_LABELS else Action.FATAL)
    before = classify(replace(labelled, wire_version=8))
    assert before.action is (Action.RESUME if code in BEFORE_LABELS else Action.FATAL)


@over("code", [*BEFORE_LABELS, 43, 94, 237])
def test_aggregate_errors_are_never_resumed_but_tried_again(code: int) -> None:
    for wire_version in (8, 17):
        verdict = classify(replace(AGGREGATE, code=code, wire_version=wire_version))
        assert verdict.action is Action.RETRY
        assert verdict.error.reason is ErrorReason.SOURCE_UNAVAILABLE


# By MongoDB's error_codes.yml: NetworkError, NetworkTimeoutError, Interruption, NotPrimaryError, ShutdownError,
# StaleShardVersionError, NeedRetargettingError, CancellationError, ExceededTimeLimitError, SnapshotError,
# RetriableError, CloseConnectionError, CursorInvalidatedError and SystemOverloadedError, without InternalOnly.
OF_CATEGORIES = [6, 7, 24, 43, 50, 89, 90, 91, 134, 150, 175, 189, 202, 237, 239, 246, 250, 262, 272, 279, 281, 282]
OF_CATEGORIES += [290, 303, 310, 314, 354, 355, 358, 398, 402, 406, 407, 412, 433, 449, 450, 453, 462, 9001, 10107]
OF_CATEGORIES += [11600, 11601, 11602, 13388, 13435, 13436, 46841, 50915, 91331, 10045600]
# Locks, files, sessions and connections that there are too few of, and servers that are not ready.
NOT_NOW = [46, 94, 107, 112, 143, 145, 149, 208, 210, 211, 249, 261, 264, 343, 365, 10058, 14031, 56846]


@pytest.mark.parametrize("failure", [GET_MORE, AGGREGATE])
@over("code", [*OF_CATEGORIES, *NOT_NOW])
def test_what_says_nothing_of_the_request_is_tried_again(failure: MongoFailure, code: int) -> None:
    """Also if a read was killed, or MongoDB has not labelled its error."""
    verdict = classify(replace(failure, code=code))
    assert verdict.action in (Action.RETRY, Action.RESUME)
    assert verdict.error.reason is ErrorReason.SOURCE_UNAVAILABLE
    assert verdict.error.retry_after_s


@over("code", [1, 2, 8, 9, 14, 26, 73, 96, 115, 166, 168, 241, 292, 17124, 40324, 40415, 51024, 5787900, 987_654])
def test_what_may_be_the_fault_of_the_request_fails_at_once(code: int) -> None:
    assert classify(replace(AGGREGATE, code=code)).action is Action.FATAL
    assert classify(replace(GET_MORE, code=code)).action is Action.FATAL


@pytest.mark.parametrize("failure", [GET_MORE, AGGREGATE])
@pytest.mark.parametrize(
    ("code", "message", "action", "reason"),
    [
        (280, MODIFIED, Action.FATAL, ErrorReason.RESUME_TOKEN_MODIFIED),
        (280, NOT_FOUND, Action.REPOSITION, ErrorReason.RESUME_TOKEN_NOT_FOUND),
        (280, "Failing command via 'failCommand' failpoint", Action.REPOSITION, ErrorReason.RESUME_TOKEN_NOT_FOUND),
        (7182504, "", Action.REPOSITION, ErrorReason.RESUME_TOKEN_NOT_FOUND),
        (286, "the resume point may no longer be in the oplog.", Action.FATAL, ErrorReason.HISTORY_LOST),
        (136, "", Action.FATAL, ErrorReason.HISTORY_LOST),
        (326, "", Action.FATAL, ErrorReason.HISTORY_LOST),
        (260, FROM_INVALIDATE, Action.FATAL, ErrorReason.START_AFTER_REQUIRED),
        (47, "", Action.FATAL, ErrorReason.IMAGE_UNAVAILABLE),
        (10334, "", Action.FATAL, ErrorReason.EVENT_TOO_LARGE),
        (13, "", Action.FATAL, ErrorReason.SOURCE_UNAUTHORIZED),
        (18, "Authentication failed.", Action.RETRY, ErrorReason.SOURCE_UNAVAILABLE),
        (11, "Could not find user feeds", Action.RETRY, ErrorReason.SOURCE_UNAVAILABLE),
        (334, "Received authentication for mechanism SCRAM-SHA-1", Action.RETRY, ErrorReason.SOURCE_UNAVAILABLE),
        (391, "", Action.RETRY, ErrorReason.SOURCE_UNAVAILABLE),
        (8000, "bad auth : authentication failed", Action.RETRY, ErrorReason.SOURCE_UNAVAILABLE),
        (8000, "", Action.FATAL, ErrorReason.SOURCE_UNAUTHORIZED),
        (40573, "", Action.FATAL, ErrorReason.SOURCE_UNSUITABLE),
        (
            20,
            "The $changeStream stage is only supported on replica sets",
            Action.FATAL,
            ErrorReason.SOURCE_UNSUITABLE,
        ),
    ],
)
def test_the_table(failure: MongoFailure, code: int, message: str, action: Action, reason: ErrorReason) -> None:
    labels = frozenset({"NonResumableChangeStreamError"})
    verdict = classify(replace(failure, code=code, message=message, labels=labels))
    assert (verdict.action, verdict.error.reason) == (action, reason)
    assert verdict.error.metadata["code"] == str(code)
    assert verdict.error.metadata["labels"] == "NonResumableChangeStreamError"


@over(
    ("code", "message"),
    [
        (40324, "Unrecognized pipeline stage name: '$foo'"),
        (2, "Enumeration value 'zap' for field '$changeStream.fullDocument' is not a valid value."),
        (9, "resume token string was not a valid hex string"),
        (166, "Namespace errs.v is a view, not a collection"),
    ],
)
def test_refused_options_keep_mongodbs_words(code: int, message: str) -> None:
    verdict = classify(replace(AGGREGATE, code=code, code_name="Name", message=message))
    assert (verdict.action, verdict.error.reason) == (Action.FATAL, ErrorReason.OPTION_REFUSED)
    assert message in verdict.error.message
    assert verdict.error.metadata == {"code": str(code), "code_name": "Name", "errmsg": message}


def test_a_failing_stage() -> None:
    failure = replace(GET_MORE, code=2, message="Executor error during getMore :: caused by :: can't $divide by zero")
    assert classify(failure).error.reason is ErrorReason.PIPELINE_FAILED
    first_batch = replace(
        failure, during="aggregate", message="PlanExecutor error during aggregation :: caused by :: x"
    )
    assert classify(first_batch).error.reason is ErrorReason.PIPELINE_FAILED


@over("text", [" " * 5_000_000, "First element: " * 300_000, "{ _id: " * 500_000, "x" * 5_000_000])
def test_a_value_that_mongodb_quotes_may_be_megabytes_long(text: str) -> None:
    message = f"PlanExecutor error during aggregation :: caused by :: Failed to parse objectId '{text}' in $convert"
    error = classify(replace(AGGREGATE, code=241, message=message)).error
    assert error.reason is ErrorReason.PIPELINE_FAILED
    assert len(error.message) < 1100
    assert error.message.startswith("MongoDB: PlanExecutor error during aggregation :: caused by :: Failed to parse")


TOKEN = '{ _data: "826B01A164" }'


@over(
    ("code", "message", "kept"),
    [
        (280, NOT_FOUND, "the resume token was not found."),
        (280, f"was modified by the pipeline. Expected: {{ _id: {TOKEN} }} but found: {{ _id: 1 }}", "the pipeline."),
        (10334, f"Size must be between 0 and 16793600(16MB) First element: _id: {TOKEN}", "16793600(16MB)"),
        (10334, 'Size must be between 0 and 16793600(16MB) First element: doc: { a: "secret" }', "16793600(16MB)"),
    ],
)
def test_tokens_and_documents_stay_out_of_messages(code: int, message: str, kept: str) -> None:
    told = classify(replace(GET_MORE, code=code, message=message)).error.message
    assert kept in told
    assert not any(part in told for part in ("826B", "_data", "Expected", "found:", "element", "secret"))


ANSWERED = [1, 2, 13, 18, 43, 47, 50, 123, 136, 241, 260, 280, 286, 326, 8000, 10107, 10334, 11601, 16608, 40573, 51059]


@pytest.mark.parametrize("failure", [AGGREGATE, GET_MORE])
@pytest.mark.parametrize("code", ANSWERED)
def test_nothing_of_mongodbs_answer_stays_where_grants_withhold_something(failure: MongoFailure, code: int) -> None:
    said = f"canary: Executor error during getMore :: caused by :: {TOKEN}"
    answer = replace(failure, code=code, code_name="CanaryName", message=said, labels=frozenset({"CanaryLabel"}))
    shown, told = classify(answer), without_words(classify(answer))
    assert (told.action, told.error.reason) == (shown.action, shown.error.reason)
    assert told.error.retry_after_s == shown.error.retry_after_s
    if told.error.reason is not ErrorReason.OPTION_REFUSED:
        assert told.error.metadata == {}
        assert "anary" not in told.error.message


def test_words_about_a_pipeline_that_was_not_run_stay() -> None:
    answer = replace(AGGREGATE, code=40324, message="Unrecognized pipeline stage name: '$foo'")
    assert "$foo" in without_words(classify(answer)).error.message


@over("code", [13, 18, 8000])
def test_a_refused_command_is_quoted_to_nobody(code: int) -> None:
    """MongoDB quotes the whole command: with grants, that includes the stages of the policy."""
    quoted = 'not authorized on shop to execute command { aggregate: "orders", pipeline: [ canary ] }'
    error = classify(replace(AGGREGATE, code=code, code_name="Unauthorized", message=quoted)).error
    assert "canary" not in error.message + repr(error.metadata)
    assert error.metadata["code"] == str(code)
