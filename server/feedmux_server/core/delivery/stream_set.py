"""The streams of one key, and which of them serves a position: the queries of `feed_streams`. Pure."""

from collections.abc import Iterator

from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.subscriber import JoinPoint
from feedmux_server.core.positions.resume_token import Given


class StreamSet:
    """The streams in the order of their opening."""

    def __init__(self, join_distance_s: int) -> None:
        """`join_distance_s` is that of `StreamLimits`."""
        self._join_distance_s = join_distance_s
        self._streams: list[SharedStream] = []

    def __iter__(self) -> Iterator[SharedStream]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: SharedStream) -> None:
        self._streams.append(stream)

    def remove(self, stream: SharedStream) -> None:
        self._streams.remove(stream)

    def live(self) -> SharedStream | None:
        """The stream that is furthest ahead and has not ended. One that others may not join is chosen only if there is
        no other."""
        best: SharedStream | None = None
        for stream in self._streams:
            if stream.end_error is None and (
                best is None
                or (stream.joinable and not best.joinable)
                or (stream.joinable == best.joinable and stream.ring.newest.is_after(best.ring.newest))
            ):
                best = stream
        return best

    def is_beside(self, stream: SharedStream) -> bool:
        """Whether the stream is open in addition to the live one: it catches up, or it starts at a client's token at
        the present and is not merged with the others until MongoDB has checked that token at the feed's next event."""
        return stream.end_error is None and stream is not self.live()

    def is_catch_up(self, stream: SharedStream) -> bool:
        """Whether the stream reads history, in addition to the live stream. Such streams need a slot."""
        return not stream.at_present and self.is_beside(stream)

    @property
    def catch_up_count(self) -> int:
        return sum(self.is_catch_up(stream) for stream in self._streams)

    def is_superfluous(self, stream: SharedStream) -> bool:
        """Whether no subscriber reads the stream and none would join it."""
        return (
            stream.end_error is None and not stream.subscribers and (not stream.joinable or stream is not self.live())
        )

    def stalled_catch_up(self) -> Iterator[SharedStream]:
        """Catch-up streams without a subscriber that has credit, so that other streams can get their slots."""
        return (stream for stream in self._streams if self.is_catch_up(stream) and not stream.has_usable_credit)

    def covering(self, at: JoinPoint) -> SharedStream | None:
        """The stream furthest ahead whose ring covers the position."""
        best: SharedStream | None = None
        for stream in self._streams:
            if (
                stream.joinable
                and stream.ring.covers(at.place)
                and (at.native is None or self._holds_token(stream, at))
                and (best is None or stream.ring.newest.is_after(best.ring.newest))
            ):
                best = stream
        return best

    def approaching(self, at: JoinPoint) -> SharedStream | None:
        """A stream that is a little behind the position, or that is not yet open and can begin further back."""
        if at.place.from_invalidate:
            return None  # a stream that begins earlier would end there
        for stream in sorted(self._streams, key=lambda each: each.ring.newest.cluster_time, reverse=True):
            if not stream.joinable:
                continue
            newest = stream.ring.newest
            if at.place.is_after(newest):
                if self._near(newest.cluster_time, at.place.cluster_time):
                    return stream
            elif (
                stream.state is StreamState.GATHERING
                and not newest.from_invalidate
                and newest.reaches(at.place)
                and self._near(at.place.cluster_time, newest.cluster_time)
            ):
                stream.lower_start(at)
                return stream
        return None

    def behind(self, at: JoinPoint) -> SharedStream | None:
        """A stream that will reach the position, however far behind it is. Used if no other stream may be opened."""
        behind = [s for s in self._streams if s.joinable and at.place.is_after(s.ring.newest)]
        return max(behind, key=lambda stream: stream.ring.newest.cluster_time, default=None)

    def _holds_token(self, stream: SharedStream, at: JoinPoint) -> bool:
        """Whether exactly this token is in the ring. Only then it is certain that MongoDB would find it."""
        ring = stream.ring
        if at.place.from_invalidate:
            return False
        if any(edge.raw == at.place.raw and edge.given is Given.BY_MONGODB for edge in (ring.newest, ring.oldest)):
            return True
        seq, index = ring.locate(at.place)
        if index == 0:
            seq -= 1
            return seq >= ring.first_seq and ring[seq].token(ring[seq].count - 1).raw == at.place.raw
        return ring[seq].token(index - 1).raw == at.place.raw

    def _near(self, earlier: int, later: int) -> bool:
        return (later >> 32) - (earlier >> 32) <= self._join_distance_s


def is_ahead(one: SharedStream, other: SharedStream) -> bool:
    """Whether subscribers of `other` move to `one`. At equal positions they move to the older stream, so that two idle
    heads merge."""
    newest, theirs = one.ring.newest, other.ring.newest
    return newest.is_after(theirs) or (one.id < other.id and not theirs.is_after(newest))


def same_version(one: SharedStream, other: SharedStream) -> bool:
    """Streams of different token version are never merged: their events do not sort together."""
    return one.ring.newest.version == other.ring.newest.version
