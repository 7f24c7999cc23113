"""A MongoDB replica set in memory: an oplog with real resume tokens, and change streams that read it.

`SimSource` is the server's own `Source`; this module only replaces what pymongo would do. Errors are pymongo's own,
with the codes and labels that mongod 6.0 gives, so that the reader and its resume policy are the real ones.
"""

import asyncio
import operator
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from random import Random
from typing import Any, Final, TypeVar

import bson
from bson.binary import UUID_SUBTYPE, Binary
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError, ServerSelectionTimeoutError

from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.cursor import Interrupted, RawBatch
from feedmux_server.source.deployment import Source, SourceConfig
from feedmux_server.source.read_watch import Address, Operation
from feedmux_server.telemetry.observer import NOBODY, Observer
from tests.sim.documents import Change, State, Versions, apply, rank_of, read_documents, without_gate
from tests.sim.events import event_token
from tests.sim.loop import SimLoop, process
from tests.sim.profiles import Profile, with_fields_of
from tests.sim.tenants import HIDDEN, HIDING, allows, stages_by_choice

SOURCE_ID: Final = "sim"
NOOP_S: Final = 10
"""An idle replica set writes a no-op entry at this interval."""
STOPPED_S: Final = 20.0
"""Within this time a server stops a cursor's operation, with `limits.event_time_s` at 5: this includes the checks, and
the wait before them."""
OPENING_STOPPED_S: Final = 40.0
SELECTION_S: Final = 5.0
"""How long the driver looks for a server."""
_RESUMABLE = "ResumableChangeStreamError"
SPLIT: Final[dict[str, Any]] = {"$changeStreamSplitLargeEvent": {}}
BATCH_BYTES: Final = 250_000
"""A batch ends with the event that reaches this size; mongod's bound is 16 MiB."""
SPLIT_BYTES: Final = 1_500
"""Larger events are split if the pipeline asks for it; mongod splits at 16 MiB."""
PART: Final = 1 << 20
"""The number of a fragment is the number of its event, plus this value for each fragment up to it."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A change, as one event."""

    number: int
    """Its number among all changes, from 0."""
    database: str
    collection: str
    tokens: Callable[[int], ResumeToken]
    """The token of each fragment, by its number."""
    token: ResumeToken
    event: dict[str, Any]
    data: bytes
    invalidates: bool = False
    """Whether this is the invalidate event after a drop or a rename, which only change streams of collections show."""
    to: str = ""
    """Of a rename, and of its invalidate event: the new name."""
    moved: State | None = None
    """Of a rename: the documents of the collection."""

    def is_of(self, database: str, collection: str) -> bool:
        return self.collection == collection and self.database == database

    def concerns(self, database: str, collection: str) -> bool:
        return self.database == database and collection in (self.collection, self.to)

    def shown(self, *, split: bool) -> "list[Shown]":
        """The entry as one event, or as its fragments."""
        return self._fragments if split else self._whole

    @cached_property
    def _whole(self) -> "list[Shown]":
        return [Shown(self, self.number, self.token, self.data)]

    @cached_property
    def _fragments(self) -> "list[Shown]":
        count = -(-len(self.data) // SPLIT_BYTES)
        return self._whole if count == 1 else [self._fragment(index, count) for index in range(count)]

    def hiding(self) -> "list[Shown]":
        """The event without the field that may be hidden."""
        if HIDDEN not in (document := self.event.get("fullDocument", {})):
            return self.shown(split=False)
        left = {name: value for name, value in document.items() if name != HIDDEN}
        return [Shown(self, self.number, self.token, bson.encode(self.event | {"fullDocument": left}))]

    def with_document(self, document: dict[str, Any] | None) -> "Shown":
        """An update with the document that was found for it."""
        return Shown(self, self.number, self.token, bson.encode(self.event | {"fullDocument": document}))

    def _fragment(self, index: int, count: int) -> "Shown":
        """A fragment, with a part of the padding."""
        token, number = self.tokens(index), self.number + (index + 1) * PART
        pad: bytes = self.event["fullDocument"]["pad"]
        piece = -(-len(pad) // count)
        document = self.event["fullDocument"] | {"pad": pad[index * piece : (index + 1) * piece]}
        first = {"_id": bson.decode(token.raw), "splitEvent": {"fragment": index + 1, "of": count}}
        event = first | self.event | first | {"n": number, "fullDocument": document}
        return Shown(self, number, token, bson.encode(event))


@dataclass(frozen=True, slots=True)
class Shown:
    """An event as a change stream shows it."""

    entry: Entry
    number: int
    token: ResumeToken
    data: bytes


@dataclass(frozen=True, slots=True)
class Failing:
    """A named error that ends every read."""

    name: str
    make: Callable[[], PyMongoError]


def _operation_failure(code: int, name: str, message: str, *labels: str) -> OperationFailure:
    details = {"ok": 0.0, "errmsg": message, "code": code, "codeName": name, "errorLabels": list(labels)}
    return OperationFailure(message, code, details)


# After a change of the feature compatibility version, since MongoDB 8.3.
RETRY: Final = Failing("retry", lambda: _operation_failure(234, "RetryChangeStream", "retry change stream", _RESUMABLE))
FAILINGS: Final = (
    Failing("network", lambda: AutoReconnect("connection closed")),
    Failing("election", lambda: _operation_failure(10107, "NotWritablePrimary", "not primary", _RESUMABLE)),
    Failing("cursor-not-found", lambda: _operation_failure(43, "CursorNotFound", "cursor id not found")),
    Failing("cursor-killed", lambda: _operation_failure(237, "CursorKilled", "cursor was killed")),
    RETRY,
    Failing("interrupted", lambda: _operation_failure(11601, "Interrupted", "operation was interrupted")),
)


@dataclass(slots=True)
class Costs:
    """How long MongoDB computes, in seconds."""

    event_s: float = 0.0
    """For each event that a change stream with user stages shows."""
    open_s: float = 0.0
    """For an aggregate with user stages."""
    any_event_s: float = 0.0
    """For each event of any change stream."""


@dataclass(eq=False, slots=True)
class Work:
    """An operation that computes without yielding."""

    opid: int
    session: bytes
    cursor_id: int
    """0 for an aggregate."""
    ended: asyncio.Future[None]
    killed: bool = False

    def shown(self) -> dict[str, Any]:
        """The operation as `$currentOp` shows it."""
        command = {"command": {} if self.cursor_id else {"aggregate": 1}}
        cursor = {"cursor": {"cursorId": self.cursor_id}} if self.cursor_id else {}
        lsid = {"id": Binary(self.session, UUID_SUBTYPE)}
        return {"opid": self.opid, "active": True, "numYields": 3, "lsid": lsid, **command, **cursor}


class SimMongo:
    """The replica set."""

    def __init__(self, loop: SimLoop, rng: Random, token_version: int = 1) -> None:
        """Token version 2 means MongoDB 7.0, which also splits events."""
        self.loop = loop
        self._rng = rng
        self.token_version = token_version
        self.profile = Profile("7.0.5" if token_version == 2 else "6.0.5")
        self.entries: list[Entry] = []
        """Entries that a majority has."""
        self.written: list[Entry] = []
        """All entries that a majority has ever had, by their numbers: also those that a restore has taken away."""
        self._written_keys: list[Any] = []
        self.committed: Callable[[list[Entry], bool], None] = lambda entries, whole: None
        """Called when a majority has the entries; `whole` says that they are from one transaction."""
        self.lag_s = 0.0
        """The time until a majority has what the primary has."""
        self._pending: deque[tuple[list[Entry], bool]] = deque()
        self._writing: list[Entry] = []
        self._keys: list[Any] = []
        self._last = (int(loop.true_wall_s()) << 32) + 1
        self._oldest = self._last
        self._terms = [(self._last, 1)]
        """When each term began."""
        self.elections = 1
        """Which one the primary has won."""
        self._holes: list[tuple[int, int]] = []
        """Between these times, restores have left nothing."""
        self.cursors = 0
        """The number of cursors that were opened."""
        self.open: dict[SimCursor | SimDocuments, None] = {}
        self.away = False
        """No server can be reached."""
        self.is_primary = True
        """Whether the server that answers commands is the primary."""
        self.oplog_readable = True
        self.snapshot_window_s = 300.0
        """For so long, documents can be read as they were."""
        self.read_ahead = 1 << 30
        """So many documents a read has in memory before they are asked for: whatever happens to their collection, they
        come. mongod has some megabytes of them."""
        self._versions: dict[tuple[str, str], Versions] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.reads = 0
        """The number of getMores."""
        self.costs = Costs()
        self.working: dict[int, Work] = {}
        """The running operations, by their numbers."""
        self.unstopped: list[str] = []
        """Operations that were not stopped, though they computed for longer than a server allows."""
        self._operations = 0
        self._sessions = 0
        self.documents = 0
        """So many documents a collection has, which inserts replace again and again; 0: each insert is of another."""

    # Writing.

    def insert(self, database: str, collection: str, padding: int, **fields: Any) -> None:
        """Insert one document."""
        self._insert(self._tick(), 0, database, collection, padding, fields)
        self._written(whole=False)

    def transaction(self, database: str, collection: str, count: int, padding: int, **fields: Any) -> None:
        """Insert `count` documents in a transaction."""
        time = self._tick()
        for index in range(count):
            self._insert(time, index, database, collection, padding, fields, transaction=time)
        self._written(whole=True)

    def insert_many(self, database: str, collection: str, count: int, padding: int, **fields: Any) -> None:
        """Insert `count` documents with one command. Since 8.0 they have one cluster time."""
        time = self._tick()
        for index in range(count):
            self._insert(time, index, database, collection, padding, fields)
        self._written(whole=False)

    def change(self, database: str, collection: str, *changes: Change) -> None:
        """Change documents, with one cluster time."""
        state, time = self._present(database, collection), 0
        for change in changes:
            number = self._next_number
            event = change.event(state, number)
            if event is not None:
                time = time or self._tick()
                apply(state, event)
                event["ns"] = {"db": database, "coll": collection}
                self._append(database, collection, time, event, txn=len(self._writing), key=number)
        if self._writing:
            self._written(whole=len(self._writing) > 1)

    def drop(self, database: str, collection: str) -> None:
        """Drop the collection, which invalidates its change streams."""
        for cursor in self.open:
            if isinstance(cursor, SimDocuments) and cursor.is_of(database, collection):
                cursor.is_dropped = True
        time = self._tick()
        event = {"operationType": "drop", "ns": {"db": database, "coll": collection}}
        self._append(database, collection, time, event, key=self._next_number)
        self._append(database, collection, time, {"operationType": "invalidate"}, invalidate=True)
        self._written(whole=False)

    def rename(self, database: str, collection: str, to: str) -> None:
        """Rename a collection, over another one if there is one. This invalidates the change streams of both names."""
        for cursor in self.open:
            if isinstance(cursor, SimDocuments) and (cursor.is_of(database, collection) or cursor.is_of(database, to)):
                cursor.is_dropped = True
        event = {"operationType": "rename", "ns": {"db": database, "coll": collection}}
        event["to"] = {"db": database, "coll": to}
        moved = self._present(database, collection)
        time = self._tick()
        self._append(database, collection, time, event, key=self._next_number)
        self._writing[-1] = replace(self._writing[-1], to=to, moved=moved)
        self._append(database, collection, time, {"operationType": "invalidate"}, invalidate=True)
        self._writing[-1] = replace(self._writing[-1], to=to)
        self._written(whole=False)

    def roll_back(self) -> None:
        """Elect another primary, which has nothing that a majority does not have."""
        self._pending.clear()
        self.elections += 1
        self.fail_reads(FAILINGS[1])

    def restore(self, common_time: int) -> None:
        """Put back a copy of the data that ends with this cluster time."""
        before = self._last
        kept = bisect_right(self._keys, self.mark(common_time + 1).key)
        del self.entries[kept:], self._keys[kept:]
        self._versions.clear()
        self._pending.clear()
        resumed = self._tick()
        assert resumed > before
        self._holes.append((common_time, resumed))
        term = max(term for time, term in self._terms if time <= common_time) + 1
        self._terms = [*(each for each in self._terms if each[0] <= common_time), (resumed, term)]
        self.elections += 1
        self.fail_reads(FAILINGS[0])

    def has_lost(self, place: ResumeToken) -> bool:
        """Whether a restore has taken away the history of a position."""
        return any(after < place.cluster_time < until for after, until in self._holes)

    @property
    def restores(self) -> int:
        """How many restores there were."""
        return len(self._holes)

    @property
    def committed_entry(self) -> tuple[int, int]:
        """The newest entry that a majority has, as its cluster time and term."""
        noop = (self.visible >> 32) // NOOP_S * NOOP_S << 32 | 1
        times = [self.entries[-1].token.cluster_time if self.entries else 0, noop, self._terms[-1][0]]
        time = max(each for each in times if each <= self.visible)
        return time, max(term for began, term in self._terms if began <= time)

    def oplog(self) -> list[tuple[int, int]]:
        """The entries of the oplog, as cluster times and terms."""
        noops = range(self._oldest >> 32, (self.latest >> 32) + 1)
        times = {each.token.cluster_time for each in self.entries} | {time for time, _ in self._terms}
        times |= {(second << 32) + 1 for second in noops if second % NOOP_S == 0}
        return [
            (time, max(term for began, term in self._terms if began <= time))
            for time in sorted(times)
            if self._oldest <= time <= self.latest and not any(a < time < b for a, b in self._holes)
        ]

    # Documents.

    def state_after(self, database: str, collection: str, token: ResumeToken) -> State:
        """What a collection held at a position."""
        versions = self._versions.setdefault((database, collection), Versions())
        for entry in self.entries[versions.read :]:
            if entry.concerns(database, collection):
                versions.add(entry.token, entry.event, entry.moved if entry.to == collection else None)
        versions.read = len(self.entries)
        return versions.after(token)

    def is_too_old(self, cluster_time: int) -> bool:
        """Whether documents can no longer be read as of a time."""
        return cluster_time >> 32 < self.loop.true_wall_s() - self.snapshot_window_s - 1

    def _present(self, database: str, collection: str) -> State:
        """What it holds now, as the primary has it."""
        state = dict(self.state_after(database, collection, self.mark(self._last + 1)))
        for entry in self._uncommitted():
            if entry.to == collection and entry.database == database:
                state = state if entry.moved is None else dict(entry.moved)
            elif entry.is_of(database, collection):
                apply(state, entry.event)
        return state

    def _uncommitted(self) -> Iterator[Entry]:
        for entries, _ in self._pending:
            yield from entries
        yield from self._writing

    def looked_up(self, entry: Entry) -> dict[str, Any] | None:
        """The present document of an update, which `updateLookup` adds."""
        state = self.state_after(entry.database, entry.collection, self.mark(self._last + 1))
        lost = self.profile.loses_lookups and entry.number % 2
        return None if lost else state.get(rank_of(entry.event["documentKey"]["_id"]))

    def created(self, database: str, collection: str) -> int:
        """The cluster time at which the collection was created that has this name now; 0 if there is none."""
        time = 0
        for entry in (*self.entries, *self._uncommitted()):
            if entry.to == collection and entry.database == database:
                time = entry.token.cluster_time
            elif entry.is_of(database, collection):
                is_gone = entry.event["operationType"] in ("drop", "invalidate", "rename")
                time = 0 if is_gone else time or entry.token.cluster_time
        return time

    def collections(self, database: str) -> list[str]:
        """The names of the collections that a database has now."""
        entries = [each for each in (*self.entries, *self._uncommitted()) if each.database == database]
        names = dict.fromkeys(name for each in entries for name in (each.collection, each.to) if name)
        return [name for name in names if self.created(database, name)]

    def _written(self, *, whole: bool) -> None:
        """Hand the entries to a majority after the lag. No change stream shows them earlier."""
        writing, self._writing = self._writing, []
        self._pending.append((writing, whole))
        if self.lag_s:
            self.loop.call_later(self.lag_s, self._commit, writing)
        else:
            self._commit(writing)

    def _commit(self, written: list[Entry]) -> None:
        while any(each is written for each, _ in self._pending):
            entries, whole = self._pending.popleft()
            self.entries += entries
            keys = [entry.token.key for entry in entries]
            self._keys += keys
            self.written += entries
            self._written_keys += keys
            self.committed(entries, whole)
            self._wake()

    @property
    def _next_number(self) -> int:
        return len(self.written) + sum(len(entries) for entries, _ in self._pending) + len(self._writing)

    def forget(self, before: int) -> None:
        """Truncate the oplog before this cluster time."""
        before = max((until for after, until in self._holes if after < before < until), default=before)
        self._oldest = max(self._oldest, min(before, self._last))

    def _tick(self) -> int:
        self._last = max(self.latest + 1, (int(self.loop.true_wall_s()) << 32) + 1)
        return self._last

    def _insert(
        self,
        time: int,
        index: int,
        database: str,
        collection: str,
        padding: int,
        fields: dict[str, Any],
        transaction: int = 0,
    ) -> None:
        number = self._next_number
        key = number * 40_503 // 8 % self.documents if self.documents else number
        event = {
            "operationType": "replace" if self.documents else "insert",
            "fullDocument": {"_id": key, "n": number, "pad": b"x" * padding, **fields},
            "ns": {"db": database, "coll": collection},
            "documentKey": {"_id": key},
        }
        self._append(database, collection, time, event, transaction, txn=index, key=number)

    def _append(
        self,
        database: str,
        collection: str,
        time: int,
        event: dict[str, Any],
        transaction: int = 0,
        **of_token: Any,
    ) -> None:
        def tokens(fragment: int) -> ResumeToken:
            return event_token(time, fragment=fragment, **of_token)

        token = event_token(time, version=self.token_version, **of_token)
        number = self._next_number
        times = {"clusterTime": Timestamp(time >> 32, time & 0xFFFF_FFFF), "wallTime": self.now(), "n": number}
        content = {"operationType": event.pop("operationType"), **times, **event}
        document = {"_id": bson.decode(token.raw), **with_fields_of(self.profile, content, transaction)}
        ends = bool(of_token.get("invalidate"))
        entry = Entry(number, database, collection, tokens, token, document, bson.encode(document), ends)
        self._writing.append(entry)

    # Reading.

    @property
    def latest(self) -> int:
        """The newest cluster time, including no-op entries."""
        return max(self._last, (int(self.loop.true_wall_s()) // NOOP_S * NOOP_S << 32) + 1)

    @property
    def visible(self) -> int:
        """The newest cluster time up to which a majority has everything."""
        return self._pending[0][0][0].token.cluster_time - 1 if self._pending else self.latest

    @property
    def merged(self) -> int:
        """The newest cluster time up to which all shards have said what they have."""
        if not self.profile.idle_shard:
            return self.latest
        return (int(self.loop.true_wall_s()) // NOOP_S * NOOP_S << 32) + 1

    @property
    def merges_s(self) -> float:
        """When, on the loop's clock, an idle shard says so next."""
        return self.loop.time() + NOOP_S - self.loop.true_wall_s() % NOOP_S

    @property
    def oldest(self) -> int:
        return self._oldest

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.loop.true_wall_s(), UTC).replace(tzinfo=None)

    def rank_after(self, token: ResumeToken) -> int:
        """The index of the first entry after the position."""
        return bisect_right(self._keys, token.key)

    def number_after(self, token: ResumeToken) -> int:
        """The number of the first entry that was ever after the position."""
        return bisect_right(self._written_keys, token.key)

    def entry_of(self, token: ResumeToken) -> Entry | None:
        """The entry whose event, or a fragment of its event, has this token."""
        rank = self.rank_after(token) - 1
        entry = self.entries[rank] if rank >= 0 else None
        if entry is None:
            return None
        shown = (each for split in (False, True) for each in entry.shown(split=split))
        return entry if any(each.token.raw == token.raw for each in shown) else None

    def mark(self, cluster_time: int) -> ResumeToken:
        """A high-water mark."""
        return ResumeToken.high_water_mark(cluster_time, self.token_version)

    async def way(self, ways: int = 1) -> None:
        """Wait for the way to a server of the set, or back; 2 are a way there and back at once."""
        await asyncio.sleep(self._rng.uniform(0.0002, 0.003) * ways)

    async def check_reachable(self) -> None:
        """Wait until a server is reachable. Raises ServerSelectionTimeoutError."""
        until_s = self.loop.time() + SELECTION_S
        while self.away:
            if self.loop.time() >= until_s:
                raise ServerSelectionTimeoutError("no servers found yet")
            await asyncio.sleep(0.5)

    async def reach(self, ways: int = 1) -> None:
        """Wait for the way to a server of the set as soon as one is reachable."""
        await self.check_reachable()
        await self.way(ways)

    async def grown(self, until_s: float) -> None:
        """Wait for an entry, at most until `until_s`."""
        waiting = self.loop.create_future()
        self._waiting.append(waiting)
        with suppress(TimeoutError):
            async with asyncio.timeout(until_s - self.loop.time()):
                await waiting

    async def compute(self, cost_s: float, session: bytes, cursor_id: int, *, watched: bool = True) -> None:
        """Take `cost_s` seconds, even if no caller waits any more. Raises OperationFailure once killed.

        `watched` says that a server must stop the operation if it takes too long.
        """
        if not cost_s:
            return
        self._operations += 1
        work = Work(self._operations, session, cursor_id, self.loop.create_future())
        self.working[work.opid] = work
        name, began_s, allowed_s = process.get(), self.loop.time(), STOPPED_S if cursor_id else OPENING_STOPPED_S

        def end() -> None:
            if not work.ended.done():
                del self.working[work.opid]
                work.ended.set_result(None)
                if watched and self.loop.tasks_of(name) and self.loop.awake_s(name, began_s) > allowed_s:
                    self.unstopped.append(f"an operation of {name} computed for {cost_s:.0f} s")

        self.loop.call_later(cost_s, end, context=Context())
        await asyncio.shield(work.ended)
        if work.killed:
            raise _operation_failure(11601, "Interrupted", "operation was interrupted")

    def kill_operation(self, opid: int) -> None:
        work = self.working.pop(opid, None)
        if work is not None:
            work.killed = True
            work.ended.set_result(None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    # Faults.

    def fail_reads(self, failing: Failing) -> None:
        """Remove every open cursor, and make its read fail."""
        for cursor in list(self.open):
            cursor.failing = failing
        self._wake()

    def killed(self, name: str) -> None:
        """Remove the cursors of a client process that died, as the loss of its connections does."""
        for cursor in [cursor for cursor in self.open if cursor.process == name]:
            del self.open[cursor]

    def next_session(self) -> bytes:
        self._sessions += 1
        return self._sessions.to_bytes(16)

    def next_cursor(self) -> int:
        self.cursors += 1
        return self.cursors


class SimCursor:
    """Replaces `RawChangeStreamCursor`."""

    address = None

    def __init__(
        self,
        mongo: SimMongo,
        spec: FeedSpec,
        stages: list[dict[str, Any]],
        events: int,
        await_ms: int,
        session: bytes = bytes(16),
    ) -> None:
        """Raises OperationFailure as mongod does for an aggregate."""
        self._mongo = mongo
        self._scope = spec.scope
        self._passes, rest = without_gate(stages[1:])
        granted, own = _without_policy(spec, rest)
        self._hides = granted == HIDING
        self._split = own[-1:] == [SPLIT]
        self._granted = granted
        self._computes = computes(own)
        self._session = session
        self._matches = matcher(own[:-1] if self._split else own)
        self._events = events
        self._await_s = await_ms / 1000
        self.failing: Failing | None = None
        self._interrupted = False
        self._is_full = False
        """Whether the last batch was full: there may be more events."""
        options = stages[0]["$changeStream"]
        self._looks_up = options.get("fullDocument") == "updateLookup"
        self._must_exist: ResumeToken | None = None
        """A token that MongoDB must find once it has an event after it."""
        at = options.get("startAtOperationTime")
        if at is not None:
            self._place = mongo.mark(at.time << 32 | at.inc)
        elif given := options.get("resumeAfter") or options.get("startAfter"):
            self._place = ResumeToken.decode(bson.encode(given))
            if self._place.from_invalidate and "resumeAfter" in options:
                raise _operation_failure(
                    260,
                    "InvalidResumeToken",
                    "Attempting to resume a change stream using 'resumeAfter' is not allowed"
                    " from an invalidate notification",
                )
            if not self._place.is_high_water_mark:
                self._must_exist = self._place
        else:
            self._place = mongo.mark(mongo.latest + 1)
        if self._place.cluster_time < mongo.oldest:
            raise _operation_failure(
                286,
                "ChangeStreamHistoryLost",
                "Resume of change stream was not possible, as the resume point may no longer be in the oplog.",
            )
        self._start = self._place
        self._rank = mongo.rank_after(self._place)
        self._ready: deque[Shown] = deque()
        """Fragments for the next batch."""
        if self._split and self._rank and not self._place.is_high_water_mark:
            passed = mongo.entries[self._rank - 1].shown(split=True)
            self._ready.extend(each for each in passed if each.token.is_after(self._place))
        self.id = mongo.next_cursor()
        self.process = process.get()
        mongo.open[self] = None

    def ask_for(self, events: int) -> None:
        self._events = events

    def await_up_to(self, max_await_ms: int) -> None:
        self._await_s = max_await_ms / 1000

    async def next_batch(self) -> RawBatch:
        mongo = self._mongo
        mongo.reads += 1
        until_s = mongo.loop.time() + self._await_s
        while True:
            self._check()
            found, exhausted = self._scan()
            if found or exhausted or mongo.loop.time() >= until_s:
                break
            await mongo.grown(min(until_s, mongo.merges_s) if mongo.profile.idle_shard else until_s)
        # Taken at the same moment as the scan: the process that asks may have been frozen while it waited.
        post_batch = self._place if exhausted else self._post_batch(found)
        if found and mongo.profile.early_marks and not exhausted:
            post_batch = mongo.mark(found[0].token.cluster_time)
        costs = mongo.costs
        each_s = costs.any_event_s + (costs.event_s if self._computes else 0.0)
        try:
            await mongo.compute(each_s * len(found), self._session, self.id, watched=self._computes)
        except OperationFailure:
            self._gone()
            raise
        await mongo.way(2)
        if exhausted:
            self._gone()
        return RawBatch(b"".join(each.data for each in found), post_batch.raw, exhausted)

    async def interrupt(self) -> None:
        self._interrupted = True
        self._mongo._wake()

    async def close(self) -> None:
        self._gone()

    def _gone(self) -> None:
        self._mongo.open.pop(self, None)

    def _check(self) -> None:
        if self._interrupted:
            self._gone()
            raise Interrupted
        if self.failing is not None or self._mongo.away:
            self._gone()
            raise self.failing.make() if self.failing is not None else AutoReconnect("connection closed")

    def _scan(self) -> tuple[list[Shown], bool]:
        """The events of the next batch, and whether the last event invalidates the stream. Raises OperationFailure."""
        entries = self._mongo.entries
        if self._place.cluster_time < self._mongo.oldest:
            self._gone()
            raise _operation_failure(
                136, "CappedPositionLost", "CollectionScan died due to position in capped collection"
            )
        found: list[Shown] = []
        size = 0
        while len(found) < self._events and size < BATCH_BYTES:
            if self._ready:
                found.append(self._ready.popleft())
                size += len(found[-1].data)
                continue
            if self._rank >= len(entries):
                break
            entry = entries[self._rank]
            if entry.token.cluster_time > self._mongo.merged:
                break
            self._rank += 1
            if not entry.token.is_after(self._start):
                continue  # the stream starts at the present: a majority got this entry only afterwards
            if not self._concerns(entry):
                continue
            matches = self._is_shown(entry)
            if self._must_exist is not None and matches and not entry.invalidates:
                # MongoDB searches for the token after the user's `$match`, which it moves forward; for an invalidate it
                # does not.
                place = self._mongo.entry_of(self._must_exist)
                is_seen = place is not None and (place.invalidates or self._is_shown(place))
                if place is None or not is_seen or not self._concerns(place):
                    self._gone()
                    raise _operation_failure(
                        280, "ChangeStreamFatalError", "cannot resume stream; the resume token was not found."
                    )
                self._must_exist = None
            if matches and allows(self._granted, entry):
                self._ready.extend(self._shown(entry))
            if entry.invalidates:
                self._place = entry.token
                return [*found, *self._ready], True
        self._is_full = len(found) >= self._events or size >= BATCH_BYTES
        return found, False

    def _shown(self, entry: Entry) -> list[Shown]:
        if self._looks_up and "updateDescription" in entry.event:
            return [entry.with_document(self._mongo.looked_up(entry))]
        return entry.hiding() if self._hides else entry.shown(split=self._split)

    def _is_shown(self, entry: Entry) -> bool:
        """Whether the event passes the stages after the policy's."""
        return self._passes(entry.event) and self._matches(entry.event)

    def _concerns(self, entry: Entry) -> bool:
        scope = self._scope
        if scope.collection:
            return entry.concerns(scope.database, scope.collection)
        return scope.database in ("", entry.database) and not entry.invalidates

    def _post_batch(self, found: list[Shown]) -> ResumeToken:
        if found and (self._is_full or self._ready):
            self._place = found[-1].token
        else:
            # As of MongoDB, the time is that of an entry.
            mark = self._mongo.mark(min(self._mongo.committed_entry[0], self._mongo.merged))
            if found and found[-1].token.is_after(self._place):
                self._place = found[-1].token
            if mark.is_after(self._place):
                self._place = mark
        return self._place


class SimDocuments:
    """Replaces `RawChangeStreamCursor` where documents are read as of a cluster time."""

    def __init__(
        self, mongo: SimMongo, spec: FeedSpec, stages: list[dict[str, Any]], documents: int, cluster_time: int
    ) -> None:
        """Raises OperationFailure as mongod does for an aggregate."""
        self._mongo = mongo
        self._scope = scope = spec.scope
        self._time = cluster_time
        if cluster_time > mongo.latest:
            raise _operation_failure(
                72, "InvalidOptions", "readConcern atClusterTime value must not be greater than the current clusterTime"
            )
        if mongo.created(scope.database, scope.collection) > cluster_time:
            raise _unavailable()
        self._check_window()
        # MongoDB reads a collection that has been dropped as empty, whatever it held at that time.
        is_there = mongo.created(scope.database, scope.collection)
        state = mongo.state_after(scope.database, scope.collection, mongo.mark(cluster_time + 1)) if is_there else {}
        try:
            self._left = deque(read_documents(stages, state))
        except (KeyError, ValueError):
            raise _operation_failure(2, "BadValue", "the model reads documents with no stages of programs") from None
        self._documents = documents
        self._in_memory = documents + mongo.read_ahead
        self.failing: Failing | None = None
        self.is_dropped = False
        self.process = process.get()
        mongo.open[self] = None

    def ask_for(self, documents: int) -> None:
        self._documents = documents

    def is_of(self, database: str, collection: str) -> bool:
        return (database, collection) == (self._scope.database, self._scope.collection)

    async def next_batch(self) -> RawBatch:
        await self._mongo.way(2)
        count = min(self._documents, len(self._left))
        try:
            self._check_read(count)
        except PyMongoError:
            self._gone()
            raise
        data = [self._left.popleft() for _ in range(count)]
        # Like mongod, it notices the end only when it looks for a document beyond a full batch.
        exhausted = count < self._documents
        if exhausted:
            self._gone()
        return RawBatch(b"".join(data), None, exhausted)

    async def close(self) -> None:
        self._gone()

    def _gone(self) -> None:
        self._mongo.open.pop(self, None)

    def _check_read(self, count: int) -> None:
        """Raises PyMongoError if the next `count` documents cannot be read."""
        mongo = self._mongo
        if self.failing is not None or mongo.away:
            raise self.failing.make() if self.failing is not None else AutoReconnect("connection closed")
        try:
            self._check_collection()
        except OperationFailure:
            self._in_memory -= count
            if self._in_memory < 0:
                raise
        else:
            self._in_memory = mongo.read_ahead

    def _check_collection(self) -> None:
        mongo, scope = self._mongo, self._scope
        if self.is_dropped:
            if mongo.created(scope.database, scope.collection):
                raise _unavailable()
            raise _operation_failure(175, "QueryPlanKilled", "collection dropped")
        self._check_window()

    def _check_window(self) -> None:
        if self._mongo.is_too_old(self._time):
            raise _operation_failure(
                239, "SnapshotTooOld", "Read timestamp is older than the oldest available timestamp."
            )


def _unavailable() -> OperationFailure:
    return _operation_failure(
        246,
        "SnapshotUnavailable",
        "Unable to read from a snapshot due to pending collection catalog changes; please retry the operation.",
    )


_COMPARISONS: Final = {"$eq": operator.eq, "$lt": operator.lt, "$gt": operator.gt}


def _op_time(entry: tuple[int, int]) -> dict[str, Any]:
    return {"ts": Timestamp(entry[0] >> 32, entry[0] & 0xFFFF_FFFF), "t": entry[1]}


class _Admin:
    def __init__(self, mongo: SimMongo) -> None:
        self._mongo = mongo

    async def command(self, name: str) -> dict[str, Any]:
        mongo = self._mongo
        await mongo.reach()
        latest = Timestamp(mongo.latest >> 32, mongo.latest & 0xFFFF_FFFF)
        replies: dict[str, dict[str, Any]] = {
            "hello": {
                "setName": "rs0",
                "hosts": ["a:1", "b:1", "c:1"],
                "isWritablePrimary": mongo.is_primary,
                "electionId": mongo.elections,
                **({"msg": "isdbgrid"} if mongo.profile.idle_shard else {}),
                "localTime": mongo.now(),
                "lastWrite": {
                    "opTime": _op_time((mongo.latest, mongo.committed_entry[1])),
                    "majorityOpTime": _op_time(mongo.committed_entry),
                },
            },
            "buildInfo": {
                "version": mongo.profile.version,
                "versionArray": [*map(int, mongo.profile.version.split(".")), 0],
            },
            "ping": {},
        }
        await mongo.way()
        return {"ok": 1.0, "operationTime": latest, "$clusterTime": {"clusterTime": latest}, **replies[name]}


class _Oplog:
    def __init__(self, mongo: SimMongo) -> None:
        self._mongo = mongo

    def with_options(self, **_: Any) -> "_Oplog":
        return self

    async def find_one(self, condition: Any, *_: Any, sort: Any) -> dict[str, Any] | None:
        await self._mongo.reach()
        if not self._mongo.oplog_readable:
            raise _operation_failure(13, "Unauthorized", "not authorized on local to execute command")
        if not condition:
            return {"ts": Timestamp(self._mongo.oldest >> 32, self._mongo.oldest & 0xFFFF_FFFF)}
        wanted = condition["ts"] if isinstance(condition["ts"], dict) else {"$eq": condition["ts"]}
        [(compares, time)] = wanted.items()
        found = [each for each in map(_op_time, self._mongo.oplog()) if _COMPARISONS[compares](each["ts"], time)]
        return (found[0] if sort == [("$natural", 1)] else found[-1]) if found else None

    async def aggregate(self, _: Any) -> Any:
        raise _operation_failure(13, "Unauthorized", "not authorized on local to execute command")


class _Client:
    """The parts of pymongo's client that `Source` uses for commands."""

    def __init__(self, mongo: SimMongo) -> None:
        self._mongo = mongo
        self.admin = _Admin(mongo)
        self.local = {"oplog.rs": _Oplog(mongo)}

    async def close(self) -> None:
        """Do nothing: cursors are closed by their readers."""


class SimSource(Source):
    """The server's source, connected to the model."""

    def __init__(self, mongo: SimMongo, observer: Observer = NOBODY) -> None:
        config = SourceConfig("main", "", source_id=SOURCE_ID, server_selection_timeout_ms=int(SELECTION_S * 1000))
        super().__init__(config, observer, _Client(mongo))  # type: ignore[arg-type]
        self._mongo = mongo

    async def databases(self) -> list[str]:
        return sorted({each.database for each in self._mongo.entries})

    async def _listed(self, database: str, command: Mapping[str, Any]) -> AsyncGenerator[list[bytes], None]:
        mongo, wanted = self._mongo, command.get("filter", {}).get("name")
        await mongo.reach(2)
        yield [
            bson.encode({"name": name, "type": "collection"})
            for name in mongo.collections(database)
            if (name >= wanted["$gte"] if isinstance(wanted, dict) else wanted in (None, name))
        ]

    async def estimated_count(self, database: str, name: str) -> int:
        """Any number: MongoDB's may be wrong, and nothing but what is shown to people may depend on it."""
        return await self._commands.answer(self._count())

    async def _count(self) -> int:
        await self._mongo.reach()
        return len(self._mongo.entries)

    async def open_cursor(  # type: ignore[override]
        self,
        spec: FeedSpec,
        stages: list[Any],
        batch_events: int,
        max_await_ms: int,
        opening: Callable[[bytes], None] | None = None,
    ) -> SimCursor:
        mongo = self._mongo
        session = mongo.next_session()
        if opening is not None:
            opening(session)
        await mongo.reach()
        pipeline = bson.decode(bson.encode({"pipeline": stages}))["pipeline"]
        if computes(_without_policy(spec, pipeline[1:])[1]):
            await mongo.compute(mongo.costs.open_s, session, 0)
        return await _answered(mongo, SimCursor(mongo, spec, pipeline, batch_events, max_await_ms, session))

    async def open_documents(  # type: ignore[override]
        self, spec: FeedSpec, stages: list[Any], batch_documents: int, cluster_time: int, opening: object = None
    ) -> SimDocuments:
        mongo = self._mongo
        await mongo.reach()
        while mongo.latest >= cluster_time > mongo.visible:
            await mongo.grown(mongo.loop.time() + 1.0)  # MongoDB waits for a majority
            await mongo.check_reachable()
        pipeline = bson.decode(bson.encode({"pipeline": stages}))["pipeline"]
        return await _answered(mongo, SimDocuments(mongo, spec, pipeline, batch_documents, cluster_time))

    async def find_id(self, spec: FeedSpec, find: dict[str, Any], cluster_time: int) -> bytes:
        """No document: a read needs no bound where it meets none."""
        await self._mongo.reach(2)
        return b""

    async def operations(self, address: Address | None, sessions: list[bytes]) -> list[Operation]:
        mongo = self._mongo
        await mongo.reach()
        found: list[Operation] = [work.shown() for work in mongo.working.values() if work.session in sessions]
        await mongo.way()
        return found

    async def kill_operation(self, address: Address | None, operation: Any) -> None:
        await self._mongo.reach()
        self._mongo.kill_operation(operation)


_Cursor = TypeVar("_Cursor", SimCursor, SimDocuments)


async def _answered(mongo: SimMongo, cursor: _Cursor) -> _Cursor:
    """The way back from an open."""
    try:
        await mongo.way()
        if mongo.away:
            raise AutoReconnect("connection closed")
    except BaseException:
        await cursor.close()
        raise
    return cursor


def computes(stages: list[Any]) -> bool:
    """Whether pipelines with these stages have costs."""
    return any("$changeStreamSplitLargeEvent" not in stage for stage in stages)


def _without_policy(spec: FeedSpec, stages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The name of the grant whose stages come first, if any, and the stages after the grant's."""
    for name, policy in stages_by_choice(spec):
        if stages[: len(policy)] == policy:
            return name, stages[len(policy) :]
    return "", stages


def matcher(stages: list[dict[str, Any]]) -> Callable[[dict[str, Any]], bool]:
    """The condition of a pipeline of `$match` stages that compare fields with values. Raises OperationFailure for all
    others."""
    wanted: list[tuple[list[str], list[Any]]] = []
    for stage in stages:
        if set(stage) != {"$match"}:
            raise _operation_failure(40324, "Location40324", "Unrecognized pipeline stage name")
        for path, value in stage["$match"].items():
            values = value["$in"] if isinstance(value, dict) and set(value) == {"$in"} else [value]
            if path.startswith("$") or any(isinstance(each, dict) for each in values):
                raise _operation_failure(2, "BadValue", f"the model compares {path} with no expressions")
            wanted.append((path.split("."), values))

    def matches(event: dict[str, Any]) -> bool:
        for path, values in wanted:
            found: Any = event
            for name in path:
                found = found.get(name) if isinstance(found, dict) else None
            if found not in values:
                return False
        return True

    return matches
