"""Errors by their reason, and by their status where the reason is unknown. `test_recovery.py` has the whole table."""

import feedmux
from feedmux.errors import BY_REASON, make_error
from feedmux.v1 import errors_pb2


def test_every_reason_of_the_protocol_gives_an_error() -> None:
    for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name:
        error = make_error("INVALID_ARGUMENT", "said", name.removeprefix("ERROR_REASON_"))
        assert isinstance(error, feedmux.FeedmuxError)


def test_the_table_has_reasons_of_the_protocol_alone() -> None:
    known = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name}
    assert BY_REASON.keys() <= known


def test_an_error_names_its_reason_or_else_its_status() -> None:
    assert str(make_error("OUT_OF_RANGE", "gone", "HISTORY_LOST")) == "HISTORY_LOST: gone"
    assert str(make_error("UNKNOWN", "broken")) == "UNKNOWN: broken"
    assert type(make_error("A_STATUS_OF_THE_FUTURE", "new")) is feedmux.FeedmuxError
    assert str(feedmux.SessionClosed()) == "CANCELLED: the session is closed"
