"""Tracks the events of a group's member: which it may hand out, which it has in hand, and what it reports.

Events come in runs, each of one key. One event of a run is in hand at a time, so the events of a key are processed in
order however many workers take from here, and a failed event returns the rest of its run untouched.

The server's delivery sequences restart with every stream (one Subscribe call). When a stream is lost, events that wait
here are forgotten, because the server sends them again; those in hand stay in hand. A repeat is recognized by its
`_id`: in hand, it takes its new sequence and is not handed out again; finished meanwhile, it is settled at once. Runs
that begin with a repeat come first, and may continue with new events. What has not come before the first other run is
void: others have it, unless it is a dead letter, which may come later.

If the server that hosted the group was lost, the next one asks what it left here: the events in hand (`held`), and
those that were processed and may not be stored as settled (`settled`). These are bounded: of more than the last 2,000,
some may come again then.

Pure; `member_buffer` owns one and locks it.

Invariants: `_in_hand` never exceeds the window, also with events that became void and are never settled: above that,
none is handed out. `_outstanding` is what the server counts as unsettled less what was reported and not read yet, so it
never exceeds the window either. `_unconfirmed` holds what the server may not have read: it sends only what has room in
the window, so each event that arrives shows how many settlements it has read, and they are read in the order of
sending.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import Final

from feedmux.batches import Batch
from feedmux.delivery_tracker import token_of
from feedmux.errors import ProtocolError
from feedmux.member_event import MemberEvent, Owner, Run
from feedmux.outcomes import Done, Failed, Outcome
from feedmux.positions import token_time

MESSAGE_BYTES_MAX: Final = 16_000
RANGE_BYTES: Final = 24
FAILED_BYTES: Final = 48
"""The most that a range, and a failed event without its reason, take in a Settle. So it has less than 1,000."""

CLAIMS_MAX: Final = 2_000
"""The most events in hand, and settled ones, that an Open names."""


def mark_of(token: bytes) -> int:
    """Return the mark of the event with this `_id`: see `Open.held`."""
    return int.from_bytes(sha256(token).digest()[:8], "little")


@dataclass(slots=True)
class _Finished:
    """A settled event of which the server may not know."""

    token: bytes
    attempt: int
    outcome: Outcome
    returned: int = 0
    """Events of its run that it returns with it."""
    told: bool = False
    """A host that follows a lost one knows from `Open` that it is settled, or, if it has failed, that nobody holds it:
    it need not come again to this member."""
    sequence: int = 0
    """By which it was reported last; 0 before."""
    stored: bool = False
    """The server has stored that it is settled."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What one Settle says: ranges of sequences that are done, and failed ones."""

    done: Sequence[tuple[int, int]]
    failed: Sequence[tuple[int, Failed]]


