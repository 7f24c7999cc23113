"""Ranges within a copy of existing documents, for bulk readers. Pure.

A range is a part of one step of the copy: changes to what was copied before it, then documents as of one time. So its
two positions say what is in it, and it can be read again, by another server too (`streams.copy_range_reader`):

- the changes after `after` and before the high-water mark of `until` to the documents that `after` covers,
- then the documents after those that `after` covers, up to those that `until` covers, as of the time before that mark.

A range whose end is outside the copy has all the rest of the documents.
"""

from dataclasses import replace
from typing import Any, Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.bson_walk import INT32, INT64, OBJECT_ID, STRING
from feedmux_server.core.positions.resume_token import ResumeToken

_VALUE_AT: Final = 9
"""Where the value is in `{_id: …}`."""
_TEXT_AT: Final = 13


def is_of_one_step(place: ResumeToken, start: ResumeToken, *, documents: bool) -> bool:
    """Whether what follows `start` belongs to the step of the copy in which `place` is, where the same kind of events
    comes before and after: neither documents as of another time, nor changes to more documents."""
    if place.copied is None or start.copied is None:
        return place.copied is start.copied
    if documents:
        return start.cluster_time == place.cluster_time
    return start.copied.up_to in (b"", place.copied.up_to)  # empty: after an invalidate


def progress_of(place: ResumeToken) -> tuple[bytes, int, int] | None:
    """What tells positions of one time apart, within a copy."""
    copied = place.copied
    return None if copied is None else (copied.up_to, copied.documents, copied.generation)


def is_behind(place: ResumeToken) -> bool:
    """Whether the position does not cover all documents that were delivered up to it."""
    return place.copied is not None and place.copied.is_behind


def has_documents(after: ResumeToken, until: ResumeToken) -> bool:
    """Whether the range may have documents, and not changes alone.

    An invalidate ends a range of changes: from it on, another copy begins, so its position covers no document.
    """
    if until.copied is None:
        return True
    return after.copied is not None and until.copied.up_to not in (b"", after.copied.up_to)


def range_end(after: ResumeToken, until: ResumeToken) -> ResumeToken:
    """`until` as it compares with the positions of a range that begins at `after`. Raises MESSAGE_INVALID where the two
    are not a range of one copy."""
    if after.copied is None and until.copied is None:
        return until
    if after.copied is None:
        raise _invalid("after", "`until` is within a copy of existing documents, and `after` is not")
    if until.copied is not None and until.copied.generation != after.copied.generation:
        raise _invalid("until", "`until` and `after` are of different copies")
    if until.copied is not None and after.outside_copy().is_same(until.outside_copy()):
        first, last = _sortable(after.copied.up_to), _sortable(until.copied.up_to)
        # The numbers do not tell: a range that is read again may have more documents than it had at first.
        if first is not None and last is not None and first[0] == last[0] and last[1] < first[1]:
            raise _invalid("until", "`until` is before `after`")
    if has_documents(after, until) and not until.is_high_water_mark:
        raise _invalid("until", "`until` is after the copy in which `after` is: a range ends where the copy ends")
    return until.after_documents() if until.copied is None else until


def _sortable(up_to: bytes) -> tuple[int, Any] | None:
    """The type of the `_id` in `{_id: …}`, and what Python orders as MongoDB does the values of it. None for others."""
    kind = up_to[4] if up_to else 0
    if kind in (INT32, INT64):
        return INT64, int.from_bytes(up_to[_VALUE_AT:-1], "little", signed=True)
    if kind in (STRING, OBJECT_ID):
        return kind, up_to[_TEXT_AT if kind == STRING else _VALUE_AT : -1]
    return None


def to_read_again(after: ResumeToken, until: ResumeToken) -> tuple[ResumeToken, ResumeToken]:
    """Both positions for a stream that reads the range again: exactly, however many documents it has now."""
    assert after.copied is not None
    end = until.after_documents() if has_documents(after, until) else until
    return after.while_copying(replace(after.copied, until=end)), end


def _invalid(field: str, message: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.MESSAGE_INVALID, message, {"field": field}, field=field)
