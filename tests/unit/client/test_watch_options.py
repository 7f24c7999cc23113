"""The arguments of `watch` as a feed and a start, after the checks of pymongo and MongoDB."""

from typing import Any
from uuid import UUID

import bson
import pytest
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp
from pymongo.client_session import ClientSession
from pymongo.errors import ConfigurationError, OperationFailure
from pymongo.read_preferences import Nearest, Secondary

import feedmux
from feedmux.watch_options import WatchPlan, watch_plan
from tests.tables import over
from tests.unit.client.scripted_server import token

NOTHING = dict.fromkeys((
    "pipeline", "full_document", "resume_after", "max_await_time_ms", "batch_size", "collation",
    "start_at_operation_time", "session", "start_after", "comment", "full_document_before_change",
    "show_expanded_events",
))  # fmt: skip


def planned(*, read_preference: Any = None, codec_options: Any = None, **arguments: Any) -> WatchPlan:
    chosen: Any = NOTHING | arguments
    with feedmux.Client("127.0.0.1:1") as client:
        target = client.shop.get_collection("orders", codec_options, read_preference)
        return watch_plan(target, ClientSession, **chosen)


@over(
    ("arguments", "kind"),
    [
        ({"pipeline": {"$match": {}}}, TypeError),
        ({"full_document": 1}, TypeError),
        ({"batch_size": "many"}, ValueError),
        ({"batch_size": -1}, ValueError),
        ({"pipeline": [{"$match": {}}, 5]}, OperationFailure),
        ({"full_document": ""}, OperationFailure),
        ({"full_document_before_change": ""}, OperationFailure),
        ({"full_document_before_change": 5}, OperationFailure),
        ({"show_expanded_events": "yes"}, OperationFailure),
        ({"resume_after": ["token"]}, OperationFailure),
        ({"start_after": 5}, OperationFailure),
        ({"start_at_operation_time": 5}, OperationFailure),
        ({"max_await_time_ms": "long"}, TypeError),
        ({"max_await_time_ms": -1}, OperationFailure),
        ({"session": object()}, ValueError),
    ],
)
def test_arguments_are_checked_before_anything_is_sent(arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        feedmux.Client("127.0.0.1:1").shop.orders.watch(**arguments)


@over(
    ("arguments", "kind", "first"),
    [
        ({}, None, None),
        ({"resume_after": token(1)}, "resume_after", token(1)),
        ({"start_after": token(2), "resume_after": token(1)}, "start_after", token(2)),
        ({"start_after": {}, "resume_after": token(1)}, "start_after", token(1)),
        ({"resume_after": token(1), "start_at_operation_time": Timestamp(5, 6)}, "resume_after", token(1)),
        ({"start_at_operation_time": Timestamp(5, 6)}, "operation_time", None),
    ],
)
def test_of_several_starts_one_counts_as_in_pymongo(
    arguments: dict[str, Any], kind: str | None, first: dict[str, str] | None
) -> None:
    plan = planned(**arguments)
    assert (plan.start.kind if plan.start else None) == kind
    assert plan.given_token == first


def test_the_token_is_a_copy() -> None:
    given = token(1)
    plan = planned(resume_after=given)
    given["_data"] = "changed"
    assert plan.given_token == token(1)
    assert plan.start is not None
    assert bson.decode(plan.start.token) == token(1)


def test_values_are_encoded_with_the_options_of_the_target() -> None:
    identifier = UUID(int=7)
    options: CodecOptions[Any] = CodecOptions(uuid_representation=UuidRepresentation.JAVA_LEGACY)
    plan = planned(codec_options=options, pipeline=[{"$match": {"id": identifier}}], comment=identifier)
    legacy = Binary.from_uuid(identifier, UuidRepresentation.JAVA_LEGACY)
    assert plan.feed.pipeline is not None
    assert [bson.decode(stage.raw)["$match"]["id"] for stage in plan.feed.pipeline] == [legacy]  # type: ignore[union-attr]
    assert plan.feed.comment == legacy
    with pytest.raises(ValueError, match="cannot encode native uuid"):
        planned(pipeline=[{"$match": {"id": identifier}}])


def test_numbers_that_the_protocol_cannot_hold() -> None:
    assert planned(batch_size=2**40).feed.batch_size == 2**31 - 1
    assert planned(max_await_time_ms=0).await_s == 0
    assert planned().await_s == 1.0
    assert planned(max_await_time_ms=2**31 - 1).feed.max_await_time_ms == 2**31 - 1
    with pytest.raises(OperationFailure, match="2147483648 value for maxTimeMS is out of range"):
        planned(max_await_time_ms=2**31)


def test_of_a_read_preference_the_mode_alone_can_be_sent() -> None:
    def preferring(preference: Any) -> WatchPlan:
        return planned(read_preference=preference)

    assert preferring(None).feed.read_preference is None
    assert preferring(Nearest()).feed.read_preference == "nearest"
    for beyond in (Secondary(tag_sets=[{"dc": "east"}]), Secondary(max_staleness=120)):
        with pytest.raises(ConfigurationError, match="put them into the URI"):
            preferring(beyond)
