"""What the checkers read: the records of a run, with the queries that they need."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim.records import (
    Acked,
    Changed,
    Delivered,
    Ended,
    Granted,
    Holds,
    Opened,
    Progress,
    Record,
    Restored,
    Settled,
    Written,
)


@dataclass(frozen=True, slots=True)
class Violation:
    guarantee: str
    subject: str
    """The session or subscription."""
    message: str

    def __str__(self) -> str:
        return f"{self.guarantee}: {self.subject}: {self.message}"


SessionRecord = Granted | Delivered | Acked | Progress | Ended


@dataclass(slots=True)
class SessionHistory:
    """What one session saw, in order."""

    opened: Opened
    records: list[SessionRecord] = field(default_factory=list)
    end: Ended | None = None
    settled: bool = False
    """Whether the session was open when the run had settled."""

    @property
    def name(self) -> str:
        return self.opened.session

    def delivered(self) -> Iterator[str]:
        for record in self.records:
            if isinstance(record, Delivered):
                yield from record.events


class History:
    """The records of a run, with the queries that the checkers need. Raises ValueError when records contradict each
    other."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records: Sequence[Record] = list(records)
        self.written = [record for record in self.records if isinstance(record, Written)]
        self.order = {record.event: index for index, record in enumerate(self.written)}
        if len(self.order) != len(self.written):
            raise ValueError("an event was written twice")
        self.restores = [record for record in self.records if isinstance(record, Restored)]
        self.sessions: dict[str, SessionHistory] = {}
        self._ranks_of_feed: dict[str, list[int]] = {}
        for record in self.records:
            match record:
                case Opened():
                    if record.session in self.sessions:
                        raise ValueError(f"session {record.session} was opened twice")
                    self.sessions[record.session] = SessionHistory(record)
                case Granted() | Delivered() | Acked() | Progress() | Ended():
                    session = self.sessions.get(record.session)
                    if session is None or session.end is not None:
                        raise ValueError(f"session {record.session} is not open")
                    session.records.append(record)
                    if isinstance(record, Ended):
                        session.end = record
                case Settled():
                    for session in self.sessions.values():
                        session.settled = session.end is None
                case _:
                    pass

    @cached_property
    def _keys(self) -> "list[tuple[int, int, int, int, bytes]] | None":
        if not all(record.place for record in self.written):
            return None
        keys = [token(record.place).key for record in self.written]
        if any(later < earlier for earlier, later in pairwise(keys)):
            raise ValueError("the written events' tokens are not in order")
        return keys

    @cached_property
    def holds(self) -> list[Holds]:
        """What sinks held."""
        return [record for record in self.records if isinstance(record, Holds)]

    @cached_property
    def _versions(self) -> tuple[list[tuple[int, int, int, int, bytes]], list[dict[str, str]]]:
        """The keys of the changes to documents, and the documents before the first one and after each."""
        changes = [record for record in self.records if isinstance(record, Changed | Restored)]
        versions: list[dict[str, str]] = [{}]
        keys: list[tuple[int, int, int, int, bytes]] = []
        for change in changes:
            if isinstance(change, Restored):
                keys.append(ResumeToken.high_water_mark(change.until).key)
                versions.append(versions[bisect_right(keys, ResumeToken.high_water_mark(change.after + 1).key)])
                continue
            keys.append(token(change.place).key)
            documents = dict(versions[-1])
            if change.version:
                documents[change.document] = change.version
            elif change.document and not change.document.endswith("/"):
                documents.pop(change.document, None)
            else:
                documents = {rank: each for rank, each in documents.items() if not rank.startswith(change.document)}
            versions.append(documents)
        return keys, versions

    @cached_property
    def replaced(self) -> set[str]:
        """The places of the events by which another collection was renamed over one. No event shows its documents: a
        sink has them after the invalidate event that follows, or not at all."""
        dropped = {
            (each.place, each.document) for each in self.records if isinstance(each, Changed) and not each.version
        }
        renamed = (each for each in self.records if isinstance(each, Changed) and each.version)
        return {each.place for each in renamed if (each.place, f"{each.document.split('/')[0]}/") in dropped}

    def documents_at(self, place: str) -> dict[str, str]:
        """The versions of the documents that the source held at a position."""
        keys, versions = self._versions
        return versions[bisect_right(keys, token(place).key)]

    def rank_after(self, place: str) -> int | None:
        """Index of the first written event after `place`; None if it cannot be determined."""
        if not place or self._keys is None:
            return None
        return bisect_right(self._keys, token(place).key)

    def described(self, place: str) -> str:
        """Describe the position relative to the written events."""
        rank = self.rank_after(place)
        if rank is None:
            return "at an unknown position"
        return f"after {self.written[rank - 1].event}" if rank else "before every event"

    def ranks(self, feed: str) -> list[int]:
        """Indices of the written events that `feed` shows."""
        found = self._ranks_of_feed.get(feed)
        if found is None:
            found = self._ranks_of_feed[feed] = [
                index for index, record in enumerate(self.written) if not record.feeds or feed in record.feeds
            ]
        return found

    def expected(self, session: SessionHistory) -> list[int] | None:
        """All events that the session must show, from its position to the end of the history; None if its position is
        unknown."""
        first = self.rank_after(session.opened.place)
        if first is None:
            return None
        ranks = self.ranks_for(session)
        return ranks[bisect_right(ranks, first - 1) :]

    def ranks_for(self, session: SessionHistory) -> list[int]:
        """Indices of the events that a session's feed shows, in the history of the source that the session has seen."""
        ranks = self.ranks(session.opened.feed)
        if not self.restores:
            return ranks
        newest = max((token(place).cluster_time for place in self._places(session)), default=0)
        passed = self.restores if session.settled else [each for each in self.restores if each.until <= newest]
        later = [each for each in self.restores if each not in passed]
        return [
            rank
            for rank in ranks
            if not any(is_lost(self.written[rank].place, each) for each in passed)
            and not (later and token(self.written[rank].place).cluster_time >= later[0].until)
        ]

    def _places(self, session: SessionHistory) -> Iterator[str]:
        """The places of what a session has seen."""
        for record in (session.opened, *session.records):
            if isinstance(record, Opened | Delivered | Progress) and record.place:
                yield record.place
            if isinstance(record, Delivered):
                yield from (self.written[self.order[event]].place for event in record.events if event in self.order)

    def judged(self) -> "list[SessionHistory]":
        """The sessions for which the expected events are known."""
        return [session for session in self.sessions.values() if session.opened.judged]


@lru_cache(maxsize=65536)
def token(place: str) -> ResumeToken:
    return ResumeToken.from_key_string(bytes.fromhex(place))


def newest_time(place: str) -> int:
    """The newest cluster time of which a position may have passed an event."""
    at = token(place)
    return at.cluster_time - at.is_high_water_mark


def is_lost(place: str, restored: Restored) -> bool:
    """Whether a position is of the history that a restore has taken away."""
    return newest_time(place) > restored.after and token(place).cluster_time < restored.until
