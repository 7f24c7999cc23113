"""Decides what to do after an error of MongoDB: resume, try again, start at a time, or report the error to the user.

Errors of getMore follow the driver specification ("Resumable Error"): errors that it does not list end the stream. By
the specification, errors of aggregate are never resumable; those that say nothing of the request are retried after a
backoff. One table has all other errors.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

from feedmux_server.core.errors import ErrorReason, FeedmuxError

_NO_LOGIN: Final = frozenset({11, 18, 334, 391})
"""UserNotFound, AuthenticationFailed, MechanismUnavailable, ReauthenticationRequired."""
_ATLAS_ERROR: Final = 8000


class Action(Enum):
    RESUME = "resume"
    """getMore: open again at once, after the newest token."""
    RETRY = "retry"
    """aggregate: the same again, after a backoff."""
    REPOSITION = "reposition"
    """The token cannot be resumed after. Where it is one of ours, start at its operation time."""
    FATAL = "fatal"


@dataclass(frozen=True, slots=True)
class MongoFailure:
    """The facts of an error, taken from the driver's exception by `source`."""

    code: int | None
    code_name: str
    message: str
    labels: frozenset[str]
    network: bool
    """Not a server error: a broken connection, a timeout, no server to select."""
    during: Literal["aggregate", "getMore"]
    wire_version: int

    @property
    def rejects_login(self) -> bool:
        """A new connection could not log in. AtlasError has other meanings too. Errors without a code are the driver's
        own, of a login: Kerberos, AWS or SCRAM failed, or the DNS does not have the hosts (mongodb+srv)."""
        if self.code is None:
            return not self.network
        return self.code in _NO_LOGIN or (self.code == _ATLAS_ERROR and "bad auth" in self.message)


@dataclass(frozen=True, slots=True)
class Verdict:
    action: Action
    error: FeedmuxError
    """The error that subscribers get if the action is FATAL, or is impossible or used up."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Matches one of `codes` (any, if empty) whose message holds `words`, in `during` (both, if empty)."""

    codes: frozenset[int]
    reason: ErrorReason
    action: Action = Action.FATAL
    words: str = ""
    during: str = ""
    advice: str = ""

    def matches(self, failure: MongoFailure) -> bool:
        return (
            (not self.codes or failure.code in self.codes)
            and self.during in ("", failure.during)
            and self.words in failure.message
        )


def _codes(*codes: int) -> frozenset[int]:
    return frozenset(codes)


RESUMABLE_LABEL: Final = "ResumableChangeStreamError"
_CURSOR_NOT_FOUND: Final = 43
_LABELS_SINCE_WIRE_VERSION: Final = 9

# The specification's list for servers older than 4.4. Also the errors after which an aggregate is retried.
_RESUMABLE_BEFORE_LABELS: Final = _codes(
    6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436
)
# Errors that say nothing of the request, by the categories of MongoDB's error_codes.yml. OperationFailed (96), of
# CursorInvalidatedError, is not here: a stage may be its cause.
_OF_CATEGORIES: Final = {
    "CancellationError": _codes(90, 91, 310, 355, 11600, 46841),
    "CloseConnectionError": _codes(303, 354, 398),
    "CursorInvalidatedError": _codes(43, 175, 237, 314),
    "ExceededTimeLimitError": _codes(50, 202, 262, 290, 407),
    "Interruption": _codes(24, 50, 237, 262, 279, 281, 282, 290, 355, 453, 11600, 11601, 11602, 46841, 91331, 10045600),
    "NetworkError": _codes(6, 7, 89, 202, 9001),
    "NotPrimaryError": _codes(189, 10107, 11602, 13435, 13436),
    "RetriableError": _codes(134, 358, 402, 406, 407, 412, 453, 462, 50915, 91331, 10045600),
    "SnapshotError": _codes(239, 246, 250, 272),
    "StaleShardVersionError": _codes(150, 13388),
    "SystemOverloadedError": _codes(433, 449, 450, 462),
}
# LockBusy, NotYetInitialized, LockFailed, WriteConflict, CursorInUse, PooledConnectionsDropped, NoConfigPrimary,
# TooManyLocks, CannotVerifyAndSignLogicalTime, KeyNotFound, StaleDbVersion, TooManyLogicalSessions, TooManyFilesOpen,
# ShardCannotRefreshDueToLocksHeld, TemporarilyUnavailable, LegacyNotPrimary, OutOfDiskSpace, ConfigServerUnreachable.
_OF_NO_CATEGORY: Final = _codes(
    46, 94, 107, 112, 143, 145, 149, 208, 210, 211, 249, 261, 264, 343, 365, 10058, 14031, 56846
)
_TRANSIENT: Final = _RESUMABLE_BEFORE_LABELS.union(_OF_NO_CATEGORY, *_OF_CATEGORIES.values())

