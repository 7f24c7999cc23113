"""What a session counts according to docs/protocol.md: repeats, waiting events, credit, and how far acks reach.

The model shares no code with the Python client's bookkeeping, and is simpler: it keeps everything. It identifies events
by their `_id`, as BSON.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import bson

from feedmux.positions import event_id, json_event_id, token_time
from feedmux.v1 import change_feed_pb2 as wire

Time = tuple[int, int]


@dataclass(slots=True)
class Event:
    """An event in the client's hands."""

    id: bytes
    data: bytes


@dataclass(slots=True)
class Message:
    """What a message brought that was new, as far as it waits to be taken."""

    events: deque[Event]
    is_begun: bool = False
    """Some of it has been taken: a client may count it as taken altogether."""

    @property
    def size_bytes(self) -> int:
        return sum(len(event.data) for event in self.events)


@dataclass(slots=True)
class Stream:
    """One call of Subscribe."""

    open: wire.Open
    opened: wire.Opened = field(default_factory=wire.Opened)
    ids: list[bytes] = field(default_factory=list)
    """Of the events delivered, by sequence."""
    size_bytes: int = 0
    """Of the events delivered."""
    repeats: int = 0
    fragment: bytes = b""
    """Of an event that is not complete."""

    def limited(self, events: int, size_bytes: int) -> tuple[int, int]:
        """What is left of credit or of a window under the server's limits."""
        limits = self.opened.limits
        return min(events, limits.credit_events_max or events), min(size_bytes, limits.credit_bytes_max or size_bytes)

    def needs(self, message: bytes) -> tuple[int, int]:
        """The credit, of all that was granted in this stream, without which a server may not send this: events, and
        bytes, of which a last event may be larger."""
        response = wire.SubscribeResponse.FromString(message)
        sizes = [len(event) for event in events_of(response)]
        if response.HasField("event_fragment"):
            sizes = [len(response.event_fragment.data)]
        elif not sizes:
            return 0, 0
        return len(self.ids) + len(sizes), self.size_bytes + sum(sizes[:-1]) + 1


