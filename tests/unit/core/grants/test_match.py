"""The conditions of a grant: which can be forced on a feed, and which are rejected."""

from typing import Any

import bson
import pytest
from bson import ObjectId, Regex

from feedmux_server.core.grants.grant import make_grant
from tests.tables import over


@over("path", ["", ".", "a.", ".a", "a..b", "$a", "a.$b", "a.0.b", "a\0b", "\ud83d", "x" * 2000, "a" + ".a" * 20])
def test_paths_that_cannot_be_hidden(path: str) -> None:
    with pytest.raises(ValueError, match="hide"):
        make_grant("*", "*", "*", None, [path])


@over(
    "match",
    [
        {},
        *({"owner": each} for each in (None, {}, ["a"], {"a": 1}, Regex("^a"), {"$regex": "a"}, {"$gt": 1})),
        *({"owner": {"$in": each}} for each in ([], "a", ["a", None], list(range(101)))),
        *({"owner": each} for each in ({"$not": {"$eq": 1}}, float("nan"), 2**70)),
        {"$expr": {"$eq": ["$owner", "a"]}},
        {"$where": "1"},
        {"$and": []},
        {"$or": [{}]},
        {"$or": {"a": 1}},
        {"$nor": [{"$and": [{"$or": [{"$and": [{"$or": [{"a": 1}]}]}]}]}]},
        {"": 1},
        {"a..b": 1},
        {"a.0": 1},
    ],
)
def test_matches_that_cannot_be_forced(match: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^match"):
        make_grant("*", "*", "*", match)


def test_matches_that_can() -> None:
    match = {"a.b": "x", "$or": [{"c": {"$in": [1, 2.5]}}, {"$nor": [{"d": {"$ne": True, "$nin": [ObjectId()]}}]}]}
    assert bson.decode(make_grant("*", "*", "*", match).match) == match
