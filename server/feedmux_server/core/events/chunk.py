"""A chunk: consecutive events as the bytes MongoDB sent, and where each begins.

Built by `source` from one batch (cut at event boundaries when it is large), held by the `ReplayBuffer`, read by
every `Subscriber` of the stream. Nothing here decodes an event; its resume token is cut out of its bytes only where a
position inside the chunk is requested.

Invariant: `offsets` has one entry per event and one for the end, so event i is `data[offsets[i]:offsets[i + 1]]`.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, Protocol

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.bson_walk import DOCUMENT, INT32, find, length_at
from feedmux_server.core.positions.resume_token import ResumeToken, UnknownTokenLayout

CHUNK_OVERHEAD_BYTES = 650
"""What a chunk costs beside its events: measured with tracemalloc over one-event chunks."""

_ID: Final = b"\x03_id\x00"
_TXN_NUMBER: Final = b"\x12txnNumber\x00"
_LSID: Final = b"\x03lsid\x00"
_INT64_BYTES: Final = 8
_SPLIT_EVENT: Final = b"\x03splitEvent\x00"
_TOKEN_TEXT_AT: Final = 4 + len(b"\x02_data\x00") + 4
"""Where the text of a token begins in its document, after its length."""
_WHOLE_EVENT: Final = b"0004"
"""How the text of the token of a whole event ends: the document key, and the end of the token."""
FIELDS_SEARCHED: Final = 256
"""Limit of the search for a field, such as `_id`, that the pipeline has moved: 0.1 ms, about what the message costs
that acknowledges the event. An event can have millions of fields, and each of its acknowledgements may need the
search."""
_LARGE_TOKEN_BYTES: Final = 8 * 1024
"""Every server accepts a token of this size from a client."""


def document_offsets(data: bytes) -> "array[int]":
    """Where each of the concatenated BSON documents begins, and the end.

    Raises ValueError when the lengths do not add up to the size of `data`.
    """
    offsets = array("L", (0,))
    append, end, at = offsets.append, len(data), 0
    length_of = length_at
    while at < end:
        size = length_of(data, at)[0] if end - at >= 5 else 0
        at += size
        if size < 5 or at > end:
            raise ValueError("BSON document lengths do not add up")
        append(at)
    return offsets


def event_id(data: bytes, at: int) -> bytes:
    """The `_id` document of the event at `at`, which is MongoDB's resume token. It need not be the first field."""
    found = _id_at(data, at)
    if found is None:
        raise FeedmuxError(
            ErrorReason.RESUME_TOKEN_MODIFIED,
            "the pipeline removed or changed _id, which is the resume token, or put it after "
            f"{FIELDS_SEARCHED} other fields; keep _id in the pipeline's output, as the first field",
        )
    return data[found : found + length_at(data, found)[0]]


def _id_at(data: bytes, at: int) -> int | None:
    """Where the `_id` document of the event at `at` begins, if it is among the first `FIELDS_SEARCHED` fields."""
    return leading_id_at(data, at) or find(data, at, b"_id", DOCUMENT, FIELDS_SEARCHED)


def leading_id_at(data: bytes, at: int) -> int:
    """Where the `_id` document begins if it is where MongoDB writes it, as in every event that the pipeline has not
    rearranged: first, or in a transaction after `txnNumber` and `lsid`. Else 0."""
    at += 4
    if data.startswith(_ID, at):
        return at + len(_ID)
    if data.startswith(_TXN_NUMBER, at):
        at += len(_TXN_NUMBER) + _INT64_BYTES
        if data.startswith(_LSID, at):
            at += len(_LSID)
            at += length_at(data, at)[0]
            if data.startswith(_ID, at):
                return at + len(_ID)
    return 0


def leading_id(data: bytes, at: int) -> bytes:
    """The `_id` document if it is where MongoDB writes it; else empty."""
    found = leading_id_at(data, at)
    return data[found : found + length_at(data, found)[0]] if found else b""


