"""What was observed of a run, as JSON lines: one record per line, in the order in which it happened.

Written by the simulation and the integration tests; judged by `checkers`, at once or offline. The record's
kind is its class name in lower case. Places are the hex of a resume token's `_data`, or empty where it is not known
(what needs it is not judged then). Events have any name that is unique in the run.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Written:
    """An event of the source. These records stand in the source's order."""

    event: str
    place: str = ""
    """The event's resume token."""
    feeds: tuple[str, ...] = ()
    """The feeds that it matches; none means all."""
    unit: str = ""
    """Events of one transaction, or fragments of one event, share a unit."""
    invalidate: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """A session began: it is to be sent every event of `feed` after `place`."""

    subscription: str
    """A session without a subscription has a name of its own here."""
    session: str
    place: str = ""
    feed: str = ""
    epoch: int = 0
    unacked_max: int = 0
    """Bound on unacknowledged events; 0 means none."""
    stops_at_invalidate: bool = True
    unknown_place: bool = False
    """MongoDB has no such token: the session is to end with an error, without any event."""
    rewound: bool = False
    """A notice announced that the session begins before a place that was stored."""
    judged: bool = True
    """What it is to be sent can be foreseen; else only its acks count."""


@dataclass(frozen=True, slots=True)
class Granted:
    """Credit that the client added."""

    session: str
    events: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Consecutive events reached the client."""

    session: str
    first_sequence: int
    events: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    """Bytes of each event, where credit in bytes is to be judged."""
    place: str = ""
    """The position sent with them: the place after the last event."""


@dataclass(frozen=True, slots=True)
class Acked:
    """The client acknowledged everything up to `sequence`."""

    session: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The client was told that everything up to `place` was delivered."""

    session: str
    place: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A place became durable."""

    subscription: str
    epoch: int
    place: str


@dataclass(frozen=True, slots=True)
class Sought:
    """A user moved the stored place, in whatever direction."""

    subscription: str
    place: str
    epoch: int = 0
    """Only later ones may commit, where it is known."""
    created: bool = False
    """The subscription is new: its user may know better where it has come to."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The store has lost what was durable: it has an older place now, or none."""

    subscription: str
    place: str


GAP: Final = "gap"


@dataclass(frozen=True, slots=True)
class Ended:
    """A session is over; `reason` is an ErrorReason, or empty when the client closed or died. `GAP`: it was told that
    events are lost, and its next record begins after them."""

    session: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory, in bytes or events, that something held when it was looked at."""

    name: str
    amount: int
    amount_max: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Faults have stopped, nothing more is written, and everyone open has had credit and time to catch up."""


Record = (
    Written | Opened | Granted | Delivered | Acked | Progress | Committed | Sought | Lost | Ended | Held | Settled
)  # fmt: skip

_KINDS: dict[str, Callable[..., Record]] = {
    kind.__name__.lower(): kind
    for kind in (Written, Opened, Granted, Delivered, Acked, Progress, Committed, Sought, Lost, Ended, Held, Settled)
}


def to_line(record: Record) -> str:
    """One line of JSON, without the line end."""
    return json.dumps({"kind": type(record).__name__.lower(), **asdict(record)}, separators=(",", ":"))


def from_line(line: str) -> Record:
    """Raises ValueError on a line that is no record."""
    try:
        fields: dict[str, Any] = json.loads(line)
        kind = _KINDS[fields.pop("kind")]
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a record: {line[:200]}") from error


def save(records: Iterable[Record], path: Path) -> None:
    with path.open("w") as file:
        file.writelines(to_line(record) + "\n" for record in records)


def load(path: Path) -> Iterator[Record]:
    with path.open() as file:
        for line in file:
            if line.strip():
                yield from_line(line)
