"""One checker per guarantee of groups. One pass over the records finds what breaks any of them.

What others may do with the events of a member that is gone, or was without a connection for too long, is not judged:
`docs/groups.md` says so. From one host of a group to the next one, which has another epoch, a member *carries over*
what it has in hand and what it has settled, if it joins while the new host gathers that. A host that has released
its lease, a seek, or a store that has lost something ends that.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final

from feedmux_server.core.positions.ahead import mark_of
from feedmux_server.sessions.groups import GATHER_S
from tests.sim.history import History, Violation, is_lost, token
from tests.sim.records import (
    Discarded,
    Handled,
    Hosted,
    Joined,
    Kept,
    Left,
    Lost,
    Released,
    Removed,
    Sent,
    SetAside,
    Skipped,
    Sought,
    Started,
)

EXCLUSIVE: Final = "Key exclusive"
ORDER: Final = "Key order"
STAYS: Final = "Settled stays settled"
COVERED: Final = "Covered"
DURABLE: Final = "Dead letters durable"
RIGHTLY: Final = "Set aside rightly"
HELD: Final = "Held"
_MOMENT_S: Final = 0.001


@dataclass(slots=True)
class _Mine:
    """An event that a member has settled."""

    member: str
    epoch: int
    """Of the host that knows that."""
    overdue: bool = False
    """Others may have it, if the host lives."""
    carried: bool = False
    """The member has told that host itself."""


@dataclass(slots=True, kw_only=True)
class _Running(_Mine):
    """An event that a member processes."""

    event: str
    key: str
    session: str
    is_second: bool
    """The member may process it once more beside this, as it had it before a seek."""


@dataclass(slots=True)
class _Stored:
    """What is stored as settled, by ranks."""

    epoch: int
    place: int
    high: int
    holes: dict[str, int]
    """By key, the first unsettled event."""


@dataclass(slots=True)
class _Hold:
    """A key that waits for its time."""

    until_s: float
    member: str
    epoch: int


@dataclass(slots=True)
class _Group:
    """What is known of a group, while its records are read."""

    name: str
    history: History
    feed: str = ""
    epochs: dict[str, int] = field(default_factory=dict)
    """Of the connected members."""
    last_epochs: dict[str, int] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    running: dict[tuple[str, str], _Running] = field(default_factory=dict)
    void: set[tuple[str, str]] = field(default_factory=set)
    """Members and events that they were processing when a seek, or a lost history, made that void."""
    finished: dict[str, _Mine] = field(default_factory=dict)
    """By event."""
    hosted_s: dict[int, float] = field(default_factory=dict)
    """By epoch, when a host has taken the lease."""
    lost_epochs: set[int] = field(default_factory=set)
    """Of the hosts before the store has lost something: a later host may have a lower epoch."""
    store_lost: bool = False
    """The store may have lost that a host was there."""
    sought_epoch: int = 0
    """Of the last seek. It makes void what members of earlier hosts have in hand, and what they settle after it."""
    begun: dict[str, int] = field(default_factory=dict)
    """By key, the last event in order that was begun; "" for all keys."""
    last_barrier: int = -1
    first: set[str] = field(default_factory=set)
    """The events that were begun."""
    sessions: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By event, the sessions in which a member may have begun it, and in which it has not failed."""
    knows_sent: bool = False
    loses: bool = False
    """Whether a session has ended."""
    alone: set[str] = field(default_factory=set)
    """The events that were the only one of a message."""
    failures: Counter[str] = field(default_factory=Counter)
    rejected: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    """What was processed, and what has a letter."""
    processed: set[str] = field(default_factory=set)
    """What was processed, since its last letter if it has had one."""
    letters: dict[str, dict[str, int]] = field(default_factory=dict)
    """By key, the events that have a letter now, with their ranks."""
    had_letters: set[str] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    """The keys that are quarantined, or were."""
    discarded: set[str] = field(default_factory=set)
    held: dict[str, _Hold] = field(default_factory=dict)
    stored: _Stored | None = None
    checked: int | None = None
    """Before this rank, what is stored was checked, or needs not be."""
    told: set[str] = field(default_factory=set)
    skips: bool = False

    @property
    def _all(self) -> list[_Mine]:
        return [*self.running.values(), *self.finished.values()]

    def joined(self, record: Joined) -> None:
        member, epoch = record.member, record.epoch
        before, self.last_epochs[member] = self.last_epochs.get(member, 0), epoch
        self.epochs[member] = epoch
        self.feed = record.feed
        self.away.discard(member)
        if epoch == before:
            self._others_have_overdue(member)
        elif (
            before > self.sought_epoch
            and record.at_s < self.hosted_s.get(epoch, 0.0) + GATHER_S
            and not self.store_lost
        ):
            for each in self._all:
                if each.member == member and each.epoch == before:
                    each.epoch, each.overdue, each.carried = epoch, False, True

    def left(self, record: Left) -> None:
        member = record.member
        self.loses = True
        self.epochs.pop(member, None)
        self.held = {key: hold for key, hold in self.held.items() if hold.member != member}
        if record.for_good or record.overdue:
            self.away.add(member)
        if record.overdue:
            for each in self._all:
                each.overdue |= each.member == member
        if record.for_good:
            self.running = {where: each for where, each in self.running.items() if each.member != member}
            self.finished = {event: each for event, each in self.finished.items() if each.member != member}

    def _others_have_overdue(self, member: str = "") -> None:
        """The host has lived, and what was overdue is not the member's any more."""

        def is_kept(each: _Mine) -> bool:
            return not each.overdue or each.member != (member or each.member)

        self.running = {where: each for where, each in self.running.items() if is_kept(each)}
        self.finished = {event: each for event, each in self.finished.items() if is_kept(each)}

    def released(self, cause: str) -> None:
        if cause in ("LEASE", "UPDATE"):
            self._others_have_overdue()
        else:
            self.sought_epoch = max([self.sought_epoch, *self.hosted_s, *self.last_epochs.values()])
            self._make_void()

    def _make_void(self) -> None:
        self.void.update(self.running)
        self.running.clear()
        self.finished.clear()

    def lost(self) -> None:
        self.stored = None
        self.store_lost = True
        self.lost_epochs.update(self.hosted_s)

    def sent(self, record: Sent) -> None:
        self.knows_sent = True
        for event in record.fronts:
            self.sessions[event].add(record.session)
        if len(record.events) == 1:
            self.alone.add(record.events[0])

    def started(self, record: Started) -> Iterator[Violation]:
        event, member = record.event, record.member
        rank = self.history.order.get(event)
        if rank is None:
            yield self._violation(ORDER, f"{event} was never written")
            return
        key, epoch = self.history.written[rank].key, self.last_epochs.get(member, 0)
        if member not in self.away:
            # A member without a session while a host lived has lost the event, whatever it tells the next host.
            others = [(each, it) for each, it in self.running.items() if it.event == event and it.member != member]
            for each, it in others:
                if it.epoch < epoch:
                    del self.running[each]
            yield from self._overlapping(record, key, epoch)
            yield from self._begun_again(record, rank, key, epoch)
            if epoch == max(self.last_epochs.values()):
                yield from self._before_letters(event, rank, key)
            # A letter without a key waits for nothing, and nothing for it.
            hold = self.held.get(key) if key or event not in self.had_letters else None
            if hold is not None and hold.epoch == epoch and record.at_s < hold.until_s - _MOMENT_S:
                yield self._violation(HELD, f"{event} came {hold.until_s - record.at_s:.3f} s too early")
            self.running[member, event] = _Running(
                member,
                epoch,
                event=event,
                key=key,
                session=record.session,
                is_second=(member, event) in self.void or (member, event) in self.running,
            )
        self.held.pop(key, None)
        if event not in self.first:
            self.first.add(event)
            if epoch >= self.sought_epoch:  # otherwise its host does not know yet that the position was moved
                yield from self._in_order(event, rank, key)
        self.sessions[event].add(record.session)
        if self.knows_sent and record.attempt > self._tries(event):
            yield self._violation(RIGHTLY, f"{event} came with the attempt {record.attempt}")

    def _overlapping(self, record: Started, key: str, epoch: int) -> Iterator[Violation]:
        for where, other in list(self.running.items()):
            if other.epoch != epoch or not (other.key == key or not other.key or not key):
                continue
            if {other.event, record.event} & self.had_letters and not (other.key and key):
                continue  # a letter without a key, or beside one without
            # The next host does not know the key of an event that the oplog no longer has.
            if other.overdue or (other.carried and self.skips):
                del self.running[where]
            else:
                yield self._violation(
                    EXCLUSIVE, f"{record.member} begins {record.event} while {other.member} has {other.event}"
                )

    def _begun_again(self, record: Started, rank: int, key: str, epoch: int) -> Iterator[Violation]:
        if record.event in self.letters.get(key, ()) or record.event in self.discarded:
            return  # it is delivered again
        finished = self.finished.get(record.event)
        if finished is not None and finished.epoch == epoch and finished.carried and not self.skips:
            yield self._violation(STAYS, f"{record.event} comes to {record.member}, and {finished.member} settled it")
        stored = self.stored
        if stored is None or epoch < stored.epoch or rank >= stored.high:
            return
        if epoch > stored.epoch and epoch in self.lost_epochs:
            return
        if rank < stored.place or (not self.skips and rank < stored.holes.get(key, stored.high)):
            yield self._violation(STAYS, f"{record.event} comes again to {record.member}")

    def _before_letters(self, event: str, rank: int, key: str) -> Iterator[Violation]:
        """No event of a quarantined key comes before its letters are deleted, and no letter before the ones before it
        are processed. A letter that is discarded may be loaded already."""
        letters = self.letters.get(key, {})
        if key not in self.quarantined or self.skips:
            return
        for other, place in letters.items():
            is_letter = event in letters or event in self.discarded
            if place < rank and not (is_letter and other in self.processed):
                yield self._violation(ORDER, f"{event} comes, and {other} is set aside")

    def _in_order(self, event: str, rank: int, key: str) -> Iterator[Violation]:
        latest = self.begun.get("", -1) if not key else self.begun.get(key, -1)
        if event not in self.had_letters:  # one without a key does not wait for letters
            latest = max(latest, self.last_barrier)
        elif not key:
            return
        if rank < latest and not self.skips:
            yield self._violation(ORDER, f"{event} comes after {self.history.written[latest].event}")
        self.begun[key] = max(rank, self.begun.get(key, -1))
        self.begun[""] = max(rank, self.begun.get("", -1))
        if not key:
            self.last_barrier = max(rank, self.last_barrier)

    def handled(self, record: Handled) -> None:
        event = record.event
        running = self.running.pop((record.member, event), None)
        if running is not None and record.following:
            self.sessions[record.following].add(running.session)
        if record.result == "done":
            self.done.add(event)
            self.processed.add(event)
            if running is not None:
                self.finished[event] = _Mine(record.member, running.epoch, running.overdue)
            return
        self.failures[event] += 1
        if running is not None:
            self.sessions[event].discard(running.session)  # it counts once
        if record.result == "rejected":
            self.rejected.add(event)
        elif running is None or (event in self.had_letters and not running.key):
            return
        elif event in self.discarded:
            pass  # if it has failed too often, nothing says when it is gone
        elif not (running.carried or running.is_second) and self.epochs.get(record.member) == running.epoch:
            # Of a carried event, the host may not know how often it has failed. The failure of one that is void, the
            # member does not tell.
            self.held[running.key] = _Hold(record.until_s, record.member, running.epoch)

    def set_aside(self, record: SetAside) -> Iterator[Violation]:
        event = record.event
        self.done.add(event)
        rank = self.history.order.get(event)
        follows = False
        if rank is not None:
            key = self.history.written[rank].key
            self.held.pop(key, None)
            self.processed.discard(event)
            self.had_letters.add(event)
            self.letters.setdefault(key, {})[event] = rank
            if key and record.quarantines:
                follows = key in self.quarantined
                self.quarantined.add(key)
            else:
                self.first.add(event)  # others of its key come first
        if event in self.rejected or not self.knows_sent or follows:
            return
        tries, failures = self._tries(event), self.failures[event]
        if not record.attempts_max or tries < record.attempts_max:
            yield self._violation(RIGHTLY, f"{event} was set aside after {failures} failures, {tries} tries")
        elif not failures and event not in self.alone:
            yield self._violation(RIGHTLY, f"{event} was set aside and never came alone")

    def removed(self, record: Removed) -> Iterator[Violation]:
        event = record.event
        rank = self.history.order.get(event)
        if rank is not None:
            self.letters.get(self.history.written[rank].key, {}).pop(event, None)
        if event not in self.processed and event not in self.discarded:
            yield self._violation(DURABLE, f"the letter of {event} is deleted, and nobody has processed it")

    def kept(self, record: Kept) -> Iterator[Violation]:
        history = self.history
        place = history.rank_after(record.place) or 0
        high = (history.rank_after(record.high) or 0) if record.high else place
        holes = dict[str, int]()
        for mark in record.holes:
            rank = _by_mark(history).get(mark)
            if rank is None:
                yield self._violation(COVERED, f"a hole is no event: {mark}")
                continue
            key = history.written[rank].key
            holes[key] = min(rank, holes.get(key, rank))
        self.stored = _Stored(max(record.epoch, self.sought_epoch), place, high, holes)
        self.store_lost = False
        if self.checked is None:
            self.checked = place
        if self.feed and not self.skips:
            yield from self._check_stored(self.stored)
        self.checked = max(self.checked, place)

    def _check_stored(self, stored: _Stored) -> Iterator[Violation]:
        history = self.history
        assert self.checked is not None
        for rank in range(self.checked, max(stored.place, stored.high)):
            written = history.written[rank]
            if written.feeds and self.feed not in written.feeds:
                continue
            if any(is_lost(written.place, each) for each in history.restores):
                continue  # `One history` says whether it may be passed
            if rank >= stored.place and rank >= stored.holes.get(written.key, stored.high):
                continue
            event = written.event
            if event not in self.done and event not in self.told:
                self.told.add(event)
                guarantee = DURABLE if self.failures[event] else COVERED
                yield self._violation(guarantee, f"{event} is stored as settled")

    def _tries(self, event: str) -> int:
        """How often a member may have begun the event, or failed with it. A session that ends may have taken it without
        sending it."""
        return len(self.sessions[event]) + self.failures[event] + self.loses

    def sought(self, place: str, epoch: int) -> None:
        self.stored = None
        self.sought_epoch = epoch
        self._make_void()
        self.checked = self.history.rank_after(place)
        self.begun.clear()
        self.held.clear()
        self.last_barrier = -1

    def _violation(self, guarantee: str, message: str) -> Violation:
        return Violation(guarantee, self.name, message)


