"""Which pipelines a tenant with `pipelines: bounded` may run: what people write passes, what grows is rejected."""

import contextlib
from typing import Any

import bson
import pytest

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.pipeline_bounds.weights import Bound, Origin, Path, Size, largest_of, sum_of, weigh
from feedmux_server.core.feeds.pipeline_policy import PIPELINE_BYTES_MAX, check_pipeline
from feedmux_server.core.feeds.regex_bounds import check_regex
from tests.executed import executed
from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import (
    ALLOWED,
    DOCUMENT,
    REFUSED,
    assert_refused,
    check,
    lets,
    set_,
)


@over("stages", ALLOWED)
def test_what_people_write_passes(stages: list[Any]) -> None:
    check(stages)


@over(("stages", "operator"), REFUSED)
def test_what_grows_or_is_not_known_is_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)


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
    "a stored array of many parts, in variables": [
        {"$set": {"x": [f"$f{i}" for i in range(2000)]}},
        *set_(y={"$let": {"vars": {f"v{i}": "$x" for i in range(2000)}, "in": 1}}),
    ],
    "a stored array of many parts, in branches": [
        {"$set": {"x": [f"$f{i}" for i in range(1200)]}},
        *set_(y={"$switch": {"branches": [{"case": "$x", "then": "$x"}] * 1200}}),
    ],
    "below a stored array of many parts": [
        {"$set": {"x": [f"$f{i}" for i in range(2000)]}},
        *set_(y={"$and": ["$x.b"] * 2000}),
    ],
    "set below a stored array of many parts": [
        {"$set": {"x": [f"$f{i}" for i in range(2200)]}},
        {"$set": {f"x.f{i}": 1 for i in range(2200)}},
    ],
    "a stored object of many fields, in variables": [
        {"$set": {"x": {f"a{i}": f"$f{i}" for i in range(1800)}}},
        *set_(y={"$let": {"vars": {f"v{i}": "$x" for i in range(1800)}, "in": 1}}),
    ],
    "conditions on a stored object of many fields": [
        {"$set": {f"x.f{i}": 1 for i in range(1800)}},
        {"$match": {"x": {"$all": list(range(2500))}}},
    ],
    "loops beside many variables": set_(
        y={
            "$let": {
                "vars": {f"v{i}": 1 for i in range(1200)},
                "in": {"$and": [{"$map": {"input": 1, "in": 1}}] * 1200},
            }
        }
    ),
    "deep": set_(x=lets(24, {"$ifNull": [[f"$a{i}" for i in range(100)], "$$x"]})),
}


LINES_MAX = 8_000_000
"""Lines of Python that a check may execute; the most expensive check executes 5.5 million, in a fifth of a second."""


@over("stages", COSTLY.values())
def test_the_check_takes_few_steps(stages: list[Any]) -> None:
    pipeline = bson.encode({"pipeline": stages})
    assert 15_000 < len(pipeline) <= PIPELINE_BYTES_MAX
    with executed() as lines, contextlib.suppress(FeedmuxError):
        check_pipeline(pipeline, bounded=True)
    assert lines.count <= LINES_MAX


OBJECTS = Origin(Size(1.0, 0.0), frozenset({(), ("a",)}))


def weight_of(*paths: Path, origin: Origin = OBJECTS) -> float:
    return weigh(sum_of(Bound(0.0, {(0, path): 1.0}) for path in paths).weights, {0: origin})[0]


def test_the_fields_of_an_object_share_its_bytes() -> None:
    assert weight_of(("a", "x"), ("a", "y"), ("b",)) == 1.0
    assert weight_of(("a", "x"), ("a", "x"), ("a", "y")) == 2.0
    assert weight_of((), ("a", "x")) == 2.0


def test_each_reference_into_an_array_has_its_own_indexes() -> None:
    assert weight_of(("b", "x"), ("b", "y")) == 2.0
    assert weight_of(*(("b", str(index)) for index in range(9))) == 3.0
    assert weight_of(*(("b", "x", str(index)) for index in range(9))) == 9.0


def test_a_field_of_the_event_is_no_array() -> None:
    event = Origin(Size(1.0, 0.0), frozenset({()}), is_event=True)
    assert weight_of(*(("b", str(index)) for index in range(9)), origin=event) == 1.0


def test_a_choice_weighs_the_most_of_each_part() -> None:
    branches = Bound(5.0, {(0, ("a",)): 1.0}), Bound(3.0, {(0, ("a",)): 2.0, (0, ("b",)): 1.0})
    largest = largest_of(branches)
    assert (largest.constant, largest.weights) == (5.0, {(0, ("a",)): 2.0, (0, ("b",)): 1.0})


@over(
    "pattern",
    ["^a.*b$", "a{1,3}", "[^a-z]+x", "(a|b)c", "(?i)foo", "(?:ab)+", "\\d+\\.\\d*?", "[]a]+", "a{", "(a|b)?", "\\p{L}"],
)
def test_plain_patterns_pass(pattern: str) -> None:
    check_regex(pattern, "i")


@over(
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
