"""A change event as one line, whatever its shape."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary, Decimal128, MaxKey, ObjectId, Regex, Timestamp

from feedmux.cli.event_line import event_line, value_text
from feedmux.cli.terminal import Terminal
from tests.tables import over


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal(io.StringIO())


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({}, ""),
        ({"_id": 1, "anything": 2}, "anything: 2"),
        ({"operationType": "insert", "fullDocument": {"_id": 1, "a": {"b": {"c": {"d": 1}}}}}, "a: {b: {c: {…}}}"),
        ({"operationType": "rename", "to": {"db": "shop", "coll": "old"}}, "to shop.old"),
        ({"operationType": "create", "operationDescription": {"idIndex": 1}}, "idIndex: 1"),
        ({"updateDescription": {"truncatedArrays": [{"field": "tags", "newSize": 2}]}}, "tags cut to 2"),
        ({"operationType": "update", "updateDescription": 5, "ns": 3, "documentKey": 4}, "update"),
        ({"updateDescription": {"removedFields": 2, "truncatedArrays": 3, "updatedFields": 4}}, "?"),
        ({"updateDescription": {"truncatedArrays": [{"newSize": "\x1b[2J\n"}, 1]}}, "None cut to ?[2J?"),
        ({"operationType": "delete", "documentKey": {"region": "eu", "_id": 5}}, '{region: "eu", _id: 5}'),
        ({"operationType": 7, "wallTime": "yesterday", "clusterTime": Timestamp(1, 1)}, "7"),
    ],
)  # fmt: skip
def test_shapes(terminal: Terminal, event: dict[str, Any], words: str) -> None:
    line = event_line(terminal, event)
    assert words in line
    assert "\n" not in line


@over(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("line\nbreak \x1b", '"line?break ?"'),
        ("x" * 100, '"' + "x" * 60 + '…"'),
        (ObjectId("6b0170b0e72021d4ffb44009"), "6b0170b0e72021d4ffb44009"),
        (Decimal128("1.10"), "1.10"),
        (Binary(b"abc"), "<3 bytes>"),
        (Regex("^a"), "/^a/"),
        (Timestamp(5, 6), "5:6"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.000+00:00"),
        ([1, [2, [3]]], "[1, [2, [1 items]]]"),
        (MaxKey(), "MaxKey()"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert value_text(value) == text
