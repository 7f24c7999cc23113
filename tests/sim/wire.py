"""Turn the traffic between clients, servers and Redis into the records that the checkers read."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.sessions.groups import HOST_PREFIX
from tests.sim import records
from tests.sim.network import Status, Watcher
from tests.sim.records import Record
from tests.sim.redis import SimRedis

CREW: Final = "crew"
"""The beginning of the names of the subscriptions that are groups."""
_NUMBER: Final = b"\x10n\x00"
_TEXT: Final = b'{"_i'
"""The beginning of an event in extended JSON: as the size of BSON it would be too large."""
_AFTER: Final = b"\x09wallTime\x00"
_JSON_NUMBER: Final = re.compile(rb'"wallTime".*?"n": ?(?:\{"\$numberInt": ?"(\d+)"\}|(\d+))')


class Recorder:
    """The history of a run, and a digest of the history that includes the time of each record."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._noted: list[tuple[float, Record | str]] = []
        """Records do not change, so that their lines can be made when somebody wants them."""
        self.records: list[Record] = []
        self.say: Callable[[str], None] | None = None
        """Receives the lines of a trace."""

    def add(self, record: Record) -> int:
        """Append a record; returns its index, for `change`."""
        self.records.append(record)
        self.note(record)
        return len(self.records) - 1

    def change(self, index: int, record: Record) -> None:
        self.records[index] = record
        self.note(record)

    def note(self, what: Record | str) -> None:
        """Note a record, or something that happened and that no checker reads."""
        self._noted.append((self.now_s(), what))
        if self.say is not None:
            self.say(_line(*self._noted[-1]))

    def digest(self) -> str:
        lines = "".join(_line(*each) for each in self._noted)
        return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()


def _line(now_s: float, what: Record | str) -> str:
    return f"{now_s:10.6f} {what}"


@dataclass(slots=True)
class Session:
    """What a call of Subscribe has shown so far."""

    name: str
    subscription: str
    feed: str
    credit: wire.Credit
    opened: int = -1
    """The index of its record."""


class SessionWatcher(Watcher):
    """Watches one call of Subscribe, at the client's end."""

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        feed: str,
        asked: Callable[[wire.Open], None],
        answered: Callable[[str, wire.SubscribeResponse], None],
    ) -> None:
        """`asked` gets the call's Open; `answered` gets each message that a server writes, and the server's name."""
        self._recorder = recorder
        self._asked = asked
        self._answered = answered
        self._before = 0
        """The number of events before the last gap: the record of a session ends there, and another begins."""
        self._delivered = 0
        self._credit = 0, 0
        self._session = Session(name, "", feed, wire.Credit())
        self._durable = False
        self._fragment: list[bytes] = []
        self._ended = False

    def sent(self, message: bytes) -> None:
        request, session = wire.SubscribeRequest.FromString(message), self._session
        match request.WhichOneof("message"):
            case "open":
                self._asked(request.open)
                self._durable = bool(request.open.subscription)
                session.subscription = request.open.subscription or session.name
                session.credit = request.open.credit
            case "credit" if session.opened >= 0:
                self._grant(request.credit)
            case "ack":
                sequence = max(0, request.ack.delivery_sequence - self._before)
                self._recorder.add(records.Acked(session.name, sequence))
            case "close":
                self._recorder.note(f"{session.name} closes")

    @property
    def opening(self) -> bool:
        """Whether the session is requested, and not yet open."""
        return bool(self._session.subscription) and self._session.opened < 0 and not self._ended

    def written(self, server: str, message: bytes) -> None:
        self._answered(server, wire.SubscribeResponse.FromString(message))

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
                self._grant(session.credit)
            case "batch":
                numbers, sizes = events_in(response.batch)
                assert len(numbers) == response.batch.event_count
                self._deliver(response.batch.first_delivery_sequence, numbers, sizes, response.batch.resume_token)
            case "event_fragment":
                part = response.event_fragment
                self._fragment.append(part.data)
                if part.index + 1 == part.count:
                    numbers, sizes = events_of(b"".join(self._fragment))
                    self._fragment.clear()
                    self._deliver(part.delivery_sequence, numbers, sizes, part.resume_token)
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
                elif kind == "gap":
                    to = response.notice.gap.to
                    self._skip_to(ResumeToken.high_water_mark(to.seconds << 32 | to.increment))

    def _grant(self, credit: wire.Credit) -> None:
        self._credit = self._credit[0] + credit.events, self._credit[1] + credit.bytes
        self._recorder.add(records.Granted(self._session.name, credit.events, credit.bytes))

    def _deliver(self, first: int, numbers: tuple[str, ...], sizes: tuple[int, ...], token: bytes) -> None:
        self._delivered = first + len(numbers) - 1
        self._credit = self._credit[0] - len(numbers), self._credit[1] - sum(sizes)
        name, place = self._session.name, hex_of(token)
        self._recorder.add(records.Delivered(name, first - self._before, numbers, sizes, place))

    def _skip_to(self, place: ResumeToken) -> None:
        """Begin a new record at an announced gap: the events in between are lost."""
        session, add = self._session, self._recorder.add
        add(records.Ended(session.name, records.GAP))
        self._before, session.name = self._delivered, f"{session.name}+"
        session.opened = add(
            records.Opened(
                session.subscription, session.name, hex_of(place.raw), session.feed, stops_at_invalidate=False
            )
        )
        add(records.Granted(session.name, *self._credit))

    def ended(self, status: Status) -> None:
        self._ended = True
        if self._session.opened >= 0:
            self._recorder.add(records.Ended(self._session.name, f"{status[0].name} {status[1]}".strip()))
        else:
            self._recorder.note(f"{self._session.name} was not opened: {status[0].name} {status[1]}")


