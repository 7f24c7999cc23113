"""What a restore of a deployment has taken away: the history that the server has read, and that MongoDB no longer has.

A restored deployment has an older copy of its oplog, and after it the entries that were written since then. A position
that was made in between names events that never happened there. Pure; `source.timeline` finds forks by asking MongoDB.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.resume_token import ResumeToken

FORKS_MAX: Final = 32
"""How many forks of a deployment servers know: the newest ones."""
BEFORE_ALL_ELECTIONS: Final = -1
"""The term of the entry with which a set begins, in `hello`; the entry itself has none."""
_TIME_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class OplogEntry:
    """An entry of the oplog: two entries of one time and one term are the same entry."""

    time: int
    """Seconds << 32 | increment."""
    term: int | None
    """The number of the election after which it was written. None: not known."""

    @property
    def begins_set(self) -> bool:
        """Whether the set begins with it. While the oplog has it, MongoDB takes every earlier time for a start."""
        return self.term == BEFORE_ALL_ELECTIONS

    def is_other_than(self, found: "OplogEntry | None") -> bool:
        """Whether `found`, the entry at this time, shows that this entry is gone."""
        return found is None or (self.term is not None and found.term != self.term)


@dataclass(frozen=True, slots=True)
class Fork:
    """The place where the present history of a deployment parts from the one that was read before."""

    after: int = 0
    """The time of the newest entry before the lost one. 0: not known."""
    until: int = 0
    """The time of the oldest entry since then. Between these two times the deployment has nothing."""
    is_exact: bool = False
    """Whether both histories are equal up to `after`. Otherwise, the clock of the restored deployment was behind, and
    has used times of the lost history again."""

    @classmethod
    def between(cls, before: OplogEntry | None, after: OplogEntry | None) -> "Fork":
        """`before` and `after` are the neighbours of the lost entry. A restored deployment begins with an election, so
        the first entry that it writes has a higher term than the last entry of the copy."""
        if before is None or after is None:
            return cls()
        exact = before.term is not None and after.term is not None and after.term > before.term
        return cls(before.time, after.time, exact)

    def has_lost(self, place: ResumeToken) -> bool:
        """Whether a position is of the lost history for sure, whoever gives it."""
        return place.last_time > self.after and place.cluster_time < self.until

    def has_lost_event(self, time: int) -> bool:
        """Whether an event of this cluster time is of the lost history for sure."""
        return self.after < time < self.until

    def may_have_lost(self, place: ResumeToken) -> bool:
        """Whether a position that was read before the fork may be of the lost history."""
        return not self.is_exact or place.last_time > self.after

    def error(self, source: str) -> FeedmuxError:
        """What a reader of a lost position gets."""
        common = f"{datetime.fromtimestamp(self.after >> 32, UTC):%Y-%m-%dT%H:%M:%SZ}" if self.is_exact else ""
        # What was not acknowledged may be before that time, and nobody has lost it.
        until = (
            f", or at {common}: up to then the two histories are equal. A subscription with an earlier stored position"
            " seeks to that"
        )
        return FeedmuxError(
            ErrorReason.TIMELINE_FORKED,
            f"MongoDB of source {source!r} was restored: it does not have the history that was read up to this"
            f" position. Seek to `earliest` or `latest`{until if common else ''}",
            {"last_common_time": common} if common else {},
        )


@dataclass(frozen=True, slots=True)
class TimelineRecord:
    """What servers that start later must know of a deployment: its history, and what it has lost."""

    known: OplogEntry | None = None
    """The newest entry that a majority had."""
    forks: tuple[Fork, ...] = ()

    def encode(self) -> str:
        known = [] if self.known is None or self.known.term is None else [f"{self.known.time} {self.known.term}"]
        return "\n".join(known + [f"{each.after} {each.until} {int(each.is_exact)}" for each in self.forks])

    def merged_with(self, stored: "TimelineRecord") -> "TimelineRecord":
        """This record with the forks that others have stored. The newest entry is that of this record, unless others
        have found that it is lost."""
        forks = sorted({*self.forks, *stored.forks}, key=lambda fork: (fork.until, fork.after))[-FORKS_MAX:]
        is_lost = self.known is not None and any(fork.after < self.known.time < fork.until for fork in forks)
        return TimelineRecord(stored.known if is_lost else self.known, tuple(forks))

    @classmethod
    def decode(cls, text: str) -> "TimelineRecord":
        """Raises ValueError."""
        lines = [[int(number) for number in line.split(" ")] for line in text.splitlines()]
        if any(len(line) not in (2, 3) for line in lines):
            raise ValueError("a line does not have two or three numbers")
        # The term of the entry with which a set begins is -1.
        if any(not 0 <= line[0] <= (line[1] if len(line) == 3 else _TIME_MAX) <= _TIME_MAX for line in lines):
            raise ValueError("a time is not a cluster time, or a fork ends before it begins")
        entries = [OplogEntry(*line) for line in lines if len(line) == 2]
        forks = tuple(Fork(line[0], line[1], bool(line[2])) for line in lines if len(line) == 3)
        return cls(entries[-1] if entries else None, forks)
