"""Which conditions of a pipeline as JSON had another meaning for earlier versions."""

import json
from typing import Any

from feedmux_server.core.feeds.former_json import changed_conditions
from tests.tables import over


@over(
    "condition",
    [
        {"$regex": "^a"},
        {"$options": "i", "$regex": "^a"},
        {"$not": {"$regex": "^a"}},
        {"$ne": "abc", "$in": ["abc"]},
        {"$regex": {"$regularExpression": {"pattern": "^a", "options": ""}}, "$ne": "abc"},
    ],
)
def test_the_same_meaning(condition: Any) -> None:
    assert changed_conditions(json.dumps([{"$match": {"$or": [{"a": 1}, {"b": condition}]}}])) == []


@over(
    ("condition", "path"),
    [
        ({"$regex": "^a", "$ne": "abc"}, ""),
        ({"$options": "i", "$nin": ["abc"], "$regex": "^a"}, ""),
        ({"$not": {"$regex": "^a", "$ne": "abc"}}, ".$not"),
        ({"$in": ["b", {"$regex": "^a"}]}, ".$in.1"),
        ({"$elemMatch": {"$regex": "^a"}}, ".$elemMatch"),
        ({"$eq": {"$regex": "^a"}}, ".$eq"),
        ({"$literal": [{"a": 1}, {"$regex": "^a"}]}, ".$literal.1"),
    ],
)
def test_another_meaning(condition: Any, path: str) -> None:
    text = json.dumps([{"$match": {"$or": [{"a": 1}, {"b": condition}]}}])
    assert changed_conditions(text) == [f"pipeline.0.$match.$or.1.b{path}"]
