"""A seeded group: members with processing times of their own that join, leave, lose their connection and die, hosts
that crash, rings that evict, events without a key, events that fail and events that end their worker. Its checks raise
`Wrong`."""

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from feedmux_server.core.delivery.key_ledger import KeyLedger
from feedmux_server.core.delivery.key_runs import Hand, Runs
from feedmux_server.core.delivery.retry import Failure, RetryPolicy
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.positions.ahead import Ahead, mark_of
from feedmux_server.core.positions.position import PositionEncoder, inspect_position
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.stored_order import group_order
from tests.sim.events import BEGIN, event_token
from tests.unit.core.delivery.group_events import DROPPED, START, chunks_of, group_event, number_of

RECONNECT_S = 3.0
COMMIT_S = 0.5
POSITIONS = PositionEncoder(PositionKeys([bytes(32)]), b"scopekey", b"streamky")
DONE_BY_S = 600.0


class Wrong(Exception):
    """A promise of groups was broken."""


class Worker:
    def __init__(self, rng: random.Random) -> None:
        self.hand = Hand()
        self.window = rng.choice((4, 16, 64))
        self.threads = rng.choice((1, 1, 4))
        self.alive = self.linked = True
        self.closing = False
        self.queue: deque[list[tuple[int, int]]] = deque()
        """Runs of (sequence, event) that nobody has begun."""
        self.busy = 0
        self.held: set[int] = set()
        """Events received, or under way to it, that the host does not know to be settled."""
        self.unsent: list[tuple[int, int, list[int]]] = []
        """What the host does not know: sequences that are done, with their events; or that failed, with all events
        that the worker returns by that."""
        self.session = 0


