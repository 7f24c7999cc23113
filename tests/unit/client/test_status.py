"""Statuses of gRPC as errors: what the details say, if they are feedmux's."""

from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

import feedmux
from feedmux.errors import FeedmuxError
from feedmux.status import error_from_status
from tests.tables import over

KEY = "grpc-status-details-bin"
INFO = error_details_pb2.ErrorInfo(
    reason="ERROR_REASON_HISTORY_LOST", domain="feedmux", metadata={"oldest_time": "noon"}
)
FOREIGN = error_details_pb2.ErrorInfo(reason="ERROR_REASON_FENCED", domain="proxy", metadata={"cause": "SEEK"})


def error(*details: Any, key: str = KEY) -> FeedmuxError:
    packed = []
    for each in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(each)
    trailing = [("other", "text"), (key, status_pb2.Status(details=packed).SerializeToString())]
    return error_from_status(grpc.StatusCode.OUT_OF_RANGE, "said", trailing)


def retry(seconds: int, nanos: int = 0) -> error_details_pb2.RetryInfo:
    return error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=seconds, nanos=nanos))


def test_the_details_say_the_reason_its_facts_and_when_to_try_again() -> None:
    found = error(FOREIGN, INFO, retry(1, 500_000_000))
    assert type(found) is feedmux.HistoryLost
    assert (found.reason, found.metadata, found.retry_after_s) == ("HISTORY_LOST", {"oldest_time": "noon"}, 1.5)
    assert (found.status, found.message) == ("OUT_OF_RANGE", "said")
    assert error(INFO, FOREIGN).reason == "HISTORY_LOST"
    assert error(retry(-5)).retry_after_s == 0.0


@over("trailing", [None, [], [("grpc-status-details-bin", b"\xff")], [("grpc-status-details-bin", "")]])
def test_details_that_cannot_be_read_leave_the_status(trailing: Any) -> None:
    found = error_from_status(grpc.StatusCode.OUT_OF_RANGE, "said", trailing)
    assert (type(found), found.reason, found.metadata, found.retry_after_s) == (feedmux.OutOfRange, "", {}, None)


def test_details_of_others_are_ignored() -> None:
    for found in (error(FOREIGN), error(INFO, key="other-bin"), error(duration_pb2.Duration())):
        assert (type(found), found.reason, found.metadata) == (feedmux.OutOfRange, "", {})
