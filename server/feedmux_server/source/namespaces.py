"""The collections of a database, or of a deployment, whose documents are copied one after the other.

MongoDB lists collections as they are now, and reads one that is gone as empty, without an error. So a list that was
made after a time T, and the drops and renames since T, say together what there was at T, if neither the list nor the
read was of writes that are rolled back (`Namespaces.settled_time`).
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import bson

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.names import is_served
from feedmux_server.core.feeds.simple_filter import EVERYTHING, simple_filter_of
from feedmux_server.core.feeds.snapshot_stages import check_feed, unsuitable
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.answers import ANSWER, REPLACED
from feedmux_server.source.deployment import Source
from feedmux_server.source.documents import check_collection, check_info, check_source
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import ChangeStreamReader

Namespace = tuple[str, str]
"""Database and collection."""
Charge = Callable[[int], Any]
"""Called for each command to MongoDB, about, with the length of the list that it has read. The number of commands has
no other bound than the databases, the collections, and the drops and renames among them."""
_DURABLE_S: Final = 0.01
"""The pause before the next look whether a majority has what was listed and read."""
WAIT_MS: Final = 5
"""How long MongoDB waits for changes at the end of the oplog, while documents are copied."""
ESTIMATED_MAX: Final = 1_000
"""The documents of more collections are not counted: each takes a command."""
_NAMES_AT_ONCE: Final = 100
"""So many names, or events that have some, take a millisecond of the event loop."""
_DROPS_AND_RENAMES: Final = bson.encode({"pipeline": [{"$match": {"operationType": {"$in": ["drop", "rename"]}}}]})


@dataclass(frozen=True, slots=True)
class Gone:
    """A collection that was dropped or renamed."""

    name: Namespace
    to: Namespace | None = None


@dataclass(frozen=True, slots=True)
class _Listed:
    """Collections of one database that are copied."""

    database: str
    first: str
    """None comes from this name on before those in `names`."""
    names: list[str]
    """In order."""
    is_all: bool
    """None comes after those in `names`."""

    def says(self, database: str, first: str) -> bool:
        """Whether these say which one is the next from the name `first` on."""
        return database == self.database and self.first <= first and (self.is_all or first <= self.names[-1])


class Namespaces:
    """What one copy goes through."""

    def __init__(
        self,
        source: Source,
        key: StreamKey,
        limits: ReadLimits,
        reads_for: Callable[[], str] = str,
        *,
        charge: Charge,
    ) -> None:
        """`reads_for` is that of `ChangeStreamReader`."""
        self._source = source
        self._key = key
        self._limits = replace(limits, max_await_ms=WAIT_MS)
        self._reads_for = reads_for
        simple_filter = simple_filter_of(key.spec)
        self._filter = simple_filter or EVERYTHING
        self.may_drop = key.judges_documents or simple_filter is None
        """Not all documents of a collection may be shown."""
        self._charge = charge
        self._databases: list[str] | None = None
        self._listed: _Listed | None = None
        self._primary = source.clock.primary
        """Of the time before anything was listed or read."""
        self.lists = 0
        """How often collections were listed."""

    def covers(self, name: Namespace) -> bool:
        """Whether documents of a collection of this name are copied. Those that a `$match` on `ns.coll` drops need not
        be read; nor is anything examined that the tenant may not see."""
        return is_served(*name) and self._key.shows(*name) and self._filter.admits(b"insert", name[1].encode())

    def forget(self) -> None:
        """List everything again when it is needed."""
        self._databases = self._listed = None
        self._primary = self._source.clock.primary

    async def settled_time(self) -> int:
        """MongoDB's present operation time, when a majority has what there is until then. 0 if another primary was
        elected since `forget`, which is called then: a drop that a primary loses in an election leaves no event, and
        may have been in what was listed or read. Raises as `Source.databases`."""
        clock, now = self._source.clock, 0
        while True:
            self._charge(1)
            asked = await clock.operation_time()
            now = now or asked
            if clock.primary != self._primary:
                self.forget()
                return 0
            if clock.durable_time >= now:
                return now
            await asyncio.sleep(_DURABLE_S)

    async def next(self, here: Namespace, *, after: bool) -> Namespace | None:
        """The first collection at this name or after it; with `after`, only after it. None if there is none. Raises
        FeedmuxError: SNAPSHOT_UNSUITABLE if it cannot be copied, and as `Source.databases`."""
        async for found in self.names_from(here):
            if found == here and after:
                continue
            self._charge(1)
            info = await self._source.collection(*found)
            if info is not None and info.kind == "collection":  # otherwise it is gone since it was listed
                await check_info(self._source, self._scope(found), info)
            return found
        return None

    async def names_from(self, here: Namespace) -> AsyncIterator[Namespace]:
        """The collections at and after this name. Raises as `Source.databases`."""
        for database in await self._list_databases():
            if database < here[0]:
                continue
            first: str | None = here[1] if database == here[0] else ""
            while first is not None:
                listed = await self._list_collections(database, first)
                for name in listed.names[bisect_left(listed.names, first) :]:
                    yield database, name
                first = None if listed.is_all else listed.names[-1] + "\0"  # no name comes between

    async def check(self) -> None:
        """Raises SNAPSHOT_UNSUITABLE if there is a collection that cannot be copied."""
        for database in await self._list_databases():
            listed = await self._source.special_collections(database)
            self._charge(len(listed))
            for name, info in listed.items():
                if self.covers((database, name)):
                    await check_info(self._source, self._scope((database, name)), info)

    async def estimate(self) -> int:
        """About how many documents there are; 0 if that is not known."""
        names = list[Namespace]()
        async for each in self.names_from(("", "")):
            names.append(each)
            if len(names) > ESTIMATED_MAX:
                return 0
        for _ in names:
            self._charge(1)
        return sum([await self._source.estimated_count(*each) for each in names])

    async def gone_after(
        self, place: ResumeToken, until: int, wanted: Callable[[Gone], Namespace | None]
    ) -> tuple[Namespace | None, int]:
        """The least name that `wanted` returns of what was dropped or renamed after `place`, and up to which cluster
        time that is complete: at least `until`. Raises as a reader does."""
        # A stream that begins at the newest entry of the oplog does not say that it has read it, so begin before it.
        try:
            return await self._gone_after(place, place.cluster_time - 1, until, wanted)
        except FeedmuxError as error:
            if error.reason is not ErrorReason.HISTORY_LOST:
                raise
        return await self._gone_after(place, place.cluster_time, until, wanted)

    async def _gone_after(
        self, place: ResumeToken, begin: int, until: int, wanted: Callable[[Gone], Namespace | None]
    ) -> tuple[Namespace | None, int]:
        spec = self._key.spec
        watched = FeedSpec(spec.scope, _DROPS_AND_RENAMES, read_preference=spec.read_preference, comment=spec.comment)
        at = JoinPoint(ResumeToken.high_water_mark(begin))
        reader = ChangeStreamReader(self._source, stream_key(watched), at, self._limits, self._reads_for)
        least: Namespace | None = None  # of a million of renames, no more is kept
        complete = place.cluster_time - 1
        try:
            while complete < until or reader.is_behind or not reader.is_open:
                if not reader.is_open:
                    self._charge(1)
                    self._charge(1)  # it is closed, too
                    await reader.open()
                self._charge(1)
                batch = await reader.read()
                for chunk in batch.chunks:
                    rendition = chunk.bson
                    assert rendition is not None, "it was just read"
                    for index in range(chunk.first_after(place), chunk.count):
                        if index % _NAMES_AT_ONCE == 0:
                            await asyncio.sleep(0)
                        found = wanted(_gone(bson.decode(rendition.cut(index, index + 1), ANSWER)))
                        if found is not None and (least is None or found < least):
                            least = found
                complete = max(complete, batch.complete_time, reader.at.place.cluster_time - 1)
                if batch.exhausted:  # by a dropDatabase, which the copy comes to as well
                    await reader.close()
            return least, complete
        finally:
            await reader.close()

    def _scope(self, name: Namespace) -> Scope:
        return Scope(self._key.spec.scope.source, *name)

    async def _list_databases(self) -> list[str]:
        if self._databases is None:
            check_source(self._source)
            scope = self._key.spec.scope
            listed = [scope.database] if scope.database else await self._source.databases()
            if not scope.database:
                self._charge(len(listed))
            self._databases = sorted(each for each in listed if is_served(each, "") and self._key.shows(each, ""))
            _check_names("database", self._databases)
        return self._databases

    async def _list_collections(self, database: str, first: str) -> _Listed:
        listed = self._listed
        if listed is None or not listed.says(database, first):
            most = self._limits.names_kept
            names, count = await self._source.collection_names(
                database, first, lambda name: self.covers((database, name)), most
            )
            self.lists += 1
            self._charge(count)
            _check_names("collection", names)
            listed = self._listed = _Listed(database, first, names, len(names) < most)
        return listed


def _check_names(what: str, names: list[str]) -> None:
    """Raises SNAPSHOT_UNSUITABLE for one that cannot be asked for. Without it, a copy would not be whole."""
    for name in names:
        if REPLACED in name:
            raise unsuitable("name", f"the name of {what} {name!r} is not UTF-8, so its documents cannot be read")


def _gone(event: Mapping[str, Any]) -> Gone:
    name, to = event["ns"], event.get("to")
    return Gone((name["db"], name["coll"]), (to["db"], to["coll"]) if to else None)


async def check_copy(source: Source, key: StreamKey, charge: Charge) -> None:
    """Raises SNAPSHOT_UNSUITABLE if documents of a feed's scope cannot be copied, and FeedmuxError if MongoDB does not
    say."""
    check_feed(key)
    if key.spec.scope.collection:
        await check_collection(source, key)
    else:
        await Namespaces(source, key, ReadLimits(), charge=charge).check()