class MemberWatcher(Watcher):
    """Watches one call of Subscribe of a member of a group."""

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        group: str,
        member: str,
        feed: str,
        answered: Callable[[str, wire.SubscribeResponse], None],
        left: Callable[[], None],
    ) -> None:
        """`answered` gets each message that a server writes, and the server's name; `left` is called when a session
        ends that was open."""
        self._recorder = recorder
        self.name = name
        self._group = group
        self._member = member
        self._feed = feed
        self._answered = answered
        self._left = left
        self.notes_sent = True
        """A server may take events for a session and not write them, if the tenant has to wait. Then nobody knows which
        events a member may have begun."""
        self.is_asked_for_claims = True
        """Whether a host that follows a lost one asks the member what it has."""
        self._is_asked = self._is_open = self._is_over = False
        self._fragment: list[bytes] = []
        self._answered_s = 0.0

    @property
    def opening(self) -> bool:
        """Whether the session is requested, and not yet open."""
        return self._is_asked and not self._is_open and not self._is_over

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._is_over

    def sent(self, message: bytes) -> None:
        self._is_asked = True

    def written(self, server: str, message: bytes) -> None:
        response = wire.SubscribeResponse.FromString(message)
        self._answered(server, response)
        if response.HasField("opened"):
            self._answered_s = self._recorder.now_s()
        if not self.notes_sent:
            return
        if response.HasField("batch"):
            numbers, runs = events_in(response.batch)[0], response.batch.runs
            fronts = (numbers[sum(runs[:index])] for index in range(len(runs)))
            self._recorder.add(records.Sent(self._group, self.name, numbers, tuple(fronts)))
        elif response.HasField("event_fragment"):
            part = response.event_fragment
            self._fragment.append(part.data)
            if part.index + 1 == part.count:
                numbers = events_of(b"".join(self._fragment))[0]
                self._fragment.clear()
                self._recorder.add(records.Sent(self._group, self.name, numbers, numbers))

    def received(self, message: bytes) -> None:
        response = wire.SubscribeResponse.FromString(message)
        if response.HasField("opened") and not self._is_over:
            self._is_open = True
            epoch, at_s = response.opened.epoch, self._answered_s if self.is_asked_for_claims else inf
            self._recorder.add(records.Joined(self._group, self._member, epoch, self._feed, at_s))

    def finished(self, status: Status) -> None:
        self._end()

    def ended(self, status: Status) -> None:
        self._recorder.note(f"{self._member} has no session: {status[0].name} {status[1]}")
        self._end()

    def _end(self) -> None:
        was_open, self._is_over = self.is_open, True
        if was_open:
            self._recorder.add(records.Left(self._group, self._member))
            self._left()


