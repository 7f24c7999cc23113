"""Events of a group whose processing has failed: how often, why, and when each is delivered again. Pure.

`Retries` knows events by their numbers in the `KeyLedger`, which asks it what to do with a key by its first event.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.key_runs import Key

HELD_MAX_S: Final = 86_400.0
"""The longest time for which a failed event waits."""
REASONS_MAX: Final = 5
"""The most reasons that are kept of an event: the last ones."""
TRIES_BYTES: Final = 200
"""What a failed event costs, without its reasons."""
REASON_BYTES: Final = 60
"""What a reason costs in addition to its text."""
_ALONE_AFTER: Final = 2
_LOST: Final = "the member was lost"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed event is delivered again, and how often."""

    first_s: float = 1.0
    most_s: float = 300.0
    attempts_max: int = 0
    """How often an event is delivered before it is set aside; 0: without a limit."""

    def delay_s(self, failures: int, chance: float) -> float:
        """The delay after so many failures, for a `chance` of 0 to 1: between half of it and all is left to chance, so
        that events that failed together do not come back together."""
        return min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 40)) * (1 - chance / 2)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a member says of an event that it could not process."""

    sequence: int
    retry_after_s: float | None = None
    """None: by the policy."""
    reason: str = ""
    reject: bool = False
    """Set it aside now."""


@dataclass(frozen=True, slots=True)
class Untried:
    """What is known of an event that has not failed: the values of `Tries`."""

    failures: int = 0
    losses: int = 0
    deliveries: int = 0
    sent_alone: bool = False
    due_s: float | None = None
    exhausted: bool = False
    member: str = ""
    reasons: tuple[str, ...] = ()


_UNTRIED: Final = Untried()


class Tries:
    """The failed deliveries of one event."""

    __slots__ = ("before", "due_s", "exhausted", "failures", "losses", "member", "reasons", "sent_alone")

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        """Deliveries that failed, also by the loss of the member."""
        self.before = 0
        """Deliveries before it was set aside: members see them in `attempts`, and the policy does not count them."""
        self.losses = 0
        """Of these, by the loss of the member that had it first in a run."""
        self.sent_alone = False
        self.due_s: float | None = None
        """Until when it waits, and what comes after it in its key."""
        self.exhausted = False
        """It is not delivered again, but set aside."""
        self.member = ""
        """The last member."""
        self.reasons: tuple[str, ...] = ()
        """The last ones, oldest first. An empty deque would take three times as much as all else."""

    @property
    def deliveries(self) -> int:
        return self.before + self.failures

    @property
    def size(self) -> int:
        return TRIES_BYTES + sum(map(_size, self.reasons))


def _size(reason: str) -> int:
    return REASON_BYTES + len(reason.encode())


DEFAULT: Final = RetryPolicy()


class Retries:
    """The failed events of one group, and the keys that wait for another try."""

    __slots__ = ("_chance", "_held", "_may_grow", "_pays", "_policy", "_tries", "count")

    def __init__(
        self,
        policy: RetryPolicy,
        pays: Callable[[int], None],
        may_grow: Callable[[], bool],
        chance: Callable[[], float],
    ) -> None:
        """`pays` and `may_grow` are those of the ledger; `chance` returns a random number of 0 to 1."""
        self._policy = policy
        self._pays = pays
        self._may_grow = may_grow
        self._chance = chance
        self.count = 0
        """All failures so far."""
        self._tries: dict[int, Tries] = {}
        self._held: list[tuple[float, int, Key]] = []
        """A heap: until when, the number of the first event, the key."""

    def __bool__(self) -> bool:
        """Whether an event has failed."""
        return bool(self._tries)

    @property
    def held(self) -> int:
        """The number of keys that wait for their time."""
        return len(self._held)

    @property
    def due_s(self) -> float | None:
        """When the next key may be tried again."""
        return self._held[0][0] if self._held else None

    def of(self, number: int) -> Tries | Untried:
        """What is known of an event. Not for changes."""
        return self._tries.get(number) or _UNTRIED

    def attempts(self, numbers: Sequence[int]) -> list[int]:
        """How often each event was delivered, with the delivery that comes next; empty: 1 for all."""
        tries = self._tries
        return [] if tries.keys().isdisjoint(numbers) else [self.of(number).deliveries + 1 for number in numbers]

    def is_alone(self, number: int) -> bool:
        """Whether the event must be the only one at its member: it may be what ended earlier members. Before such an
        event is set aside, it has shown that alone."""
        return self._is_alone(self.of(number))

    def _is_alone(self, tries: Tries | Untried) -> bool:
        most = self._policy.attempts_max
        return tries.losses >= _ALONE_AFTER or bool(tries.losses and most and tries.failures >= most)

    def ends_run(self, number: int, index: int) -> bool:
        """Whether a run ends before this event at `index`: it waits, is to be set aside, or is not the first and must
        be alone."""
        tries = self._tries.get(number)
        if tries is None:
            return False
        return tries.exhausted or tries.due_s is not None or (index > 0 and self._is_alone(tries))

    def sent_alone(self, number: int) -> None:
        self._tries[number].sent_alone = True

    def failed(self, number: int, failure: Failure, member: str, now_s: float) -> None:
        """Note a failure at a member: the event waits now, or is to be set aside."""
        tries, most = self._note(number, failure.reason), self._policy.attempts_max
        tries.member = member
        tries.exhausted = failure.reject or 0 < most <= tries.failures
        if tries.exhausted:
            return
        wait_s = failure.retry_after_s
        if wait_s is None:
            wait_s = self._policy.delay_s(tries.failures, self._chance())
        tries.due_s = now_s + min(wait_s, HELD_MAX_S)

    def lost(self, number: int) -> None:
        """Note that the member was lost that had the event first in a run."""
        tries, most = self._note(number, _LOST), self._policy.attempts_max
        tries.losses += 1
        tries.exhausted = tries.sent_alone and 0 < most <= tries.failures

    def restore(self, number: int, attempts: int) -> None:
        """Note what a position says: how often the event was delivered, with the delivery that comes next. One that was
        not set aside, although it failed often enough, may be what ends its members."""
        if attempts > 1:
            tries = self._tries[number] = Tries(attempts - 1)
            tries.losses = int(0 < self._policy.attempts_max < attempts)
            self._pays(TRIES_BYTES)

    def delivered(self, number: int, deliveries: int, failures: int, losses: int) -> None:
        """Note how often an event was delivered before it was set aside, and has failed since then."""
        if deliveries or failures:
            tries = self._tries[number] = Tries(failures)
            tries.before, tries.losses = deliveries, losses
            self._pays(TRIES_BYTES)

    def _note(self, number: int, reason: str) -> Tries:
        tries = self._tries.get(number)
        if tries is None:
            tries = self._tries[number] = Tries()
            self._pays(TRIES_BYTES)
        tries.failures += 1
        self.count += 1
        if reason and self._may_grow():  # at the bound of the memory, the reasons that are kept stay
            dropped = _size(tries.reasons[0]) if len(tries.reasons) == REASONS_MAX else 0
            tries.reasons = (*tries.reasons, reason)[-REASONS_MAX:]
            self._pays(_size(reason) - dropped)
        return tries

    def forget(self, numbers: Iterable[int]) -> None:
        """These events are settled."""
        for number in numbers:
            tries = self._tries.pop(number, None)
            if tries is not None:
                self._pays(-tries.size)

    def hold(self, key: Key, until_s: float) -> None:
        """Keep a key, of which no member has anything, until the time of its first event."""
        heapq.heappush(self._held, (until_s, key.waiting[0], key))

    def due(self, now_s: float) -> list[Key]:
        """Keys whose time has come, as many as fit into one turn of the event loop. They are held no longer."""
        keys = list[Key]()
        while self._held and self._held[0][0] <= now_s and len(keys) < ENTRIES_AT_ONCE:
            key = heapq.heappop(self._held)[2]
            tries = self._tries.get(key.waiting[0])
            if tries is not None:
                tries.due_s = None
            keys.append(key)
        return keys

    def release(self) -> bool:
        """Let go of keys that wait, at the end, as many as fit into one turn of the event loop. Returns whether there
        are more."""
        del self._held[-ENTRIES_AT_ONCE:]
        return bool(self._held)
