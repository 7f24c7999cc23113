"""Whether a second read of an event may give it another key in a group: its pipeline computes the key from what may
differ then. Pure.

What follows a hole in its key is known to be unsettled by its key alone (`core.positions.ahead`).
"""

from typing import Final

import bson
from bson.raw_bson import RawBSONDocument

from feedmux_server.core.feeds.stream_key import StreamKey, user_stages

_IMAGES: Final = {"updateLookup", "whenAvailable"}
"""Of which MongoDB may find another one, or none, at a second read."""
_VALUES: Final = (b"$$NOW", b"$$CLUSTER_TIME", b"$rand")
_KEY_FIELDS: Final = {"documentKey", "ns"}
_SETS: Final = {"$set", "$addFields", "$project"}
_REPLACES: Final = {"$replaceRoot", "$replaceWith", "$redact"}


def keys_may_differ(key: StreamKey) -> bool:
    """Whether two reads of one event may give it two keys. True in doubt."""
    spec = key.spec
    has_images = not _IMAGES.isdisjoint((spec.full_document, spec.full_document_before_change))
    if not has_images and not any(each in spec.pipeline for each in _VALUES):
        return False
    return any(map(_computes_key, user_stages(key)))


def _computes_key(stage: RawBSONDocument) -> bool:
    ((name, fields),) = stage.items()
    if name in _REPLACES:
        return True
    return name in _SETS and any(
        field.partition(".")[0] in _KEY_FIELDS and b"$" in bson.encode({"": value}) for field, value in fields.items()
    )
