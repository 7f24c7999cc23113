"""Asks MongoDB for the event of a token, whatever the pipeline of a feed shows of it.

MongoDB answers with error 280 both to a token whose event a pipeline now hides, or which it now splits in another way,
and to one whose event it has never had, since it was restored. The first must be resumed. Without the pipeline, only
the second is an error.
"""

from contextlib import suppress
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.errors import OperationFailure, PyMongoError

from feedmux_server.core.feeds.feed import change_stream_options
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.cursor import RawChangeStreamCursor
from feedmux_server.source.deployment import Source
from feedmux_server.source.errors import judge
from feedmux_server.source.read_pace import HISTORY_AWAIT_MS

_NOT_FOUND = 280
_SHOWING: Final = ("showExpandedEvents", "showSystemEvents", "showMigrationEvents")
"""The token may be of a feed that shows more than this one."""
_RAW = CodecOptions(document_class=RawBSONDocument)


async def has_event(source: Source, key: StreamKey, place: ResumeToken) -> bool:
    """Whether MongoDB has the event of a token in the scope of a feed. True as well if that cannot be told: of a
    high-water mark or a long token, or before anything follows the event. Raises PyMongoError when MongoDB is
    unavailable."""
    if place.is_high_water_mark or place.digest:
        return True
    cursor: RawChangeStreamCursor | None = None
    try:
        cursor = await source.open_cursor(key.spec, _stages(key, place), 1, HISTORY_AWAIT_MS)
        await cursor.next_batch()
    except OperationFailure as error:
        # Any other answer is about the event itself, such as its size, so that MongoDB has found it.
        if judge(error, "getMore").error.status == "UNAVAILABLE":
            raise
        return error.code != _NOT_FOUND
    finally:
        if cursor is not None:
            with suppress(PyMongoError):
                await cursor.close()
    return True


def _stages(key: StreamKey, place: ResumeToken) -> list[Any]:
    options = change_stream_options(key.spec)
    for lookup in ("fullDocument", "fullDocumentBeforeChange", "matchCollectionUUIDForUpdateLookup"):
        options.pop(lookup, None)
    options.update(dict.fromkeys(_SHOWING, True))
    options["startAfter" if place.from_invalidate else "resumeAfter"] = bson.decode(place.event_raw(), _RAW)
    # Nothing is looked up, so MongoDB is asked for the whole event, whatever its fragments are by now.
    return [{"$changeStream": options}]
