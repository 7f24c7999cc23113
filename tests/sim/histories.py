"""Histories of sessions: what a program did with a session, what its client sent, and what the servers sent, in the
order in which the client saw these steps. `tests/conformance/clients/replay.py` leads any client through a history,
step by step.

A history has no times, and everything that depends on time is replaced. A call that the client cancelled because the
server was silent ends with UNAVAILABLE, which the protocol treats in the same way. Heartbeats are far apart, and
RetryInfo asks for a few milliseconds. What the program did between two calls is recorded before the end of the first
call: the Open of the second call reflects it in either case.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from feedmux import Batch, Event, FeedmuxError, SessionOptions
from feedmux.notices import Disconnected, Notice
from feedmux.recovery import Step as Recovery
from feedmux.recovery import next_step
from feedmux.v1 import change_feed_pb2 as wire
from tests.sim.network import Status, Watcher
from tests.sim.users import Diary
from tests.sim.world import SMALL, Size, World

HEARTBEAT_S: Final = 60
RETRY_NS: Final = 5_000_000
DETAILS_KEY: Final = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class Opens:
    """The client begins a call with this Open."""

    open: wire.Open


@dataclass(frozen=True, slots=True)
class Receives:
    """The client gets a message from the server."""

    message: bytes
    """A SubscribeResponse."""


@dataclass(frozen=True, slots=True)
class Sends:
    """The client sends Credit, Ack or Close."""

    request: wire.SubscribeRequest


@dataclass(frozen=True, slots=True)
class Ends:
    """The call ends."""

    status: Status


@dataclass(frozen=True, slots=True)
class Takes:
    """The program receives these events."""

    events: tuple[bytes, ...]
    """BSON documents or texts."""


@dataclass(frozen=True, slots=True)
class IsTold:
    """The program receives a notice."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class Acks:
    """The program has processed all events up to this number; numbers count from 1 in a session."""

    number: int


@dataclass(frozen=True, slots=True)
class Closes:
    """The program closes the session."""


@dataclass(frozen=True, slots=True)
class Fails:
    """The program gets an error: the session has ended, or cannot be opened."""

    error: FeedmuxError


Step = Opens | Receives | Sends | Ends | Takes | IsTold | Acks | Closes | Fails


@dataclass(frozen=True, slots=True)
class History:
    """One session object. If the steps do not end with Closes and Ends, or with Fails, the program had died."""

    name: str
    options: SessionOptions
    steps: tuple[Step, ...] = field(repr=False)

    @property
    def opens(self) -> Iterator[wire.Open]:
        """All Opens of the session."""
        return (step.open for step in self.steps if isinstance(step, Opens))


@dataclass(slots=True)
class _Begun:
    """A call that the client has made. Its Open was decided at that moment, and is known once it has been sent."""

    open: wire.Open | None = None


_Raw = Step | _Begun


class SessionDiary(Diary):
    """Records the histories of all sessions of one program."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sessions: list[tuple[SessionOptions, list[_Raw]]] = []
        self._numbers: dict[int, int] = {}
        """Maps the client's event numbers to the numbers of the events that were handed out."""
        self._taken = 0

    @property
    def histories(self) -> Iterator[History]:
        for number, (options, steps) in enumerate(self._sessions, 1):
            arranged = tuple(_arranged(steps))
            if arranged:
                yield History(f"{self._name} session {number}", options, arranged)

    def opens(self, options: SessionOptions) -> None:
        self._sessions.append((options, []))
        self._numbers.clear()
        self._taken = 0

    def took(self, what: Event | Batch) -> None:
        events = list(what) if isinstance(what, Batch) else [what]
        for event in events:
            self._taken += 1
            self._numbers[event.sequence] = self._taken
        self._add(Takes(tuple(event.raw for event in events)))

    def was_told(self, notice: Notice) -> None:
        if not isinstance(notice, Disconnected):  # no message
            self._add(IsTold(notice))

    def acked(self, what: Event | Batch | None) -> None:
        match what:
            case None:
                number = self._taken
            case Batch():
                number = self._numbers[what.last_sequence]
            case _:
                number = self._numbers[what.sequence]
        if number:
            self._add(Acks(number))

    def closes(self) -> None:
        self._add(Closes())

    def failed(self, error: FeedmuxError) -> None:
        self._add(Fails(error))

    def beside(self, watcher: Watcher) -> Watcher:
        return _Both(watcher, self._sessions[-1][1])

    def _add(self, step: Step) -> None:
        self._sessions[-1][1].append(step)


