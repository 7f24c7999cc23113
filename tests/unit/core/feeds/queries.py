"""Conditions and expressions of MongoDB's query language, each with a name that JSON text must not lose."""

from itertools import permutations
from typing import Any

CONDITIONS: dict[str, dict[str, Any]] = {
    "$eq": {"$eq": "abc"},
    "$ne": {"$ne": "abc"},
    "$gt": {"$gt": "aa"},
    "$gte": {"$gte": 5},
    "$lt": {"$lt": "b"},
    "$lte": {"$lte": 5},
    "$in": {"$in": ["abc", 5, None]},
    "$nin": {"$nin": ["abc", 5]},
    "$not": {"$not": {"$regex": "^ab", "$ne": "abd"}},
    "$exists": {"$exists": True},
    "$type": {"$type": ["string", "binData", "array"]},
    "$mod": {"$mod": [5, 0]},
    "$regex": {"$regex": "^a"},
    "$options": {"$regex": "^A", "$options": "i"},
    "$options first": {"$options": "i", "$regex": "D$"},
    "$all": {"$all": ["abc"]},
    "$elemMatch": {"$elemMatch": {"$regex": "^a", "$nin": ["abd"]}},
    "$size": {"$size": 2},
    "$bitsAllClear": {"$bitsAllClear": 2},
    "$bitsAllSet": {"$bitsAllSet": 5},
    "$bitsAnyClear": {"$bitsAnyClear": [0, 1]},
    "$bitsAnySet": {"$bitsAnySet": 4},
}
"""Every condition on a field that may stand beside others, as `$geoWithin` may not."""

PAIRS: dict[str, list[dict[str, Any]]] = {
    name: [CONDITIONS[name]]
    + [CONDITIONS[name] | other for other in CONDITIONS.values() if not CONDITIONS[name].keys() & other.keys()]
    for name in CONDITIONS
}
"""Every condition alone, and before every other in the same object."""

QUERIES: list[dict[str, Any]] = [
    {"$and": [{"v": {"$regex": "^a"}}, {"v": {"$ne": "abc"}}]},
    {"$or": [{"v": {"$regex": "^A", "$options": "i", "$nin": ["abc"]}}, {"v": {"$type": "int"}}]},
    {"$nor": [{"v": {"$regex": "^a", "$ne": "abc"}}]},
    {"$expr": {"$regexMatch": {"input": {"$cond": [{"$eq": [{"$type": "$v"}, "string"]}, "$v", ""]}, "regex": "^a"}}},
    {"$comment": "text", "v": {"$regex": "^a", "$ne": "abc"}},
    {"$jsonSchema": {"properties": {"v": {"bsonType": "string", "pattern": "^a"}}}},
]
"""Conditions on the document with the field `v`."""

EXPRESSIONS: list[Any] = [
    {"$literal": {"$regex": "^a"}},
    {"$literal": {"$regex": "^a", "$options": "i", "$ne": 1}},
    {"$literal": [{"$regex": "^a"}, {"$type": "00"}, {"$ref": "c", "$id": 1, "more": 2}, {"$scope": {}}, {"$db": 1}]},
    {"$literal": {"b": {"__proto__": 1, "constructor": 2, "_id": 3}, "a": {"": 1}}},
    {"$type": "$v"},
    {"$eq": [{"$type": "$v"}, "string"]},
    {"$convert": {"input": "$v", "to": "objectId", "onError": None}},
    {"$dateToString": {"date": {"$toDate": "2026-11-28T05:30:00Z"}}},
    {"$let": {"vars": {"date": 1, "oid": "$v"}, "in": ["$$date", "$$oid"]}},
    {"$getField": {"field": {"$literal": "$regex"}, "input": {"$literal": {"$regex": "^a"}}}},
]
"""Aggregation expressions with names that some notation of Extended JSON also uses."""

NAMES = [
    *("$regex", "$options", "$type", "$ref", "$id", "$db", "$scope", "$ne", "$not", "$literal", "$toDate", "$toUUID"),
    *("$query", "$timestamps", "$Date", "$", "$$ROOT", "", "_id", "oid", "t", "i", "base64", "subType", "pattern"),
]
OBJECTS = [dict.fromkeys(names, value) for names in permutations(NAMES, 2) for value in ("a", 1, {"t": 1, "i": 1})]
"""Objects that are no values of Extended JSON v2."""
