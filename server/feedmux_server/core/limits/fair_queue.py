"""A queue that serves its owners in turn, however much each has put in."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out within an owner; round robin between owners. An owner's item is in it once."""

    __slots__ = ("_by_owner", "_size")

    def __init__(self) -> None:
        self._by_owner: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()  # in the order of their turns
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, owner: str, item: T) -> None:
        """Add an item; one that is already in the queue keeps its turn."""
        items = self._by_owner.get(owner)
        if items is None:
            items = self._by_owner[owner] = OrderedDict()
        if item in items:
            return
        items[item] = None
        self._size += 1

    def get(self) -> T:
        """The oldest item of the owner whose turn it is. Raises IndexError when there is none."""
        if not self._size:
            raise IndexError("the queue is empty")
        owner, items = self._by_owner.popitem(last=False)
        item, _ = items.popitem(last=False)
        self._size -= 1
        # To the end of the line; who has nothing left comes again.
        if items:
            self._by_owner[owner] = items
        return item

    def remove(self, owner: str, item: T) -> None:
        """Takes an item out of its owner's line; nothing when it is not there."""
        items = self._by_owner.get(owner)
        if items is None or item not in items:
            return
        del items[item]
        self._size -= 1
        if not items:
            del self._by_owner[owner]
