"""Drives the fan-out (`core`) through a seeded run of joins, writes, faults and slow clients, and records what is seen.

`python -m tests.model.simulator SEED [--actions N] [--history FILE]` runs one seed again. The reference is naive: a
session must see all events behind its place, in order and once. `World` plays the hub, the sessions' loop, the clients
and the place store; `checks` looks into the parts after every action, `checkers` at the record in the end.
"""

import argparse
import itertools
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feedmux_server.core.ack_tracker import AckTracker
from feedmux_server.core.chunk import View
from feedmux_server.core.credit import CreditLimits, CreditWindow
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feed_streams import FeedStreams, StreamLimits
from feedmux_server.core.quota import UNLIMITED_QUOTAS, Accounts
from feedmux_server.core.replay_buffer import RingLimits
from feedmux_server.core.resume_token import ResumeToken
from feedmux_server.core.shared_stream import SharedStream, StreamState
from feedmux_server.core.slots import Slots
from feedmux_server.core.subscriber import BSON, Delivery, Ended, JoinPoint, NeedsRender, Subscriber
from tests.model import records
from tests.model.checkers import Violation, check
from tests.model.checks import check_world, raw_bytes
from tests.model.clients import FakeClient, FakeStore
from tests.model.fake_pump import FakePump
from tests.model.source import SECOND, FakeSource
from tests.sim.tokens import event_token, hex_of

EVENT_BYTES_MIN: Final = 150
EVENT_BYTES_MAX: Final = 1100
"""What one event of `source` may cost, a chunk of its own included."""

TEXT_BYTES: Final = 12
TEXT_TAG: Final = b"tag"
"""Stands before each text in a message, and is no part of the event."""
"""The other wire format of the model: each event as its number in so many digits."""

