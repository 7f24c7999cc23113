"""What decides which events come out of a feed and how they look: feeds of one key are read once.

Every field of `FeedSpec` is in the key unless it is named here, so that an option added later separates feeds
rather than mixing them. Tenant, start and wire format are not part of it: the tenant acts through the policy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from typing import Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

from feedmux_server.core.feeds.feed import FeedSpec, Scope

_NOT_IN_KEY: Final = frozenset({"batch_size", "max_await_time_ms", "bounded"})
SPLIT: Final = "$changeStreamSplitLargeEvent"
_NO_STAGES: Final = bson.encode({"pipeline": []})
# A date that Python has no type for is the user's good right, and must not keep an operator from listing the stream.
_RAW: Final = CodecOptions(document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO)


@dataclass(frozen=True, slots=True)
class StreamKey:
    """Hashed by `digest` alone. Equal if the policies have the same stages too."""

    digest: bytes
    """16 bytes. Positions and dead letters have it, so it is the same in all releases: of a policy, it has the meaning
    and not the stages."""
    spec: FeedSpec = field(compare=False)
    """The feed, without the fields that are not part of the key."""
    policy: bytes = field(hash=False, default=b"")
    """BSON document `{pipeline: [stages]}` of the tenant's stages, or empty."""
    keeps_changes: bool = field(compare=False, default=False)
    """The policy shows each change to a document as MongoDB does."""
    judges_documents: bool = field(compare=False, default=False)
    """The policy withholds documents."""
    shows: "Shows" = field(compare=False, default=lambda database, collection: True)
    """Whether the policy shows anything of a namespace."""

    @property
    def short(self) -> bytes:
        """The 8 bytes that a position carries."""
        return self.digest[:8]

    def __str__(self) -> str:
        return self.digest.hex()


Shows = Callable[[str, str], bool]
"""Of a database and a collection."""


def stream_key(
    spec: FeedSpec,
    policy: bytes = b"",
    keeps_changes: bool = False,
    judges_documents: bool = False,
    shows: Shows = lambda database, collection: True,
    meaning: bytes = b"",
) -> StreamKey:
    """`meaning`: what the policy is compiled from; its stages if that is not known."""
    spec, policy = replace(spec, batch_size=0, max_await_time_ms=0, bounded=False), _no_empty(policy)
    digest = blake2b(digest_size=16, person=b"feedmux-stream")
    for name, value in _parts(spec, meaning or policy):
        for part in (name.encode(), value):
            digest.update(len(part).to_bytes(4))
            digest.update(part)
    return StreamKey(digest.digest(), spec, policy, keeps_changes, judges_documents, shows)


def has_stages(spec: FeedSpec) -> bool:
    """Whether the user gave a pipeline."""
    return bool(_no_empty(spec.pipeline))


def effective_stages(key: StreamKey) -> list[RawBSONDocument]:
    """The stages after `$changeStream`: the policy's first, then the user's."""
    return [*policy_stages(key), *user_stages(key)]


def policy_stages(key: StreamKey) -> list[RawBSONDocument]:
    """The policy's stages alone."""
    return _stages(key.policy)


def user_stages(key: StreamKey) -> list[RawBSONDocument]:
    """The user's stages alone."""
    return _stages(key.spec.pipeline)


def _stages(pipeline: bytes) -> list[RawBSONDocument]:
    return list(bson.decode(pipeline, _RAW)["pipeline"]) if pipeline else []


def _parts(spec: FeedSpec, policy: bytes) -> Iterator[tuple[str, bytes]]:
    yield "policy", policy
    for scope_field in fields(Scope):
        yield scope_field.name, _part(getattr(spec.scope, scope_field.name))
    for spec_field in fields(FeedSpec):
        name = spec_field.name
        if name == "scope" or name in _NOT_IN_KEY:
            continue
        value = getattr(spec, name)
        if name == "pipeline":
            value = _no_empty(value)
        elif name == "read_concern":
            value = value or "majority"
        elif name == "extra_options" and not value:
            continue  # positions hold the keys of servers that did not know this field
        yield name, _part(value)


def _no_empty(pipeline: bytes) -> bytes:
    return b"" if pipeline == _NO_STAGES else pipeline


def _part(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogatepass")
