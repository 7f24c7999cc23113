"""A sample workload: changes in `shop.orders` as a shop would make them, for `feedmux dev --workload` and the demo."""

import asyncio
import random
from typing import Any

from bson import ObjectId
from pymongo import AsyncMongoClient, DeleteOne, InsertOne, ReplaceOne, UpdateOne

from feedmux_server.cancellation import cancellable

DATABASE, COLLECTION = "shop", "orders"
_TICK_S = 0.1
_LIVE_MAX = 2_000
_ITEMS = ("lamp", "chair", "desk", "rug", "shelf", "mirror", "vase")
_NEXT_STATUS = ("paid", "packed", "sent", "delivered")

Change = InsertOne[dict[str, Any]] | UpdateOne | ReplaceOne[dict[str, Any]] | DeleteOne


class Shop:
    """Decides what changes next, and knows which orders exist.

    Every change except a delete writes its number as `change`, so that each really modifies its document.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._orders: list[ObjectId] = []
        self.changes = 0

    def change(self) -> Change:
        """Return the next change: about half are inserts, the rest update, replace or delete earlier orders."""
        self.changes += 1
        dice = self._random.random()
        if len(self._orders) < 3 or (dice < 0.45 and len(self._orders) < _LIVE_MAX):
            order = self._order()
            self._orders.append(order["_id"])
            return InsertOne(order)
        place = self._random.randrange(len(self._orders))
        key = {"_id": self._orders[place]}
        if dice < 0.75:
            fields = {"status": self._random.choice(_NEXT_STATUS), "change": self.changes}
            return UpdateOne(key, {"$set": fields, "$unset": {"note": ""}})
        if dice < 0.87:
            return ReplaceOne(key, {**self._order(), **key})
        self._orders[place] = self._orders[-1]
        self._orders.pop()
        return DeleteOne(key)

    def _order(self) -> dict[str, Any]:
        return {
            "_id": ObjectId(),
            "customer": self._random.randrange(1, 500),
            "status": "new",
            "items": [{"item": self._random.choice(_ITEMS), "quantity": self._random.randrange(1, 5)}],
            "total": round(self._random.uniform(5, 500), 2),
            "change": self.changes,
            "note": "gift wrap",
        }


async def write_sample(uri: str, rate: float) -> None:
    """Write `rate` changes per second until cancelled."""
    shop = Shop()
    loop = asyncio.get_running_loop()
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        orders = client[DATABASE][COLLECTION]
        started_s, written = loop.time(), 0
        while True:
            due = int((loop.time() - started_s) * rate) + 1 - written
            if due > 0:
                changes = [shop.change() for _ in range(min(due, 1_000))]
                await cancellable(orders.bulk_write(changes))
                written += len(changes)
            await asyncio.sleep(min(_TICK_S, 1 / rate))