def _more_fragments(data: bytes, token: int, at: int) -> bool:
    """Whether the event is a fragment and others of the same event follow: `at`, the field after `_id`, says so.

    A pipeline may write that field into every event, but no token: those of whole events end with the NUL of the
    document key, those of fragments with a number.
    """
    if not data.startswith(_SPLIT_EVENT, at):
        return False
    token_end = token + _TOKEN_TEXT_AT + length_at(data, token + _TOKEN_TEXT_AT - 4)[0] - 1
    if data.startswith(_WHOLE_EVENT, token_end - len(_WHOLE_EVENT)):
        return False
    part = at + len(_SPLIT_EVENT)
    fragment, of = find(data, part, b"fragment", INT32, 2), find(data, part, b"of", INT32, 2)
    return fragment is not None and of is not None and length_at(data, fragment) < length_at(data, of)


def read_token(raw: bytes, last: ResumeToken | None = None) -> ResumeToken:
    """`ResumeToken.decode`, or `decode_next` after `last`, with a layout we do not know turned into the error a user
    can act on."""
    try:
        return ResumeToken.decode(raw) if last is None else ResumeToken.decode_next(raw, last)
    except UnknownTokenLayout as error:
        raise FeedmuxError(
            ErrorReason.SOURCE_UNSUITABLE,
            "MongoDB sent a resume token of a layout that this version of feedmux does not know; upgrade feedmux",
        ) from error


class Rendition:
    """A chunk's events in one wire format: their bytes one after the other, and where each begins.

    On the wire an event may be framed (JSON texts are fields of a message); what counts as the event's own bytes, for
    credit and quotas, leaves the framing out. For BSON both are the same.
    """

    __slots__ = ("data", "event_bytes", "offsets")

    def __init__(self, data: bytes, offsets: Sequence[int], event_bytes: Sequence[int] | None = None) -> None:
        self.data = data
        self.offsets = offsets
        self.event_bytes = offsets if event_bytes is None else event_bytes
        """The bytes of all events before each one, without framing, and of all of them."""

    @property
    def size_bytes(self) -> int:
        size = len(self.data) + 8 * len(self.offsets)
        return size if self.event_bytes is self.offsets else size + 8 * len(self.event_bytes)

    def cut(self, first: int, stop: int) -> bytes:
        """The bytes of events `first` to `stop - 1`; the shared object itself when that is all of them."""
        begin, end = self.offsets[first], self.offsets[stop]
        return self.data if end - begin == len(self.data) else self.data[begin:end]

    def stop_within(self, first: int, bytes_max: int) -> int:
        """The largest `stop` so that events `first` to `stop - 1` fit into `bytes_max` on the wire.

        An event that does not fit gives `first`.
        """
        return bisect_right(self.offsets, self.offsets[first] + bytes_max, first) - 1

    def stop_with_credit(self, first: int, credit: int) -> int:
        """The largest `stop` so that `credit` allows events `first` to `stop - 1`; the last one may overdraw it."""
        charged = self.event_bytes
        return min(bisect_left(charged, charged[first] + credit, first), len(charged) - 1)


class Index(Protocol):
    """Something made from a chunk and kept beside it."""

    @property
    def size_bytes(self) -> int: ...


class Holder(Protocol):
    """Who may still ask for a token inside a chunk: an ack tracker."""

    def pays(self, size: int) -> None:
        """`size` more bytes (fewer, when negative) are retained outside all rings on this holder's account."""


class EventReader(Protocol):
    """Who may still deliver events of a chunk after it has left its ring: the ledger of a group."""

    def evicting(self) -> None:
        """The chunk drops its events now: copy those that are needed. Called in the task of whoever needs the memory,
        so it must neither fail nor search."""

    def retaining(self) -> None:
        """The chunk has left its ring, and its events stay as they are for those who keep them."""


