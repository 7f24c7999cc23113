"""A MongoDB that is a list: events with real resume tokens, cursors that read them in batches, an oplog that ends.

Tokens have the layout that mongod writes (collected from 6.0.5 for version 1, 6.0.27 for version 2), so that the
code under test orders them by itself.
"""

import random
from bisect import bisect_right
from dataclasses import dataclass

import bson

from feedmux_server.core.chunk import Chunk, cut_batch
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.resume_token import ResumeToken
from feedmux_server.core.subscriber import JoinPoint
from tests.sim.tokens import event_token, hex_of

SECOND = 1 << 32
BEGIN = 1_800_000_000 << 32


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the history."""

    number: int
    token: ResumeToken
    data: bytes
    unit: str = ""
    invalidate: bool = False
    fragment_open: bool = False
    """A fragment that is not its event's last."""


def event(
    n: int,
    token: ResumeToken,
    padding: int = 0,
    *,
    unit: str = "",
    invalidate: bool = False,
    part: tuple[int, int] | None = None,
) -> Event:
    document: dict[str, object] = {"_id": {"_data": hex_of(token)}, "n": n, "pad": b"x" * padding}
    if part is not None:
        document["splitEvent"] = {"fragment": part[0], "of": part[1]}
    return Event(n, token, bson.encode(document), unit, invalidate, part is not None and part[0] < part[1])


class FakeSource:
    """The history of one feed. `split` makes it one that splits large events."""

    def __init__(self, rng: random.Random, *, split: bool) -> None:
        self.rng = rng
        self.split = split
        self.version = 2 if split else 1
        self.clock = BEGIN
        self.events: list[Event] = []
        self._keys: list[tuple[int, int, int, int, bytes]] = []
        self.oldest = ResumeToken.high_water_mark(BEGIN, self.version)

    def now(self) -> ResumeToken:
        """Where "from now" begins."""
        return ResumeToken.high_water_mark(self.clock + 1, self.version)

    def tick(self) -> None:
        """Time passes without events of this feed; sometimes more than the join distance."""
        self.clock += self.rng.choice((1, 1, 2, SECOND, 3 * SECOND, 20 * SECOND))

    def write(self) -> list[Event]:
        """One event, a transaction, a split event, or an invalidate."""
        rng = self.rng
        self.clock += rng.choice((1, 1, 1, 2, SECOND))
        time, n = self.clock, len(self.events)
        padding = rng.choice((0, 20, 60, 150))
        kind = rng.random()
        if kind < 0.03:
            fragment = 0 if self.split else None
            new = [
                event(n, event_token(time, key=n, fragment=fragment), padding),
                event(n + 1, event_token(time, fragment=fragment, invalidate=True), invalidate=True),
            ]
        elif kind < 0.2:
            unit, count = f"t{n}", rng.randint(2, 12)
            new = [
                event(n + i, event_token(time, i, key=n, fragment=0 if self.split else None), padding, unit=unit)
                for i in range(count)
            ]
        elif self.split and kind < 0.45:
            unit, count = f"s{n}", rng.randint(2, 4)
            new = [
                event(n + i, event_token(time, key=n, fragment=i), padding, unit=unit, part=(i + 1, count))
                for i in range(count)
            ]
        else:
            new = [event(n, event_token(time, key=n, fragment=0 if self.split else None), padding)]
        self.events.extend(new)
        self._keys.extend(each.token.key for each in new)
        return new

    def truncate(self) -> None:
        """The oplog forgets its older part."""
        if self.events:
            place = ResumeToken.high_water_mark(self.rng.choice(self.events).token.cluster_time, self.version)
            self.oldest = max(self.oldest, place, key=lambda each: each.key)

    def rank_behind(self, place: ResumeToken) -> int:
        """Index of the first event behind `place`."""
        return bisect_right(self._keys, place.key)

    def has(self, token: ResumeToken) -> bool:
        rank = self.rank_behind(token) - 1
        return token.is_high_water_mark or (rank >= 0 and self.events[rank].token.raw == token.raw)

    def open(self, at: JoinPoint) -> "FakeCursor":
        """Raises HISTORY_LOST."""
        if self.oldest.is_after(at.place):
            raise FeedmuxError(ErrorReason.HISTORY_LOST, "gone")
        return FakeCursor(self, at)


@dataclass(frozen=True, slots=True)
class FakeBatch:
    chunks: list[Chunk]
    post_batch: ResumeToken
    exhausted: bool


class FakeCursor:
    """A change stream's cursor: reads from a place on, ends with the first invalidate."""

    def __init__(self, source: FakeSource, at: JoinPoint) -> None:
        self._source = source
        self._at = at
        self._to_judge = at.place if at.native else None
        self.place = at.place

    @property
    def at(self) -> JoinPoint:
        """Where to open again; native until MongoDB has shown an event."""
        return self._at

    def read(self, events_max: int, bytes_max: int, read_time_s: float) -> FakeBatch:
        """Raises RESUME_TOKEN_NOT_FOUND once an event comes behind a native token that is not there."""
        source = self._source
        first = source.rank_behind(self.place)
        new = source.events[first : first + events_max]
        if new and self._to_judge is not None and not source.has(self._to_judge):
            raise FeedmuxError(ErrorReason.RESUME_TOKEN_NOT_FOUND, "no such token")
        for index, each in enumerate(new):
            if each.invalidate:
                new = new[: index + 1]
                break
        exhausted = bool(new) and new[-1].invalidate
        at_end = not exhausted and first + len(new) == len(source.events)
        post_batch = new[-1].token if new else self.place
        if at_end:
            mark = ResumeToken.high_water_mark(source.clock, source.version)
            post_batch = max(post_batch, mark, key=lambda place: place.key)
        chunks = cut_batch(
            b"".join(each.data for each in new),
            self.place,
            post_batch,
            read_time_s,
            bytes_max=bytes_max,
            split=source.split,
        )
        newest = chunks[-1].end if chunks else post_batch
        if chunks:
            self._to_judge = None
        if newest.is_after(self.place):
            self._at = JoinPoint(newest, exact=True, native=None if chunks else self._at.native)
            self.place = newest
        return FakeBatch(chunks, post_batch, exhausted)