# The first rule that matches decides. The texts are those of mongod 6.0, found by provoking each error.
_RULES: Final[tuple[_Rule, ...]] = (
    _Rule(_codes(280), ErrorReason.RESUME_TOKEN_MODIFIED, words="was modified by the pipeline"),
    _Rule(_codes(51059, 51060), ErrorReason.RESUME_TOKEN_MODIFIED),  # the same before 4.4
    _Rule(_codes(280, 7182504), ErrorReason.RESUME_TOKEN_NOT_FOUND, Action.REPOSITION),
    # ChangeStreamHistoryLost, OplogQueryMinTsMissing, CappedPositionLost
    _Rule(_codes(286, 326, 136), ErrorReason.HISTORY_LOST),
    _Rule(_codes(260), ErrorReason.OPTION_REFUSED, words="dropped", during="aggregate"),
    _Rule(_codes(260), ErrorReason.START_AFTER_REQUIRED, advice="use start_after with this token"),
    _Rule(_codes(47), ErrorReason.IMAGE_UNAVAILABLE),
    _Rule(
        _codes(10334),
        ErrorReason.EVENT_TOO_LARGE,
        advice="add $changeStreamSplitLargeEvent as the last stage where the server has it",
    ),
    _Rule(_codes(13, _ATLAS_ERROR), ErrorReason.SOURCE_UNAUTHORIZED),
    _Rule(
        _codes(40573, 123),
        ErrorReason.SOURCE_UNSUITABLE,
        advice="run mongod as a replica set: start it with --replSet and call rs.initiate() once",
    ),
    _Rule(
        frozenset(),
        ErrorReason.SOURCE_UNSUITABLE,
        words="only supported on replica sets",
        advice="run mongod as a replica set: start it with --replSet and call rs.initiate() once",
    ),
    # By the specification not resumable at getMore where the server did not label it (a read ended by killCursors or
    # killOp), but the feed is not the cause: the server opens it again, after a backoff (docs/adr/0005).
    _Rule(_TRANSIENT, ErrorReason.SOURCE_UNAVAILABLE, Action.RETRY),
    # A first batch that failed on an event, not a rejected option.
    _Rule(frozenset(), ErrorReason.PIPELINE_FAILED, words="Executor error during", during="aggregate"),
    _Rule(frozenset(), ErrorReason.PIPELINE_FAILED, words="PlanExecutor error during", during="aggregate"),
    _Rule(frozenset(), ErrorReason.OPTION_REFUSED, during="aggregate"),
    _Rule(frozenset(), ErrorReason.PIPELINE_FAILED, during="getMore"),
)
_RETRY_AFTER_S: Final = 1.0
_MESSAGE_CHARS_MAX: Final = 1000
_QUOTATIONS: Final = ("First element: ", "Expected: {", "{ _id: ", "{_id: ", "{ _data: ", "{_data: ")
"""What precedes a token or an event in MongoDB's messages."""


def classify(failure: MongoFailure) -> Verdict:
    if failure.network:
        action = Action.RESUME if failure.during == "getMore" else Action.RETRY
        error = FeedmuxError(
            ErrorReason.SOURCE_UNAVAILABLE, "MongoDB cannot be reached now", retry_after_s=_RETRY_AFTER_S
        )
        return Verdict(action, error)
    if failure.rejects_login:
        # A password that is being changed, or a directory that is down, must not end every feed of the source.
        failure = replace(failure, message="feedmux's own login is rejected, and is tried again")
        return Verdict(Action.RETRY, _error(failure, ErrorReason.SOURCE_UNAVAILABLE, ""))
    rule = next(rule for rule in _RULES if rule.matches(failure))
    if failure.during == "getMore" and _is_resumable(failure):
        return Verdict(Action.RESUME, _error(failure, ErrorReason.SOURCE_UNAVAILABLE, ""))
    if failure.during == "aggregate" and RESUMABLE_LABEL in failure.labels:
        return Verdict(Action.RETRY, _error(failure, ErrorReason.SOURCE_UNAVAILABLE, ""))
    return Verdict(rule.action, _error(failure, rule.reason, rule.advice))