class Chunk:
    """Events in (start, end], shared by all who read the stream."""

    are_documents = False
    """Whether the events are documents of a copy; no delivery mixes these with changes."""

    __slots__ = (
        "_failures", "_holders", "_payer", "_split", "_tokens", "bson", "count", "cum_bytes", "cum_events", "end",
        "ends_delivery", "evicted", "held_bytes", "index", "read_time_s", "readers", "rendered", "start",
    )  # fmt: skip

    def __init__(
        self,
        data: bytes,
        offsets: Sequence[int],
        start: ResumeToken,
        end: ResumeToken,
        read_time_s: float,
        *,
        split: bool = False,
        ends_delivery: bool = False,
    ) -> None:
        self.bson: Rendition | None = Rendition(data, offsets)
        """The events' BSON. None once the ring has evicted the chunk."""
        self.rendered: dict[str, Rendition] = {}
        """Other wire formats, each made once."""
        self.index: Index | None = None
        """What a wide stream knows of its events, while it is in the ring."""
        self._failures: dict[str, FeedmuxError] | None = None
        self.count = len(offsets) - 1
        self.start = start
        self.end = end
        """The later of the last event's token and the batch's postBatchResumeToken."""
        self.read_time_s = read_time_s
        self.ends_delivery = ends_delivery
        """The last event has a large token. A client names an event within a delivery by its token, but the last event
        by the delivery's position: so no client needs to send a large token."""
        self.cum_bytes = 0
        """Bytes appended to the ring before this chunk."""
        self.cum_events = 0
        self.evicted = False
        """It is in no ring any more."""
        self.readers: dict[EventReader, None] | None = None
        """Who is informed before the events leave the ring, each once."""
        self.held_bytes = 0
        """What it costs outside all rings, while somebody holds it. One of the holders pays for it."""
        self._holders: dict[Holder, int] | None = None
        self._payer: Holder | None = None
        self._tokens: Rendition | None = None
        self._split = split

    @property
    def is_rearranged(self) -> bool:
        """Whether a pipeline has moved the `_id` of its last event, and so probably of all. To find them takes long."""
        return self.bson is not None and not leading_id_at(self.bson.data, self.bson.offsets[-2])

    @property
    def size_bytes(self) -> int:
        size = CHUNK_OVERHEAD_BYTES + self.end.extra_bytes
        if self.bson is not None:
            size += self.bson.size_bytes
        if self._tokens is not None:
            size += self._tokens.size_bytes
        for rendition in self.rendered.values():
            size += rendition.size_bytes
        if self.index is not None:
            size += self.index.size_bytes
        return size

    @property
    def holders(self) -> int:
        """How many may still ask for a token inside this chunk."""
        return len(self._holders) if self._holders is not None else 0

    def hold(self, holder: Holder) -> None:
        """Keeps the tokens for `holder` until it has let go as often."""
        holders = self._holders
        if holders is None:
            self._holders = {holder: 1}
        else:
            holders[holder] = holders.get(holder, 0) + 1

    def let_go(self, holder: Holder) -> None:
        holders = self._holders
        assert holders is not None, "nobody holds the chunk"
        left = holders[holder] - 1
        if left:
            holders[holder] = left
            return
        del holders[holder]
        if self._payer is holder:
            holder.pays(-self.held_bytes)
            self._payer = None
            self._charge()

    def token(self, index: int) -> ResumeToken:
        """The resume token of event `index`. The bytes must still be there."""
        rendition = self._rendition()
        return self._place(event_id(rendition.data, rendition.offsets[index]), index)

    def _place(self, raw: bytes, index: int) -> ResumeToken:
        """The position after event `index`, whose `_id` is `raw`."""
        return read_token(raw)

    def place_after(self, index: int) -> ResumeToken:
        """The position after event `index`: after the last event it is the chunk's end."""
        return self.end if index == self.count - 1 else self.token(index)

    def first_after(self, place: ResumeToken) -> int:
        """Index of the first event after `place`; `count` when there is none.

        If `place` has another token version, the first event that may be after it: of the events at its time, only
        leading ones that are the very event of `place` are known to be passed. If a reader ends at `place` and one
        begins there, each event is delivered exactly once by one of the two.

        The token of `place` may be long. Then the first event after the very event of `place`, if that is here.
        """
        if place.reaches(self.end):
            return self.count
        first = bisect_left(range(self.count), True, key=lambda index: not place.reaches(self.token(index)))
        if place.version != self.end.version:
            while first < self.count and self.token(first).is_of_passed_event(place):
                first += 1
        elif place.digest:
            is_found = False
            for index in range(first, self.count):
                token = self.token(index)
                if token.digest == place.digest and place.reaches(token):
                    is_found, first = True, index + 1
                elif is_found or token.is_after(place):
                    break
        return first

    def ack_place(self, index: int) -> ResumeToken | None:
        """The position to store when event `index` is acknowledged; None inside a split event."""
        if index == self.count - 1 and not self._split:
            return self.end
        raw = self._tokens.cut(index, index + 1) if self._tokens is not None else self._ack_token(index)
        if not raw:
            return None
        return self.end if index == self.count - 1 else self._place(raw, index)

    def ends_event(self, index: int) -> bool:
        """Whether the stream splits events, and no fragment of the same event follows event `index`. The bytes must
        still be there."""
        return self._split and bool(self._ack_token(index))

    def ends_without(self, index: int, place: ResumeToken) -> bool:
        """Whether event `index` is the end of the event of `place`, and `place`, a fragment, is none of its fragments:
        a lookup has found another document by then."""
        if not self._split or not place.may_be_inside_event or place.version != self.end.version:
            return False
        token = self.token(index)
        is_of_event = token.after_event().is_same(place.after_event())
        return is_of_event and not token.is_same(place) and self.ends_event(index)

    def without_first(self, first: int, start: ResumeToken) -> "Chunk":
        """The same chunk from event `first` on."""
        rendition = self._rendition()
        base = rendition.offsets[first]
        offsets = array("L", [at - base for at in rendition.offsets[first:]])
        return Chunk(
            rendition.data[base:],
            offsets,
            start,
            self.end,
            self.read_time_s,
            split=self._split,
            ends_delivery=self.ends_delivery,
        )

    def render_error(self, wire_format: str) -> FeedmuxError | None:
        """Why the chunk cannot be rendered in `wire_format`."""
        return self._failures.get(wire_format) if self._failures is not None else None

    def cannot_render(self, wire_format: str, error: FeedmuxError) -> dict[str, FeedmuxError]:
        """Remembers why. Returns all such errors of the chunk, so that one can be forgotten again."""
        if self._failures is None:
            self._failures = {}
        self._failures[wire_format] = error
        return self._failures

    def evicts_from_readers(self, most: int) -> bool:
        """If it has more readers than `most`, inform so many that the events leave the ring."""
        readers = self.readers
        if readers is None or len(readers) <= most:
            return False
        for _ in range(most):
            readers.popitem()[0].evicting()
        return True

    def drop_bytes(self) -> None:
        """Evict the events. If an ack tracker holds the chunk, first extract the tokens, once for all trackers.

        This runs in the task of whoever needs the memory. So it neither fails nor searches: if a pipeline has moved
        `_id` in any of the events, they stay as they are, and the holder pays for them.
        """
        if self.evicted:
            return
        if self.readers:
            readers, self.readers = self.readers, None
            for reader in readers:
                reader.evicting()
        if self._holders:
            rendition, tokens = self._rendition(), list[bytes]()
            for index in range(self.count):
                token = _leading_token(rendition, index, self._split)
                if token is None:
                    self.retain_whole()
                    return
                # The position after the last event is the chunk's end, however large its token is.
                tokens.append(token if index < self.count - 1 else token[:1])
            self._tokens = Rendition(b"".join(tokens), array("L", (0, *accumulate(map(len, tokens)))))
        self.bson = None
        self._leave_ring()

    def retain_whole(self) -> None:
        """Its ring has ended: nobody reads it any more. For those who hold it the events stay as they are, since the
        tokens of a whole ring would take the event loop too long to extract at once."""
        if not self.evicted:
            if self.readers:
                readers, self.readers = self.readers, None
                for reader in readers:
                    reader.retaining()
            self._leave_ring()

    def _leave_ring(self) -> None:
        self.evicted = True
        self.index = None
        self.rendered.clear()
        self._charge()

    def _charge(self) -> None:
        """Somebody who holds the evicted chunk pays for it. With nobody left there is nothing to pay for."""
        self._payer = next(reversed(self._holders), None) if self._holders is not None else None
        if self._payer is None:
            self.bson = self._tokens = None
            self.held_bytes = 0
        else:
            self.held_bytes = self.size_bytes
            self._payer.pays(self.held_bytes)

    def _ack_token(self, index: int) -> bytes:
        """Empty for a fragment with others to come."""
        rendition = self._rendition()
        token = _leading_token(rendition, index, self._split)
        return event_id(rendition.data, rendition.offsets[index]) if token is None else token

    def _rendition(self) -> Rendition:
        if self.bson is None:
            raise LookupError("the chunk's bytes are gone")
        return self.bson


