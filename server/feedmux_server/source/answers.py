"""How MongoDB's answers are decoded that contain what others have written: names, validators, views, indexes, errors.

Whoever may create a collection decides how large its description is (up to 16 MB) and which values are in it. So
descriptions stay bytes, in which the few fields that feedmux wants are found; and the rest of an answer is decoded with
a codec that accepts whatever MongoDB accepts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

from feedmux_server.core.events.bson_walk import BOOL, DOCUMENT, find, find_text, length_at

# The driver's own default rejects dates after the year 9999, and text and names that are not UTF-8.
ANSWER: Final[CodecOptions[Any]] = CodecOptions(
    unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
RAW_ANSWER: Final[CodecOptions[Any]] = ANSWER.with_options(document_class=RawBSONDocument)
FOR_CLIENTS: Final[dict[str, Any]] = {"unicode_decode_error_handler": "replace", "datetime_conversion": "DATETIME_AUTO"}
"""The same, as arguments of a client of pymongo. Those of its methods that run a command do not use them."""
REPLACED: Final = "\ufffd"
"""In a name that is not UTF-8, in place of each byte that is at fault. MongoDB does not find it by such a name."""


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """What `listCollections` says of a collection or view."""

    kind: str
    """`collection`, `view` or `timeseries`."""
    capped: bool = False
    collation: bool = False
    clustered: bool = False
    images: bool = False
    """Pre- and post-images are stored."""


def documents_in(run: bytes) -> Iterator[bytes]:
    """Documents that follow one another."""
    at = 0
    while at < len(run):
        end = at + length_at(run, at)[0]
        yield run[at:end]
        at = end


def name_of(listed: bytes) -> str:
    """The name in a document of `listCollections`."""
    return find_text(listed, 0, b"name").decode(errors="replace")


def info_of(listed: bytes) -> CollectionInfo:
    """The rest of it."""
    kind = find_text(listed, 0, b"type").decode(errors="replace")
    options = find(listed, 0, b"options", DOCUMENT)
    if options is None:
        return CollectionInfo(kind)
    images = find(listed, options, b"changeStreamPreAndPostImages", DOCUMENT)
    return CollectionInfo(
        kind,
        capped=_is_true(listed, options, b"capped"),
        collation=find(listed, options, b"collation", DOCUMENT) is not None,
        # `true` for the buckets of time series.
        clustered=find(listed, options, b"clusteredIndex", DOCUMENT) is not None
        or _is_true(listed, options, b"clusteredIndex"),
        images=images is not None and _is_true(listed, images, b"enabled"),
    )


def _is_true(data: bytes, at: int, name: bytes) -> bool:
    value = find(data, at, name, BOOL)
    return value is not None and data[value] == 1
