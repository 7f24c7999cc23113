"""Asks a source what would happen if a feed were opened, for `rpc.explain`. Reads no event."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.names import is_served
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.grants.grant import Grants, granted
from feedmux_server.core.grants.report import judged_by_images
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.source.deployment import Source
from feedmux_server.source.documents import DocumentsReader, NotAtThisTime
from feedmux_server.source.namespaces import Namespaces
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import ChangeStreamReader, Failed

IMAGES_MAX = 1_000
DATABASES_MAX = 100
"""The most databases whose collections one call lists."""
COLLECTIONS_MAX = 10_000
"""The most collections that one list has."""
_COLLECTIONS_AT_ONCE = 20
_NOT_PERMITTED = frozenset({ErrorReason.SOURCE_UNAUTHORIZED, ErrorReason.SOURCE_UNSUITABLE})
_WITH_IMAGES = frozenset({"whenAvailable", "required"})

Charge = Callable[[int], None]
"""Called with the length of each list of collections, which took a command to MongoDB."""


@dataclass(frozen=True, slots=True)
class CollectionImages:
    """A collection whose stored images are needed."""

    database: str
    collection: str
    enabled: bool
    for_grants: bool


async def collection_images(
    source: Source, grants: Grants, feed: FeedSpec, charge: Charge = lambda _: None
) -> list[CollectionImages]:
    """The granted collections of the feed's scope whose images are needed; none if feedmux may not list collections.
    Of a deployment, only those of its first databases that the grants reach into."""
    scope = feed.scope
    wanted = feed.full_document in _WITH_IMAGES or feed.full_document_before_change in _WITH_IMAGES
    if not wanted and not any(grant.match for grant in grants or ()):
        return []
    found: list[CollectionImages] = []
    try:
        for database in await _databases(source, grants, scope):
            listed = await source.collections(database, scope.collection, most=COLLECTIONS_MAX)
            charge(len(listed))
            for number, (name, enabled) in enumerate(sorted(listed.items())):
                if number % _COLLECTIONS_AT_ONCE == 0:
                    await asyncio.sleep(0)  # deliveries do not wait for thousands of collections
                if not is_served(database, name):
                    continue
                judged = judged_by_images(grants, scope, database, name)
                if judged or (wanted and judged is not None):
                    found.append(CollectionImages(database, name, enabled, judged))
                if len(found) == IMAGES_MAX:
                    return found
    except FeedmuxError as error:
        if error.reason not in _NOT_PERMITTED:
            raise
        return []
    return found


async def _databases(source: Source, grants: Grants, scope: Scope) -> list[str]:
    if scope.database:
        return [scope.database]
    reached = list[str]()
    for number, name in enumerate(sorted(await source.databases())):
        if number % _COLLECTIONS_AT_ONCE == 0:
            await asyncio.sleep(0)
        if is_served(name, "") and (grants is None or any(each.covers(Scope(scope.source, name)) for each in grants)):
            reached.append(name)
            if len(reached) == DATABASES_MAX:
                break
    return reached


async def is_missing(source: Source, grants: Grants, scope: Scope, charge: Charge = lambda _: None) -> bool:
    """Whether the scope's collection does not exist, or its database has none that is granted: of others, the tenant
    learns nothing. False if feedmux may not list them, or not all of them were examined."""
    if not scope.database:
        return False
    try:
        names = await source.names(scope.database, scope.collection, most=COLLECTIONS_MAX)
    except FeedmuxError as error:
        if error.reason not in _NOT_PERMITTED:
            raise
        return False
    charge(len(names))
    cases = None if grants is None else granted(grants, scope)
    for number, name in enumerate(names, 1):
        if number % _COLLECTIONS_AT_ONCE == 0:
            await asyncio.sleep(0)
        if judged_by_images(cases, scope, scope.database, name) is not None:
            return False
    return len(names) < COLLECTIONS_MAX


async def headroom_s(source: Source, at: JoinPoint) -> int | None:
    """Seconds from the oldest entry of the oplog to the position. None if feedmux may not read the oplog, and for a
    position before an oplog that was never cut: it has all changes."""
    try:
        oldest = await source.oplog.oldest()
    except FeedmuxError as error:
        if error.reason not in _NOT_PERMITTED:
            raise
        return None
    left_s = (at.place.cluster_time >> 32) - (oldest.time >> 32)
    return None if left_s < 0 and oldest.begins_set else left_s


async def documents_estimated(source: Source, key: StreamKey, at: JoinPoint, charge: Charge = lambda _: None) -> int:
    """How many documents a copy from this position on may read; 0 if no copy begins there, if it is not known, or if
    the grants withhold documents: their number may be a secret."""
    if at.place.copied is None or key.judges_documents:
        return 0
    scope = key.spec.scope
    try:
        if not scope.collection:
            return await Namespaces(source, key, ReadLimits(), charge=charge).estimate()
        return await source.estimated_count(scope.database, scope.collection)
    except FeedmuxError as error:
        if error.reason not in _NOT_PERMITTED:
            raise
        return 0


async def try_to_open(source: Source, key: StreamKey, at: JoinPoint, charge: Charge = lambda _: None) -> None:
    """Let MongoDB check stages and options, for a copy also those of its documents. Raises FeedmuxError. An aggregate
    reads nothing before a getMore."""
    reader = ChangeStreamReader(source, key, at, ReadLimits())
    documents = DocumentsReader(source, key, ReadLimits())
    copied = at.place.copied
    try:
        if copied is not None and key.spec.scope.collection:
            await documents.check_collection()  # a position does not say what the collection is by now
        await reader.open()
        if copied is not None and not key.spec.scope.collection:
            names = Namespaces(source, key, ReadLimits(), charge=charge)
            first = await names.next(copied.namespace, after=False)
            copied = None if first is None else Copied(database=first[0], collection=first[1])
        if copied is not None:
            with suppress(NotAtThisTime):  # the copy reads them as of a later time
                await documents.open(copied, at.place.cluster_time - 1, "")
    except Failed as error:
        raise FeedmuxError(
            ErrorReason.SOURCE_UNAVAILABLE,
            "MongoDB cannot be reached now",
            retry_after_s=2.0,
        ) from error
    finally:
        await reader.close()
        await documents.close()
