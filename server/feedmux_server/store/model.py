"""The values that the store holds and returns: subscriptions, positions, leases.

Every value is frozen; definition, position and order are bytes that only the modules that make them understand.
Neighbours: `store` makes the values from Redis, `sessions`, `rpc` and `jobs` read them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

DAY_S: Final = 86_400.0
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last that a timestamp of protobuf can name."""


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """A position and its order: by `cluster_time` (seconds << 32 | increment), then by `order` bytewise."""

    position: bytes
    cluster_time: int
    order: bytes
    moves_back: bool = False
    """Store it although it is before the stored position, which MongoDB no longer has."""


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    """A subscription as it is stored. Times are Redis TIME in milliseconds."""

    name: str
    definition: bytes
    etag: str
    position: bytes
    cluster_time: int
    order: bytes
    epoch: int
    seek_epoch: int
    """The epoch of the last seek; a last ack from an earlier epoch does not override the seek. 0: never sought."""
    commit_epoch: int
    """The epoch of the session that last moved the position. 0: no session has, or an older server stored it."""
    owner: str
    """Instance id of the open session; empty without a session."""
    active: bool
    create_ms: int
    update_ms: int
    used_ms: int
    """When the subscription was last open, sought or changed; later than now while it is open."""
    delivered_time: int = 0
    """The cluster time up to which sessions have delivered events since the last seek, acknowledged or not. 0: none
    was delivered, or by an older server alone."""
    members: int = 0
    """The members of a group at its last host, with those that it waited for. 0: an older server has hosted it."""

    def expires_ms(self, unused_days: float) -> int | None:
        """When the server will delete the subscription if nobody uses it; None if never, or while it is open."""
        if not unused_days or self.active:
            return None
        return min(self.used_ms + round(unused_days * DAY_S * 1000), TIME_MS_MAX)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to commit to one subscription until a higher epoch exists."""

    tenant: str
    name: str
    epoch: int
    nonce: str
    instance_id: str
    taken_over: bool = False
    """Whether another instance held the subscription until this lease."""
    follows_lost: bool = False
    """Whether the holder before this lease has not released its own, and what it has done last must be found out."""


class FenceCause(StrEnum):
    """Why a session lost its subscription (`cause` of the error FENCED)."""

    TAKEOVER = "TAKEOVER"
    SEEK = "SEEK"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    LEASE = "LEASE"


class CommitStatus(StrEnum):
    """The result of one commit or renewal."""

    OK = "OK"
    """The position is stored, or the stored position was not older; the lease is extended."""
    MISSING = "MISSING"
    """The store lost this session's state: restore it, then commit again."""
    FENCED = "FENCED"
    FAILED = "FAILED"
    """Redis rejected this one key; other keys are not affected."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Store `place`, or only extend the lease if `place` is None."""

    lease: Lease
    place: StoredPlace | None
    delivered_time: int
    """See `StoredSubscription`."""
    members: int | None = None
    """The same; None of an ordinary subscription."""
    answered: bytes = b""
    """The position that Redis has had by its last answer: a place that moves back may be before this one."""


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """`position`: the position stored now (if OK); `cause`: why it was not stored (if FENCED)."""

    status: CommitStatus
    position: bytes = b""
    cause: FenceCause = FenceCause.LEASE


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What a live owner knows about a subscription that the store lost."""

    lease: Lease
    stored: StoredSubscription
