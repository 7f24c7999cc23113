"""What a reader asks MongoDB for: a change stream from a position, by a token or, where a token fails, by a time.

A start at a time returns all events of that time again: `after` drops those before the position. Pure.
"""

from dataclasses import replace
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from feedmux_server.core.errors import FragmentsChanged
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.feeds.feed import change_stream_options
from feedmux_server.core.feeds.name_patterns import ON_EVENTS, compares_names
from feedmux_server.core.feeds.snapshot_stages import gate
from feedmux_server.core.feeds.stream_key import StreamKey, policy_stages, user_stages
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied, ResumeToken

_RAW = CodecOptions(document_class=RawBSONDocument)


class StreamRequest:
    """The request of one reader, and how far the reader has read."""

    def __init__(self, key: StreamKey, origin: JoinPoint, copied: Copied | None = None) -> None:
        """`copied`: within a copy of existing documents, only the changes to what was copied."""
        self.key = key
        # After the policy, which makes a delete of a move out of view; before the user, who may drop what it reads.
        self._between = [] if copied is None else [gate(copied)]
        if compares_names(key.spec.pipeline):
            self._between.append(ON_EVENTS)
        self.at = origin
        """The position read to, where the next request begins."""
        self._drop_until: ResumeToken | None = None

    def stages(self) -> list[Any]:
        """The pipeline of a request at the present position."""
        at, stage = self.at, change_stream_options(self.key.spec)
        place, token = at.place, bson.decode(at.place.raw, _RAW)
        by_token = at.exact and place.is_of_mongodb  # of any other, only its time is known
        self._drop_until = None
        if at.native is not None:
            stage["resumeAfter" if at.native == "resume_after" else "startAfter"] = token
        elif by_token:
            # startAfter also continues past an invalidate, which resumeAfter rejects.
            stage["startAfter" if place.from_invalidate else "resumeAfter"] = token
        else:
            time_ = self.begin_time
            stage["startAtOperationTime"] = Timestamp(time_ >> 32, time_ & 0xFFFF_FFFF)
            if at.from_before or (not place.is_high_water_mark and not place.from_invalidate):
                self._drop_until = place
        return [{"$changeStream": stage}, *policy_stages(self.key), *self._between, *user_stages(self.key)]

    @property
    def begin_time(self) -> int:
        """The cluster time at which MongoDB begins to read."""
        place = self.at.place
        return place.cluster_time + place.from_invalidate - self.at.from_before

    def after(self, chunks: list[Chunk]) -> list[Chunk]:
        """The events after the position at which the request began. Raises FragmentsChanged."""
        if self._drop_until is None:
            return chunks
        until = self._drop_until
        kept: list[Chunk] = []
        for chunk in chunks:
            first = chunk.first_after(until)
            if first and chunk.ends_without(first - 1, until):
                raise FragmentsChanged
            if first == chunk.count:
                if until.digest:
                    kept.clear()  # they were before the event of the position, at its cluster time
                continue
            self._drop_until = None
            kept.append(chunk if first == 0 else chunk.without_first(first, until))
        if kept:
            kept[0].start = self.at.place
        return kept

    def passes_invalidate(self) -> bool:
        """After a cursor that an invalidate has ended: whether the invalidate is before the position, so that the next
        request begins after it."""
        is_before = self.at.from_before and self._drop_until is not None
        if is_before:
            self.at = replace(self.at, from_before=False)
        return is_before

    def advance(self, to: ResumeToken, *, has_events: bool) -> None:
        """Everything up to `to` has been read."""
        # The start stays native until the first event, because MongoDB checks the token only then. By the specification
        # ("Resume Process"), startAfter is used until then, with the newest token.
        self.at = JoinPoint(to, exact=True, native=None if has_events else self.at.native)

    def by_time(self) -> bool:
        """Begin at the cluster time of the position next, instead of its token. Returns whether that is another
        request."""
        if self.at.native is not None or not self.at.exact or not self.at.place.is_of_mongodb:
            return False
        self.at = JoinPoint(self.at.place, exact=False)
        return True