class GroupWorld:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_s = 0.0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        count, keys = rng.randint(50, 400), rng.choice((3, 20, 200))
        self.keys: list[Any] = [DROPPED if rng.random() < 0.005 else rng.randrange(keys) for _ in range(count)]
        time, txn, self.tokens = BEGIN, 0, list[ResumeToken]()
        for _ in range(count):
            time, txn = (time, txn + 1) if self.tokens and rng.random() < 0.2 else (time + 1, 0)
            self.tokens.append(event_token(time, txn, key=len(self.tokens)))
        self.events = [
            group_event(n, key, token) for n, (key, token) in enumerate(zip(self.keys, self.tokens, strict=True))
        ]
        self.workers: list[Worker] = []
        self.done: set[int] = set()
        self.letters: set[int] = set()
        """Events that were set aside."""
        self.sick = {n: rng.choice((1, 2, 3)) for n in range(count) if rng.random() < 0.05}
        """How often an event fails, until a worker can process it."""
        self.poison = {n: rng.choice((1, 3)) for n in range(count) if rng.random() < 0.004}
        """How many workers an event ends."""
        self.begun: Counter[int] = Counter()
        self.policy = RetryPolicy(0.1, 2.0, rng.choice((0, 3)))
        self.repeats = self.deliveries = self.crashes = 0
        self.failures: Counter[int] = Counter()
        """Failed deliveries, as this host has seen them."""
        self.losses: Counter[int] = Counter()
        """Of these, lost with the member when the event was the first of its run."""
        self.until: dict[int, float] = {}
        """Not before this time, events are delivered again."""
        self._last_of: dict[Any, int] = {}
        self.marks = [mark_of(token.raw) for token in self.tokens]
        self.stored = START
        self.ahead: Ahead | None = None
        self.order = self.data = b""
        self.holes_max = rng.choice((2, 10, 1000))
        self.surely: set[int] = set()
        """What is stored as settled: never again delivered."""
        self.paid = 0
        self.epoch = 0
        self.host_up = True
        self._open()

    def at(self, after_s: float, what: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._agenda, (self.now_s + after_s, next(self._count), what, arguments))

    # The host.

    def _open(self) -> None:
        self.epoch += 1
        self.paid = 0
        self.losses.clear()
        self.failures.clear()
        self.until.clear()
        if self.ahead is not None:
            for n, mark in enumerate(self.marks):
                self.failures[n] = self.ahead.holes.get(mark, 1) - 1
        most = self.rng.choice((10, 100, 1000))
        self.ledger = KeyLedger(
            self.stored, most, self._pays, policy=self.policy, chance=self.rng.random, ahead=self.ahead
        )
        self.ledger.wanted = 1 << 30
        self.slowness = self.rng.choice((0.0, 0.95))
        """How rarely a new host reads a portion of what an earlier one has read."""
        ring = chunks_of(self.events, self.rng.choice((3, 20, 100)))
        self.unread = deque((chunk, first) for chunk in ring if (first := chunk.first_after(self.stored)) < chunk.count)
        self.ring: deque[Chunk] = deque(ring)
        self.at(0, self._serve, self.epoch)
        self.at(COMMIT_S, self._commit, self.epoch)

    def is_over(self, n: int) -> bool:
        return n in self.done or n in self.letters

    def _pays(self, size: int) -> None:
        self.paid += size

    def _commit(self, epoch: int) -> None:
        if epoch != self.epoch or not self.host_up:
            return
        self.at(COMMIT_S, self._commit, epoch)
        if self.ledger.restores:
            return
        place, before = self.ledger.settled_place(), self.ledger.acked
        order = place.cluster_time.to_bytes(8) + group_order(place, self.epoch, self.ledger.changes)
        data = POSITIONS.encode_ahead(place, lambda most: self.ledger.ahead(min(most, self.holes_max)))
        if self.stored.is_after(place) or (order <= self.order and data != self.data):
            raise Wrong("the position moved back, or would not be stored")
        position = inspect_position(data)
        self.stored, self.ahead, self.order, self.data = position.token, position.ahead, order, data
        self._check_attempts()
        self.surely.update(self._covered())
        for n in self.surely:
            if not self.is_over(n):
                raise Wrong(f"{n} is stored as settled, and nobody has processed it")
        for worker in self.workers:
            worker.hand.stored(before)
            for sequence, *_ in worker.unsent:
                if sequence <= worker.hand.committed:
                    raise Wrong(f"sequence {sequence} is stored, and was not settled")

    def _check_attempts(self) -> None:
        holes = {} if self.ahead is None else self.ahead.holes
        for n, mark in enumerate(self.marks):
            if mark in holes and holes[mark] != self.failures[n] + 1:
                raise Wrong(f"{n} has failed {self.failures[n]} times, and {holes[mark] - 1} are stored")

    def _covered(self) -> Iterator[int]:
        """The events that are settled by what is stored."""
        high, holes = (self.stored, {}) if self.ahead is None else (self.ahead.high, self.ahead.holes)
        unsettled = set[Any]()
        for n, (token, key) in enumerate(zip(self.tokens, self.keys, strict=True)):
            if token.is_after(high):
                return
            if not token.is_after(self.stored):
                yield n
            elif self.marks[n] in holes or key in unsettled:
                unsettled.add(key)
            else:
                yield n

    def _serve(self, epoch: int) -> None:
        if epoch != self.epoch or not self.host_up:
            return
        ledger, rng = self.ledger, self.rng
        ledger.due(self.now_s)
        if rng.random() < 0.3:  # else what keeps them is unavailable
            self._set_aside()
        slow = ledger.restores and rng.random() < self.slowness
        while (room := ledger.room) > 0 and self.unread and not slow:
            slow = ledger.restores
            while room > 0 and self.unread:  # as a subscriber, which takes several chunks at once
                chunk, first = self.unread.popleft()
                stop = min(chunk.count, first + room, first + rng.randint(1, 30))
                ledger.record(chunk, first, stop)
                room -= stop - first
                if stop < chunk.count:
                    self.unread.appendleft((chunk, stop))
                    break
        unread = self.unread[0][0] if self.unread else None
        while self.ring and self.ring[0] is not unread and rng.random() < 0.3:
            chunk = self.ring.popleft()
            chunk.drop_bytes() if rng.random() < 0.8 else chunk.retain_whole()
        for worker in rng.sample(self.workers, len(self.workers)):
            if worker.alive and worker.linked and not worker.closing:
                self._send(worker)
        self.at(0.01, self._serve, epoch)

    def _set_aside(self) -> None:
        for event in list(self.ledger.to_set_aside()):
            n = number_of(event.event)
            if not 0 < self.policy.attempts_max <= self.failures[n] == event.deliveries:
                raise Wrong(f"{n} is set aside after {self.failures[n]} failures")
            if any(self.keys[held] == self.keys[n] for worker in self.workers for held in worker.held):
                raise Wrong(f"{n} is set aside while its key is out")
            self.letters.add(n)
            self.ledger.set_aside(event.number)

    def _send(self, worker: Worker) -> None:
        room = worker.window - worker.hand.outstanding
        taken = self.ledger.take(
            worker.hand,
            events_max=room,
            credit_bytes=1 << 20,
            payload_max=self.rng.choice((500, 1 << 20)),
            event_max=1 << 20,
            runs_max=self.rng.choice((1, 10, 100)),
        )
        if not isinstance(taken, Runs):
            return
        sequence, parts = taken.first_sequence, list(map(number_of, taken.parts))
        attempts = list(taken.attempts) or [1] * taken.count
        if attempts != [1 + self.failures[n] for n in parts]:
            raise Wrong(f"attempts {attempts} of {parts}")
        for count in taken.runs:
            run = [(sequence + index, n) for index, n in enumerate(parts[:count])]
            sequence, parts = sequence + count, parts[count:]
            for _, n in run:
                self._delivered(worker, n)
            self.at(self.rng.uniform(0.0005, 0.004), self._arrive, worker, run, worker.session)

    def _delivered(self, worker: Worker, n: int) -> None:
        self.deliveries += 1
        key = self.keys[n]
        if n in self.surely:
            raise Wrong(f"{n} was settled and stored, and comes again")
        if self.until.pop(n, 0.0) > self.now_s:
            raise Wrong(f"{n} comes again before its time")
        for alone in (n, *worker.held):
            if self.losses[alone] >= 2 and worker.held - {alone}:
                raise Wrong(f"{alone} is not alone")
            if self.losses[alone] >= 2 and alone != n:
                raise Wrong(f"{n} goes to a worker where {alone} must be alone")
        for other in self.workers:
            for held in other.held - {n} if other is worker else other.held:
                if key is DROPPED or self.keys[held] is DROPPED:
                    raise Wrong(f"{n} and {held}, one of them without a key, are out at one time")
                if self.keys[held] == key and (other is not worker or held > n):
                    raise Wrong(f"{n} of key {key} is out with {held}")
        worker.held.add(n)

    # The workers.

    def _arrive(self, worker: Worker, run: list[tuple[int, int]], session: int) -> None:
        if worker.alive and worker.linked and session == worker.session:
            if len(run) > 1 and self.rng.random() < 0.05:
                self._fails(worker, [run.pop()])  # out of order
            worker.queue.append(run)
            self._work(worker)

    def _work(self, worker: Worker) -> None:
        while worker.alive and worker.queue and worker.busy < worker.threads:
            worker.busy += 1
            self._step(worker, worker.queue.popleft(), worker.session)

    def _step(self, worker: Worker, run: list[tuple[int, int]], session: int) -> None:
        if not worker.alive:
            return
        if not run or session != worker.session:
            worker.busy -= 1
            self._work(worker)
            return
        slow_s = self.rng.uniform(0.5, 2) if self.rng.random() < 0.01 else 0.0
        self.at(self.rng.expovariate(1000) + slow_s, self._finish, worker, run, session)

    def _finish(self, worker: Worker, run: list[tuple[int, int]], session: int) -> None:
        if not worker.alive:
            return
        (sequence, n), *rest = run
        self.begun[n] += 1
        if self.begun[n] <= self.poison.get(n, 0):
            self._kill(worker)
            return
        if self.begun[n] <= self.sick.get(n, 0):
            if session == worker.session:
                self._fails(worker, run)
            self._step(worker, [], session)
            return
        self.repeats += self.is_over(n)
        if not self.is_over(n):
            key = self.keys[n]
            if key is not DROPPED and self._last_of.get(key, -1) > n:
                raise Wrong(f"{n} of key {key} after {self._last_of[key]}")
            for earlier in range(n):
                if DROPPED in (key, self.keys[earlier]) and not self.is_over(earlier):
                    raise Wrong(f"{n} before {earlier}, and one of them has no key")
            self._last_of[key] = n
        self.done.add(n)
        if session == worker.session:
            worker.unsent.append((sequence, n, []))
            self.at(self.rng.uniform(0.0005, 0.005), self._settle, worker)
        self._step(worker, rest, session)

    def _fails(self, worker: Worker, run: list[tuple[int, int]]) -> None:
        """The first event of `run` has failed, and the others were not begun."""
        worker.unsent.append((*run[0], [n for _, n in run]))
        self.at(self.rng.uniform(0.0005, 0.005), self._settle, worker)

    def _settle(self, worker: Worker) -> None:
        if not (worker.linked and worker.alive and self.host_up):
            return
        for sequence, n, back in worker.unsent:
            if back:
                self._fail(worker, sequence, n, back)
                continue
            first = self.rng.choice((sequence, max(1, sequence - 2)))
            if all(worker.hand.at(before) is None for before in range(first, sequence)):  # settled again
                self.ledger.settle(worker.hand, first, sequence)
            else:
                self.ledger.settle(worker.hand, sequence, sequence)
            worker.held.discard(n)
        worker.unsent = []

    def _fail(self, worker: Worker, sequence: int, n: int, back: list[int]) -> None:
        after_s = self.rng.choice((None, 0.0, self.rng.uniform(0, 1)))
        failure = Failure(sequence, after_s, "failed" * self.rng.randrange(3))
        returned, _ = self.ledger.fail(worker.hand, failure, self.now_s)
        if not returned:
            return  # with an earlier event of its run
        if returned > len(back):
            raise Wrong(f"{returned} events came back with {n}, and the worker has begun some of them")
        worker.held.difference_update(back)
        self.failures[n] += 1
        least_s = self.policy.first_s / 2 if after_s is None else after_s
        self.until[n] = self.now_s + least_s

    # What happens to them.

    def _leave(self, worker: Worker, *, lost: bool) -> None:
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        worker.alive = False
        worker.held = set()
        if self.host_up:
            if lost:
                hand = worker.hand
                in_flight = {id(key): key for _, _, key in map(self.ledger.events.__getitem__, hand.in_hand)}
                for key in [*in_flight.values(), *hand.again]:
                    first = (key.flight or key.waiting)[0]
                    span, index, _ = self.ledger.events[first]
                    n = number_of(span.rendition.cut(index, index + 1))
                    self.losses[n] += 1
                    self.failures[n] += 1
            self.ledger.give_back(worker.hand, lost=lost)

    def _kill(self, worker: Worker) -> None:
        worker.alive = False
        worker.held = set()
        self.at(self.rng.uniform(0.01, RECONNECT_S), self._gone, worker, self.epoch)

    def _gone(self, worker: Worker, epoch: int) -> None:
        if epoch == self.epoch or not worker.alive:
            self._leave(worker, lost=True)

    def _cut(self, worker: Worker) -> None:
        worker.linked = False
        if self.rng.random() < 0.7:
            self.at(self.rng.uniform(0.01, RECONNECT_S * 0.9), self._back, worker, self.epoch)
        else:
            self.at(RECONNECT_S, self._gone, worker, self.epoch)

    def _back(self, worker: Worker, epoch: int) -> None:
        """A new session of the same instance: it waits for what it has begun, as if it recognized it."""
        if epoch != self.epoch or not worker.alive or not self.host_up:
            return
        if worker.busy:
            worker.queue.clear()
            self.at(0.05, self._back, worker, epoch)
            return
        self.ledger.disconnect(worker.hand)
        worker.session += 1000
        worker.queue.clear()
        worker.unsent, worker.held, worker.linked = [], set(), True

    def _close(self, worker: Worker) -> None:
        worker.closing = True
        worker.held -= {n for run in worker.queue for _, n in run}
        worker.queue.clear()
        self._end(worker)

    def _end(self, worker: Worker) -> None:
        if worker not in self.workers or not worker.alive:
            return
        if worker.busy or worker.unsent:
            self.at(0.05, self._end, worker)
            return
        self._leave(worker, lost=False)

    def _crash(self) -> None:
        self.crashes += 1
        self.host_up = False
        self.at(1.0, self._host_again)

    def _crash_again(self, epoch: int) -> None:
        if epoch == self.epoch and self.host_up:
            self._crash()

    def _host_again(self) -> None:
        if any(worker.alive and worker.busy for worker in self.workers):
            self.at(0.1, self._host_again)  # members finish what they have in hand before they join the new host
            return
        self.host_up = True
        if self.rng.random() < 0.3:
            self.at(self.rng.uniform(0.1, 2.0), self._crash_again, self.epoch + 1)
        self.workers = [worker for worker in self.workers if worker.alive and not worker.closing]
        self._open()
        for worker in self.workers:
            worker.hand, worker.linked, worker.session = Hand(), True, self.epoch
            worker.queue.clear()
            worker.unsent, worker.held = [], set()

    def _join(self) -> None:
        worker = Worker(self.rng)
        worker.session = self.epoch
        self.workers.append(worker)

    def _fault(self) -> None:
        if not self.host_up:
            return
        live = [worker for worker in self.workers if worker.alive and worker.linked and not worker.closing]
        what = self.rng.choice(("join", "join", "close", "kill", "cut", "crash"))
        if what == "join":
            self._join()
        elif what == "crash":
            self._crash()
        elif live:
            {"close": self._close, "kill": self._kill, "cut": self._cut}[what](self.rng.choice(live))

    def _ensure(self) -> None:
        if self.host_up and not any(each.alive and each.linked and not each.closing for each in self.workers):
            self._join()
        self.at(1.0, self._ensure)

    def run(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self._join()
        for _ in range(self.rng.randint(0, 12)):
            self.at(self.rng.uniform(0, 4), self._fault)
        self.at(1.0, self._ensure)
        while self._agenda and self.now_s < DONE_BY_S:
            self.now_s, _, what, arguments = heapq.heappop(self._agenda)
            what(*arguments)
            if not self.ledger.events and not self.unread and self.host_up:
                break
        missing = sum(not self.is_over(n) for n in range(len(self.events)))
        if missing or self.ledger.events:
            raise Wrong(f"{missing} were never processed, {len(self.ledger.events)} not settled")
        if self.ledger.keys or self.paid or any(chunk.readers for chunk in self.ring):
            raise Wrong(f"left at the end: {len(self.ledger.keys)} keys, {self.paid} bytes, or held chunks")
        if self.ledger.settled_place() != self.tokens[-1]:
            raise Wrong("all is settled, and the position is before the last event")