class StoreWatcher:
    """Watches the positions and epochs in Redis."""

    def __init__(self, recorder: Recorder, redis: SimRedis) -> None:
        self._recorder = recorder
        self._redis = redis
        self._stored: dict[bytes, _Stored] = {}
        """By key; also of subscriptions that were deleted, because Redis may lose that."""
        self._sought: dict[bytes, bytes] = {}
        """The epochs of the last seeks."""
        self._leases: dict[bytes, tuple[bytes, bytes]] = {}
        """Of the subscriptions whose lease is not released, its nonce and its end."""
        redis.wrote = self._wrote
        redis.lost = self._lost

    def _wrote(self, key: bytes) -> None:
        stored = self._redis.hash_of(key)
        before, now = self._stored.get(key, _DELETED), _stored(stored)
        self._stored[key] = now
        self._watch_lease(key, stored)
        if now == _DELETED:
            return
        sought_before, self._sought[key] = self._sought.get(key, b"0"), stored.get(b"seek_epoch", b"0")
        epoch, created = int(stored.get(b"commit_epoch", b"0")), before == _DELETED
        sought = self._sought[key] != sought_before and epoch < int(self._sought[key])  # not a restored position
        if now.position == before.position and not sought:
            return
        if (created and not epoch) or sought:
            self._recorder.add(records.Sought(_name_of(key), now.place(), int(now.epoch), created))
        else:
            self._recorder.add(records.Committed(_name_of(key), epoch, now.place()))
        if _name_of(key).startswith(CREW):
            self._recorder.add(_kept(_name_of(key), epoch, now.position))

    def _watch_lease(self, key: bytes, stored: Mapping[bytes, bytes]) -> None:
        name, add = _name_of(key), self._recorder.add
        nonce, until = stored.get(b"nonce", b""), stored.get(b"lease_until_ms", b"")
        before, until_before = self._leases.pop(key, (b"", b""))
        cause = stored.get(b"fence_cause", b"").decode()
        written = stored.get(b"epoch", b"0")
        epoch = int(written) if written.isdigit() else 0  # a damaged one
        if nonce:
            self._leases[key] = nonce, until
        # Whoever asks for a lease that another has writes the subscription, too: when it was last used.
        if before and ((nonce == before and until != until_before) or (not nonce and cause == "LEASE")):
            add(records.Renewed(name, epoch, is_last=not nonce))
        if not name.startswith(CREW):
            return
        if not nonce and before:
            add(records.Released(name, cause))
        elif nonce not in (b"", before, b"lost"):
            is_host = stored.get(b"owner", b"").startswith(HOST_PREFIX.encode())
            add(records.Hosted(name, epoch, self._recorder.now_s()) if is_host else records.Released(name, "SESSION"))

    def _lost(self) -> None:
        for key, before in list(self._stored.items()):
            now = _stored(self._redis.hash_of(key))
            if now != before:
                self._stored[key] = now
                self._recorder.add(records.Lost(_name_of(key), now.place()))


@dataclass(frozen=True, slots=True)
class _Stored:
    """What Redis has of a subscription."""

    position: bytes
    epoch: bytes

    def place(self) -> str:
        return hex_of(inspect_position(self.position).token.raw) if self.position else ""


_DELETED: Final = _Stored(b"", b"")


def _kept(group: str, epoch: int, data: bytes) -> records.Kept:
    position = inspect_position(data)
    place, ahead = hex_of(position.token.raw), position.ahead
    if ahead is None:
        return records.Kept(group, epoch, place)
    return records.Kept(group, epoch, place, hex_of(ahead.high.raw), tuple(mark.hex() for mark in ahead.holes))


def _stored(fields: Mapping[bytes, bytes]) -> _Stored:
    return _Stored(fields[b"position"], fields.get(b"epoch", b"0")) if b"position" in fields else _DELETED


def _name_of(key: bytes) -> str:
    """The subscription's name."""
    return key.rpartition(b"/")[2].rstrip(b"}").decode()


def hex_of(token: bytes) -> str:
    """The hex of the `_data` of a resume token document, which has no other field."""
    return token[15:-2].decode()


def number_of(event: bytes, at: int = 0) -> int:
    """The number of the event that begins at `at`, in BSON or extended JSON."""
    if event[at : at + len(_TEXT)] == _TEXT:
        found = _JSON_NUMBER.search(event, at)
        assert found is not None
        return int(found[1] or found[2])
    begin = event.index(_NUMBER, event.index(_AFTER, at)) + len(_NUMBER)
    return int.from_bytes(event[begin : begin + 4], "little")


def events_in(batch: wire.Batch) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Numbers and sizes of a message's events."""
    if batch.bson:
        return events_of(batch.bson)
    texts = [text.encode() for text in batch.json]
    return tuple(str(number_of(text)) for text in texts), tuple(map(len, texts))


def events_of(data: bytes) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Numbers and sizes of events in BSON."""
    numbers: list[str] = []
    sizes: list[int] = []
    at = 0
    if data[: len(_TEXT)] == _TEXT:  # fragments of one text
        return (str(number_of(data)),), (len(data),)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        numbers.append(str(number_of(data, at)))
        sizes.append(size)
        at += size
    return tuple(numbers), tuple(sizes)
