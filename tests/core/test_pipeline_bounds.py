"""Which pipelines a tenant with `pipelines: bounded` may run: what people write passes, what grows is rejected."""

import contextlib
import sys
from types import FrameType
from typing import Any

import bson
import pytest
from bson import Code, Int64, ObjectId, Regex
from bson.son import SON

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.pipeline_policy import PIPELINE_BYTES_MAX, check_pipeline
from feedmux_server.core.regex_bounds import check_regex

DOCUMENT = "$fullDocument"
EACH = "$$this"


def set_(**fields: Any) -> list[Any]:
    return [{"$set": fields}]


def check(stages: Any) -> None:
    check_pipeline(bson.encode({"pipeline": stages}), bounded=True)


ALLOWED: list[list[Any]] = [
    [],
    # MongoDB's manual, change streams.
    [{"$match": {"fullDocument.username": "alice"}}, {"$addFields": {"newField": "this is an added field!"}}],
    [{"$match": {"$or": [{"fullDocument.username": "alice"}, {"operationType": {"$in": ["delete"]}}]}}],
    [{"$match": {"operationType": "insert", "fullDocument.totalAmt": {"$gt": 100}}}],
    [{"$match": {"updateDescription.updatedFields.status": {"$exists": True}}}],
    [{"$match": {"operationType": {"$in": ["insert", "update"]}}}, {"$changeStreamSplitLargeEvent": {}}],
    [{"$project": {"fullDocument.summary": 0}}, {"$unset": ["fullDocumentBeforeChange", "ns"]}],
    [
        {
            "$match": {
                "$expr": {
                    "$gt": ["$fullDocument.price", {"$multiply": ["$fullDocumentBeforeChange.price", 1.1]}],
                }
            }
        }
    ],
    [
        {
            "$redact": {
                "$cond": {
                    "if": {"$gt": [{"$size": {"$setIntersection": ["$tags", ["STLW", "G"]]}}, 0]},
                    "then": "$$DESCEND",
                    "else": "$$PRUNE",
                }
            }
        }
    ],
    [{"$redact": {"$cond": [{"$eq": ["$level", 5]}, "$$PRUNE", "$$DESCEND"]}}],
    [{"$match": {"ns.coll": {"$regex": "^orders_[0-9]+$"}}}, {"$project": {"_id": 1, "documentKey": True}}],
    [{"$match": {"ns.coll": Regex("^(orders|refunds)$", "i")}}],
    [{"$match": {"$or": [{"ns.db": "d", "ns.coll": f"c{i}"} for i in range(500)]}}],
    [{"$match": {"fullDocument._id": {"$in": [ObjectId(f"{number:024x}") for number in range(2000)]}}}],
    [{"$match": {"fullDocument.items": {"$elemMatch": {"sku": "x", "n": {"$gt": 5}}}}}],
    [{"$match": {"fullDocument.tags": {"$all": ["a", "b"]}, "fullDocument.a": {"$not": {"$type": "string"}}}}],
    # Many fields.
    [{"$project": {f"fullDocument.f{i}": 1 for i in range(200)}}],
    [{"$project": {f"f{i}": f"$fullDocument.f{i}" for i in range(200)}}],
    [{"$set": {f"f{i}": f"$fullDocument.f{i}"}} for i in range(40)],
    [{"$set": {"fullDocument.at": "$clusterTime"}}, *({"$set": {f"f{i}": f"$fullDocument.f{i}"}} for i in range(40))],
    [{"$replaceWith": {"$mergeObjects": [{"_id": "$_id"}, DOCUMENT]}}, {"$project": {"_id": 1, "a": 1, "b": "$d"}}],
    [{"$replaceRoot": {"newRoot": {"_id": "$_id", "op": "$operationType", "doc": DOCUMENT, "key": "$documentKey"}}}],
    [
        {
            "$addFields": {
                "day": {"$dateToString": {"format": "%Y-%m-%d", "date": "$wallTime", "timezone": "Europe/Berlin"}}
            }
        }
    ],
    set_(
        at={"$dateTrunc": {"date": "$wallTime", "unit": "hour"}}, y={"$year": {"date": "$wallTime", "timezone": "UTC"}}
    ),
    set_(name={"$concat": ["$fullDocument.first", " ", "$fullDocument.last"]}),
    set_(lower={"$toLower": "$fullDocument.name"}, short={"$substrCP": ["$fullDocument.name", 0, 10]}),
    set_(prices={"$map": {"input": "$fullDocument.items", "as": "i", "in": {"$multiply": ["$$i.price", "$$i.n"]}}}),
    set_(lines={"$map": {"input": "$fullDocument.items", "as": "i", "in": {"sku": "$$i.sku", "n": "$$i.n"}}}),
    set_(cheap={"$filter": {"input": "$fullDocument.items", "as": "i", "cond": {"$lt": ["$$i.price", 10]}}}),
    set_(mine={"$filter": {"input": "$fullDocument.items", "cond": {"$eq": ["$$this.owner", "$fullDocument.owner"]}}}),
    set_(total={"$sum": "$fullDocument.items.price"}, n={"$size": {"$ifNull": ["$fullDocument.items", []]}}),
    set_(changed={"$map": {"input": {"$objectToArray": "$updateDescription.updatedFields"}, "in": "$$this.k"}}),
    set_(
        fullDocument={
            "$arrayToObject": {
                "$filter": {
                    "input": {"$objectToArray": DOCUMENT},
                    "as": "f",
                    "cond": {"$not": [{"$in": ["$$f.k", ["password", "token", "secret"]]}]},
                }
            }
        }
    ),
    set_(
        doc={
            "$arrayToObject": {
                "$map": {
                    "input": {"$objectToArray": "$updateDescription.updatedFields"},
                    "in": {"k": {"$concat": ["p_", "$$this.k"]}, "v": "$$this.v"},
                }
            }
        }
    ),
    set_(host={"$arrayElemAt": [{"$split": ["$fullDocument.mail", "@"]}, 1]}),
    set_(
        kind={"$switch": {"branches": [{"case": {"$eq": ["$operationType", "insert"]}, "then": "new"}], "default": "x"}}
    ),
    set_(x={"$let": {"vars": {"d": DOCUMENT}, "in": {"$cond": [{"$isArray": "$$d.a"}, "$$d.a", ["$$d.a"]]}}}),
    set_(x={"$getField": "a"}, y={"$getField": {"field": {"$literal": "$price"}, "input": DOCUMENT}}),
    set_(x={"$setField": {"field": "a", "input": DOCUMENT, "value": 1}}),
    set_(x={"$cond": {"if": {"$gte": ["$fullDocument.n", 5]}, "then": "$$REMOVE", "else": "$$NOW"}}),
    set_(x={"$regexMatch": {"input": "$fullDocument.mail", "regex": "@example\\.com$", "options": "i"}}),
    set_(x={"$literal": {"$reduce": 1, "$$ROOT": "$$ROOT"}}),
    set_(x={"$toString": "$fullDocument._id"}, y={"$convert": {"input": "$a", "to": "int", "onError": 0}}),
    set_(x={"$sortArray": {"input": "$fullDocument.items", "sortBy": {"n": -1}}}),
    set_(whole="$$ROOT", again="$$CURRENT.fullDocument"),
    set_(n=Int64(5), s="just text", d={"a": [1, {"c": "$fullDocument.c"}]}),
]