_OWN_WORDS: Final = {
    ErrorReason.PIPELINE_FAILED: "a stage of the pipeline failed on an event",
    ErrorReason.IMAGE_UNAVAILABLE: "a pre- or post-image that the feed requires does not exist",
    ErrorReason.EVENT_TOO_LARGE: "an event is larger than the 16 MB that MongoDB can send",
    ErrorReason.RESUME_TOKEN_MODIFIED: "the pipeline removed or changed _id, which is the resume token; keep it",
    ErrorReason.RESUME_TOKEN_NOT_FOUND: "the resume token was not found",
    ErrorReason.START_AFTER_REQUIRED: "the token is of an invalidate event; use start_after",
    ErrorReason.HISTORY_LOST: "the oplog no longer reaches back to the position",
    ErrorReason.SOURCE_UNAUTHORIZED: "MongoDB does not permit feedmux's account to read this",
    ErrorReason.SOURCE_UNSUITABLE: "MongoDB cannot serve change streams: it must run as a replica set",
    ErrorReason.SOURCE_UNAVAILABLE: "MongoDB cannot serve the feed now",
}


def without_words(verdict: Verdict) -> Verdict:
    """The verdict for a tenant whose grants withhold something: without MongoDB's text, only with feedmux's reason.

    MongoDB quotes events, keys and the command, which holds the grants. It quotes none of these when it rejects a
    pipeline or an option before it has read anything, so the text of OPTION_REFUSED stays: it is about the request.
    """
    error = verdict.error
    if error.reason is ErrorReason.OPTION_REFUSED:
        return verdict
    return replace(verdict, error=_in_own_words(error.reason, error.retry_after_s))


def _in_own_words(reason: ErrorReason, retry_after_s: float | None) -> FeedmuxError:
    words = _OWN_WORDS.get(reason, "MongoDB cannot serve the feed")
    message = f"{words} (MongoDB's own words are withheld, because they may quote what the grants withhold)"
    return FeedmuxError(reason, message, retry_after_s=retry_after_s)


def _is_resumable(failure: MongoFailure) -> bool:
    if failure.code == _CURSOR_NOT_FOUND:
        return True
    if failure.wire_version >= _LABELS_SINCE_WIRE_VERSION:
        return RESUMABLE_LABEL in failure.labels
    return failure.code in _RESUMABLE_BEFORE_LABELS


def _error(failure: MongoFailure, reason: ErrorReason, advice: str) -> FeedmuxError:
    # "not authorized on DB to execute command {…}" quotes the whole command, and with it the grants.
    unauthorized = reason is ErrorReason.SOURCE_UNAUTHORIZED
    words = _OWN_WORDS[reason] if unauthorized else _without_token(failure.message)
    metadata = {"errmsg": words, "code_name": failure.code_name, "labels": ",".join(sorted(failure.labels))}
    if failure.code is not None:
        metadata["code"] = str(failure.code)
    return FeedmuxError(
        reason,
        (words if unauthorized else f"MongoDB: {words}") + (f"; {advice}" if advice else ""),
        {name: value for name, value in metadata.items() if value},
        retry_after_s=_RETRY_AFTER_S if reason is ErrorReason.SOURCE_UNAVAILABLE else None,
    )


def _without_token(message: str) -> str:
    """MongoDB quotes the resume token, which holds the document's key, in some of its errors, and the event's first
    element, which may be a document."""
    # Cut first: MongoDB's messages also quote values of documents and pipelines, which can be megabytes long.
    text = message[: _MESSAGE_CHARS_MAX + max(map(len, _QUOTATIONS))]
    for quotation in _QUOTATIONS:
        text = text.partition(quotation)[0]
    return text[:_MESSAGE_CHARS_MAX].rstrip()
