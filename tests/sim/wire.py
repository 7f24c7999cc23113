"""Turns what passes between clients, servers and Redis into the records that the checkers read."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.position import inspect_position
from tests.model import records
from tests.model.records import Record
from tests.sim.network import Status, Watcher
from tests.sim.redis import SimRedis

SUBSCRIBE: Final = "/feedmux.v1.ChangeFeed/Subscribe"
_NUMBER: Final = b"\x10n\x00"
_AFTER: Final = b"\x09wallTime\x00"


class Recorder:
    """The history of a run, and a digest of it that takes in when each thing happened."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._digest = hashlib.blake2b(digest_size=16)
        self.records: list[Record] = []
        self.say: Callable[[str], None] | None = None
        """Where lines of a trace go."""

    def add(self, record: Record) -> int:
        """Returns its index, for `change`."""
        self.records.append(record)
        self.note(repr(record))
        return len(self.records) - 1

    def change(self, index: int, record: Record) -> None:
        self.records[index] = record
        self.note(repr(record))

    def note(self, text: str) -> None:
        """Something that happened and that no checker reads."""
        line = f"{self._now_s():10.6f} {text}"
        self._digest.update(line.encode())
        if self.say is not None:
            self.say(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


@dataclass(slots=True)
class Session:
    """What a call of Subscribe has shown so far."""

    name: str
    subscription: str
    feed: str
    credit: wire.Credit
    opened: int = -1
    """Index of its record."""


class SessionWatcher(Watcher):
    """Of one call of Subscribe, at the client's end."""

    def __init__(self, recorder: Recorder, name: str, feed: str) -> None:
        self._recorder = recorder
        self._session = Session(name, "", feed, wire.Credit())
        self._durable = False
        self._fragment: list[bytes] = []
        self._ended = False

    def sent(self, message: bytes) -> None:
        request, session = wire.SubscribeRequest.FromString(message), self._session
        match request.WhichOneof("message"):
            case "open":
                self._durable = bool(request.open.subscription)
                session.subscription = request.open.subscription or session.name
                session.credit = request.open.credit
            case "credit" if session.opened >= 0:
                self._recorder.add(records.Granted(session.name, request.credit.events, request.credit.bytes))
            case "ack":
                self._recorder.add(records.Acked(session.name, request.ack.delivery_sequence))
            case "close":
                self._recorder.note(f"{session.name} closes")

    def received(self, message: bytes) -> None:
        response, session, add = wire.SubscribeResponse.FromString(message), self._session, self._recorder.add
        match response.WhichOneof("message"):
            case "opened":
                opened = response.opened
                unacked_max = opened.limits.unacked_events_max if self._durable else 0
                session.opened = add(
                    records.Opened(
                        session.subscription,
                        session.name,
                        hex_of(opened.resume_token),
                        session.feed,
                        opened.epoch,
                        unacked_max,
                        stops_at_invalidate=False,
                    )
                )
                add(records.Granted(session.name, session.credit.events, session.credit.bytes))
            case "batch":
                numbers, sizes = _events(response.batch.bson)
                assert len(numbers) == response.batch.event_count
                place = hex_of(response.batch.resume_token)
                add(records.Delivered(session.name, response.batch.first_delivery_sequence, numbers, sizes, place))
            case "event_fragment":
                part = response.event_fragment
                self._fragment.append(part.data)
                if part.index + 1 == part.count:
                    numbers, sizes = _events(b"".join(self._fragment))
                    self._fragment.clear()
                    place = hex_of(part.resume_token)
                    add(records.Delivered(session.name, part.delivery_sequence, numbers, sizes, place))
            case "progress":
                add(records.Progress(session.name, hex_of(response.progress.resume_token)))
            case "committed":
                self._recorder.note(f"{session.name} committed {response.committed.delivery_sequence}")
            case "notice":
                kind = response.notice.WhichOneof("kind")
                self._recorder.note(f"{session.name} notice {kind}")
                if kind == "rewound":
                    opened_record = self._recorder.records[session.opened]
                    assert isinstance(opened_record, records.Opened)
                    self._recorder.change(session.opened, replace(opened_record, rewound=True))

    def ended(self, status: Status) -> None:
        if self._session.opened >= 0:
            self._recorder.add(records.Ended(self._session.name, f"{status[0].name} {status[1]}".strip()))
        else:
            self._recorder.note(f"{self._session.name} was not opened: {status[0].name} {status[1]}")


class StoreWatcher:
    """Of the positions in Redis."""

    def __init__(self, recorder: Recorder, redis: SimRedis) -> None:
        self._recorder = recorder
        self._redis = redis
        self._positions: dict[bytes, bytes] = {}
        redis.wrote = self._wrote

    def _wrote(self, key: bytes) -> None:
        stored = self._redis.hash_of(key)
        position = stored.get(b"position")
        if position is None or self._positions.get(key) == position:
            return
        new = key not in self._positions
        self._positions[key] = position
        name = key.rpartition(b"/")[2].rstrip(b"}").decode()
        place = inspect_position(position).token.raw
        if new or (epoch := int(stored.get(b"commit_epoch", b"0"))) < int(stored.get(b"seek_epoch", b"0")):
            self._recorder.add(records.Sought(name, hex_of(place)))
        else:
            self._recorder.add(records.Committed(name, epoch, hex_of(place)))


def hex_of(token: bytes) -> str:
    """Of a resume token document: the hex of its `_data`, which is all that it has."""
    return token[15:-2].decode()


def number_of(event: bytes, at: int = 0) -> int:
    """The number of the event that begins there."""
    found = event.index(_NUMBER, event.index(_AFTER, at)) + len(_NUMBER)
    return int.from_bytes(event[found : found + 4], "little")


def _events(data: bytes) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Numbers and sizes of events in BSON."""
    numbers: list[str] = []
    sizes: list[int] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        numbers.append(str(number_of(data, at)))
        sizes.append(size)
        at += size
    return tuple(numbers), tuple(sizes)
