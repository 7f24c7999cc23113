"""What tests write into MongoDB, and with what."""

from collections.abc import Iterable
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database

Document = dict[str, Any]
Client = MongoClient[Document]
Documents = Database[Document]


def insert(database: Documents, numbers: Iterable[int], pad: int = 0, collection: str = "c", **more: Any) -> None:
    """Insert documents whose `n` are these numbers."""
    database[collection].insert_many([{"n": n, "pad": "x" * pad, **more} for n in numbers])
