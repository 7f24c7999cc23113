"""The sample workload changes only orders that there are, and each change really modifies its document."""

import pytest
from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateOne

from feedmux_server.cli import sample_workload
from feedmux_server.cli.sample_workload import Shop


def test_changes_are_of_orders_that_exist_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_workload, "_LIVE_MAX", 50)
    shop, live, kinds = Shop(7), set[object](), set[type]()
    for number in range(1, 2_001):
        change = shop.change()
        kinds.add(type(change))
        if isinstance(change, InsertOne):
            live.add(change._doc["_id"])
            assert change._doc["change"] == number
        else:
            assert change._filter["_id"] in live
            if isinstance(change, DeleteOne):
                live.remove(change._filter["_id"])
            elif isinstance(change, ReplaceOne):
                assert change._doc["change"] == number
                assert change._doc["_id"] == change._filter["_id"]
            else:
                assert isinstance(change._doc, dict)
                assert change._doc["$set"]["change"] == number
        assert len(live) <= 50
    assert kinds == {InsertOne, UpdateOne, ReplaceOne, DeleteOne}
