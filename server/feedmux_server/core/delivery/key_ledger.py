"""Which events of a group its members have, and which member gets the next ones. Pure.

It stands where an ordinary subscriber has its `AckTracker`: `Subscriber.cut` feeds it with what was read, and the
members of the group take from it. A key with unsettled events is in the ledger. All events of a key that wait are sent
together, as one *run* to one member, and the next run only when this one is settled. A key that is not in the ledger
belongs to nobody, so its next event goes to whoever asks first: nothing is assigned, moved or stored.

Invariants: a key has a run at one member at most; the events of a key leave in stream order; an event without a key is
alone, after everything before it and before everything after it. `place` is before the first unsettled event.

A failed event goes back to the front of its key with the rest of its run, and the key waits for its time (`fail`,
`due`); nothing else waits. An event that has failed too often, or is rejected, is to be *set aside*: once it is the
first of its key, the key is held, and `to_set_aside` gives the event until `set_aside` settles it. So whoever stores
such events does that between the two calls, as often as it takes, and a crash between them only stores one again:

    for each in ledger.to_set_aside():  # changes nothing; an event is in it until it is settled
        write(each)                     # durable before
    reader.set_aside(each.number)       # this: the event is settled, and the next of its key may go

While a key is *pinned*, all its events are to be set aside, in order (`to_follow`), but for those that a member has
from a lost host. The letters that were stored are delivered again as events before all others of their key (`replay`).
One that is settled is in `replayed` until its letter is deleted (`deleted`), and the later events of its key wait for
that: so a crash in between repeats letters only, and no letter comes after an event that followed it.

The members of a host that was lost tell the next one what they hold (`claim`). Until it has read that, it *gathers*:
what is read is given to nobody.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.claims import Claims
from feedmux_server.core.delivery.key_runs import Hand, Key, Runs
from feedmux_server.core.delivery.retry import DEFAULT, Failure, Retries, RetryPolicy
from feedmux_server.core.delivery.taken import NeedsRoom
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.chunk import Chunk, Rendition, event_id, leading_id, read_token
from feedmux_server.core.events.event_keys import FieldsRead, keys_of
from feedmux_server.core.positions.ahead import Ahead, Of, mark_of, short_of
from feedmux_server.core.positions.resume_token import ResumeToken, UnknownTokenLayout, moment_of

RUN_MAX: Final = 100
"""The most events of a run. A member that is lost has begun one of them at most, and gives back the others."""
EVENT_BYTES: Final = 600
"""What an unsettled event costs in addition to its bytes, with a key of its own."""
SPAN_BYTES: Final = 300
"""What events of one chunk that were recorded together cost in addition to that."""
TOKEN_BYTES: Final = 40
"""What each token that is kept of an evicted chunk costs in addition to its bytes."""
PIN_BYTES: Final = 200
"""What a pinned key costs at most."""

_EXAMINED_MAX: Final = 5_000
"""How many unsettled events are examined for what is settled ahead: half a millisecond of the event loop."""
_MARKED_BYTES: Final = 1 << 21
"""How many bytes of `_id`s are hashed for that at once, give or take one: 3 ms. An `_id` of megabytes is twice as long
here. The others follow with the next positions."""
_SEARCHED_BYTES: Final = 48 * 1024
"""As many are hashed while one `_id` is found that a pipeline has moved."""


class _Span:
    """Events of one chunk that were recorded together, until all of them are settled."""

    __slots__ = (
        "_before", "_chunk", "_count", "_held_bytes", "_ledger", "_number", "_start", "left", "read_time_s",
        "rendition",
    )  # fmt: skip

    def __init__(self, ledger: "KeyLedger", chunk: Chunk, rendition: Rendition, count: int, number: int) -> None:
        """`number` is that of the first event."""
        self.rendition = rendition
        self.read_time_s = chunk.read_time_s
        self.left = count
        """Unsettled events."""
        self._ledger = ledger
        self._chunk: Chunk | None = chunk
        """None once it has left its ring."""
        self._start = chunk.start
        self._count = count
        self._number = number
        self._before: list[bytes] | None = None
        """After an eviction: the token before each event that was copied, where it was found without a search."""
        self._held_bytes = 0
        self._pay(SPAN_BYTES)
        if chunk.readers is None:
            chunk.readers = {}
        chunk.readers[self] = None

    def close(self) -> None:
        if self._chunk is not None and self._chunk.readers is not None:
            del self._chunk.readers[self]
        self._chunk = None
        self._pay(0)

    def id_of(self, index: int) -> tuple[bytes, int]:
        """The `_id` of event `index`, empty if the pipeline has removed it; and how many bytes could be hashed while it
        is found and hashed."""
        data, at = self.rendition.data, self.rendition.offsets[index]
        raw = leading_id(data, at)
        if raw:
            return raw, len(raw)
        try:
            raw = event_id(data, at)
        except FeedmuxError:
            return b"", 0
        return raw, len(raw) + _SEARCHED_BYTES

    def before(self, index: int) -> ResumeToken:
        """A position before event `index`, and after the event before it, except where the pipeline has removed the
        `_id` of that one."""
        raw = b""
        if self._before is not None:
            raw = self._before[index]
        elif index:
            try:
                raw = event_id(self.rendition.data, self.rendition.offsets[index - 1])
            except FeedmuxError:
                raw = b""
        return read_token(raw) if raw else self._start

    def evicting(self) -> None:
        """Copy the unsettled events, so that one of them does not keep a whole chunk."""
        events, rendition = self._ledger.events, self.rendition
        parts, before, offsets = list[bytes](), list[bytes](), array("L", (0,))
        for number in range(self._number, self._number + self._count):
            entry = events.get(number)
            if entry is not None:
                _, index, key = entry
                events[number] = self, len(parts), key
                parts.append(rendition.data[rendition.offsets[index] : rendition.offsets[index + 1]])
                offsets.append(offsets[-1] + len(parts[-1]))
                before.append(leading_id(rendition.data, rendition.offsets[index - 1]) if index else b"")
        self.rendition = Rendition(b"".join(parts), offsets)
        self._chunk, self._before = None, before
        self._pay(SPAN_BYTES + self.rendition.size_bytes + TOKEN_BYTES * len(before) + sum(map(len, before)))

    def retaining(self) -> None:
        self._chunk = None
        self._pay(SPAN_BYTES + self.rendition.size_bytes)

    def _pay(self, size: int) -> None:
        if size != self._held_bytes:
            self._ledger.pays(size - self._held_bytes)
            self._held_bytes = size


class _Replay:
    """Letters of one key that were loaded together, until all of them are settled. They have no part in the position
    of the group."""

    __slots__ = ("_held_bytes", "_ledger", "left", "read_time_s", "rendition")

    def __init__(self, ledger: "KeyLedger", events: Sequence[bytes], now_s: float) -> None:
        self.rendition = Rendition(b"".join(events), array("L", (0, *accumulate(map(len, events)))))
        self.read_time_s = now_s
        self.left = len(events)
        self._ledger = ledger
        self._held_bytes = self.rendition.size_bytes
        self._pay(self._held_bytes)

    def close(self) -> None:
        self._pay(-self._held_bytes)

    def _pay(self, size: int) -> None:
        self._ledger.letter_bytes += size
        self._ledger.pays(size)


class _Restored:
    """What an earlier host has settled ahead of its position, until a new one has read as far."""

    __slots__ = ("_ahead", "_missed", "_open")

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead
        self._open: dict[bytes | None, bytes | None] = {}
        """The keys of the holes that were found, each with the mark of its hole. None if the hole should have come
        before, and has not (yet)."""
        self._missed = dict[bytes, dict[bytes, tuple[int, int]]]()
        """The holes that were not found: by the hash of their key and their mark, their time and index."""
        for mark, of in ahead.of.items():
            self._missed.setdefault(of.key, {})[mark] = of.time, of.operation

    def is_passed_by(self, place: ResumeToken) -> bool:
        """Whether everything up to the higher position was read."""
        return place.reaches(self._ahead.high)

    def is_of_other_version(self, place: ResumeToken) -> bool:
        """Whether MongoDB has changed the version of its tokens: by those, no event can be recognized."""
        return place.version != self._ahead.high.version

    def unsettled(self, chunk: Chunk, first: int, stop: int, names: list[bytes | None]) -> dict[int, int]:
        """Which of these events of `chunk` are not settled, and how often each was delivered, with the next time."""
        ahead, rendition, found = self._ahead, chunk.bson, dict[int, int]()
        assert rendition is not None, "a chunk in a ring has its events"
        try:
            passed = first if self.is_of_other_version(chunk.end) else chunk.first_after(ahead.high)
            for index in range(first, min(stop, passed)):
                name = names[index - first]
                raw = event_id(rendition.data, rendition.offsets[index])
                mark = mark_of(raw)
                attempts = ahead.holes.get(mark, 0)
                if attempts:
                    if self._open.get(name) is None:
                        self._open[name] = mark
                    if mark in ahead.of:
                        self._missed[ahead.of[mark].key].pop(mark, None)
                elif name not in self._open and self._is_after_missed(name, raw):
                    self._open[name] = None
                if name in self._open:
                    found[index] = attempts or 1
        except (FeedmuxError, UnknownTokenLayout):  # the pipeline has removed an `_id`
            passed, found = first, {}
        return found | dict.fromkeys(range(max(first, passed), stop), 1)

    def _is_after_missed(self, name: bytes | None, raw: bytes) -> bool:
        """Whether a hole of this key should have come before the event with this `_id`."""
        missed = self._missed.get(short_of(name)) if self._missed else None
        return min(missed.values()) <= moment_of(raw) if missed else False

    def ahead(self, firsts: dict[bytes | None, bytes], now: Ahead) -> Ahead:
        """What is settled now, by the marks of the first unsettled events of some keys. The hole of a key with such an
        event has moved there. That of another key stays where it was: what follows it may not have been read, and if
        the hole was missed, what follows comes again."""
        holes, of = dict(self._ahead.holes), dict(self._ahead.of)
        for name, mark in firsts.items():
            before = self._open.get(name)
            if before is not None:
                holes.pop(before, None)
                of.pop(before, None)
                holes[mark], of[mark] = now.holes[mark], now.of[mark]
        return Ahead(self._ahead.high, holes, of)


@dataclass(frozen=True, slots=True)
class SetAside:
    """An event that is delivered no more."""

    number: int
    """By which `KeyLedger.set_aside` settles it."""
    key: bytes | None
    """As `event_keys.keys_of` gives it."""
    event: bytes
    """As MongoDB sent it."""
    deliveries: int
    reasons: tuple[str, ...]
    """The last ones, oldest first."""
    member: str
    """The instance id of the last member that said that it failed; may be empty."""
    letter: bytes = b""
    """The id of the letter, if the event comes from one."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An event that was set aside, and is to be delivered again."""

    letter: bytes
    """The id of its letter."""
    event: bytes
    deliveries: int
    """How often it was delivered before."""
    failures: int = 0
    """How often it has failed since it is delivered again, at earlier hosts."""
    losses: int = 0
    """Of these, by the loss of a member."""


