"""The key of an event in a group: its collection and its `documentKey`, as bytes of BSON that nothing decodes.

Events of one key are delivered in order. MongoDB writes the fields of an event in one order, so a straight walk finds
the key in 1.5 us; an event that a pipeline has rearranged takes a search.
"""

from hashlib import blake2b
from typing import Final

from feedmux_server.core.events.bson_walk import DOCUMENT, length_at, value_end
from feedmux_server.core.events.chunk import Rendition, leading_id_at

KEY_BYTES_MAX: Final = 128
"""Of a longer key only a digest is kept: a document's `_id` can have megabytes."""
_FIELDS_MAX: Final = 10_000
_FIELDS_OF_EACH: Final = 20
"""A call searches so many fields of events that the pipeline has rearranged, and so many more for each event: a few
milliseconds. A pipeline can put the fields of a document before those of its event."""

_OPERATION_TYPE: Final = b"\x02operationType\x00"
_CLUSTER_TIME: Final = b"\x11clusterTime\x00"
_CLUSTER_TIME_BYTES: Final = len(_CLUSTER_TIME) + 8
_COLLECTION_UUID: Final = b"\x05collectionUUID\x00\x10\x00\x00\x00"
_COLLECTION_UUID_BYTES: Final = len(_COLLECTION_UUID) + 17
_WALL_TIME: Final = b"\x09wallTime\x00"
_WALL_TIME_BYTES: Final = len(_WALL_TIME) + 8
_FULL_DOCUMENT: Final = b"\x03fullDocument\x00"
_NS: Final = b"\x03ns\x00"
_DOCUMENT_KEY: Final = b"\x03documentKey\x00"
_TYPE_BYTES: Final = len(_OPERATION_TYPE)
_TYPE_AND_LENGTH_BYTES: Final = _TYPE_BYTES + 4
_FULL_DOCUMENT_BYTES: Final = len(_FULL_DOCUMENT)
_NS_BYTES: Final = len(_NS)
_KEY_BYTES: Final = len(_DOCUMENT_KEY)


def keys_of(rendition: Rendition, first: int, stop: int) -> list[bytes | None]:
    """The keys of events `first` to `stop - 1`. None for an event without a `documentKey` that is a document: it
    concerns a whole collection or database, or the pipeline has changed it, or put it too far back."""
    data, offsets = rendition.data, rendition.offsets
    keys: list[bytes | None] = []
    append, length, starts = keys.append, length_at, data.startswith
    fields_left = _FIELDS_MAX + _FIELDS_OF_EACH * (stop - first)
    for index in range(first, stop):
        at = leading_id_at(data, offsets[index])
        if at:
            at += length(data, at)[0]
            if starts(_OPERATION_TYPE, at):
                at += _TYPE_AND_LENGTH_BYTES + length(data, at + _TYPE_BYTES)[0]
                if starts(_CLUSTER_TIME, at):
                    at += _CLUSTER_TIME_BYTES
                    if starts(_COLLECTION_UUID, at):  # in expanded events
                        at += _COLLECTION_UUID_BYTES
                    if starts(_WALL_TIME, at):
                        at += _WALL_TIME_BYTES
                    if starts(_FULL_DOCUMENT, at):
                        at += _FULL_DOCUMENT_BYTES
                        at += length(data, at)[0]
                    if starts(_NS, at):
                        at += _NS_BYTES
                        begin = at
                        at += length(data, at)[0]
                        if starts(_DOCUMENT_KEY, at):
                            at += _KEY_BYTES
                            end = at + length(data, at)[0]
                            append(data[begin:end] if end - begin <= KEY_BYTES_MAX else _digest(data[begin:end]))
                            continue
        name, fields_left = _searched(data, offsets[index], fields_left)
        append(name)
    return keys


def _searched(data: bytes, at: int, fields_left: int) -> tuple[bytes | None, int]:
    """The same key, from fields in any order, and how many fields may still be searched."""
    end = at + length_at(data, at)[0] - 1
    at += 4
    key, ns = b"", b""
    while at < end and not (key and ns):
        if not fields_left:
            return None, 0  # without its collection, the key would be another one
        fields_left -= 1
        kind, name_end = data[at], data.index(0, at + 1)
        name, at = data[at + 1 : name_end], name_end + 1
        if kind == DOCUMENT and name == b"documentKey":
            key = key or data[at : at + length_at(data, at)[0]]
        elif kind == DOCUMENT and name == b"ns":
            ns = ns or data[at : at + length_at(data, at)[0]]
        at = value_end(data, kind, at)
    if not key:
        return None, fields_left
    found = ns + _DOCUMENT_KEY + key
    return (found if len(found) <= KEY_BYTES_MAX else _digest(found)), fields_left


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=32).digest()
