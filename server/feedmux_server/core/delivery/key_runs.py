"""Keys, the runs of their events, and what one member of a group has in hand: the values of `key_ledger`. Pure."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.ahead import Of

_HISTORY_MAX: Final = 1_000
"""The most steps in which a member hears that its events are stored, while an earlier event is not settled."""
_GONE: Final = -1
_MARKED_MAX: Final = 64
"""The most events that are marked at once rather than cut out."""


@dataclass(slots=True, kw_only=True)
class Runs(Delivery):
    """A delivery to a member of a group: runs one after the other."""

    runs: Sequence[int]
    """The number of events of each."""
    attempts: Sequence[int]
    """How often each event has been delivered; empty: 1 for all."""


class Key:
    """A key with unsettled events."""

    __slots__ = (
        "deleting", "flight", "hand", "is_parked", "letters", "mark", "name", "waiting",
    )  # fmt: skip

    def __init__(self, name: bytes | None, number: int) -> None:
        self.name = name
        self.hand: Hand | None = None
        """The member that has its run, or may still come back for it."""
        self.flight: list[int] = []
        """The numbers of the events of its run that are not settled."""
        self.waiting = [number]
        self.letters = 0
        """How many letters of it were loaded and are not deleted yet."""
        self.deleting = 0
        """How many of these are settled."""
        self.mark: tuple[int, bytes, Of] | None = None
        """The number and the mark of an event of it (`ahead.mark_of`), the last one that was asked for."""
        self.is_parked = False
        """Whether it waits for them to be deleted."""


class Hand:
    """What one member has in hand. Delivery sequences count from 1 within a session."""

    __slots__ = (
        "_alone", "_first", "_gone", "_history", "_numbers", "_sequences", "again", "committed", "member", "sequence",
    )  # fmt: skip

    def __init__(self, member: str = "") -> None:
        """`member` is its instance id."""
        self.member = member
        self._begin()
        self.again: deque[Key] = deque()
        """The keys of an earlier session that were not sent again yet. Nobody else gets them."""

    def _begin(self) -> None:
        self.sequence = 0
        self.committed = 0
        """Everything up to this sequence is settled and stored."""
        self._sequences: list[int] = []
        """Those of the events in hand, in order, and some of events that have left it: see `_remove`."""
        self._numbers: list[int] = []
        """The number of each; `_GONE` where it has left."""
        self._first = 0
        """Before this index, all have left."""
        self._gone = 0
        self._alone = False
        self._history: deque[tuple[int, int]] = deque()
        """Sequences, each with the highest number of all events up to it."""

    @property
    def outstanding(self) -> int:
        """Events sent in this session and not settled."""
        return len(self._sequences) - self._gone

    @property
    def in_hand(self) -> list[int]:
        """The numbers of these events, in the order of sending."""
        return [number for number in self._numbers if number != _GONE]

    @property
    def is_alone(self) -> bool:
        """Whether it has an event that must be the only one in its hand."""
        return self._alone and self.outstanding > 0

    @property
    def acked(self) -> int:
        """Everything up to this sequence is settled, or was taken back."""
        return self._sequences[self._first] - 1 if self.outstanding else self.sequence

    def sent(self, numbers: Sequence[int], *, alone: bool = False) -> None:
        """Note the events of one delivery."""
        self._alone = alone
        begin, history = self.sequence + 1, self._history
        self.sequence += len(numbers)
        self._sequences.extend(range(begin, self.sequence + 1))
        self._numbers.extend(numbers)
        highest = max(numbers)
        if history and (history[-1][1] >= highest or len(history) >= _HISTORY_MAX):
            highest = max(highest, history.pop()[1])
        history.append((self.sequence, highest))

    def settle(self, first: int, last: int) -> list[int]:
        """The numbers of the unsettled events from sequence `first` to `last`, which are settled by that. Raises
        ACK_OUT_OF_RANGE for an event that was never delivered."""
        self._check(last, "settle.done")
        begin = bisect_left(self._sequences, first)
        end = bisect_right(self._sequences, last, begin)
        return self._remove(begin, end)

    def at(self, sequence: int) -> int | None:
        """The number of an event; None if it is in hand no more. Raises ACK_OUT_OF_RANGE."""
        self._check(sequence, "settle.failed")
        index = bisect_left(self._sequences, sequence)
        found = index < len(self._sequences) and self._sequences[index] == sequence
        return self._numbers[index] if found and self._numbers[index] != _GONE else None

    def take_back(self, sequence: int, count: int) -> None:
        """Remove an event, and those after it, from the hand: so many in all."""
        begin = end = bisect_left(self._sequences, sequence)
        while count:
            count -= self._numbers[end] != _GONE
            end += 1
        self._remove(begin, end)

    def _remove(self, begin: int, end: int) -> list[int]:
        """Remove the events at these indexes; return their numbers. Few are only marked, because a message may name a
        thousand places of a large window, and to cut a list takes as long as what is after the cut."""
        numbers = [number for number in self._numbers[begin:end] if number != _GONE]
        if end - begin > _MARKED_MAX:
            self._gone -= end - begin - len(numbers)
            del self._sequences[begin:end], self._numbers[begin:end]
            self._first = min(self._first, begin)
        else:
            self._gone += len(numbers)
            self._numbers[begin:end] = [_GONE] * (end - begin)
        if 2 * self._gone > len(self._numbers):
            left = [index for index, number in enumerate(self._numbers) if number != _GONE]
            self._sequences = [self._sequences[index] for index in left]
            self._numbers = [self._numbers[index] for index in left]
            self._first = self._gone = 0
        while self._first < len(self._numbers) and self._numbers[self._first] == _GONE:
            self._first += 1
        return numbers

    def _check(self, sequence: int, field: str) -> None:
        if sequence > self.sequence:
            raise FeedmuxError(
                ErrorReason.ACK_OUT_OF_RANGE,
                f"settle names delivery {sequence}, but this session has delivered only {self.sequence}",
                field=field,
            )

    def part_of_settle(self, first: int, last: int, most: int) -> tuple[int, int]:
        """How far a settle from `first` to `last` may go, so that it settles at most `most` events, and how many these
        are."""
        if last > self.sequence:
            return last, 0  # it is rejected as a whole
        begin = bisect_left(self._sequences, first)
        count = bisect_right(self._sequences, last, begin) - begin
        return (last, count) if count <= most else (self._sequences[begin + most] - 1, most)

    def stored(self, number: int) -> bool:
        """Note that everything before `number` is settled and stored. Returns whether `committed` grew."""
        history, before = self._history, self.committed
        while history and history[0][1] < number:
            self.committed = history.popleft()[0]
        return self.committed > before

    def disconnect(self) -> list[int]:
        """The numbers of what was sent and not settled, in the order of sending. The next session starts with none."""
        numbers = self.in_hand
        self._begin()
        return numbers
