"""A queue that serves its owners in turn, however much each has put in."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out within an owner; round robin between owners."""

    __slots__ = ("_by_owner", "_size")

    def __init__(self) -> None:
        self._by_owner: dict[str, deque[T]] = {}  # in the order of their turns
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, owner: str, item: T) -> None:
        self._by_owner.setdefault(owner, deque()).append(item)
        self._size += 1

    def get(self) -> T:
        """The oldest item of the owner whose turn it is. Raises IndexError when there is none."""
        if not self._size:
            raise IndexError("the queue is empty")
        owner, items = next(iter(self._by_owner.items()))
        item = items.popleft()
        self._size -= 1
        # To the end of the line; who has nothing left comes anew.
        del self._by_owner[owner]
        if items:
            self._by_owner[owner] = items
        return item