_LOUD: Final = (ErrorReason.INTERNAL, ErrorReason.PIPELINE_FAILED)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run draws for itself, so that a test may fix it."""

    actions: int = 60
    inspect: bool = True
    """Look into the parts after every action."""


class World:
    """One run."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.rng = rng = random.Random(seed)
        self.settings = settings
        self.source = FakeSource(rng, split=rng.random() < 0.25)
        self.batch_events_max = rng.choice((2, 5, 20))
        self.chunk_bytes_max = rng.choice((300, 1000, 8000))
        self.limits = self._draw_limits()
        self.trailing_max = rng.choice((1, 2, 4))
        self.unacked_max = rng.choice((3, 10, 50))
        self.faulty = rng.random() < 0.6
        self.failing = False
        self.slots = Slots(self.trailing_max, Accounts(lambda _: UNLIMITED_QUOTAS, lambda: 0.0))
        self.streams = FeedStreams(self.limits, self)
        self.backlog_bytes = 0
        """What trackers pay for outside the rings."""
        self.pumps: list[FakePump] = []
        self.clients: list[FakeClient] = []
        self.store = FakeStore()
        self.history: list[records.Record] = []
        self._ids = itertools.count(1)
        self._session_ids = itertools.count(1)
        self.settled = False

    def _draw_limits(self) -> StreamLimits:
        """Some rings are smaller than a batch, which must stay whole then, or its readers come again for ever."""
        rng, batch = self.rng, self.batch_events_max
        batch_bytes = batch * EVENT_BYTES_MAX
        read_ahead_bytes = rng.choice((1, batch_bytes // 2, batch_bytes))
        ring = RingLimits(
            events_max=(batch + read_ahead_bytes // EVENT_BYTES_MIN) // 4 * rng.choice((1, 4, 8, 16)),
            bytes_max=(batch_bytes + read_ahead_bytes) // 4 * rng.choice((1, 4, 8, 16)),
        )
        return StreamLimits(ring, read_ahead_bytes, rng.choice((0, 2, 30)))

    # What FeedStreams and the pumps ask for.

    def start(self, stream: SharedStream) -> None:
        self.pumps.append(FakePump(stream, self.streams, self))

    def _retain(self, size: int) -> None:
        self.backlog_bytes += size

    def next_stream_id(self) -> int:
        return next(self._ids)

    @property
    def known_time(self) -> int:
        return self.source.clock

    def may_trail(self, tenant: str) -> bool:
        return self.slots.may_trail(tenant)

    def waits(self, subscriber: Subscriber) -> None:
        self.slots.waits(self.streams, subscriber)
        self.slots.poke_stalled()

    def waits_no_longer(self, subscriber: Subscriber) -> None:
        self.slots.waits_no_longer(subscriber)

    def streams_changed(self) -> None:
        self.slots.changed(self.streams)

    def left(self, stream: SharedStream) -> None:
        """Nobody else has a cursor."""

    @property
    def slots_wanted(self) -> bool:
        return self.slots.wanted

    def slot_free(self) -> None:
        """The hub looks again after a while: here whoever steps next does."""
        self.slots.admit()

    def pump_done(self) -> None:
        self.slot_free()

    def failure(self) -> FeedmuxError | None:
        if not self.failing or self.rng.random() > 0.15:
            return None
        loud = self.rng.random() < 0.15
        return FeedmuxError(self.rng.choice(_LOUD) if loud else ErrorReason.SOURCE_UNAVAILABLE, "a fault")

    # The run.

    def run(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(0, 6)):
            self.write()
        for _ in range(rng.randint(1, 4)):
            self.connect(None)
        self.failing = self.faulty
        actions = (
            (self.write, 8), (self.source.tick, 2), (self._step_pump, 16), (self._step_session, 16), (self._grant, 6),
            (self._ack, 6), (self._heartbeat, 3), (self._time_out, 1), (self._commit, 4), (self._come, 1),
            (self._reconnect, 2), (self._go, 1), (self._evict, 1), (self._truncate, 1),
        )  # fmt: skip
        choices, weights = zip(*actions, strict=True)
        for action in rng.choices(choices, weights, k=self.settings.actions):
            action()
            self._inspect()
        self._settle()

    def _settle(self) -> None:
        """Faults stop and nobody is slow: everyone must catch up by wake-ups alone, without a pump's timeouts.

        Sessions look again by themselves only while somebody waits for a slot, as they all do at each heartbeat.
        """
        self.failing = False
        for _ in range(1000):
            for client in self.open_clients():
                subscriber = client.subscriber
                if subscriber.acks is not None and subscriber.acks.outstanding:
                    self._ack_to(client, subscriber.acks.sent)
                if not subscriber.credit.open:
                    self._grant_to(client, 200, 20_000)
            for _ in range(200):
                if not self._run_ready():
                    break
                self._inspect()
            else:
                raise AssertionError("the parts never come to rest")
            waiting = any(client.subscriber.stream is None for client in self.open_clients())
            if waiting:
                self._idle_heartbeat()
            if not waiting and all(client.subscriber.can_receive for client in self.open_clients()):
                break
        self.settled = True
        self.history.append(records.Settled())
        for client in self.open_clients():
            self._disconnect(client)
        self._inspect()

    def _idle_heartbeat(self) -> None:
        """Ten quiet seconds: MongoDB's clock goes on, who reads at the head is told, and every session looks again.

        A native token holds its slot until an event lets MongoDB judge it, so there one comes.
        """
        self.source.clock += 10 * SECOND
        if any(client.subscriber.at.native for client in self.open_clients()):
            self.write()
        for pump in [*self.pumps]:
            if pump.stream.state is StreamState.READING:
                pump.step()
        for client in self.open_clients():
            client.wake()

    def _run_ready(self) -> bool:
        """Everything that has been woken runs once; at the head MongoDB waits for events, so nothing is left to do."""
        ran = False
        for pump in [*self.pumps]:
            head = self.source.rank_behind(pump.stream.ring.newest) >= len(self.source.events)
            reading = pump.stream.state is StreamState.READING and pump.stream.wants_more()
            if pump.runnable and not (head and reading and not self.streams.is_superfluous(pump.stream)):
                pump.step()
                ran = True
        for client in self.open_clients():
            if client.woken:
                self._step(client, 1000)
                ran = True
        return ran

    def _inspect(self) -> None:
        self.pumps = [pump for pump in self.pumps if not pump.done]
        ring, batch = self.limits.ring, self.batch_events_max
        for stream in self.streams.streams:
            if len(stream.ring) > 1:
                self._held(f"ring {stream.id} bytes", raw_bytes(stream), ring.bytes_max + batch * EVENT_BYTES_MAX)
                self._held(f"ring {stream.id} events", stream.ring.events, ring.events_max + batch)
        if self.settings.inspect:
            check_world(self)

    # Actions.

    def write(self) -> None:
        for event in self.source.write():
            self.history.append(
                records.Written(str(event.number), hex_of(event.token), unit=event.unit, invalidate=event.invalidate)
            )

    def connect(self, before: FakeClient | None) -> None:
        """A new session: of a new client, or of one that comes back."""
        rng = self.rng
        if before is not None:
            name, tenant, at, durable = before.subscription, before.tenant, self._resume_point(before), before.durable
        else:
            name, tenant = f"s{next(self._session_ids)}", rng.choice("abc")
            at, durable = self._start_point(), rng.random() < 0.7
        session = f"{name}/{next(self._session_ids)}"
        epoch = self.store.open(name) if durable else 0
        client = FakeClient(name, session, tenant, durable, epoch, stops=rng.random() < 0.5, formed=rng.random() < 0.25)
        self.history.append(
            records.Opened(
                name, session, hex_of(at.place), epoch=epoch, unacked_max=self.unacked_max if durable else 0,
                stops_at_invalidate=client.stops, unknown_place=at.native is not None and not self.source.has(at.place),
            )
        )  # fmt: skip
        client.subscriber = subscriber = Subscriber(
            next(self._ids),
            tenant,
            self.streams,
            at,
            CreditWindow(CreditLimits(events_max=500, bytes_max=100_000)),
            client.wake,
            acks=AckTracker(at.place, self.unacked_max, self._retain) if durable else None,
            payload_max=rng.choice((60, 500, 5000)),
            wire_format="text" if client.formed else BSON,
        )
        self.clients.append(client)
        client.place = at.place
        self.streams.join(subscriber)
        if rng.random() < 0.7:
            self._grant_to(client, rng.choice((1, 10, 100)), rng.choice((1, 1000, 50_000)))

    def _start_point(self) -> JoinPoint:
        rng, source = self.rng, self.source
        kind = rng.random()
        if kind < 0.3 or not source.events:
            return JoinPoint(source.now())
        old = rng.choice(source.events)
        while old.fragment_open:
            old = source.events[old.number + 1]
        if kind < 0.6:
            return JoinPoint(old.token, exact=rng.random() < 0.5)
        if kind < 0.65:
            time = source.events[-1].token.cluster_time
            return JoinPoint(event_token(time, 99, fragment=0 if source.split else None), native="resume_after")
        if kind < 0.75 and not old.invalidate:
            return JoinPoint(old.token, native="resume_after")
        if kind < 0.85:
            return JoinPoint(ResumeToken.high_water_mark(old.token.cluster_time, source.version))
        return JoinPoint(source.oldest)

    def _resume_point(self, before: FakeClient) -> JoinPoint:
        """After the last acked event: what the client knows, or what is stored, whichever is later."""
        stored = self.store.place_of(before.subscription)
        place = before.acked_place
        if stored is not None and stored.is_after(place):
            place = stored
        return JoinPoint(place, exact=True)

    def open_clients(self) -> list[FakeClient]:
        return [client for client in self.clients if not client.ended]

    def _one(self) -> FakeClient | None:
        clients = self.open_clients()
        return self.rng.choice(clients) if clients else None

    def _come(self) -> None:
        if len(self.open_clients()) < 7:
            self.connect(None)

    def _go(self) -> None:
        client = self._one()
        if client is not None:
            self._disconnect(client)

    def _reconnect(self) -> None:
        """The session dies and the subscription comes back; at times before the old session is known to be dead."""
        client = self._one()
        if client is not None and client.durable:
            at_once = self.rng.random() < 0.3
            if not at_once:
                self._disconnect(client)
            self.connect(client)
            if at_once:
                self._disconnect(client)

    def _disconnect(self, client: FakeClient, reason: str = "") -> None:
        client.ended = True
        self.streams.remove(client.subscriber)
        self.history.append(records.Ended(client.session, reason))

    def _evict(self) -> None:
        """The memory budget takes the oldest chunk of the largest ring."""
        rings = [stream.ring for stream in self.streams.streams if len(stream.ring) > 1]
        if rings and self.rng.random() < 0.5:
            max(rings, key=lambda ring: ring.bytes).drop_oldest()

    def _truncate(self) -> None:
        if self.rng.random() < 0.1:
            self.source.truncate()

    def _step_pump(self) -> None:
        ready = [pump for pump in self.pumps if pump.runnable]
        if ready:
            self.rng.choice(ready).step()

    def _time_out(self) -> None:
        self.slots.admit()
        resting = [pump for pump in self.pumps if pump.resting]
        if resting:
            self.rng.choice(resting).step(timed_out=True)

    def _step_session(self) -> None:
        ready = [client for client in self.open_clients() if client.woken]
        if ready:
            self._step(self.rng.choice(ready), self.rng.choice((1, 2, 1000)))

    def _step(self, client: FakeClient, takes: int) -> None:
        """As `Session.next_output`: takes until there is nothing, then waits to be woken."""
        client.woken = False
        subscriber = client.subscriber
        for _ in range(takes):
            taken = subscriber.take()
            match taken:
                case None:
                    return
                case Delivery():
                    self._deliver(client, taken)
                case NeedsRender():
                    self._render(taken, subscriber.format)
                case Ended():
                    if self._meet_end(client, taken):
                        return
        client.woken = True

    def _render(self, wanted: NeedsRender, wire_format: str) -> None:
        bson = wanted.chunk.bson
        if bson is None:
            return
        numbers = [number_of(bson.cut(index, index + 1)) for index in range(wanted.chunk.count)]
        view = View(
            b"".join(TEXT_TAG + b"%0*d" % (TEXT_BYTES, number) for number in numbers),
            [(len(TEXT_TAG) + TEXT_BYTES) * index for index in range(len(numbers) + 1)],
            [TEXT_BYTES * index for index in range(len(numbers) + 1)],
        )
        wanted.chunk.rendered[wire_format] = view
        wanted.ring.grew(view.size_bytes)

    def _deliver(self, client: FakeClient, delivery: Delivery) -> None:
        data = b"".join(delivery.parts)
        numbers: list[int] = []
        sizes: list[int] = []
        at = 0
        while at < len(data):
            if client.formed:
                assert data[at : at + len(TEXT_TAG)] == TEXT_TAG
                at += len(TEXT_TAG)
            size = TEXT_BYTES if client.formed else int.from_bytes(data[at : at + 4], "little")
            numbers.append(number_of(data[at : at + size]))
            sizes.append(size)
            at += size
        assert delivery.count == len(numbers)
        assert delivery.size == sum(sizes)
        assert delivery.wire_size == len(data)
        client.sent.extend(numbers)
        client.place = delivery.end
        self.history.append(
            records.Delivered(
                client.session, delivery.first_sequence, tuple(map(str, numbers)), tuple(sizes), hex_of(delivery.end)
            )
        )

    def _meet_end(self, client: FakeClient, ended: Ended) -> bool:
        """As `Session._meet_end`: goes on behind an invalidate if that is the policy. True when the session is over."""
        subscriber = client.subscriber
        if ended.error.reason is ErrorReason.FEED_INVALIDATED and not client.stops:
            self.streams.leave(subscriber)
            subscriber.at = JoinPoint(subscriber.at.place, exact=True)
            self.streams.join(subscriber)
            return False
        self._disconnect(client, ended.error.reason.value)
        return True

    def _heartbeat(self) -> None:
        client = self._one()
        if client is None:
            return
        place = client.subscriber.progress()
        client.place = place
        self.history.append(records.Progress(client.session, hex_of(place)))
        acks = client.subscriber.acks
        if acks is not None and acks.progress(place):
            self._submit(client)
        client.woken = True

    def _grant(self) -> None:
        client = self._one()
        if client is not None:
            self._grant_to(client, self.rng.choice((1, 3, 20)), self.rng.choice((1, 200, 5000)))

    def _grant_to(self, client: FakeClient, events: int, size: int) -> None:
        credit = client.subscriber.credit
        before = credit.events, credit.bytes
        client.subscriber.grant(events, size)
        self.history.append(
            records.Granted(client.session, min(events, 500 - before[0]), min(size, 100_000 - before[1]))
        )

    def _ack(self) -> None:
        client = self._one()
        if client is not None and client.subscriber.acks is not None and client.subscriber.acks.sent:
            acks = client.subscriber.acks
            self._ack_to(client, self.rng.randint(acks.acked, acks.sent))

    def _ack_to(self, client: FakeClient, sequence: int) -> None:
        self.history.append(records.Acked(client.session, sequence))
        if client.subscriber.ack(sequence):
            self._submit(client)

    def _submit(self, client: FakeClient) -> None:
        acks = client.subscriber.acks
        assert acks is not None
        client.acked_place = acks.place
        self.store.submit(client.subscription, client.epoch, acks.place)

    def _commit(self) -> None:
        for commit in self.store.flush(self.rng):
            self.history.append(records.Committed(commit.subscription, commit.epoch, hex_of(commit.place)))

    def _held(self, name: str, amount: int, amount_max: int) -> None:
        if amount > amount_max:
            self.history.append(records.Held(name, amount, amount_max))


def number_of(data: bytes) -> int:
    """The event's number, from either format."""
    if len(data) == TEXT_BYTES:
        return int(data)
    at = data.index(b"\x10n\x00") + 3
    return int.from_bytes(data[at : at + 4], "little")


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    history: list[records.Record]
    violations: list[Violation]


def simulate(seed: int, settings: Settings | None = None) -> Outcome:
    """One run, judged. Raises AssertionError where a part is found inconsistent."""
    world = World(seed, settings or Settings())
    world.run()
    return Outcome(seed, world.history, check(world.history))


def replay_command(seed: int, settings: Settings) -> str:
    return f"python -m tests.model.simulator {seed} --actions {settings.actions}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model.simulator")
    parser.add_argument("seed", type=int)
    parser.add_argument("--actions", type=int, default=Settings().actions, help="length of the run")
    parser.add_argument("--history", type=Path, help="write what was recorded, for tests.model.checkers")
    options = parser.parse_args(arguments)
    world = World(options.seed, Settings(options.actions))
    try:
        world.run()
    finally:
        if options.history is not None:
            records.save(world.history, options.history)
    violations = check(world.history)
    for violation in violations:
        print(violation)
    print(f"{len(world.history)} records, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
