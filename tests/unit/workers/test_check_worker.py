"""What the process that checks pipelines answers."""

from typing import Any

import bson

from feedmux_server.workers.check_worker import answer
from tests.tables import over

MATCH = {"pipeline": [{"$match": {"a": 1}}]}


def answered(**request: Any) -> dict[str, Any]:
    found: dict[str, Any] = bson.decode(answer(bson.encode(request))[0])
    assert found.pop("cpu_s") >= 0
    return found


def checked(pipeline: bytes, *, json: bool = False) -> dict[str, Any]:
    return answered(pipeline=pipeline, json=json, collation=b"", comment=b"", bounded=True)


def test_a_verdict_is_the_pipeline_or_the_error() -> None:
    assert checked(bson.encode(MATCH)) == {"pipeline": bson.encode(MATCH)}
    assert checked(b'[{"$match": {"a": 1}}]', json=True) == {"pipeline": bson.encode(MATCH)}
    error = checked(bson.encode({"pipeline": [{"$out": "x"}]}))["error"]
    assert (error["reason"], error["field"], error["metadata"]["operator"]) == (
        "STAGE_NOT_ALLOWED",
        "feed.pipeline",
        "$out",
    )


@over(("most", "text"), [(22, '[{"$match": {"a": 1}}]'), (9, '[{"$match… (22 characters)')])
def test_a_rendering_is_cut_and_says_so(most: int, text: str) -> None:
    assert answered(render=bson.encode(MATCH), chars=most) == {"text": text}


def test_a_date_that_python_cannot_express_is_rendered() -> None:
    far = bson.encode({"pipeline": [{"$match": {"at": bson.DatetimeMS(1 << 60)}}]})
    assert "$date" in answered(render=far, chars=1_000)["text"]