@pytest.mark.parametrize("stages", ALLOWED, ids=lambda stages: repr(stages)[:100])
def test_what_people_write_passes(stages: list[Any]) -> None:
    check(stages)


DOUBLE_ARRAY = {"$concatArrays": ["$$value", "$$value"]}


def lets(depth: int, body: Any) -> Any:
    """x doubles in every step."""
    expression: Any = "$$x"
    for _ in range(depth):
        expression = {"$let": {"vars": {"x": body}, "in": expression}}
    return {"$let": {"vars": {"x": DOCUMENT}, "in": expression}}


def map_(over: Any, body: Any, **more: Any) -> dict[str, Any]:
    return {"$map": {"input": over, "in": body, **more}}


REFUSED: list[tuple[list[Any], str]] = [
    # What killed mongod.
    (set_(x={"$reduce": {"input": {"$range": [0, 40]}, "initialValue": [1], "in": DOUBLE_ARRAY}}), "$reduce"),
    (set_(x={"$range": [0, 100_000_000]}), "$range"),
    (set_(x={"$zip": {"inputs": ["$a", "$a"]}}), "$zip"),
    (set_(x={"$replaceAll": {"input": "$a", "find": "a", "replacement": "$a"}}), "$replaceAll"),
    (set_(x={"$regexFindAll": {"input": "$a", "regex": "."}}), "$regexFindAll"),
    (set_(x={"$rand": {}}), "$rand"),
    (set_(x={"$ofTheFuture": 1}), "$ofTheFuture"),
    (set_(x={"$function": {"body": "f", "args": [], "lang": "js"}}), "$function"),
    # Variables that double.
    (set_(x=lets(30, {"$concat": ["$$x", "$$x"]})), "$let"),
    (set_(x=lets(2000 // 60, {"$concatArrays": ["$$x", "$$x"]})), "$let"),
    (set_(x=lets(8, ["$$x", "$$x"])), "$let"),
    (set_(x=lets(8, {"a": "$$x", "b": "$$x"})), "$let"),
    (set_(x={"$size": lets(8, ["$$x", "$$x"])}), "$let"),
    (set_(x={"$size": [["$$ROOT"] * 40]}), "$size"),
    (set_(x={"$eq": [1, {"$concat": ["$a"] * 40}]}), "$eq"),
    (set_(x={"$let": {"vars": {"CURRENT": {"a": ["$$ROOT"] * 40}}, "in": "$a"}}), "$let"),
    (set_(x={"$let": {"vars": {"x": {"$literal": "x" * 4000}}, "in": [["$$x"] * 100] * 3}}), "$set"),
    # Copies.
    (set_(x={"$concat": ["$a"] * 40}), "$set"),
    (set_(x={"$mergeObjects": ["$$ROOT"] * 40}), "$set"),
    (set_(**{f"x{i}": "$$ROOT" for i in range(40)}), "$set"),
    (set_(**{f"x{i}": "$$CURRENT.fullDocument" for i in range(40)}), "$set"),
    ([{"$project": {f"x{i}": DOCUMENT for i in range(40)}}], "$project"),
    ([{"$project": {"x": ["$$ROOT"] * 40}}], "$project"),
    ([{"$replaceWith": {f"x{i}": "$$ROOT" for i in range(40)}}], "$replaceWith"),
    ([{"$replaceRoot": {"newRoot": {f"x{i}": "$$ROOT" for i in range(40)}}}], "$replaceRoot"),
    ([{"$addFields": {"fullDocument.x": ["$$ROOT"] * 40}}], "$addFields"),
    (set_(x={"$setField": {"field": "a", "input": "$$ROOT", "value": ["$$ROOT"] * 40}}), "$set"),
    (set_(x={"$getField": {"field": "a", "input": {"a": ["$$ROOT"] * 40}}}), "$getField"),
    (set_(x={"$cond": [True, ["$$ROOT"] * 40, 1]}), "$set"),
    (set_(x={"$cond": {"if": True, "then": 1, "else": ["$$ROOT"] * 40}}), "$set"),
    (set_(x={"$ifNull": [None, ["$$ROOT"] * 40]}), "$set"),
    (set_(x={"$switch": {"branches": [{"case": True, "then": ["$$ROOT"] * 40}]}}), "$set"),
    (set_(x={"$switch": {"branches": [{"case": {"$size": [["$$ROOT"] * 40]}, "then": 1}]}}), "$size"),
    (set_(x={"$arrayElemAt": [[["$$ROOT"] * 40], 0]}), "$set"),
    (set_(x={"$first": [[["$$ROOT"] * 40]]}), "$set"),
    # Stage by stage.
    ([{"$set": {"x": ["$x", "$x", DOCUMENT]}}] * 6, "$set"),
    ([{"$set": {f"x{i}": "$$ROOT"}} for i in range(6)], "$set"),
    ([{"$project": {"x": "$$ROOT", "y": "$$ROOT"}}] * 6, "$project"),
    ([{"$replaceWith": {"a": "$$ROOT", "b": "$$ROOT"}}] * 6, "$replaceWith"),
    (
        [{"$replaceRoot": {"newRoot": {"a": "$a", "b": "$a"}}}, {"$replaceWith": {"a": ["$$ROOT"] * 9}}] * 3,
        "$replaceRoot",
    ),
    ([{"$set": {f"fullDocument.x{i}": "$fullDocument"}} for i in range(6)], "$set"),
    # Elements times event.
    (set_(x=map_("$a", "$$ROOT")), "$map"),
    (set_(x=map_("$a", DOCUMENT)), "$map"),
    (set_(x=map_("$a", {"b": "$a"})), "$map"),
    (set_(x=map_("$a", {"$concat": [EACH, "$b"]})), "$map"),
    (set_(x=map_("$a", {"$size": "$a.b.c"})), "$map"),
    (set_(x=map_("$a", {"$in": [EACH, "$a"]})), "$map"),
    (set_(x=map_("$a", {"$sum": "$a"})), "$map"),
    (set_(x=map_("$a", map_("$a", "$$this"))), "$map"),
    (
        set_(x=map_("$a", map_("$$x", "$$y", **{"as": "y"}), **{"as": "x"}))
        + set_(x=map_("$a", map_([1, 2], "$$x", **{"as": "y"}), **{"as": "x"})),
        "$map",
    ),
    (set_(x=map_("$a", {"$let": {"vars": {"z": "$b"}, "in": "$$z"}})), "$map"),
    (set_(x={"$let": {"vars": {"z": "$$ROOT"}, "in": map_("$a", "$$z")}}), "$map"),
    (set_(x=map_("$a", EACH, **{"as": "that"})), "$$this"),
    (set_(x=map_("$a", "$b", **{"as": "CURRENT"}) | {}) + set_(x=map_("$a", "$$ROOT.b", **{"as": "CURRENT"})), "$map"),
    (set_(x={"$filter": {"input": "$a", "cond": {"$in": [EACH, "$a"]}}}), "$filter"),
    (set_(x={"$filter": {"input": "$a", "cond": {"$anyElementTrue": [map_("$a", 1)]}}}), "$filter"),
    (set_(x={"$filter": {"input": "$a", "cond": {"$eq": ["$b", "$c"]}}}), "$filter"),
    (set_(x=map_("$a", {"$literal": "x" * 1000})), "$set"),
    (set_(x=map_("$a", map_([1] * 100, "y"))), "$set"),
    (set_(x=map_(map_("$a", [EACH] * 20), [EACH] * 20)), "$map"),
    ([{"$set": {"fullDocument.a.b": "$$ROOT"}}], "$set"),
    ([{"$set": {"documentKey.a.b": DOCUMENT}}], "$set"),
    ([{"$set": {"fullDocument": {"a": {"b": {"c": DOCUMENT}}}}}], "$set"),
    ([{"$project": {"fullDocument.a.b": DOCUMENT}}], "$project"),
    ([{"$project": {"fullDocument": {"a": {"b": DOCUMENT}}}}], "$project"),
    ([{"$replaceWith": DOCUMENT}, {"$set": {"a.b": "$c"}}], "$set"),
    ([{"$set": {"fullDocument.a.b": "x" * 1000}}], "$set"),
    ([{"$set": {"fullDocument": "$a"}}, {"$set": {"fullDocument.x": "$$ROOT"}}], "$set"),
    ([{"$redact": {"$cond": [{"$in": ["$a", "$$ROOT.b"]}, "$$DESCEND", "$$KEEP"]}}], "$redact"),
    # Towers.
    (
        set_(x={"$objectToArray": {"$arrayToObject": {"$objectToArray": {"a": {"$objectToArray": "$a"}}}}}),
        "$arrayToObject",
    ),
    (set_(x={"$split": ["$a", ","]}, y={"$split": ["$a", ";"]}, z={"$split": ["$a", "."]}), "$set"),
    ([{"$set": {"x": {"$objectToArray": DOCUMENT}}}, {"$set": {"x": map_("$x", {"$objectToArray": EACH})}}], "$set"),
    # Searching for a text of the event in a text of the event.
    (set_(x={"$indexOfBytes": ["$a", "$b"]}), "$indexOfBytes"),
    (set_(x={"$split": ["$a", "$b"]}), "$split"),
    (set_(x={"$trim": {"input": "$a", "chars": "$b"}}), "$trim"),
    (set_(x={"$replaceOne": {"input": "$a", "find": "$b", "replacement": ""}}), "$replaceOne"),
    # Work.
    ([{"$match": {"$and": [{"fullDocument.a": i} for i in range(600)]}}], "$match"),
    ([{"$match": {"$expr": {"$and": [{"$eq": ["$a", "$b"]}] * 1500}}}], "$match"),
    (set_(x=map_("$a", {"$and": [{"$eq": [EACH, 1]}] * 400})), "$set"),
    # Regular expressions.
    ([{"$match": {"a": {"$regex": "(a+)+$"}}}], "$regex"),
    ([{"$match": {"a": Regex("(a|a)*b")}}], "a regular expression"),
    ([{"$match": {"a": {"$not": Regex("(.*)\\1")}}}], "a regular expression"),
    ([{"$match": {"a": {"$in": ["x", Regex("(?=a)")]}}}], "a regular expression"),
    ([{"$match": {"a": {"$elemMatch": {"$regex": "((a?)b*)*"}}}}], "$regex"),
    ([{"$match": {"a": {"$regex": "a b #(", "$options": "x"}}}], "$regex"),
    (set_(x={"$regexMatch": {"input": "$a", "regex": "$b"}}), "$regexMatch"),
    (set_(x={"$regexFind": {"input": "$a", "regex": "(a*)*"}}), "$regexFind"),
    # The query language.
    ([{"$match": {"$where": "sleep(1)"}}], "$where"),
    ([{"$match": {"$text": {"$search": "x"}}}], "$text"),
    ([{"$match": {"$jsonSchema": {}}}], "$jsonSchema"),
    ([{"$match": {"$sampleRate": 0.5}}], "$sampleRate"),
    ([{"$match": {"a": {"$near": [1, 2]}}}], "$near"),
    ([{"$match": {"a": {"$gt": 1, "b": 2}}}], "b"),
    ([{"$match": {"$nor": [{"$expr": {"$reduce": {}}}]}}], "$reduce"),
    ([{"$match": {"a": Code("x")}}], "JavaScript"),
    ([{"$match": {"a": {"$not": {"$elemMatch": {"$_internalNew": 1}}}}}], "$_internalNew"),
    ([{"$match": {"a": SON([("$ref", "c"), ("$id", 1), ("$where", "x")])}}], "$ref"),
    # Unusual forms.
    (set_(x={"$concat": "$a", "$reduce": 1}), "$concat"),
    (set_(x={"$map": {"input": "$a", "in": 1, "arrayIndexAs": "i"}}), "$map"),
    (set_(x={"$map": ["$a", 1]}), "$map"),
    (set_(x={"$cond": [1]}), "$cond"),
    (set_(x={"$first": []}), "$first"),
    (set_(x={"$let": {"vars": {"ROOT": 1}, "in": 1}}), "ROOT"),
    (set_(x="$$USER_ROLES"), "$$USER_ROLES"),
    (set_(x="$$nothing.a"), "$$nothing"),
    (set_(x="$a.$b"), "$b"),
    (set_(x=Code("x")), "JavaScript"),
    ([{"$set": {"$x": 1}}], "$x"),
    ([{"$set": {"a.$b": 1}}], "$b"),
    ([{"$set": 5}], "$set"),
    ([{"$unset": 5}], "$unset"),
    ([{"$replaceRoot": {"newRoot": {}, "x": 1}}], "$replaceRoot"),
    ([{"$group": {}}], "$group"),
]


@pytest.mark.parametrize(("stages", "operator"), REFUSED, ids=lambda value: repr(value)[:100])
def test_what_grows_is_refused(stages: list[Any], operator: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check(stages)
    error = caught.value
    assert error.reason is ErrorReason.STAGE_NOT_ALLOWED, error.message
    assert error.metadata["operator"] == operator, error.message
    assert error.message.startswith(f"{operator}: ")


def test_a_name_that_stands_twice_is_refused() -> None:
    """Python takes the last one, MongoDB may take another."""
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
"""Lines of Python that a check executes at most; the costliest takes 5.5 million, in a fifth of a second."""


class TooManyLines(AssertionError):
    pass


def check_with_lines_counted(pipeline: bytes) -> None:
    """Raises TooManyLines in the midst of a check that executes more lines than it may."""
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
