"""When an event happened, by MongoDB's clock in milliseconds, read off its bytes without decoding it.

For measuring how long events take, so an answer that is missing now and then does no harm.
"""

from struct import Struct
from typing import Final

_FIRST: Final = b"\x11clusterTime\x00"
_SECOND: Final = b"\x09wallTime\x00"
_MILLISECONDS = Struct("<q").unpack_from


def event_time_s(data: bytes, at: int, end: int) -> float:
    """`wallTime` of the event in `data[at:end]`, in seconds; 0 where it does not stand behind `clusterTime`.

    MongoDB 6.0 and newer put the two side by side before anything of the user's. A pipeline may have removed them.
    """
    found = data.find(_FIRST, at, end)
    if found < 0:
        return 0.0
    second = found + len(_FIRST) + 8
    value = second + len(_SECOND)
    if value + 8 > end or data[second:value] != _SECOND:
        return 0.0
    milliseconds: int = _MILLISECONDS(data, value)[0]
    return milliseconds / 1000