def _leading_token(rendition: Rendition, index: int, split: bool) -> bytes | None:
    """The token of event `index` if `_id` is where MongoDB writes it, as it is in all fragments; empty for a fragment
    with others to come. None if the pipeline has moved `_id`."""
    data = rendition.data
    at = leading_id_at(data, rendition.offsets[index])
    if not at:
        return None
    end = at + length_at(data, at)[0]
    return b"" if split and _more_fragments(data, at, end) else data[at:end]


def cut_batch(
    data: bytes,
    start: ResumeToken,
    post_batch: ResumeToken | None,
    read_time_s: float,
    *,
    bytes_max: int,
    split: bool = False,
) -> list[Chunk]:
    """All of `chunks_of`, of which the last one ends at `post_batch` if that is later."""
    chunks = list(chunks_of(data, start, read_time_s, bytes_max=bytes_max, split=split))
    if chunks and post_batch is not None and post_batch.is_after(chunks[-1].end):
        chunks[-1].end = post_batch
    return chunks


def chunks_of(
    data: bytes, start: ResumeToken, read_time_s: float, *, bytes_max: int, split: bool = False
) -> Iterator[Chunk]:
    """One MongoDB batch as chunks of at most `bytes_max` bytes each; a larger event stands alone. A chunk also ends
    after an event with a large token.

    `start` is the position the batch was read from. Raises ValueError on bytes that are not BSON documents.
    """
    offsets = document_offsets(data)
    for _, stop, piece, piece_offsets, ends_delivery in pieces(data, offsets, bytes_max):
        end = read_token(event_id(data, offsets[stop - 1]))
        yield Chunk(piece, piece_offsets, start, end, read_time_s, split=split, ends_delivery=ends_delivery)
        start = end


