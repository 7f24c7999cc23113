"""Pipelines that a tenant with `pipelines: bounded` may run, and rejected ones."""

from typing import Any

import bson
import pytest
from bson import Code, Int64, ObjectId, Regex
from bson.son import SON

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.pipeline_policy import check_pipeline

DOCUMENT = "$fullDocument"
EACH = "$$this"


def check(stages: list[Any]) -> None:
    check_pipeline(bson.encode({"pipeline": stages}), bounded=True)


def assert_refused(stages: list[Any], operator: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check(stages)
    error = caught.value
    assert error.reason is ErrorReason.STAGE_NOT_ALLOWED, error.message
    assert error.metadata["operator"] == operator, error.message
    assert error.message.startswith(f"{operator}: ")


def set_(**fields: Any) -> list[Any]:
    return [{"$set": fields}]


ALLOWED: list[list[Any]] = [
    [],
    # From the change streams pages of MongoDB's manual.
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


DOUBLE_ARRAY = {"$concatArrays": ["$$value", "$$value"]}


def lets(depth: int, body: Any) -> Any:
    """A chain of `$let` in which x doubles at each step."""
    expression: Any = "$$x"
    for _ in range(depth):
        expression = {"$let": {"vars": {"x": body}, "in": expression}}
    return {"$let": {"vars": {"x": DOCUMENT}, "in": expression}}


def map_(over: Any, body: Any, **more: Any) -> dict[str, Any]:
    return {"$map": {"input": over, "in": body, **more}}


Refused = tuple[list[Any], str]
"""Stages, and the operator that the rejection names."""

REFUSED: list[Refused] = [
    # Expressions that copy the event.
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
    # Expensive computation.
    ([{"$match": {"$and": [{"fullDocument.a": i} for i in range(600)]}}], "$match"),
    ([{"$match": {"$expr": {"$and": [{"$eq": ["$a", "$b"]}] * 1500}}}], "$match"),
    (set_(x=map_("$a", {"$and": [{"$eq": [EACH, 1]}] * 400})), "$set"),
    # Fields that MongoDB sets in each element of an array.
    ([{"$set": {"fullDocument.a.b": "$$ROOT"}}], "$set"),
    ([{"$set": {"documentKey.a.b": DOCUMENT}}], "$set"),
    ([{"$set": {"fullDocument": {"a": {"b": {"c": DOCUMENT}}}}}], "$set"),
    ([{"$project": {"fullDocument.a.b": DOCUMENT}}], "$project"),
    ([{"$project": {"fullDocument": {"a": {"b": DOCUMENT}}}}], "$project"),
    ([{"$replaceWith": DOCUMENT}, {"$set": {"a.b": "$c"}}], "$set"),
    ([{"$set": {"fullDocument.a.b": "x" * 1000}}], "$set"),
    ([{"$set": {"fullDocument": "$a"}}, {"$set": {"fullDocument.x": "$$ROOT"}}], "$set"),
    # Regular expressions.
    ([{"$match": {"a": {"$regex": "(a+)+$"}}}], "$regex"),
    ([{"$match": {"a": Regex("(a|a)*b")}}], "a regular expression"),
    ([{"$match": {"a": {"$not": Regex("(.*)\\1")}}}], "a regular expression"),
    ([{"$match": {"a": {"$in": ["x", Regex("(?=a)")]}}}], "a regular expression"),
    ([{"$match": {"a": {"$elemMatch": {"$regex": "((a?)b*)*"}}}}], "$regex"),
    ([{"$match": {"a": {"$regex": "a b #(", "$options": "x"}}}], "$regex"),
    (set_(x={"$regexMatch": {"input": "$a", "regex": "$b"}}), "$regexMatch"),
    (set_(x={"$regexFind": {"input": "$a", "regex": "(a*)*"}}), "$regexFind"),
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
    # Deep nesting.
    (
        set_(x={"$objectToArray": {"$arrayToObject": {"$objectToArray": {"a": {"$objectToArray": "$a"}}}}}),
        "$arrayToObject",
    ),
    (set_(x={"$split": ["$a", ","]}, y={"$split": ["$a", ";"]}, z={"$split": ["$a", "."]}), "$set"),
    ([{"$set": {"x": {"$objectToArray": DOCUMENT}}}, {"$set": {"x": map_("$x", {"$objectToArray": EACH})}}], "$set"),
    # Searches for a text from the event in another text from the event.
    (set_(x={"$indexOfBytes": ["$a", "$b"]}), "$indexOfBytes"),
    (set_(x={"$split": ["$a", "$b"]}), "$split"),
    (set_(x={"$trim": {"input": "$a", "chars": "$b"}}), "$trim"),
    (set_(x={"$replaceOne": {"input": "$a", "find": "$b", "replacement": ""}}), "$replaceOne"),
    # Pipelines that killed mongod.
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
    # Array elements multiplied by the size of the event.
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
    # Growth stage by stage.
    ([{"$set": {"x": ["$x", "$x", DOCUMENT]}}] * 6, "$set"),
    ([{"$set": {f"x{i}": "$$ROOT"}} for i in range(6)], "$set"),
    ([{"$project": {"x": "$$ROOT", "y": "$$ROOT"}}] * 6, "$project"),
    ([{"$replaceWith": {"a": "$$ROOT", "b": "$$ROOT"}}] * 6, "$replaceWith"),
    (
        [{"$replaceRoot": {"newRoot": {"a": "$a", "b": "$a"}}}, {"$replaceWith": {"a": ["$$ROOT"] * 9}}] * 3,
        "$replaceRoot",
    ),
    ([{"$set": {f"fullDocument.x{i}": "$fullDocument"}} for i in range(6)], "$set"),
    # A part of each document in the document.
    ([{"$redact": {"$cond": [{"$in": ["$a", "$$ROOT.b"]}, "$$DESCEND", "$$KEEP"]}}], "$redact"),
]
