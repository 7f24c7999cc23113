"""Compares what every subscriber received with what MongoDB's own change stream says was written, and the copy that
one of them keeps with the collection.

The truth is read directly from MongoDB, without feedmux, from before the first write to the last. Otherwise pure.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bson
from bson import Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from demo.subscriber import DIGEST_BYTES, digest
from demo.workload import END
from feedmux_server.cli.sample_workload import COLLECTION, DATABASE
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken

_PATIENCE_MS = 2_000


@dataclass(frozen=True, slots=True)
class Truth:
    """Every change in MongoDB's order: the digests of the events, and their positions."""

    digests: list[bytes]
    tokens: list[ResumeToken]

    def __len__(self) -> int:
        return len(self.digests)

    def count_until(self, position: bytes) -> int:
        """Return how many of the events are at or before a position."""
        place = inspect_position(position).token
        return sum(not token.is_after(place) for token in self.tokens)


@dataclass(slots=True)
class Result:
    """What one subscriber received. Of the errors counted, only `redelivered` may be above 0."""

    name: str
    expected: int
    received: int = 0
    lost: int = 0
    repeated: int = 0
    """Events repeated within one session."""
    redelivered: int = 0
    """Events delivered again in a later session."""
    redelivered_acked: int = 0
    """Redelivered events that were at or before the stored position."""
    out_of_order: int = 0
    unexpected: int = 0
    """Events that were not written, differ from what was written, or precede the subscription's start."""
    sessions: list[int] = field(default_factory=list)
    """The number of events of each session."""

    @property
    def kept(self) -> bool:
        broken = (self.lost, self.repeated, self.redelivered_acked, self.out_of_order, self.unexpected)
        return not any(broken)


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """A copy of the collection compared with the collection, in documents."""

    name: str
    copied: int
    """Documents of the snapshot."""
    documents: int
    """Documents of the collection."""
    missing: int
    differing: int
    extra: int
    """Documents that only the copy has."""

    @property
    def kept(self) -> bool:
        return not (self.missing or self.differing or self.extra)


Documents = dict[bytes, dict[str, Any]]
"""By the BSON of their keys."""


def compare(name: str, copied: int, wanted: Documents, found: Documents) -> ReplicaResult:
    """Compare a copy with the collection."""
    both = wanted.keys() & found.keys()
    differing = sum(wanted[key] != found[key] for key in both)
    return ReplicaResult(name, copied, len(wanted), len(wanted) - len(both), differing, len(found) - len(both))


def read_collection(uri: str) -> Documents:
    """Read shop.orders. Blocks."""
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=_PATIENCE_MS) as client:
        return _by_key(client[DATABASE][COLLECTION].find())


def read_replica(path: Path) -> Documents:
    """Return the documents that a subscriber has written at its end."""
    return _by_key(bson.decode_all(path.read_bytes())) if path.exists() else {}


def _by_key(documents: Iterable[dict[str, Any]]) -> Documents:
    return {bson.encode({"_id": each["_id"]}): each for each in documents}


def read_truth(uri: str, start: Timestamp) -> Truth:
    """Read shop.orders by a direct change stream, from an operation time to the order named `end`. Blocks."""
    truth = Truth([], [])
    with MongoClient[RawBSONDocument](
        uri, document_class=RawBSONDocument, serverSelectionTimeoutMS=_PATIENCE_MS
    ) as client:
        orders = client[DATABASE][COLLECTION]
        with orders.watch(start_at_operation_time=start, batch_size=4_000) as stream:
            for event in stream:
                truth.digests.append(digest(bytes(event.raw)))
                truth.tokens.append(ResumeToken.decode(event["_id"].raw))
                if event["operationType"] == "insert" and event["documentKey"]["_id"] == END:
                    return truth
    raise AssertionError("a change stream without an end has ended")


def read_record(path: Path) -> list[bytes]:
    """Return the digests of one session, in the order of arrival."""
    if not path.exists():
        return []
    data = path.read_bytes()
    # A record cut short by kill -9 was not acknowledged.
    whole = len(data) - len(data) % DIGEST_BYTES
    return [data[at : at + DIGEST_BYTES] for at in range(0, whole, DIGEST_BYTES)]


def check(name: str, truth: Truth, first: int, stored: Sequence[int], sessions: Sequence[Sequence[bytes]]) -> Result:
    """Compare a subscriber's records with the truth.

    `first`: the number of the first event that it must get. `stored`: for each session after the first, how many events
    its stored position covered when the session began.
    """
    index_of = {each: index for index, each in enumerate(truth.digests)}
    result = Result(name, expected=len(truth) - first)
    earlier: set[int] = set()
    for covered, session in itertools.zip_longest((0, *stored), sessions, fillvalue=()):
        assert isinstance(covered, int)
        here: set[int] = set()
        latest = -1
        result.sessions.append(len(session))
        for index in _numbers(index_of, session, first, result):
            if index in here:
                result.repeated += 1
            elif index < latest:
                result.out_of_order += 1
            elif index in earlier:
                result.redelivered += 1
                result.redelivered_acked += index < covered
            latest = max(index, latest)
            here.add(index)
        earlier |= here
    result.lost = result.expected - len(earlier)
    return result


def _numbers(index_of: dict[bytes, int], session: Sequence[bytes], first: int, result: Result) -> Iterator[int]:
    for each in session:
        result.received += 1
        index = index_of.get(each, -1)
        if index < first:
            result.unexpected += 1
        else:
            yield index