@lru_cache(1)
def _by_mark(history: History) -> dict[str, int]:
    """The ranks of the events by their marks."""
    ranks = dict[str, int]()
    for rank, each in enumerate(history.written):
        if each.place:
            ranks[mark_of(token(each.place).raw).hex()] = rank
    return ranks


@lru_cache(1)
def _violations(history: History) -> list[Violation]:
    groups = {record.group: _Group(record.group, history) for record in history.records if isinstance(record, Joined)}
    return [violation for record in history.records for violation in _read(groups, record)]


def _read(groups: dict[str, _Group], record: object) -> Iterator[Violation]:
    name = getattr(record, "group", None) or getattr(record, "subscription", None)
    group = groups.get(name) if name else None
    if group is None:
        return
    match record:
        case Joined():
            group.joined(record)
        case Hosted():
            group.hosted_s[record.epoch] = record.at_s
        case Left():
            group.left(record)
        case Sent():
            group.sent(record)
        case Started():
            yield from group.started(record)
        case Handled():
            group.handled(record)
        case SetAside():
            yield from group.set_aside(record)
        case Removed():
            yield from group.removed(record)
        case Discarded():
            group.discarded.add(record.event)
        case Kept():
            yield from group.kept(record)
        case Sought():
            group.sought(record.place, record.epoch)
        case Lost():
            group.lost()
        case Released():
            group.released(record.cause)
        case Skipped():
            group.skips = True


def _of(guarantee: str, history: History) -> Iterator[Violation]:
    return (each for each in _violations(history) if each.guarantee == guarantee)


GROUP_CHECKERS: Final[dict[str, Callable[[History], Iterator[Violation]]]] = {
    name: partial(_of, name) for name in (EXCLUSIVE, ORDER, STAYS, COVERED, DURABLE, RIGHTLY, HELD)
}