class Settlements:
    """The events of one member, over all its streams."""

    def __init__(self, window_events: int, owner: Owner) -> None:
        self._window = window_events
        self._owner = owner
        self._received = 0
        """Events of the present stream."""
        self._arrived = 0
        """Events of all streams."""
        self._outstanding = 0
        self._ready: deque[Run] = deque()
        self._runs: dict[Run, None] = {}
        """The runs with events that wait."""
        self._in_hand: dict[MemberEvent, None] = {}
        self._unsent: list[tuple[int, _Finished]] = []
        self._unconfirmed: deque[_Finished] = deque()
        self._reported = 0
        """Events of the present stream that were reported as settled or returned."""
        self._unconfirmed_events = 0
        self._expected: dict[bytes, MemberEvent | _Finished | None] = {}
        """By `_id`, what may be repeated: in hand, finished, or forgotten (None)."""
        self._void: dict[bytes, MemberEvent] = {}
        """By `_id`, events in hand that others may have got. They may come again, and are not handed out twice then:
        dead letters are before the group's position, and a host that follows a lost one may deliver others first."""
        self._late: dict[bytes, _Finished] = {}
        """By `_id`, the last void events that have finished."""
        self._passed = 0, 0
        """In the present stream: everything before this cluster time is settled, and comes again as dead letters only,
        or because the position was moved: then this is before it."""
        self._settled: deque[tuple[int, int]] = deque(maxlen=CLAIMS_MAX)
        """The events that were processed last and may not be stored as settled: the sequence in the present stream (0:
        in none), and the mark."""

    @property
    def held(self) -> list[int]:
        """While there is no stream: the marks of the events in hand."""
        known = [*self._expected.items(), *self._void.items()]
        return [mark_of(token) for token, what in known if isinstance(what, MemberEvent)][:CLAIMS_MAX]

    @property
    def settled(self) -> list[int]:
        """The marks of the events that were processed and may not be stored as settled."""
        return [mark for _, mark in self._settled]

    def committed(self, sequence: int) -> None:
        """Note that everything up to this sequence of the present stream is stored as settled."""
        if any(0 < each <= sequence for each, _ in self._settled):
            left = [each for each in self._settled if not 0 < each[0] <= sequence]
            self._settled = deque(left, CLAIMS_MAX)
        for finished in self._unconfirmed:
            finished.stored = finished.stored or finished.sequence <= sequence

    def all_stored(self) -> None:
        """Note that the server has ended the stream as asked: it has stored all that was reported, or told to it."""
        self._unconfirmed.clear()
        self._unconfirmed_events = 0
        for token in [token for token, what in self._expected.items() if isinstance(what, _Finished) and what.told]:
            del self._expected[token]

    @property
    def unconfirmed(self) -> int:
        """How many settled events the server may not know as settled."""
        expected = (each for each in self._expected.values() if isinstance(each, _Finished))
        finished = (*self._unconfirmed, *(each for _, each in self._unsent), *expected)
        return sum(not each.stored for each in finished)

    @property
    def ready(self) -> int:
        """How many events can be taken now."""
        return min(len(self._ready), max(0, self._window - len(self._in_hand)))

    @property
    def unsent(self) -> int:
        """How many settled events are not reported."""
        return len(self._unsent)

    @property
    def idle(self) -> bool:
        """Whether no event waits or is in hand."""
        return not self._in_hand and not self._runs

    @property
    def holds_any(self) -> bool:
        """Whether the server may keep events for this member, or may not know that some are settled."""
        return bool(self._unsent or self._unconfirmed or self._expected or not self.idle)

    @property
    def awaits_repeats(self) -> bool:
        """Whether finished events may come again, and only then can be reported."""
        return any(isinstance(each, _Finished) and not each.told for each in self._expected.values())

    def limit(self, window_events: int) -> None:
        """Set the server's limit of the window. 0 means unknown."""
        if window_events:
            self._window = min(self._window, window_events)

    @property
    def must_report(self) -> bool:
        """Whether to report without delay: a quarter of the window is settled, or nothing else will be soon."""
        unsent = len(self._unsent)
        return unsent > 0 and (unsent * 4 >= self._window or self.idle)

    def lose(self) -> None:
        """Note that the stream has ended."""
        for finished in (*self._unconfirmed, *(each for _, each in self._unsent)):
            if finished.token:
                self._expected[finished.token] = finished
        # After those: an event that has failed may have been delivered again since.
        for run in self._runs:
            for event in run.waiting:
                self._expect(event, None)
            run.waiting.clear()
        for event in self._in_hand:
            # An event of an earlier stream that has become void stays so.
            if event.delivery:
                event.delivery = 0
                self._expect(event, event)
        self._runs.clear()
        self._ready.clear()
        self._unsent.clear()
        self._unconfirmed.clear()
        self._received = self._outstanding = self._reported = self._unconfirmed_events = 0
        self._passed = 0, 0
        self._settled = deque(((0, mark) for _, mark in self._settled), CLAIMS_MAX)

    def tell(self, *, told: bool) -> None:
        """Note that an Open says `held` and `settled`; or that it has reached the host of the stream before it, which
        holds what has finished for this member."""
        for finished in self._expected.values():
            if isinstance(finished, _Finished):
                finished.told = told

    def forget(self) -> None:
        """Forget all events: the stored position was moved on purpose, so they may be delivered again."""
        self.lose()
        self._expected.clear()
        self._void.clear()
        self._late.clear()
        self._settled.clear()

    def progress(self, time: tuple[int, int]) -> None:
        """Note that everything at or before this cluster time is settled: what was expected up to it is void."""
        if time == (0, 0):
            return
        self._passed = time
        for token in [token for token in self._expected if (token_time(token) or time) < time]:
            self._give_up(token, self._expected.pop(token))

    def arrive(self, first: int, batch: Batch, runs: Sequence[int], attempts: Sequence[int]) -> None:
        """Take a delivery. Raises ProtocolError."""
        count = len(batch)
        if first != self._received + 1:
            raise ProtocolError(f"delivery {first} came where {self._received + 1} was due")
        if sum(runs) != count or (attempts and len(attempts) != count):
            raise ProtocolError(f"a batch of {count} events has other numbers of runs or attempts")
        self._received += count
        self._outstanding += count
        if self._outstanding > self._window:
            raise ProtocolError(f"{self._outstanding - self._window} events more than the window")
        batch.first_sequence = self._arrived + 1
        self._arrived += count
        self._confirm()
        index = 0
        for size in runs:
            self._take_run(first, batch, index, size, attempts)
            index += size

    def take(self) -> MemberEvent | None:
        """Hand out an event, if one waits whose run is free, and fewer than a window are in hand."""
        if not self._ready or len(self._in_hand) >= self._window:
            return None
        run = self._ready[0]
        event = run.waiting[0]
        # No call stands between these: a signal handler raises before all of them, or after.
        del self._ready[0]
        del run.waiting[0]
        run.current = event
        if not run.waiting:
            del self._runs[run]
        self._in_hand[event] = None
        return event

    def settle(self, event: MemberEvent, outcome: Outcome) -> None:
        """Note what became of an event in hand. A settled event changes nothing."""
        if event.outcome is not None:
            return
        run, token, is_done = event.run, token_of(event.batch, event.index), isinstance(outcome, Done)
        finished = _Finished(token, event.attempt, outcome)
        marks = [(event.delivery, mark_of(token))] if token and is_done else []
        nothing: deque[MemberEvent] = deque()
        returned = 0 if is_done else len(run.waiting)
        # No call stands between these: a signal handler raises before all of them, or after.
        event.outcome = outcome
        if event in self._in_hand:
            del self._in_hand[event]
        run.current = None
        if returned:
            finished.returned = returned
            run.waiting = nothing
            del self._runs[run]
        was_void = False
        if event.delivery:
            self._unsent += [(event.delivery, finished)]
        elif token and token in self._expected and self._expected[token] is event:
            self._expected[token] = finished
        else:
            marks = []
            if token in self._void and self._void[token] is event:
                del self._void[token]
                was_void = True
        self._settled += marks
        if run.waiting:
            # At the front: whoever has settled the event takes the next one of its run.
            self._ready.appendleft(run)
        if was_void:
            self._give_up(token, finished)

    def outgoing(self) -> list[Settlement]:
        """Return the reports of what is settled, which then count as sent."""
        messages: list[Settlement] = []
        ranges: list[tuple[int, int]] = []
        failed: list[tuple[int, Failed]] = []
        size = 0
        for sequence, finished in sorted(self._unsent, key=itemgetter(0)):
            outcome = finished.outcome
            if isinstance(outcome, Done) and ranges and ranges[-1][1] == sequence - 1:
                ranges[-1] = ranges[-1][0], sequence
                continue
            needed = RANGE_BYTES if isinstance(outcome, Done) else FAILED_BYTES + len(outcome.reason.encode())
            if size + needed > MESSAGE_BYTES_MAX:
                messages.append(Settlement(ranges, failed))
                ranges, failed, size = [], [], 0
            size += needed
            if isinstance(outcome, Done):
                ranges.append((sequence, sequence))
            else:
                failed.append((sequence, outcome))
        if ranges or failed:
            messages.append(Settlement(ranges, failed))
        for sequence, finished in self._unsent:
            finished.sequence = sequence
            events = 1 + finished.returned
            self._unconfirmed.append(finished)
            self._unconfirmed_events += events
            self._reported += events
            self._outstanding -= events
        self._unsent.clear()
        return messages

    def _expect(self, event: MemberEvent, what: MemberEvent | None) -> None:
        token = token_of(event.batch, event.index)
        if token:
            self._expected[token] = what

    def _confirm(self) -> None:
        """Forget what the server has read for certain."""
        unread = self._reported - max(0, self._received - self._window)
        while self._unconfirmed:
            events = 1 + self._unconfirmed[0].returned
            if self._unconfirmed_events - events < unread:
                return
            self._unconfirmed_events -= events
            self._unconfirmed.popleft()

    def _take_run(self, first: int, batch: Batch, begin: int, size: int, attempts: Sequence[int]) -> None:
        run = Run()
        for index in range(begin, begin + size):
            event = MemberEvent(batch, index, (attempts[index] or 1) if attempts else 1, self._owner, run)
            event.delivery = first + index
            if self._expected or self._void or self._late:
                if index == begin and token_of(batch, index) not in self._expected:
                    for each in self._expected.items():
                        self._give_up(*each)
                    self._expected.clear()
                repeated = self._repeated(event)
                if isinstance(repeated, MemberEvent):
                    run = repeated.run
                    continue
                if isinstance(repeated, _Finished):
                    if isinstance(repeated.outcome, Failed):
                        repeated.returned = begin + size - index - 1
                        return
                    continue
            if not run.waiting:
                self._runs[run] = None
                if run.current is None:
                    self._ready.append(run)
            run.waiting.append(event)

    def _give_up(self, token: bytes, what: MemberEvent | _Finished | None) -> None:
        if isinstance(what, MemberEvent):
            self._void[token] = what
        elif what is not None and not what.stored:
            self._late[token] = what
            if len(self._late) > CLAIMS_MAX:
                del self._late[next(iter(self._late))]

    def _repeated(self, event: MemberEvent) -> MemberEvent | _Finished | None:
        """Give an event that was delivered before its new sequence, if it is in hand or finished. None: hand it out."""
        token = token_of(event.batch, event.index)
        known, late = self._expected.pop(token, None) or self._void.pop(token, None), self._late.pop(token, None)
        if known is None and late is not None and event.attempt <= late.attempt:
            # Otherwise others may have had it, or it is to be processed again.
            known = late if (token_time(token) or self._passed) < self._passed else None
        if isinstance(known, MemberEvent):
            known.delivery = event.delivery
        elif known is not None:
            if isinstance(known.outcome, Failed) and event.attempt > known.attempt:
                return None  # The server knows that it failed, and tries again.
            known.stored = False
            self._unsent.append((event.delivery, known))
        return known
