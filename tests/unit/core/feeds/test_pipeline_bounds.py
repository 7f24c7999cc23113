"""Which pipelines a tenant with `pipelines: bounded` may run: what people write passes, what grows is rejected."""

import contextlib
import sys
from types import FrameType
from typing import Any

import bson
import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.pipeline_policy import PIPELINE_BYTES_MAX, check_pipeline
from feedmux_server.core.feeds.regex_bounds import check_regex
from tests.unit.core.feeds.pipelines import ALLOWED, DOCUMENT, REFUSED, lets, set_


def check(stages: Any) -> None:
    check_pipeline(bson.encode({"pipeline": stages}), bounded=True)


@pytest.mark.parametrize("stages", ALLOWED, ids=lambda stages: repr(stages)[:100])
def test_what_people_write_passes(stages: list[Any]) -> None:
    check(stages)


@pytest.mark.parametrize(("stages", "operator"), REFUSED, ids=lambda value: repr(value)[:100])
def test_what_grows_is_refused(stages: list[Any], operator: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check(stages)
    error = caught.value
    assert error.reason is ErrorReason.STAGE_NOT_ALLOWED, error.message
    assert error.metadata["operator"] == operator, error.message
    assert error.message.startswith(f"{operator}: ")


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


COSTLY: dict[str, list[Any]] = {
    "operators": set_(x={"$and": [{"$eq": ["$a", 1]}] * 1700}),
    "fields": [{"$project": {f"a{i}": f"$fullDocument.f{i}" for i in range(1500)}}],
    "set below, and read": [
        {"$set": {f"fullDocument.f{i}": "$clusterTime" for i in range(1000)}},
        {"$match": {"$expr": {"$and": [{"$eq": [DOCUMENT, 1]}] * 550}}},
    ],
    "a variable of many parts": set_(
        x={"$let": {"vars": {"v": [f"$fullDocument.f{i}" for i in range(1000)]}, "in": {"$and": ["$$v"] * 2500}}}
    ),
    "paths": set_(x=["$" + ".".join(["a"] * 100)] * 250),
    "conditions": [{"$match": {"$or": [{f"ns.{i}": i} for i in range(2600)]}}],
    "deep": set_(x=lets(24, {"$ifNull": [[f"$a{i}" for i in range(100)], "$$x"]})),
}


LINES_MAX = 8_000_000
"""Lines of Python that a check may execute; the most expensive check executes 5.5 million, in a fifth of a second."""


class TooManyLines(AssertionError):
    pass


def check_with_lines_counted(pipeline: bytes) -> None:
    """Run a check, and raise TooManyLines inside it once it has executed more lines than allowed."""
    left = LINES_MAX

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise TooManyLines
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check_pipeline(pipeline, bounded=True)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("stages", COSTLY.values(), ids=COSTLY)
def test_the_check_takes_few_steps(stages: list[Any]) -> None:
    pipeline = bson.encode({"pipeline": stages})
    assert 15_000 < len(pipeline) <= PIPELINE_BYTES_MAX
    with contextlib.suppress(FeedmuxError):
        check_with_lines_counted(pipeline)


@pytest.mark.parametrize(
    "pattern",
    ["^a.*b$", "a{1,3}", "[^a-z]+x", "(a|b)c", "(?i)foo", "(?:ab)+", "\\d+\\.\\d*?", "[]a]+", "a{", "(a|b)?", "\\p{L}"],
)
def test_plain_patterns_pass(pattern: str) -> None:
    check_regex(pattern, "i")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+", "((a|b))*", "(a{1,9}){2}", "(?<n>a)", "(?P<n>a)", "(?!a)", "(?>a)", "(?R)", "(*UTF)a", "a\\1",
        "\\Qa\\E", "\\k<n>", "\\g1", "a{1001}", "(a|b){2,}", "(?x)a", "a*" * 9, "a" * 1025, "\\c((a+)+", "[\\c](a+)+",
        "(\\c)a+)+", "a)", "[[:alpha:]]", "(?#c)", "(a*b)?+*",
    ],
)  # fmt: skip
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|without"):
        check_regex(pattern, "")
