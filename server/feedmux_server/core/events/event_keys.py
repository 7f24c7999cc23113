"""The key of an event in a group: its collection and its `documentKey`, as bytes of BSON that nothing decodes.

Events of one key are delivered in order. MongoDB writes the fields of an event in one order, so a straight walk finds
the key in 1.5 us; an event that a pipeline has rearranged takes a search.
"""

from hashlib import blake2b
from typing import Final

from feedmux_server.core.events.bson_walk import DOCUMENT, find, length_at
from feedmux_server.core.events.chunk import View, leading_id_at

KEY_BYTES_MAX: Final = 128
"""Of a longer key only a digest is kept: a document's `_id` can have megabytes."""
_FIELDS_MAX: Final = 10_000
"""Limit of the search in an event that the pipeline has rearranged, as for `_id`."""

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


def keys_of(view: View, first: int, stop: int) -> list[bytes | None]:
    """The keys of events `first` to `stop - 1`. None for an event without a `documentKey` that is a document: it
    concerns a whole collection or database, or the pipeline has changed it."""
    data, offsets = view.data, view.offsets
    keys: list[bytes | None] = []
    append, length, starts = keys.append, length_at, data.startswith
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
        append(_searched(data, offsets[index]))
    return keys


def _searched(data: bytes, at: int) -> bytes | None:
    """The same key, from fields in any order."""
    key = find(data, at, b"documentKey", DOCUMENT, _FIELDS_MAX)
    if key is None:
        return None
    parts = [_DOCUMENT_KEY, data[key : key + length_at(data, key)[0]]]
    ns = find(data, at, b"ns", DOCUMENT, _FIELDS_MAX)
    if ns is not None:
        parts.insert(0, data[ns : ns + length_at(data, ns)[0]])
    found = b"".join(parts)
    return found if len(found) <= KEY_BYTES_MAX else _digest(found)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=32).digest()