class SessionModel:
    """One session object, from its first Open to its end."""

    def __init__(self, window_events: int, window_bytes: int) -> None:
        self._window = window_events, window_bytes
        self.stream = Stream(wire.Open())
        self.handed: list[Event] = []
        self.acked = 0
        """The highest number of a handed out event that the user has acked."""
        self._waiting: deque[Message] = deque()
        self._known: set[bytes] = set()
        """Events that are repeats when they come again."""
        self._numbers: dict[bytes, int] = {}
        """By which number an event was handed out last."""
        self._times: dict[bytes, Time] = {}
        self._tokens: dict[bytes, bytes] = {}
        """Of positions."""

    # What happens.

    def opens(self, request: wire.Open) -> None:
        self.stream = Stream(request)

    def receives(self, message: bytes) -> None:
        response = wire.SubscribeResponse.FromString(message)
        stream = self.stream
        if response.HasField("opened"):
            opened = stream.opened = response.opened
            self._note(opened)
            self._window = stream.limited(*self._window)
            if self.rewinds(opened):
                self.forget()
        elif response.HasField("batch"):
            self._note(response.batch)
            self._deliver(events_of(response))
        elif response.HasField("event_fragment"):
            part = response.event_fragment
            stream.fragment = stream.fragment + part.data if part.index else part.data
            if part.index + 1 == part.count:
                self._note(part)
                self._deliver([stream.fragment])
                stream.fragment = b""
        elif response.HasField("progress"):
            self._note(response.progress)

    def rewinds(self, opened: wire.Opened) -> bool:
        """Whether a stream that opens like this begins before the last acked event."""
        asked = self.stream.open
        last = self._time_of(asked.last_acked) if asked.HasField("last_acked") else None
        return not opened.at_last_acked and last is not None and (0, 0) < _time(opened.cluster_time) < last

    def forget(self) -> None:
        """The stored position was moved: what waits is not handed out, and what is unacked may come again.

        The rest of a message of which an event has been taken may be handed out or not. Here it is.
        """
        self._waiting = deque(message for message in self._waiting if message.is_begun)
        self._known.clear()
        self._numbers.clear()

    def takes(self, events: Sequence[bytes]) -> None:
        """Raises AssertionError where these are not the next ones."""
        for data in events:
            assert self._waiting, f"an event was handed out that has not come, or for the second time: {data[:400]!r}"
            message = self._waiting[0]
            event = message.events.popleft()
            assert event.data == data, f"{data[:400]!r} was handed out, not {event.data[:400]!r}"
            message.is_begun = True
            if not message.events:
                self._waiting.popleft()
            self.handed.append(event)
            self._numbers[event.id] = len(self.handed)

    def acks(self, number: int) -> None:
        self.acked = max(self.acked, number)

    # What follows.

    @property
    def waiting(self) -> tuple[int, int]:
        """Events and bytes that wait in the client."""
        return sum(len(each.events) for each in self._waiting), sum(each.size_bytes for each in self._waiting)

    @property
    def waiting_at_least(self) -> tuple[int, int]:
        """As a client counts that takes whole messages."""
        whole = [message for message in self._waiting if not message.is_begun]
        return sum(len(each.events) for each in whole), sum(each.size_bytes for each in whole)

    @property
    def begun(self) -> list[bytes]:
        """The events that are left of a message of which one has been taken."""
        return [event.data for message in self._waiting if message.is_begun for event in message.events]

    def first_credit(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The least and the most that an Open may grant: the window without what waits."""
        (least, most) = (
            tuple(max(0, most - waiting) for most, waiting in zip(self._window, waits, strict=True))
            for waits in (self.waiting, self.waiting_at_least)
        )
        return least, most  # type: ignore[return-value]

    @property
    def most_credit(self) -> tuple[int, int]:
        """All that a client may have granted in this stream by now."""
        waiting = self.waiting_at_least
        stream, credit = self.stream, self.stream.open.credit
        limited = stream.limited(credit.events, credit.bytes)
        events = self._window[0] + len(stream.ids) - waiting[0] + credit.events - limited[0]
        size_bytes = self._window[1] + stream.size_bytes - waiting[1] + credit.bytes - limited[1]
        # Where an event that waits is larger than the window, Open grants nothing, which is too much still.
        return max(credit.events, events), max(credit.bytes, size_bytes)

    @property
    def least_credit(self) -> tuple[int, int]:
        """All that a client must have granted in this stream by now: it may keep less than a quarter of the window."""
        stream, waiting = self.stream, self.waiting
        first = stream.limited(stream.open.credit.events, stream.open.credit.bytes)
        events = self._window[0] + len(stream.ids) - waiting[0] - (self._window[0] - 1) // 4
        size_bytes = self._window[1] + stream.size_bytes - waiting[1] - (self._window[1] - 1) // 4
        return max(first[0], events), max(first[1], size_bytes)

    @property
    def acked_sequence(self) -> int:
        """How far acks in this stream may reach: before the first event that the user has not acked."""
        for sequence, each in enumerate(self.stream.ids):
            if not 0 < self._numbers.get(each, 0) <= self.acked:
                return sequence
        return len(self.stream.ids)

    def place(self, last_acked: wire.LastAcked) -> bytes:
        """The resume token of the last acked event, in whichever form the client sends it."""
        if last_acked.WhichOneof("place") == "resume_token":
            return last_acked.resume_token
        return self._tokens.get(last_acked.position, last_acked.position)

    def _deliver(self, events: list[bytes]) -> None:
        stream = self.stream
        fresh = deque[Event]()
        for data in events:
            event = Event(id_of(data), data)
            stream.ids.append(event.id)
            stream.size_bytes += len(data)
            if stream.open.subscription and event.id in self._known:
                stream.repeats += 1
                continue
            self._known.add(event.id)
            fresh.append(event)
        if fresh:
            self._waiting.append(Message(fresh))

    def _note(self, place: wire.Opened | wire.Batch | wire.EventFragment | wire.Progress) -> None:
        if place.position:
            self._times[place.position] = _time(place.cluster_time)
            if place.resume_token:
                self._tokens[place.position] = place.resume_token

    def _time_of(self, last_acked: wire.LastAcked) -> Time | None:
        if last_acked.WhichOneof("place") == "resume_token":
            return token_time(last_acked.resume_token)
        return self._times.get(last_acked.position)


def _time(time: object) -> Time:
    return time.seconds, time.increment  # type: ignore[attr-defined]


def events_of(response: wire.SubscribeResponse) -> list[bytes]:
    """Those of a Batch: documents or texts."""
    batch = response.batch
    if batch.json:
        return [text.encode() for text in batch.json]
    return list(_documents(batch.bson))


def _documents(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        yield data[at : at + size]
        at += size


def id_of(event: bytes) -> bytes:
    """A document begins with its length, whose lowest byte may be that of a brace: its last byte is 0."""
    return json_event_id(event.decode()) if event.endswith(b"}") else event_id(event)


def shown(event: bytes) -> str:
    """For messages."""
    return event.decode()[:400] if event.endswith(b"}") else repr(bson.decode(event))[:400]
