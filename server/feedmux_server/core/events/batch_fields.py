"""The fields of the message `Batch` that hold events, in protobuf's encoding: a tag, a length, and the bytes.

Without protobuf's library: the events' bytes are in memory already, and the process that renders Extended JSON starts
faster. `Rendition` holds texts as encoded fields, so that any run of events is a run of bytes.
"""

from typing import Final

BSON_TAG: Final = b"\x7a"
"""`Batch.bson` (field 15): all events of the message, one after the other."""
_JSON_TAG: Final = b"\x82\x01"
"""`Batch.json` (field 16), which is repeated: one text each."""


def json_field(text: bytes) -> bytes:
    return b"".join((_JSON_TAG, varint(len(text)), text))


def json_text(field: bytes) -> memoryview:
    """The text of a field that `json_field` has encoded."""
    at = len(_JSON_TAG)
    while field[at] & 0x80:
        at += 1
    return memoryview(field)[at + 1 :]


def varint(value: int) -> bytes:
    """Protobuf's variable-length integer."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
