import json
from typing import Any

import bson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.pipeline_bounds.stages import STAGES
from feedmux_server.core.feeds.pipeline_policy import (
    PIPELINE_BYTES_MAX,
    STAGES_MAX,
    check_pipeline,
    pipeline_from_extended_json,
)
from feedmux_server.core.feeds.query_json import FORMS
from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED, check, set_

MATCH = {"$match": {"operationType": "insert"}}
ALLOWED = (ErrorReason.BSON_INVALID, ErrorReason.PIPELINE_INVALID, ErrorReason.STAGE_NOT_ALLOWED)


def refused(stages: Any) -> FeedmuxError:
    pipeline = stages if isinstance(stages, bytes) else bson.encode({"pipeline": stages})
    with pytest.raises(FeedmuxError) as caught:
        check_pipeline(pipeline, bounded=False)
    return caught.value


def refused_text(text: str) -> FeedmuxError:
    with pytest.raises(FeedmuxError) as caught:
        check_pipeline(pipeline_from_extended_json(text), bounded=False)
    return caught.value


@over(
    "stages",
    [
        [],
        [MATCH],
        [MATCH] * STAGES_MAX,
        [{"$changeStreamSplitLargeEvent": {}}],
        [{"$unset": ["a", "b"]}],
        [{name: {}} for name in sorted(STAGES)],
        [{"$addFields": {"x": {"$literal": {"$function": {"$where": [{"$accumulator": 1}]}}}}}],
        [{"$match": {"field": "$where"}}],
    ],
)
def test_allowed(stages: list[Any]) -> None:
    check_pipeline(bson.encode({"pipeline": stages}), bounded=False)


def test_no_pipeline() -> None:
    check_pipeline(b"", bounded=False)


@over("stage", ["$group", "$lookup", "$out", "$merge", "$changeStream", "$facet", "match", ""])
def test_other_stages(stage: str) -> None:
    error = refused([MATCH, {stage: {}}])
    assert error.reason is ErrorReason.STAGE_NOT_ALLOWED
    assert error.metadata == {"operator": stage, "path": f"pipeline.1.{stage}"}


@over(
    ("stage", "meant"),
    [
        ("$mach", "$match"),
        ("match", "$match"),
        ("$addField", "$addFields"),
        ("$out", ""),
        ("$changeStream", ""),
        ("$mach" * 20, ""),
    ],
)
def test_a_misspelt_stage(stage: str, meant: str) -> None:
    message = refused([{stage: {}}]).message
    assert ("did you mean" in message) == bool(meant)
    assert f"did you mean {meant}?" in message or not meant


@over(
    ("stage", "operator", "path"),
    [
        ({"$match": {"$where": "1"}}, "$where", "pipeline.0.$match.$where"),
        (
            {"$addFields": {"a": {"$add": [1, {"$function": {}}]}}},
            "$function",
            "pipeline.0.$addFields.a.$add.1.$function",
        ),
        ({"$redact": {"$accumulator": {}}}, "$accumulator", "pipeline.0.$redact.$accumulator"),
        (
            {"$set": {"a": {"$literal": {"$function": 1}}, "b": {"$function": 1}}},
            "$function",
            "pipeline.0.$set.b.$function",
        ),
        (
            {"$set": {"a": {"$literal": [], "$where": 1}}},
            "$where",
            "pipeline.0.$set.a.$where",
        ),
    ],
)
def test_operators_at_any_depth(stage: dict[str, Any], operator: str, path: str) -> None:
    error = refused([stage])
    assert error.reason is ErrorReason.STAGE_NOT_ALLOWED
    assert error.metadata == {"operator": operator, "path": path}


@over(
    "stages",
    [
        [MATCH] * (STAGES_MAX + 1),
        [{"$match": {"a": "x" * PIPELINE_BYTES_MAX}}],
        [{}],
        [MATCH, {}],
        [{"$match": {}, "$project": {}}],
        ["$match"],
        [[MATCH]],
        [None],
        {"0": MATCH},
        "text",
        bson.encode({}),
        bson.encode({"pipelines": []}),
        bson.encode({"pipeline": [], "other": 1}),
        bson.encode(MATCH),
    ],
)
def test_shapes(stages: Any) -> None:
    assert refused(stages).reason is ErrorReason.PIPELINE_INVALID


def test_malformed_bson_is_named() -> None:
    pipeline = bson.encode({"pipeline": [{"$match": {"a": "xy"}}]}).replace(b"xy", b"\xff\xff")
    error = refused(pipeline)
    assert error.reason is ErrorReason.BSON_INVALID
    assert error.metadata["path"] == "pipeline.0.$match.a"


def test_depth_over_100() -> None:
    value: Any = 1
    for _ in range(98):
        value = {"a": value}
    assert refused([{"$match": value}]).reason is ErrorReason.BSON_INVALID
    check_pipeline(bson.encode({"pipeline": [{"$match": value["a"]}]}), bounded=False)


@given(st.binary(max_size=100))
def test_any_bytes_raise_nothing_else(noise: bytes) -> None:
    framed = (len(noise) + 5).to_bytes(4, "little") + noise + b"\0"
    for pipeline in (noise, framed):
        try:
            check_pipeline(pipeline, bounded=False)
        except FeedmuxError as error:
            assert error.reason in ALLOWED  # noqa: PT017 - it need not raise
            error.message.encode()


@given(st.data())
def test_flipped_bits_raise_nothing_else(data: st.DataObject) -> None:
    pipeline = bytearray(bson.encode({"pipeline": [MATCH, {"$set": {"a": {"$literal": [1, "é"]}}}]}))
    for _ in range(data.draw(st.integers(1, 4))):
        bit = data.draw(st.integers(0, 8 * len(pipeline) - 1))
        pipeline[bit // 8] ^= 1 << bit % 8
    try:
        check_pipeline(bytes(pipeline), bounded=False)
    except FeedmuxError as error:
        assert error.reason in ALLOWED  # noqa: PT017 - it need not raise


def test_a_syntax_error_says_where() -> None:
    assert "line 2, column 1" in refused_text("[\n?").message


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*FORMS, "$regex", "$scope", "$ref", "$id", "base64", "subType", "t", "i", "a"])
            | st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(JSON_VALUES)
def test_any_json_raises_nothing_else(value: Any) -> None:
    try:
        check_pipeline(pipeline_from_extended_json(json.dumps([{"$match": value}])), bounded=False)
    except FeedmuxError as error:
        assert error.reason in ALLOWED  # noqa: PT017 - it need not raise


def test_a_name_that_stands_twice_is_refused() -> None:
    """Python takes the last occurrence, MongoDB may take another."""
    pipeline = bson.encode({"pipeline": [{"$set": {"x": {"$literal": 1, "$reducex": {}}}}]})
    twice = pipeline.replace(b"$reducex", b"$literal")
    with pytest.raises(FeedmuxError) as caught:
        check_pipeline(twice, bounded=True)
    assert caught.value.reason is ErrorReason.PIPELINE_INVALID
    assert "twice" in caught.value.message


def test_any_takes_what_bounded_refuses() -> None:
    stages, _ = REFUSED[0]
    check_pipeline(bson.encode({"pipeline": stages}), bounded=False)


def test_a_refusal_says_what_to_do() -> None:
    with pytest.raises(FeedmuxError, match=r"32 times are allowed.*docs/pipelines.md.*`pipelines: any`"):
        check(set_(x=["$$ROOT"] * 40))