def pieces(data: bytes, offsets: "array[int]", bytes_max: int) -> "Iterator[tuple[int, int, bytes, array[int], bool]]":
    """Where to cut a batch into chunks, as for `cut_batch`: the first event and the stop of each piece, its bytes and
    offsets, and whether it ends with a large token."""
    whole, first, last = Rendition(data, offsets), 0, len(offsets) - 1
    # Even pieces: a small rest would cost every subscriber a message of its own.
    if last:
        count = -(-len(data) // bytes_max)
        bytes_max = min(bytes_max, len(data) // count + len(data) // last)
    while first < last:
        stop, ends_delivery = _to_large_token(whole, first, max(whole.stop_within(first, bytes_max), first + 1))
        piece = whole.cut(first, stop)
        base = offsets[first]
        yield (
            first,
            stop,
            piece,
            offsets if len(piece) == len(data) else array("L", [at - base for at in offsets[first : stop + 1]]),
            ends_delivery,
        )
        first = stop


def _to_large_token(rendition: Rendition, first: int, stop: int) -> tuple[int, bool]:
    """Where to cut events `first` to `stop - 1`: after the first one with a large token; and whether there is one.

    Smaller events cannot have one: they are passed over together."""
    offsets = rendition.offsets
    while first < stop:
        small = rendition.stop_within(first, _LARGE_TOKEN_BYTES)
        if small == first:
            if _has_large_token(rendition.data, offsets[first]):
                return first + 1, True
            small += 1
        first = small
    return stop, False


def _has_large_token(data: bytes, at: int) -> bool:
    # Read by fields, as a search for its bytes could find millions of likenesses in one value. Of a token after
    # `FIELDS_SEARCHED` others, no position is made.
    found = _id_at(data, at)
    return found is not None and bool(length_at(data, found)[0] > _LARGE_TOKEN_BYTES)
