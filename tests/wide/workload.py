"""Random writes and DDL over a few databases and collections, from a seed."""

from random import Random
from typing import Any

from pymongo import MongoClient
from pymongo.errors import CollectionInvalid, OperationFailure

DATABASES = ("one", "two")
COLLECTIONS = ("a", "b", "c", "d")


class Workload:
    """Each `step` does one random operation. `ddl` is the share of DDL operations, from 0 to 1."""

    def __init__(self, client: MongoClient[dict[str, Any]], prefix: str, rng: Random, ddl: float) -> None:
        self._client = client
        self._rng = rng
        self._ddl = ddl
        self._next_id = 0
        self.databases = [f"{prefix}_{name}" for name in DATABASES]

    def step(self) -> None:
        rng = self._rng
        if rng.random() < self._ddl:
            self._define()
        else:
            rng.choice((self._insert, self._insert, self._insert, self._change, self._delete, self._transact))()

    def _place(self) -> Any:
        return self._client[self._rng.choice(self.databases)][self._rng.choice(COLLECTIONS)]

    def _new(self) -> dict[str, Any]:
        self._next_id += 1
        return {"_id": self._next_id, "n": self._rng.randrange(100), "text": "x" * self._rng.choice((0, 10, 3_000))}

    def _insert(self) -> None:
        self._place().insert_many([self._new() for _ in range(self._rng.choice((1, 1, 3, 40)))])

    def _change(self) -> None:
        query = {"n": {"$gte": self._rng.randrange(100)}}
        if self._rng.random() < 0.5:
            self._place().update_many(query, {"$inc": {"n": 1}, "$set": {"sub.field": self._rng.random()}})
        else:
            self._place().replace_one(query, {"n": self._rng.randrange(100)})

    def _delete(self) -> None:
        self._place().delete_many({"n": {"$gte": self._rng.randrange(60, 100)}})

    def _transact(self) -> None:
        """Write to several collections in one transaction: their events share a cluster time."""
        places = [self._place() for _ in range(self._rng.randrange(2, 5))]
        try:
            with self._client.start_session() as session, session.start_transaction():
                for place in places:
                    place.insert_many([self._new() for _ in range(self._rng.randrange(1, 4))], session=session)
        except OperationFailure:
            pass  # a collection does not exist, and cannot be created in a transaction that involves other collections

    def _define(self) -> None:
        rng, place = self._rng, self._place()
        try:
            match rng.randrange(8):
                case 0:
                    place.drop()
                case 1:
                    self._client[rng.choice(self.databases)][place.name].rename(
                        rng.choice(COLLECTIONS), dropTarget=True
                    )
                case 2:
                    self._client.admin.command(
                        "renameCollection", place.full_name, to=self._place().full_name, dropTarget=True
                    )
                case 3:
                    if rng.random() < 0.3:
                        self._client.drop_database(place.database.name)
                case 4:
                    place.create_index("n")
                case 5:
                    place.drop_indexes()
                case 6:
                    place.database.create_collection(place.name)
                case 7:
                    place.database.command(
                        "collMod", place.name, changeStreamPreAndPostImages={"enabled": rng.random() < 0.5}
                    )
        except (OperationFailure, CollectionInvalid):
            pass  # a missing collection cannot be dropped, an existing one cannot be created