class KeyLedger:
    """The unsettled events of one group."""

    __slots__ = (
        "_alone", "_aside", "_behind", "_claims", "_deferred", "_end", "_following", "_forgotten", "_kept", "_letters",
        "_next", "_nobodys", "_passed", "_ready", "_restored", "changes", "events", "failed_letters", "fields_read",
        "keys", "letter_bytes", "loading_bytes", "may_grow", "on_aside", "on_more", "outstanding_max", "pays", "pinned",
        "place", "replayed", "resting", "resting_letters", "retries", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        place: ResumeToken,
        outstanding_max: int,
        pays: Callable[[int], None] = lambda _: None,
        may_grow: Callable[[], bool] = lambda: True,
        policy: RetryPolicy = DEFAULT,
        chance: Callable[[], float] = lambda: 0.0,
        ahead: Ahead | None = None,
        pinned: Iterable[bytes] = (),
    ) -> None:
        """`pays` receives by how many bytes the memory of the ledger changes; `may_grow` says whether it may grow.
        `policy` and `chance` are those of failed events. `ahead` is what an earlier host has stored with `place`, and
        `pinned` are the keys that it has pinned."""
        self.pays = pays
        self.may_grow = may_grow
        self.outstanding_max = outstanding_max
        self.place = place.as_summary()
        """Everything at or before this position is settled. Moved by `settled_place` and `progress`."""
        self.events: dict[int, tuple[_Span | _Replay, int, Key]] = {}
        """The unsettled events by number, in stream order."""
        self.keys: dict[bytes | None, Key] = {}
        self.fields_read = FieldsRead()
        self.changes = 0
        """How often what is settled, or the number of an event's attempts, has changed."""
        self._restored = None if ahead is None else _Restored(ahead)
        self._claims: Claims | None = None
        self._forgotten: Claims | None = None
        """Claims that are used no more, while they are released."""
        self.wanted = 0
        """How many events the members could be sent now."""
        self._ready: deque[Key] = deque()
        """The keys with events that may go to any member."""
        self._behind: deque[tuple[int, bytes | None]] = deque()
        """Events after one without a key, or from that one on while it waits: number and name of the key."""
        self._deferred: deque[Key] = deque()
        """Keys of letters that were loaded while a member had an event without a key: before the next such event."""
        self._passed: deque[tuple[int, bytes | None]] | None = None
        """While the gather ends: those of `_behind` that were looked at and that nobody holds."""
        self.retries = Retries(policy, pays, may_grow, chance)
        self._alone: deque[Key] = deque()
        """The keys whose first event may go to a member only that has nothing in hand."""
        self._aside: dict[int, Key] = {}
        """The events to be set aside, by number. Each is the first of its key, of which no member has anything."""
        self._following: dict[int, Key] = {}
        """The same for pinned keys, of which all that wait are to be set aside."""
        self.on_aside: Callable[[], None] = lambda: None
        """Called when there are events to be set aside among those that were read."""
        self.on_more: Callable[[], None] = lambda: None
        """Called when there is more to do than fits into one turn of the event loop: call `go_on` in the next one."""
        self.pinned = set[bytes]()
        """The keys of which all events are to be set aside."""
        self._kept = set[int]()
        """The numbers of events of pinned keys that members hold from a lost host. Each goes to its holder, before all
        else of its key."""
        self._letters: dict[int, bytes] = {}
        """The ids of the letters that are unsettled events now, by number."""
        self.failed_letters: dict[bytes, tuple[int, int]] = {}
        """The ids of letters that have failed and are delivered again: how often they have in their replay, and how
        often by the loss of a member. Whoever stores that removes them."""
        self.letter_bytes = 0
        """The bytes of letters that were loaded and are not settled."""
        self.loading_bytes = 0
        """The bytes of letters that are read now, to be delivered again."""
        self.replayed: dict[int, tuple[bytes, Key]] = {}
        """The ids and keys of those that are settled, by number, until they are deleted."""
        # Both are counted where they change: whoever loads letters asks for them after each of thousands of keys.
        self.resting: dict[bytes, int] = {}
        """The keys of loaded letters of which nothing is delivered now: they wait for the time of another try, or until
        an event can be set aside. Each with its number of these letters."""
        self.resting_letters = 0
        """All of these letters."""
        self._nobodys = Key(None, -1)
        """The key of events that wait for one without a key."""
        self._end = self.place
        """The position after the last event recorded."""
        self._next = 0
        for name in pinned:
            self.pin(name)

    # What `Subscriber` and `FeedStreams` ask of an ordinary subscriber's acknowledgements.

    @property
    def outstanding(self) -> int:
        return len(self.events)

    @property
    def room(self) -> int:
        """Events that may be read before delivery pauses: none while the members have enough to take."""
        # What an earlier host has read is read whoever may take it: until then, little that is settled can be stored.
        if (self._restored is not None or (self.gathers and self._passed is None)) and self._may_read():
            return self.outstanding_max - len(self.events)
        if self._behind or None in self.keys or len(self._ready) >= self.wanted or not self._may_read():
            return 0
        return self.outstanding_max - len(self.events)

    def _may_read(self) -> bool:
        # Claims and pinned keys may fill the memory by themselves, and are freed by what is read: so a part at a time.
        return self.may_grow() or (not self.events and (self._claims is not None or bool(self.pinned)))

    def record(self, chunk: Chunk, first: int, stop: int) -> None:
        """Record that events `first` to `stop - 1` of `chunk` were read. Raises RESUME_TOKEN_MODIFIED if the pipeline
        has moved the `_id` of the last one out of reach."""
        self._end = chunk.place_after(stop - 1)  # first: every member that looks meets the error; it leaves nothing
        if self._restored is not None or self._claims is not None:
            self._record_again(chunk, first, stop)
        else:
            self._record(chunk, first, stop)
        if self._following:
            self.on_aside()

    def _record(self, chunk: Chunk, first: int, stop: int) -> None:
        rendition, number, count = chunk.bson, self._next, stop - first
        assert rendition is not None, "a chunk in a ring has its events"
        names = keys_of(rendition, first, stop, self.fields_read)
        span = _Span(self, chunk, rendition, count, number)
        self.pays(EVENT_BYTES * count)
        self._next += count
        if self._behind or None in names or None in self.keys:
            for index, name in enumerate(names, first):
                self.events[number] = span, index, self._nobodys
                self._behind.append((number, name))
                number += 1
            self._admit()
            return
        events, keys, get, ready, pinned = self.events, self.keys, self.keys.get, self._ready.append, self.pinned
        for index, name in enumerate(names, first):
            key = get(name)
            if key is None:
                key = keys[name] = Key(name, number)
                if name in pinned:
                    self._following[number] = key
                else:
                    ready(key)
            else:
                key.waiting.append(number)
            events[number] = span, index, key
            number += 1

    @property
    def restores(self) -> bool:
        """Whether it reads what an earlier host has read, and has settled in part. Until that is passed, the stored
        position stays: an event that is settled now may be before one that is known to be settled. What is stored with
        it (`ahead`) changes as far as is known."""
        return self._restored is not None

    def _record_again(self, chunk: Chunk, first: int, stop: int) -> None:
        """Record what an earlier host may have delivered."""
        rendition, begin, restored = chunk.bson, self._next, self._restored
        assert rendition is not None, "a chunk in a ring has its events"
        names = keys_of(rendition, first, stop, self.fields_read)
        self._next += stop - first
        if restored is None:
            left = dict.fromkeys(range(first, stop), 1)
        else:
            left = restored.unsettled(chunk, first, stop, names)
        if self._claims is not None:
            unsettled = len(left)
            self._claims.meet(rendition, left, begin - first)
            self.changes += unsettled - len(left)
        if left:
            span = _Span(self, chunk, rendition, stop - first, begin)
            span.left = len(left)
            self.pays(EVENT_BYTES * len(left))
            for index, attempts in left.items():
                number, name = begin + index - first, names[index - first]
                self.events[number] = span, index, self._nobodys
                self._behind.append((number, name))
                self.retries.restore(number, attempts)
            self._admit()
        if restored is not None and (restored.is_passed_by(self._end) or restored.is_of_other_version(self._end)):
            self._restored = None

    # What the members of a host that was lost have from it.

    def gather(self) -> None:
        """Expect claims. Call this before anything is read."""
        self._claims = Claims(self.pays)

    @property
    def gathers(self) -> bool:
        """Whether nothing is delivered yet, because members may hold it."""
        return self._claims is not None and self._claims.waits

    @property
    def expects_claims(self) -> bool:
        """Whether it does not even read yet."""
        return self._claims is not None and self._claims.gathers

    @property
    def awaits_held(self) -> bool:
        """Whether members hold events that were not read yet."""
        return self._claims is not None and self._claims.awaited > 0

    @property
    def recovers(self) -> bool:
        """Whether the next host must gather: members have something in hand, or have told what cannot be stored yet."""
        in_hand = any(key.hand is not None for key in self.keys.values())
        return in_hand or self._restored is not None or self._claims is not None

    def claim(self, hand: Hand, held: Iterable[int], settled: Iterable[int], epoch: int = 0) -> None:
        """Note what a member holds from the host of this epoch, and has settled, by `claims.claim_of`. It counts for
        events that were not read yet. Without effect at a host that need not gather, and when the memory has no
        room."""
        if self._claims is not None and self.may_grow():
            self._claims.add(hand, held, settled, epoch)

    def holds(self, hand: Hand) -> bool:
        """Whether a member without a connection has something that nobody else gets."""
        return bool(hand.again) or (self._claims is not None and self._claims.of(hand))

    def gathered(self) -> None:
        """No more claims are waited for: read until what is held was met."""
        if self._claims is not None:
            self._claims.gathers = False
            if not self._claims.awaited:
                self.end_gather()

    def end_gather(self) -> None:
        """Deliver from now on: what a member holds to that member, before the rest of its key. A lost host may have
        delivered 50,000 events, so `go_on` continues this."""
        if self.gathers and self._passed is None:
            self._passed = deque()
            self.go_on()

    def go_on(self) -> None:
        """Continue what did not fit into one turn of the event loop."""
        claims, behind, passed = self._claims, self._behind, self._passed
        self._release_claims()
        if claims is not None and passed is not None:
            claims.gathers = False
            for _ in range(min(len(behind), ENTRIES_AT_ONCE)):
                number, name = behind.popleft()
                hand = claims.holder_of(number)
                if hand is None or not self._hand_over(number, name, hand):
                    passed.append((number, name))
            if behind:
                self.on_more()
                return
            claims.waits = False
            self._behind, self._passed = passed, None
        self._admit()
        if self._following:
            self.on_aside()

    def forget_claims(self) -> None:
        """Everything was read that the lost host can have delivered."""
        if self._claims is not None and self._passed is None:
            self._forgotten, self._claims = self._claims, None
            self._release_claims()

    def _release_claims(self) -> None:
        if self._forgotten is None:
            return
        if self._forgotten.release():
            self.on_more()
        else:
            self._forgotten = None

    def _hand_over(self, number: int, name: bytes | None, hand: Hand) -> bool:
        """Reserve a key that has no events for a member that holds one. Of a pinned key, the member keeps all that it
        holds, and nobody gets what follows. Returns whether the event is the member's now."""
        key, is_pinned = self.keys.get(name), name in self.pinned
        if key is None:
            key = self.keys[name] = Key(name, number)
            key.hand = hand
            hand.again.append(key)
        elif is_pinned and key.hand is hand and not key.letters:
            key.waiting.insert(self._kept_of(key), number)
        else:
            return False
        if is_pinned:
            self._kept.add(number)
        span, index, _ = self.events[number]
        self.events[number] = span, index, key
        return True

    def _kept_of(self, key: Key) -> int:
        """How many of the events of a pinned key that wait, the first ones, its holder keeps."""
        kept, waiting = self._kept, key.waiting
        return bisect_left(range(len(waiting)), True, key=lambda at: waiting[at] not in kept) if kept else 0

    def _keeps_no_more(self, key: Key) -> None:
        """A key's holder has failed, or is lost: if the key is pinned, these events are set aside like the others."""
        self._kept.difference_update(key.waiting[: self._kept_of(key)])

    def part_of_ack(self, sequence: int) -> int:
        raise RuntimeError("the members of a group settle events")

    def ack(self, sequence: int) -> bool:
        raise RuntimeError("the members of a group settle events")

    def move_back(self, place: ResumeToken) -> None:
        raise RuntimeError("a group ends where its history is lost")

    def progress(self, place: ResumeToken) -> bool:
        """Record that everything up to `place` was read. Returns whether nothing is unsettled and `place`
        moved there."""
        if self._restored is not None:
            if not self._restored.is_passed_by(place):
                return False
            self._restored = None
        if self.events or self.place.reaches(place) or place.may_be_inside_event:
            return False
        self.place = place
        return True

    def release(self) -> bool:
        """Release what it has at the end of the group, as much of each kind as fits into one turn of the event loop.
        Returns whether there is more."""
        numbers = list[int]()
        for _ in range(min(len(self.events), ENTRIES_AT_ONCE)):
            number, (span, _, key) = self.events.popitem()
            self.keys.pop(key.name, None)
            numbers.append(number)
            span.left -= 1
            if not span.left:
                span.close()
        self.pays(-EVENT_BYTES * len(numbers))
        self.retries.forget(numbers)
        more = bool(self.events) | self.retries.release()
        passed = deque[tuple[int, bytes | None]]() if self._passed is None else self._passed
        for entries, remove in (
            (self.keys, self.keys.popitem),
            (self._ready, self._ready.pop),
            (self._alone, self._alone.pop),
            (self._deferred, self._deferred.pop),
            (self._behind, self._behind.pop),
            (passed, passed.pop),
            (self._aside, self._aside.popitem),
            (self._following, self._following.popitem),
            (self._letters, self._letters.popitem),
            (self.failed_letters, self.failed_letters.popitem),
            (self.replayed, self.replayed.popitem),
            (self._kept, self._kept.pop),
            (self.resting, self.resting.popitem),
        ):
            for _ in range(min(len(entries), ENTRIES_AT_ONCE)):
                remove()
            more |= bool(entries)
        count = min(len(self.pinned), ENTRIES_AT_ONCE)
        for _ in range(count):
            self.pinned.pop()
        self.pays(-PIN_BYTES * count)
        if self._claims is not None:
            self._forgotten, self._claims = self._claims, None
        if self._forgotten is not None and not self._forgotten.release():
            self._forgotten = None
        return more or bool(self.pinned) or self._forgotten is not None

    # What the members ask.

    @property
    def ready(self) -> int:
        """The number of keys with events that may go to any member."""
        return len(self._ready)

    @property
    def alone(self) -> int:
        """The number of keys whose next event may go only to a member with nothing in hand."""
        return len(self._alone)

    @property
    def aside(self) -> int:
        """The number of keys whose first event is to be set aside, and can be now."""
        return len(self._aside) + len(self._following)

    @property
    def failed_aside(self) -> int:
        """The same without pinned keys."""
        return len(self._aside)

    @property
    def only_rests(self) -> bool:
        """Whether nothing is left but what waits for the time of another try, to be set aside, or for such events.
        Visits all keys."""
        if self.gathers or self._ready or self._alone:
            return False
        return all(key.hand is None for key in self.keys.values())

    @property
    def acked(self) -> int:
        """Everything before this number is settled, and of the letters also deleted."""
        first = next(iter(self.events), self._next)
        return min(first, *self.replayed) if self.replayed else first

    @property
    def read_to(self) -> ResumeToken:
        """The position after the last event that was read."""
        return self._end

    @property
    def oldest_read_time_s(self) -> float | None:
        """When the first unsettled event was read."""
        return next((span.read_time_s for span, _, _ in self.events.values()), None)

    def settled_place(self) -> ResumeToken:
        """Move `place` before the first unsettled event, and return it. It stays while the ledger `restores`."""
        if self._restored is not None:
            return self.place
        place = self._end
        for span, index, _ in self.events.values():
            if isinstance(span, _Span):
                place = span.before(index)
                break
        if not self.place.reaches(place):
            self.place = place
        return self.place

    def ahead(self, holes_max: int) -> Ahead | None:
        """What is settled after `place`; None if nothing is known to be."""
        holes, of, names = dict[bytes, int](), dict[bytes, Of](), dict[bytes | None, bytes]()
        high, bytes_left = self._end, _MARKED_BYTES
        for seen, (number, (span, index, key)) in enumerate(self.events.items()):
            if isinstance(span, _Replay) or (key.name in names and key is not self._nobodys and seen < _EXAMINED_MAX):
                continue
            if key is self._nobodys or seen >= _EXAMINED_MAX or len(holes) >= holes_max:
                high = span.before(index)
                break
            if key.mark is None or key.mark[0] != number:
                raw, cost = span.id_of(index) if bytes_left > 0 else (b"", 0)
                bytes_left -= cost
                if not raw:
                    high = span.before(index)
                    break
                try:
                    key.mark = number, mark_of(raw), Of(short_of(key.name), *moment_of(raw))
                except UnknownTokenLayout:  # the pipeline has changed the `_id`
                    high = span.before(index)
                    break
            _, mark, of[mark] = key.mark
            names[key.name] = mark
            holes[mark] = self.retries.of(number).failures + 1
        if self._restored is not None:
            return self._restored.ahead(names, Ahead(high, holes, of))
        return Ahead(high, holes, of) if holes and high.is_after(self.place) else None

    def take(
        self, hand: Hand, *, events_max: int, credit_bytes: int, payload_max: int, event_max: int, runs_max: int
    ) -> Runs | NeedsRoom | None:
        """Take runs for a member, those first that it had in hand in its last session. `runs_max` limits the others. A
        member that has an event which must be alone gets nothing.

        `credit_bytes` may be overdrawn by one event. A message has at most `payload_max` bytes of events; a larger
        event goes alone, if it has no more than `event_max` bytes.
        """
        if hand.is_alone:
            return None
        again, ready, events, alone = hand.again, self._ready, self.events, False
        parts, runs, numbers = list[bytes](), list[int](), list[int]()
        size, full, has_tries, letters = 0, False, bool(self.retries), self._letters
        while not full and len(numbers) < events_max:
            if again:
                queue = again
            elif self._alone and not hand.outstanding and not numbers:
                queue = self._alone
            elif ready and runs_max > 0:
                queue, runs_max = ready, runs_max - 1
            else:
                break
            key = queue.popleft()
            run = key.waiting
            if len(run) > (most := min(RUN_MAX, events_max - len(numbers))):
                run = run[:most]
            if has_tries:
                alone = full = self.retries.is_alone(run[0])
                if alone and queue is again and (numbers or not self.retries.of(run[0]).sent_alone):
                    alone = full = False  # an earlier host has sent it with others, which the member still has
                run = run[:1] if alone else self._before_failed(run)
            if letters:
                run = self._of_one_kind(run)
            if self._kept and key.name in self.pinned:
                run = run[: self._kept_of(key) or len(run)]
            before = len(parts)
            for number in run:
                span, index, _ = events[number]
                rendition = span.rendition
                offsets = rendition.offsets
                begin, end = offsets[index], offsets[index + 1]
                length = end - begin
                if size + length > payload_max:
                    full = True
                    if parts:
                        break
                    if length > event_max:
                        queue.appendleft(key)
                        return NeedsRoom()
                parts.append(rendition.data[begin:end])
                size += length
                if size >= credit_bytes:
                    full = True
                if full:
                    break
            taken = len(parts) - before
            if not taken:
                queue.appendleft(key)
                break
            if taken < len(run):
                run = run[:taken]
            if taken < len(key.waiting):
                del key.waiting[:taken]
            else:
                key.waiting = []
            key.hand, key.flight = hand, run
            runs.append(taken)
            numbers += run
        if not parts:
            return None
        first_sequence = hand.sequence + 1
        hand.sent(numbers, alone=alone)
        if alone:
            self.retries.sent_alone(numbers[0])
        return Runs(
            first_sequence,
            len(parts),
            tuple(parts),
            size,
            size,
            self.place,
            events[numbers[0]][0].read_time_s,
            runs=runs,
            attempts=self.retries.attempts(numbers) if has_tries else (),
        )

    def settle(self, hand: Hand, first: int, last: int) -> tuple[int, int]:
        """Settle the events of a member from sequence `first` to `last`; return how many were unsettled, and their
        bytes. Raises ACK_OUT_OF_RANGE for an event that was never delivered to it."""
        events, numbers, size, letters = self.events, hand.settle(first, last), 0, self._letters
        for number in numbers:
            span, index, key = events.pop(number)
            offsets = span.rendition.offsets
            size += offsets[index + 1] - offsets[index]
            span.left -= 1
            if not span.left:
                span.close()
            if letters and (letter := letters.pop(number, None)) is not None:
                self.failed_letters.pop(letter, None)
                self.replayed[number] = letter, key
                key.deleting += 1
            if len(key.flight) > 1:
                key.flight.remove(number)
            elif key.waiting or key.deleting:
                key.flight = []
                self._freed(key)
            else:
                del self.keys[key.name]  # the same, for most
        if numbers:
            self._settled(numbers)
        return len(numbers), size

    def fail(self, hand: Hand, failure: Failure, now_s: float) -> tuple[int, int]:
        """Take a failed event back, with the rest of its run, which the member has not begun; return how many events,
        and their bytes. Nothing, if it is settled or was taken back before. Raises ACK_OUT_OF_RANGE."""
        number = hand.at(failure.sequence)
        if number is None:
            return 0, 0
        self.changes += 1
        key = self.events[number][2]
        at = key.flight.index(number)
        back, key.flight = key.flight[at:], key.flight[:at]
        hand.take_back(failure.sequence, len(back))
        self.retries.failed(number, failure, hand.member, now_s)
        self._note_letter(number)
        key.waiting[:0] = back
        self._keeps_no_more(key)
        if not key.flight:
            self._freed(key)
        return len(back), sum(map(self._size, back))

    def due(self, now_s: float) -> bool:
        """Make keys ready whose time has come, some of them (`Retries.due`). Returns whether there were some."""
        keys = self.retries.due(now_s)
        for key in keys:
            self._offer(key)
        return bool(keys)

    def to_set_aside(self) -> Iterator[SetAside]:
        """The events to be set aside because they have failed. Change nothing while you iterate."""
        return map(self._set_aside, self._aside)

    def to_follow(self, *, events_max: int, bytes_max: int) -> list[SetAside]:
        """Some events of pinned keys, those of a key in order. The first may exceed `bytes_max`."""
        found, size = list[SetAside](), 0
        for key in self._following.values():
            for number in key.waiting:
                if number in self._letters:
                    break  # it is stored; a member had what is before it, from a lost host
                size += self._size(number)
                if found and (len(found) >= events_max or size > bytes_max):
                    return found
                found.append(self._set_aside(number))
        return found

    def defer(self, number: int) -> None:
        """Let the other keys with events to be set aside come before that of this event."""
        for each in (self._aside, self._following):
            if number in each:
                each[number] = each.pop(number)

    def _set_aside(self, number: int) -> SetAside:
        span, index, key = self.events[number]
        tries, event = self.retries.of(number), span.rendition.cut(index, index + 1)
        letter = self._letters.get(number, b"")
        return SetAside(number, key.name, event, tries.deliveries, tries.reasons, tries.member, letter)

    def set_aside(self, number: int, *, pin: bool = False) -> None:
        """Settle an event of `to_set_aside` or `to_follow`, because it is stored elsewhere now, and `pin` its key.
        Without effect on one that is not in there: the group may have ended meanwhile."""
        key = self._aside.pop(number, None) or self._following.pop(number, None)
        if key is None:
            return
        self._rest(key, 0)
        if pin and key.name is not None:
            self.pin(key.name)
        left = [number]
        if number in self._letters and key.name in self.pinned:
            left = [each for each in key.waiting if each in self._letters]  # they are stored, and come again with it
        for each in left:
            span, _, _ = self.events.pop(each)
            span.left -= 1
            if not span.left:
                span.close()
            if (letter := self._letters.pop(each, None)) is not None:
                self.failed_letters.pop(letter, None)
                key.letters -= 1
        if len(left) == 1:
            key.waiting.remove(number)
        else:
            gone = set(left)
            key.waiting = [each for each in key.waiting if each not in gone]
        self._freed(key)
        self._settled(left)

    # Pinned keys, and the letters that are delivered again.

    def pin(self, name: bytes) -> None:
        """From now on, all events of this key are to be set aside."""
        if name not in self.pinned:
            self.pinned.add(name)
            self.pays(PIN_BYTES)

    def unpin(self, name: bytes) -> None:
        """Deliver the events of a key again, also those that wait to be set aside."""
        if name not in self.pinned:
            return
        self.pinned.remove(name)
        self.pays(-PIN_BYTES)
        key = self.keys.get(name)
        if key is not None and key.waiting and self._following.pop(key.waiting[0], None) is not None:
            self._offer(key)

    @property
    def may_replay(self) -> bool:
        """Whether letters may be loaded now: also while it reads what members hold, which may be letters."""
        return (not self.gathers or (self.awaits_held and not self.expects_claims)) and self.may_grow()

    @property
    def loaded(self) -> set[bytes]:
        """The ids of the letters that were loaded and are not deleted yet."""
        return {*self._letters.values(), *(letter for letter, _ in self.replayed.values())}

    @property
    def loaded_letters(self) -> int:
        """How many they are."""
        return len(self._letters) + len(self.replayed)

    def replays(self, name: bytes) -> bool:
        """Whether letters of this key were loaded and are not deleted yet."""
        key = self.keys.get(name)
        return key is not None and key.letters > 0

    @contextmanager
    def loading(self, size: int) -> Iterator[None]:
        """Count these bytes of letters while they are read."""
        self.loading_bytes += size
        self.pays(size)
        try:
            yield
        finally:
            self.loading_bytes -= size
            self.pays(-size)

    def replay(self, name: bytes, letters: Sequence[Stored], now_s: float, *, last: bool = False) -> Hand | None:
        """Deliver letters of one key again, in order: of a pinned key before its events that wait, otherwise after
        them. With the `last` letters the key is pinned no longer. Returns the member that holds one of them from an
        earlier host, and gets them. While the ledger gathers, letters that nobody holds are left out: a member may hold
        an event of their key that was not read yet."""
        claims, holder = self._claims, None
        if claims is not None:
            holder = next(filter(None, (claims.claimant_of(each.event) for each in letters)), None)
        if self.gathers and holder is None:
            return None
        span, begin = _Replay(self, [each.event for each in letters], now_s), self._next
        self._next += len(letters)
        self.pays(EVENT_BYTES * len(letters))
        numbers = list(range(begin, self._next))
        key, is_pinned = self.keys.get(name), name in self.pinned
        is_new = key is None
        if key is None:
            key = self.keys[name] = Key(name, begin)
            key.waiting = numbers
        elif is_pinned:
            is_new = bool(key.waiting) and self._following.pop(key.waiting[0], None) is not None
            at = self._kept_of(key)
            key.waiting[at:at] = numbers
        else:
            key.waiting += numbers
        key.letters += len(letters)
        if name in self.resting:
            self._rest(key, self.resting[name] + len(letters))
        for index, (number, each) in enumerate(zip(numbers, letters, strict=True)):
            self.events[number] = span, index, key
            self._letters[number] = each.letter
            self.retries.delivered(number, each.deliveries, each.failures, each.losses)
        if is_pinned and last:
            self.pinned.remove(name)
            self.pays(-PIN_BYTES)
        if not is_new:
            return None
        key.hand = holder
        if holder is None:
            self._offer(key)
        else:
            holder.again.append(key)
        return holder

    def deleted(self, numbers: Iterable[int]) -> None:
        """The letters of these events of `replayed` are deleted. What waited for that may go."""
        for number in numbers:
            _, key = self.replayed.pop(number, (b"", None))
            if key is None:
                continue
            key.deleting -= 1
            key.letters -= 1
            if key.is_parked and not key.deleting:
                key.is_parked = False
                self._freed(key)

    def disconnect(self, hand: Hand) -> None:
        """A member has lost its connection. What it has in hand stays its own, and is sent to it again, in order."""
        keys: dict[Key, None] = {}
        for number in hand.disconnect():
            keys[self.events[number][2]] = None
        for key in keys:
            key.waiting[:0] = key.flight
            key.flight = []
        hand.again.extendleft(reversed(keys))

    def give_back(self, hand: Hand, *, lost: bool) -> bool:
        """What a member has in hand goes to others, as many keys as fit into one turn of the event loop. Returns
        whether there are more. If the member was `lost`, it may have begun the first event of each run."""
        self.disconnect(hand)
        if self._claims is not None:
            self._claims.withdraw(hand)
        for _ in range(min(len(hand.again), ENTRIES_AT_ONCE)):
            key = hand.again.pop()
            if lost:
                self.changes += 1
                self.retries.lost(key.waiting[0])
                self._note_letter(key.waiting[0])
            key.hand = None
            self._keeps_no_more(key)
            self._offer(key, first=True)
        return bool(hand.again)

    def _note_letter(self, number: int) -> None:
        """An event has failed. If it comes from a letter, only there can the next host find that."""
        letter = self._letters.get(number)
        if letter is not None:
            tries = self.retries.of(number)
            if tries.exhausted:
                self.failed_letters.pop(letter, None)
            else:
                self.failed_letters[letter] = tries.failures, tries.losses

    def _freed(self, key: Key) -> None:
        """No member has anything of a key any more."""
        if key.hand is not None and self._kept_of(key):  # but what did not fit into one run
            key.hand.again.append(key)
            return
        key.hand = None
        if key.waiting:
            self._offer(key)
        elif key.deleting:
            key.is_parked = True
        else:
            del self.keys[key.name]

    def _offer(self, key: Key, *, first: bool = False) -> None:
        """Find out where a key goes next that waits and is nobody's. `first`: before other ready ones."""
        number, retries = key.waiting[0], self.retries
        if self.resting:
            self._rest(key, 0)
        if number not in self._letters:
            if key.name in self.pinned:
                self._following[number] = key
                return
            if key.deleting:
                key.is_parked = True
                return
        elif None in self.keys:
            self._deferred.append(key)
            return
        if not retries:
            (self._ready.appendleft if first else self._ready.append)(key)
        elif (tries := retries.of(number)).exhausted:
            self._aside[number] = key
            self._rest(key, key.letters - key.deleting)
        elif tries.due_s is not None:
            retries.hold(key, tries.due_s)
            self._rest(key, key.letters - key.deleting)
        elif retries.is_alone(number):
            self._alone.append(key)
        else:
            (self._ready.appendleft if first else self._ready.append)(key)

    def _rest(self, key: Key, letters: int) -> None:
        """Note how many letters of a key rest."""
        if key.name is None:
            return
        self.resting_letters += letters - self.resting.pop(key.name, 0)
        if letters:
            self.resting[key.name] = letters

    def _of_one_kind(self, waiting: list[int]) -> list[int]:
        """The first ones of `waiting` that are letters, or that are none: what follows letters waits until these are
        deleted."""
        letters = self._letters
        are_letters = waiting[0] in letters
        stops = (index for index, number in enumerate(waiting) if (number in letters) is not are_letters)
        return waiting[: next(stops, len(waiting))]

    def _before_failed(self, waiting: list[int]) -> list[int]:
        """Those of `waiting`, the first events of a key, that come before one which waits, must be alone, or is to be
        set aside."""
        ends_run = self.retries.ends_run
        stops = (index for index, number in enumerate(waiting) if ends_run(number, index))
        return waiting[: next(stops, len(waiting))]

    def _size(self, number: int) -> int:
        span, index, _ = self.events[number]
        return span.rendition.offsets[index + 1] - span.rendition.offsets[index]

    def _settled(self, numbers: list[int]) -> None:
        """Note that these events have left `events`."""
        self.changes += len(numbers)
        self.pays(-EVENT_BYTES * len(numbers))
        if self.retries:
            self.retries.forget(numbers)
        if self._kept:
            self._kept.difference_update(numbers)
        self._admit()

    def _admit(self) -> None:
        """Make what comes after an event without a key ready, as far as that one is settled."""
        behind, left = self._behind, ENTRIES_AT_ONCE
        if self.gathers:
            return
        while self._deferred and None not in self.keys:
            self._offer(self._deferred.popleft())
        while behind:
            number, name = behind[0]
            # The unsettled events without those in `_behind`.
            if None in self.keys or (name is None and len(self.events) > len(behind)):
                return
            if not left:
                self.on_more()
                return
            left -= 1
            behind.popleft()
            hand = self._claims.holder_of(number) if self._claims is not None else None
            if hand is not None and self._hand_over(number, name, hand):
                continue
            key = self.keys.get(name)
            if key is None:
                key = self.keys[name] = Key(name, number)
                self._offer(key)
            else:
                key.waiting.append(number)
            span, index, _ = self.events[number]
            self.events[number] = span, index, key
