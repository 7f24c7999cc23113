"""The collections of a database, or of a deployment, whose documents are copied one after the other.

MongoDB lists collections as they are now, and reads one that is gone as empty, without an error. So a list that was
made after a time T, and the drops and renames since T, say together what there was at T.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.names import is_served
from feedmux_server.core.feeds.simple_filter import EVERYTHING, simple_filter_of
from feedmux_server.core.feeds.snapshot_stages import check_feed
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.deployment import CollectionInfo, Source
from feedmux_server.source.documents import check_collection, check_info, check_source
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import ChangeStreamReader

Namespace = tuple[str, str]
"""Database and collection."""
WAIT_MS: Final = 5
"""How long MongoDB waits for changes at the end of the oplog, while documents are copied."""
ESTIMATED_MAX: Final = 1_000
"""The documents of more collections are not counted: each takes a command."""
_DROPS_AND_RENAMES: Final = bson.encode({"pipeline": [{"$match": {"operationType": {"$in": ["drop", "rename"]}}}]})

_NAMES: Final = CodecOptions[dict[str, Any]](
    unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


@dataclass(frozen=True, slots=True)
class Gone:
    """A collection that was dropped or renamed."""

    name: Namespace
    to: Namespace | None = None


class Namespaces:
    """What one copy goes through."""

    def __init__(self, source: Source, key: StreamKey, limits: ReadLimits, reads_for: Callable[[], str] = str) -> None:
        """`reads_for` is that of `ChangeStreamReader`."""
        self._source = source
        self._key = key
        self._limits = replace(limits, max_await_ms=WAIT_MS)
        self._reads_for = reads_for
        simple_filter = simple_filter_of(key.spec)
        self._filter = simple_filter or EVERYTHING
        self.may_drop = key.judges_documents or simple_filter is None
        """Not all documents of a collection may be shown."""
        self._databases: list[str] | None = None
        self._collections: dict[str, dict[str, CollectionInfo]] = {}

    def covers(self, name: Namespace) -> bool:
        """Whether documents of a collection of this name are copied. Those that a `$match` on `ns.coll` drops need not
        be read; nor is anything that the tenant may not see looked at."""
        return is_served(*name) and self._key.shows(*name) and self._filter.admits(b"insert", name[1].encode())

    def forget(self) -> None:
        """List everything again when it is needed."""
        self._databases, self._collections = None, {}

    async def next(self, here: Namespace, *, after: bool) -> Namespace | None:
        """The first collection at or after this name; with `after`, behind it. None if there is none. Raises
        FeedmuxError: SNAPSHOT_UNSUITABLE if it cannot be copied, and as `Source.databases`."""
        for database in await self._list_databases():
            if database < here[0]:
                continue
            listed = await self._list_collections(database)
            for name in listed:
                if (found := (database, name)) > here or (found == here and not after):
                    await check_info(self._source, self._scope(found), listed[name])
                    return found
        return None

    async def all(self) -> list[Namespace]:
        return [(each, name) for each in await self._list_databases() for name in await self._list_collections(each)]

    async def check(self) -> None:
        """Raises SNAPSHOT_UNSUITABLE if there is a collection that cannot be copied."""
        for database, name in await self.all():
            await check_info(self._source, self._scope((database, name)), self._collections[database][name])

    async def estimate(self) -> int:
        """About how many documents there are; 0 if that is not known."""
        names = await self.all()
        if len(names) > ESTIMATED_MAX:
            return 0
        return sum([await self._source.estimated_count(*each) for each in names])

    async def gone_after(self, place: ResumeToken, until: int) -> tuple[list[Gone], int]:
        """What was dropped or renamed after `place`, and up to which cluster time that is complete: at least `until`.
        Raises as a reader does."""
        # A stream that begins at the newest entry of the oplog does not say that it has read it, so begin before it.
        try:
            return await self._gone_after(place, place.cluster_time - 1, until)
        except FeedmuxError as error:
            if error.reason is not ErrorReason.HISTORY_LOST:
                raise
        return await self._gone_after(place, place.cluster_time, until)

    async def _gone_after(self, place: ResumeToken, begin: int, until: int) -> tuple[list[Gone], int]:
        spec = self._key.spec
        watched = FeedSpec(spec.scope, _DROPS_AND_RENAMES, read_preference=spec.read_preference, comment=spec.comment)
        at = JoinPoint(ResumeToken.high_water_mark(begin))
        reader = ChangeStreamReader(self._source, stream_key(watched), at, self._limits, self._reads_for)
        found: list[Gone] = []
        complete = place.cluster_time - 1
        try:
            while complete < until or reader.is_behind or not reader.is_open:
                if not reader.is_open:
                    await reader.open()
                batch = await reader.read()
                for chunk in batch.chunks:
                    first = chunk.first_after(place)
                    events = bson.decode_all(chunk.bson.data, _NAMES) if chunk.bson is not None else []
                    found += [_gone(each) for each in events[first:]]
                complete = max(complete, batch.complete_time, reader.at.place.cluster_time - 1)
                if batch.exhausted:  # by a dropDatabase, which the copy comes to as well
                    await reader.close()
            return found, complete
        finally:
            await reader.close()

    def _scope(self, name: Namespace) -> Scope:
        return Scope(self._key.spec.scope.source, *name)

    async def _list_databases(self) -> list[str]:
        if self._databases is None:
            check_source(self._source)
            scope = self._key.spec.scope
            listed = [scope.database] if scope.database else await self._source.databases()
            self._databases = sorted(each for each in listed if is_served(each, ""))
        return self._databases

    async def _list_collections(self, database: str) -> dict[str, CollectionInfo]:
        if database not in self._collections:
            listed = await self._source.collection_infos(database)
            self._collections[database] = {
                name: listed[name] for name in sorted(listed) if self.covers((database, name))
            }
        return self._collections[database]


def _gone(event: Mapping[str, Any]) -> Gone:
    name, to = event["ns"], event.get("to")
    return Gone((name["db"], name["coll"]), (to["db"], to["coll"]) if to else None)


async def check_copy(source: Source, key: StreamKey) -> None:
    """Raises SNAPSHOT_UNSUITABLE if documents of a feed's scope cannot be copied, and FeedmuxError if MongoDB does not
    say."""
    check_feed(key)
    if key.spec.scope.collection:
        await check_collection(source, key)
    else:
        await Namespaces(source, key, ReadLimits()).check()
