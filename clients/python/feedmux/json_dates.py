"""Dates as relaxed Extended JSON writes them."""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 written with a Z
_SECOND_MAX: Final = 253402300799
"""The last one of the year 9999. Dates after it, and before 1970, are numbers."""


@lru_cache(4096)
def _second(seconds: int) -> str:
    """A second since 1970, without a time zone: most dates of a chunk share theirs."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()


def date_text(ms: int) -> str | None:
    """A date as relaxed Extended JSON writes it; None for one that it writes as a number."""
    seconds, rest = divmod(ms, 1000)
    if not 0 <= seconds <= _SECOND_MAX:
        return None
    return f"{_second(seconds)}.{rest:03}Z" if rest else f"{_second(seconds)}Z"
