"""The steps of a copy of existing documents. Pure; `streams.snapshot_reader` carries them out.

A step: read the changes to what was copied until a cluster time T is complete, then the next documents as of T. They
belong after the changes of T and before those after it. So at each position the source's state is given out exactly, of
the documents that the position covers: there is nothing to merge.
"""

from dataclasses import dataclass, replace
from typing import Final

from feedmux_server.core.positions.position import COPIED_BYTES_MAX
from feedmux_server.core.positions.resume_token import Copied, ResumeToken

LAG_MAX_S: Final = 60
"""After a long absence the changes come first: MongoDB reads documents only as of the last few minutes."""
RETRIES_AT_ONCE: Final = 3
"""So often in a row a copy continues at once where MongoDB cannot read as of a time."""


@dataclass(slots=True)
class SnapshotSteps:
    """How far one reader is."""

    place: ResumeToken
    """Everything up to this position, which is within a copy, was given out."""
    up_to: bytes = b""
    """The last `_id` up to which documents were read. `place.copied` has no room for a large one, and does not say one
    that a reader may not know."""
    time: int = 0
    """T of the last step."""
    not_before: int = 0
    """T of the next step must not be before this time."""
    retries: int = 0

    @property
    def stored(self) -> Copied:
        """How far the copy is by its positions."""
        assert self.place.copied is not None
        return self.place.copied

    @property
    def copied(self) -> Copied:
        """How far the copy is."""
        return replace(self.stored, up_to=self.up_to)

    def mark_after(
        self, read_to: ResumeToken, complete_time: int, known_time: int, *, has_more: bool
    ) -> ResumeToken | None:
        """The high-water mark after the next T, if enough changes were read for documents as of T; else None.

        Everything before the time of `read_to` is complete, whatever the last batch looked like, and everything at or
        before `complete_time` (`Batch.complete_time`).
        """
        time = max(self.time, read_to.cluster_time - 1, complete_time)
        if has_more or time < self.not_before or known_time - time > LAG_MAX_S << 32:
            return None
        mark = self.mark_at(time, read_to.version)
        # After a change that was given out, others of its time may follow.
        return None if self.place.key[:4] > mark.key[:4] else mark

    def mark_at(self, time: int, version: int) -> ResumeToken:
        """The high-water mark after a cluster time."""
        # Of the documents at one mark the number says which comes first, and only within one version of tokens.
        is_same = self.place.is_high_water_mark and self.place.cluster_time == time + 1
        return ResumeToken.high_water_mark(time + 1, self.place.version if is_same else version)

    def enter(self, database: str, collection: str) -> None:
        """The documents of this collection are next: those of the collections before it were given out, or are to be
        given out again later."""
        self.up_to = b""
        copied = replace(self.stored, up_to=b"", passed=b"", database=database, collection=collection)
        self.place = self.place.while_copying(copied)

    def gave_changes(self, up_to: ResumeToken) -> None:
        """The changes up to a position were given out."""
        self.place = up_to.while_copying(self.stored)

    def invalidated(self) -> None:
        """The feed has ended, also where the pipeline hides why. Another collection of this name is copied from its
        first document."""
        self.place = self.place.while_copying(replace(self.stored, up_to=b"", passed=b""))

    def begin_documents(self, mark: ResumeToken) -> None:
        """The changes before `mark` were given out; documents as of the time before it follow."""
        self.time = mark.cluster_time - 1
        self.gave_changes(mark)

    def gave_documents(self, end: ResumeToken, last_id: bytes) -> None:
        """Documents up to the position `end` were given out."""
        self.place, self.up_to, self.retries = end, last_id, 0

    def passed(self, up_to: bytes, *, may_be_known: bool) -> None:
        """Documents were read up to `up_to`, and those that the pipeline shows given out. `may_be_known`: whoever reads
        the copy may know this `_id`."""
        self.up_to, self.retries = up_to, 0
        if len(up_to) > COPIED_BYTES_MAX:
            return
        if may_be_known:
            copied = replace(self.stored, up_to=up_to, is_behind=False)
        else:
            copied = replace(self.stored, passed=up_to)
        self.place = self.place.while_copying(copied)

    def may_retry_at_once(self) -> bool:
        """Note that MongoDB could not read as of T. Returns whether to continue at once."""
        self.retries += 1
        return self.retries <= RETRIES_AT_ONCE
