"""The observations of a run, in the order in which they happened, for `checkers`.

Places are the hex of a resume token's `_data`, or empty if unknown (checks that need the place are then skipped). An
event may have any name that is unique in the run.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Written:
    """An event of the source. These records are in the source's order."""

    event: str
    place: str = ""
    """The event's resume token."""
    feeds: tuple[str, ...] = ()
    """The feeds that it matches; none means all."""
    unit: str = ""
    """Events of one transaction, or fragments of one event, share a unit."""
    invalidate: bool = False
    key: str = ""
    """The collection and `_id` of the document that was changed; empty if it is none, as after a drop."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session began: it must show every event of `feed` after `place`."""

    subscription: str
    """A session without a subscription has its own name here."""
    session: str
    place: str = ""
    feed: str = ""
    epoch: int = 0
    unacked_max: int = 0
    """Bound on unacknowledged events; 0 means no bound."""
    stops_at_invalidate: bool = True
    unknown_place: bool = False
    """MongoDB has no such token: the session must end with an error, without any event."""
    rewound: bool = False
    """A notice announced that the session begins before a stored position."""
    judged: bool = True
    """Whether the expected events are known; otherwise only the session's acks count."""
    reconnects: bool = False
    """It begins again at its last ack whenever its connection is lost, and its program is not told."""


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
    """Bytes of each event, if credit in bytes is to be judged."""
    place: str = ""
    """The position sent with the events: the position after the last event."""


@dataclass(frozen=True, slots=True)
class Acked:
    """The client acknowledged everything up to `sequence`."""

    session: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The client learned that everything up to `place` was delivered."""

    session: str
    place: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A position became durable."""

    subscription: str
    epoch: int
    place: str


@dataclass(frozen=True, slots=True)
class Sought:
    """A user moved the stored position, in either direction."""

    subscription: str
    place: str
    epoch: int = 0
    """If it is not 0, only later epochs may commit."""
    created: bool = False
    """The subscription is new: its user may know better how far it has read."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The store has lost durable data: it now has an older position or owner, or nothing."""

    subscription: str
    place: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """A server has written to Redis that its session still has the subscription, or has it no more: `is_last`."""

    subscription: str
    epoch: int
    is_last: bool = False


GAP: Final = "gap"


@dataclass(frozen=True, slots=True)
class Ended:
    """A session ended; `reason` is an ErrorReason, or empty if the client closed or died. `GAP`: the client learned
    that events are lost, and its next record begins after them."""

    session: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """The amount of memory, in bytes or events, that something held at a check."""

    name: str
    amount: int
    amount_max: int


@dataclass(frozen=True, slots=True)
class Changed:
    """A document of the copied collection changed. These records are in the source's order."""

    place: str
    """The event's resume token."""
    document: str
    """Its collection, and the rank of its `_id`: ranks sort as `_id`s do. Without a rank, all those that begin so are
    gone."""
    version: str
    """Its new content; empty if it was deleted."""


@dataclass(frozen=True, slots=True)
class Holds:
    """The documents that a sink holds when it has applied everything up to a position."""

    sink: str
    place: str
    documents: tuple[str, ...]
    """`rank=version`, in the order of ranks."""
    copying: bool = False
    """The position is within a copy."""
    copied: str = ""
    """The rank of the last copied document of a position within a copy; empty for none."""
    is_last: bool = False
    """Nothing is written any more, and the sink has had the time to catch up. It holds what it has ever applied."""
    within: str = ""
    """How the ranks of the documents begin that it copies."""
    may_have_more: bool = False
    """It may also hold documents that its position does not cover: of a collection that was renamed."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A process became a member of a group, or is one again."""

    group: str
    member: str
    """The name of the process."""
    epoch: int
    """That of the group's host."""
    feed: str
    at_s: float = 0.0
    """When the host has answered."""


@dataclass(frozen=True, slots=True)
class Left:
    """A member lost its session, or has ended: `for_good`. `overdue`: it had none for so long that others get what it
    has in hand, if its host lives."""

    group: str
    member: str
    for_good: bool = False
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class Hosted:
    """A server hosts a group from now on."""

    group: str
    epoch: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Released:
    """The host of a group has released its lease: the next one does not ask members what they have."""

    group: str
    cause: str
    """Why another session would be fenced: LEASE or UPDATE; or SEEK, after which what members have is void. SESSION: an
    ordinary session has the lease, and what members have is void."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A server sent events to a member of a group."""

    group: str
    session: str
    events: tuple[str, ...]
    fronts: tuple[str, ...]
    """Those that a member begins first: the first one of each run."""


@dataclass(frozen=True, slots=True)
class Started:
    """A member began to process an event."""

    group: str
    member: str
    session: str
    """Its newest session."""
    event: str
    attempt: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Handled:
    """A member has processed an event; `result` is "done", "failed" or "rejected"."""

    group: str
    member: str
    event: str
    result: str
    following: str = ""
    """The event that the member begins next, if the run has another one."""
    until_s: float = 0.0
    """A failed event is not delivered again before this time."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A majority of the members of the collection for dead letters has an event of a group."""

    group: str
    event: str
    attempts_max: int
    """How often the group delivers an event."""
    quarantines: bool = False
    """The later events of its key become dead letters too."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """A program is about to discard a dead letter."""

    group: str
    event: str


@dataclass(frozen=True, slots=True)
class Removed:
    """A dead letter is deleted."""

    group: str
    event: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The position of a group became durable, with what is settled ahead of it."""

    group: str
    epoch: int
    place: str
    high: str = ""
    """Everything up to here is settled, except the holes and what follows each in its key; empty for none."""
    holes: tuple[str, ...] = ()
    """The marks of the holes' events, in hex."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The events of a group were changed, so that some are skipped or come again: by lost history, or by other
    grants."""

    group: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The source has lost everything between these two cluster times: it was restored from an older copy."""

    after: int
    """The time of the newest entry of the copy."""
    until: int
    """The time of the first entry since then."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Faults have stopped, nothing more is written, and every open session has had credit and time to catch up."""


Record = (
    Written | Opened | Granted | Delivered | Acked | Progress | Committed | Sought | Lost | Ended | Held | Settled
    | Changed | Holds | Hosted | Joined | Left | Released | Sent | Started | Handled | SetAside | Discarded | Removed
    | Kept | Skipped | Restored | Renewed
)  # fmt: skip
