"""Asks MongoDB for the event of a token, whatever the pipeline of a feed shows of it.

MongoDB answers with error 280 both to a token whose event a pipeline now hides, or which it now splits in another way,
and to one whose event it has never had, since it was restored. The first must be resumed. Without the pipeline and with
all options that show more events, only the second is an error.
"""

from contextlib import suppress
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure, PyMongoError

from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.cursor import RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from feedmux_server.source.errors import judge
from feedmux_server.source.read_pace import HISTORY_AWAIT_MS

_NOT_FOUND = 280
_RAW = CodecOptions(document_class=RawBSONDocument)
_SHOWING: Final = ("showExpandedEvents", "showSystemEvents", "showMigrationEvents")
"""The token may be of a feed that shows more than this one."""


async def has_event(source: Source, key: StreamKey, place: ResumeToken) -> bool:
    """Whether MongoDB has the event of a token in the scope of a feed. True as well if that cannot be told: of a
    high-water mark or a long token, or before anything follows the event. Raises PyMongoError when MongoDB is
    unavailable."""
    if place.is_high_water_mark or place.digest:
        return True
    try:
        await _ask(source, key, place)
    except OperationFailure as error:
        # Any other answer is about the event itself, such as its size, so that MongoDB has found it, or about an option
        # that it does not know, so that it cannot be asked.
        if judge(error, "getMore").error.status == "UNAVAILABLE":
            raise
        return error.code != _NOT_FOUND
    return True


async def _ask(source: Source, key: StreamKey, place: ResumeToken) -> None:
    cursor: RawChangeStreamCursor | None = None
    try:
        cursor = await source.open_cursor(key.spec, [_stage(key, place)], 1, HISTORY_AWAIT_MS)
        await cursor.next_batch()
    finally:
        if cursor is not None:
            with suppress(PyMongoError):
                await cursor.close()


def _stage(key: StreamKey, place: ResumeToken) -> dict[str, Any]:
    """Nothing is looked up, so no event is large, and none is split: MongoDB is asked for the whole one."""
    options: dict[str, Any] = dict.fromkeys(_SHOWING, True)
    if "ignoreRemovedShards" in key.spec.extra_options:
        options["ignoreRemovedShards"] = True
    if not key.spec.scope.database:
        options["allChangesForCluster"] = True
    options["startAfter" if place.from_invalidate else "resumeAfter"] = bson.decode(place.event_raw(), _RAW)
    return {"$changeStream": options}
