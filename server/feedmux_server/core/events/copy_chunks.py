"""Chunks of a copy: existing documents as insert events, and the changes between them.

Their positions say how far the copy is (`ResumeToken.copied`). `streams.snapshot_reader` makes them; everything after
it takes them as chunks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from feedmux_server.core.events.bson_walk import DOCUMENT, find, value_end
from feedmux_server.core.events.chunk import Chunk, document_offsets, event_id, pieces, read_token
from feedmux_server.core.positions.position import COPIED_BYTES_MAX
from feedmux_server.core.positions.resume_token import Copied, ResumeToken


class ChangesChunk(Chunk):
    """Changes between documents of a copy."""

    __slots__ = ("_copied",)
    _copied: Copied

    @classmethod
    def of(cls, chunk: Chunk, copied: Copied, until: ResumeToken | None) -> Self | None:
        """The changes of a chunk that was just read, up to a position or all of them; None for none."""
        view, stop = chunk.bson, chunk.count if until is None else chunk.first_after(until)
        if not stop or view is None:
            return None
        is_within = stop == chunk.count and (until is None or not chunk.end.is_after(until))
        end = chunk.end if is_within else chunk.token(stop - 1)
        part = cls(
            view.cut(0, stop),
            view.offsets[: stop + 1],
            chunk.start.while_copying(copied),
            end.while_copying(copied),
            chunk.read_time_s,
            split=chunk._split,
            ends_delivery=chunk.ends_delivery and stop == chunk.count,
        )
        part._copied = copied
        return part

    def _place(self, raw: bytes, index: int) -> ResumeToken:
        return read_token(raw).while_copying(self._copied)


class DocumentsChunk(Chunk):
    """Documents as insert events, in the order of `_id`, all at one high-water mark."""

    __slots__ = ("_copied",)
    are_documents = True

    def __init__(
        self,
        data: bytes,
        offsets: Sequence[int],
        start: ResumeToken,
        copied: Copied,
        read_time_s: float,
        ends_delivery: bool,
    ) -> None:
        """`start` is at the high-water mark of the documents; `copied` is how far the copy is before them."""
        super().__init__(data, offsets, start, start, read_time_s, ends_delivery=ends_delivery)
        self._copied = copied
        self.end = self.token(self.count - 1)

    def _place(self, raw: bytes, index: int) -> ResumeToken:
        up_to = copied_id(raw)
        is_behind = len(up_to) > COPIED_BYTES_MAX
        if is_behind:
            # A position has no room for it. One that is not as far brings documents again, and loses nothing.
            up_to = self._copied.up_to
        documents = self._copied.documents + index + 1
        copied = replace(self._copied, up_to=up_to, documents=documents, is_behind=is_behind, passed=b"")
        return self.start.while_copying(copied)

    def last_id(self) -> bytes:
        """`copied_id` of the last document, of any size."""
        view = self.bson
        assert view is not None
        return copied_id(event_id(view.data, view.offsets[-2]))


def copied_id(raw: bytes) -> bytes:
    """The BSON document `{_id: …}` in the `_id` of a document's event, where the namespace may follow it."""
    at = find(raw, 0, b"snapshot", DOCUMENT)
    if at is None:
        raise ValueError("not the event of a document")
    content = raw[at + 4 : value_end(raw, raw[at + 4], at + 5 + len(b"_id\0"))]
    return (len(content) + 5).to_bytes(4, "little") + content + b"\0"


def cut_documents(
    data: bytes, start: ResumeToken, copied: Copied, read_time_s: float, *, bytes_max: int
) -> list[DocumentsChunk]:
    """One batch of documents as chunks, cut as `cut_batch` does. `start` and `copied` are those before them."""
    chunks: list[DocumentsChunk] = []
    for _, _, piece, offsets, ends_delivery in pieces(data, document_offsets(data), bytes_max):
        chunk = DocumentsChunk(piece, offsets, start, copied, read_time_s, ends_delivery)
        chunks.append(chunk)
        start = chunk.end
        copied = start.copied or copied
    return chunks
