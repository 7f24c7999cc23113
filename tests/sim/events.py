"""Events with resume tokens in the layout that mongod writes.

The layouts were collected from 6.0.5 for version 1 and from 6.0.27 for version 2: the code under test has to order the
tokens itself.
"""

from dataclasses import dataclass
from typing import Final

import bson

from feedmux_server.core.events.chunk import FIELDS_SEARCHED
from feedmux_server.core.positions.resume_token import ResumeToken

BEGIN: Final = 1_800_000_000 << 32
"""A cluster time."""

_OPERATION = "463C6F7065726174696F6E54797065003C696E736572740046646F63756D656E744B657900"
_COLLECTION = "5A1004942584E96D514A63B59E7230E38388D7"


def number(value: int) -> str:
    """A whole number as MongoDB's KeyString encodes it."""
    if not value:
        return "29"
    coded = value << 1
    width = (coded.bit_length() + 7) // 8
    return f"{0x2A + width:02X}{coded:0{2 * width}X}"


def event_token(
    cluster_time: int,
    txn: int = 0,
    *,
    key: int = 0,
    fragment: int | None = None,
    invalidate: bool = False,
    version: int = 1,
) -> ResumeToken:
    """The token of an event; version 2 if a `fragment` is given, as in streams that split large events."""
    version = version if fragment is None else 2
    flag = "6F" if invalidate else "6E"
    data = f"82{cluster_time:016X}{number(version)}{number(128)}{number(txn)}{flag}{_COLLECTION}"
    if version == 2:
        data += f"{_OPERATION}461E5F696400{number(key)}0000"
        data += "" if fragment is None else number(fragment)
    elif not invalidate:
        data += f"461E5F696400{number(key)}00"
    return ResumeToken.from_key_string(bytes.fromhex(data + "04"))


def hex_of(place: ResumeToken) -> str:
    data: str = bson.decode(place.raw)["_data"]
    return data


@dataclass(frozen=True, slots=True)
class Event:
    """One event, in BSON."""

    number: int
    token: ResumeToken
    data: bytes


def event(n: int, token: ResumeToken, padding: int = 0, *, part: tuple[int, int] | None = None) -> Event:
    """Make an event; `part` is the number of a fragment, from 1, and the count of fragments."""
    document: dict[str, object] = {"_id": {"_data": hex_of(token)}}
    if part is not None:
        document["splitEvent"] = {"fragment": part[0], "of": part[1]}
    document |= {"n": n, "pad": b"x" * padding}
    return Event(n, token, bson.encode(document))


def without_reachable_id(data: bytes) -> bytes:
    """The event, with more fields before its `_id` than are searched for it."""
    before = bson.encode({f"f{n}": None for n in range(FIELDS_SEARCHED)})
    return (len(before) + len(data) - 5).to_bytes(4, "little") + before[4:-1] + data[4:]
