"""The client's errors as pymongo's exceptions."""

from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from feedmux.errors import make_error
from feedmux.mongo_errors import as_pymongo
from tests.tables import over


@over(
    ("status", "reason", "kind", "code"),
    [
        ("OUT_OF_RANGE", "HISTORY_LOST", OperationFailure, 286),
        ("OUT_OF_RANGE", "TIMELINE_FORKED", OperationFailure, 286),
        ("FAILED_PRECONDITION", "START_AFTER_REQUIRED", OperationFailure, 260),
        ("FAILED_PRECONDITION", "RESUME_TOKEN_NOT_FOUND", OperationFailure, 280),
        ("PERMISSION_DENIED", "NAMESPACE_DENIED", OperationFailure, 13),
        ("UNAVAILABLE", "", AutoReconnect, None),
        ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", PyMongoError, None),
    ],
)
def test_codes_without_mongodb_s_words(status: str, reason: str, kind: type[PyMongoError], code: int | None) -> None:
    error = as_pymongo(make_error(status, "said", reason))
    assert type(error) is kind
    assert getattr(error, "code", None) == code
    assert error.has_error_label("NonResumableChangeStreamError") == (code == 286)