class _Both(Watcher):
    """Forwards everything to another watcher, and adds to the steps of a session."""

    def __init__(self, other: Watcher, steps: list[_Raw]) -> None:
        self._steps = steps
        self._begun = _Begun()
        self._is_finished = False
        steps.append(self._begun)
        self.received = other.received  # type: ignore[method-assign]
        self.written = other.written  # type: ignore[method-assign]
        self.ended = other.ended  # type: ignore[method-assign]
        self._sent = other.sent

    def sent(self, message: bytes) -> None:
        self._sent(message)
        request = wire.SubscribeRequest.FromString(message)
        if request.HasField("open"):
            self._begun.open = request.open
        else:
            self._steps.append(Sends(request))

    def read(self, message: bytes) -> None:
        self._steps.append(Receives(message))

    def finished(self, status: Status) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._steps.append(Ends(status))


def record(seed: int, scenario: str = "", size: Size = SMALL) -> list[History]:
    """The histories of all sessions in a run, by program. Raises AssertionError for a run that has problems."""
    world = World(seed, size, scenario=scenario)
    diaries: list[SessionDiary] = []

    def diary_of(name: str) -> SessionDiary:
        diaries.append(SessionDiary(f"{scenario or 'no scenario'}, seed {seed}: {name}"))
        return diaries[-1]

    for user in world.users:
        user.diary = diary_of(user.name)
    world.diary_of = diary_of
    outcome = world.run()
    assert not outcome.problems, f"seed {seed} of {scenario!r}: {outcome.problems}"
    return [history for diary in diaries for history in diary.histories]


def _arranged(steps: Sequence[_Raw]) -> Iterator[Step]:
    """The steps without times, and without what cannot be repeated at the end."""
    return _together(_as_far_as_it_repeats(_early(_sent(steps))))


def _sent(steps: Sequence[_Raw]) -> list[Step]:
    """Remove calls that were not sent because there was no connection."""
    found: list[Step] = []
    is_sent = True
    for step in steps:
        if isinstance(step, _Begun):
            is_sent = step.open is not None
            if step.open is not None:
                found.append(Opens(step.open))
        elif is_sent or not isinstance(step, Ends):
            found.append(step)
    return found


def _early(steps: Sequence[Step]) -> list[Step]:
    """Move what the program did between two calls before the end of the first.

    A history ends before a close between two calls: the client may or may not open again to send its acks.
    """
    found: list[Step] = []
    end: Ends | None = None
    between: list[Step] = []
    for step in steps:
        if isinstance(step, Ends):
            end = step
        elif end is None:
            found.append(step)
        elif isinstance(step, Closes):
            return [*found, *between]
        elif isinstance(step, Opens):
            found += [*between, end, step]
            end, between = None, []
        else:
            between.append(step)
    return [*found, *([end] if end else ()), *between]


def _as_far_as_it_repeats(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps up to an end that neither a server nor the program caused, such as a client-side timeout."""
    is_open = is_closing = False
    for number, step in enumerate(steps):
        match step:
            case Opens():
                is_open = False
            case Closes():
                if not is_open:
                    return
                is_closing = True
            case Receives(message):
                is_open = True
                yield Receives(_without_times(message))
                continue
            case Ends(status):
                follows = steps[number + 1 :]
                fails = any(isinstance(each, Fails) and next_step(each.error) is Recovery.RAISE for each in follows)
                if not (is_closing or fails or any(isinstance(each, Opens) for each in follows)):
                    return
                is_open = False
                yield Ends(_without_delays(status))
                continue
            case Fails(error):
                if next_step(error) is not Recovery.RAISE:
                    return
        yield step


def _together(steps: Iterator[Step]) -> Iterator[Step]:
    """Combine events that are taken with no other step between them."""
    taken: list[bytes] = []
    for step in steps:
        if isinstance(step, Takes):
            taken += step.events
            continue
        if taken:
            yield Takes(tuple(taken))
            taken = []
        yield step
    if taken:
        yield Takes(tuple(taken))


def _without_times(message: bytes) -> bytes:
    response = wire.SubscribeResponse.FromString(message)
    if not response.HasField("opened"):
        return message
    response.opened.heartbeat_interval.FromSeconds(HEARTBEAT_S)
    return response.SerializeToString()


def _without_delays(status: Status) -> Status:
    code, details, trailing = status
    if code is grpc.StatusCode.CANCELLED:
        return grpc.StatusCode.UNAVAILABLE, details, ()
    rich = status_pb2.Status.FromString(dict(trailing).get(DETAILS_KEY, b""))
    for packed in rich.details:
        retry = error_details_pb2.RetryInfo()
        if packed.Unpack(retry):
            retry.retry_delay.FromNanoseconds(RETRY_NS)
            shortened = any_pb2.Any()
            shortened.Pack(retry)
            packed.CopyFrom(shortened)
    if not rich.details:
        return status
    return code, details, ((DETAILS_KEY, rich.SerializeToString()),)
