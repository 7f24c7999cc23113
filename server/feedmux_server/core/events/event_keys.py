"""The key of an event in a group: its collection and its `documentKey`, as bytes of BSON that nothing decodes.

Events of one key are delivered in order. MongoDB writes the fields of an event in one order, so a straight walk finds
the key in 1.5 us; an event that a pipeline has rearranged takes a search.
"""

from hashlib import blake2b
from typing import Final

from feedmux_server.core.events.bson_walk import DOCUMENT, FIXED_BYTES, length_at, value_end
from feedmux_server.core.events.chunk import FIELDS_SEARCHED, Rendition, leading_id_at

KEY_BYTES_MAX: Final = 128
"""Of a longer key only a digest is kept: a document's `_id` can have megabytes."""

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
    concerns a whole collection or database, or the pipeline has changed it, or put it too far back.

    The key of an event depends on this event only: a new host, which reads the events in other portions, recognizes by
    its key what was settled.
    """
    data, offsets = rendition.data, rendition.offsets
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
    """The same key, from fields in any order. A pipeline can put the fields of a document before those of its event,
    in each event of a large batch, so this loop does little for a field."""
    end = at + length_at(data, at)[0] - 1
    at += 4
    key, ns = b"", b""
    fields_left, size_of, zero_after = FIELDS_SEARCHED, FIXED_BYTES.get, data.index
    while at < end and not (key and ns):
        if not fields_left:
            return None  # without its collection, the key would be another one
        fields_left -= 1
        kind, begin = data[at], at + 1
        at = zero_after(0, begin) + 1
        size = size_of(kind)
        if size is not None:
            at += size
            continue
        if kind == DOCUMENT:
            name = data[begin : at - 1]
            if name == b"documentKey":
                key = key or data[at : at + length_at(data, at)[0]]
            elif name == b"ns":
                ns = ns or data[at : at + length_at(data, at)[0]]
        at = value_end(data, kind, at)
    if not key:
        return None
    found = ns + _DOCUMENT_KEY + key
    return found if len(found) <= KEY_BYTES_MAX else _digest(found)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=32).digest()
