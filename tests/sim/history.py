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
        # An event and its first fragment have the same token.
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
        changes = [record for record in self.records if isinstance(record, Changed)]
        versions: list[dict[str, str]] = [{}]
        for change in changes:
            documents = dict(versions[-1])
            if change.version:
                documents[change.document] = change.version
            elif change.document and not change.document.endswith("/"):
                documents.pop(change.document, None)
            else:
                documents = {rank: each for rank, each in documents.items() if not rank.startswith(change.document)}
            versions.append(documents)
        return [token(change.place).key for change in changes], versions

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
        ranks = self.ranks(session.opened.feed)
        return ranks[bisect_right(ranks, first - 1) :]

    def judged(self) -> "list[SessionHistory]":
        """The sessions for which the expected events are known."""
        return [session for session in self.sessions.values() if session.opened.judged]


@lru_cache(maxsize=65536)
def token(place: str) -> ResumeToken:
    return ResumeToken.from_key_string(bytes.fromhex(place))
