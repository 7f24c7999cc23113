"""The fingerprint of a feed: a bulk reader sends it back, so that the feed that planned a range also reads the range.

Feeds that give the same events have the same fingerprint: the notation of the pipeline, the fields of `_NO_MATTER` and
the tenant's grants are no part of it. Grants may change under a running query, and take effect at once. Only fields
with a value are hashed, so that an option added later leaves the fingerprints alone that checkpoints hold.
"""

from collections.abc import Iterator
from dataclasses import fields
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

import bson

from feedmux_server.core.errors import ErrorReason, FeedmuxError, invalid
from feedmux_server.core.feeds.feed import FeedSpec, Scope

FINGERPRINT_BYTES_MAX: Final = 64
_BYTES: Final = 16
_NO_MATTER: Final = frozenset({"bounded", "comment", "batch_size", "max_await_time_ms", "read_preference"})
_SAME_AS_UNSET: Final = {
    "pipeline": bson.encode({"pipeline": []}),
    "full_document": "default",
    "full_document_before_change": "off",
    "read_concern": "majority",
}


def feed_fingerprint(feed: FeedSpec) -> bytes:
    """The fingerprint of the feed as the user defined it. Equal for feeds that give the same events."""
    digest = blake2b(digest_size=_BYTES, person=b"feedmux-feed")
    for name, value in _parts(feed):
        for part in (name.encode(), value):
            digest.update(len(part).to_bytes(4))
            digest.update(part)
    return digest.digest()


def check_fingerprint(feed: FeedSpec, given: bytes) -> None:
    """Raises FEED_CHANGED where a fingerprint is given and is not the feed's, MESSAGE_INVALID where it is too long."""
    if len(given) > FINGERPRINT_BYTES_MAX:
        raise invalid("feed_fingerprint", f"must not be longer than {FINGERPRINT_BYTES_MAX} bytes")
    if given and not compare_digest(given, feed_fingerprint(feed)):
        raise FeedmuxError(
            ErrorReason.FEED_CHANGED,
            "the feed changed: its pipeline or options are not those of the fingerprint that the request gives",
            {"field": "feed_fingerprint"},
            field="feed_fingerprint",
        )


def _parts(feed: FeedSpec) -> Iterator[tuple[str, bytes]]:
    for scope_field in fields(Scope):
        yield from _part(scope_field.name, getattr(feed.scope, scope_field.name))
    for feed_field in fields(FeedSpec):
        if feed_field.name != "scope" and feed_field.name not in _NO_MATTER:
            yield from _part(feed_field.name, getattr(feed, feed_field.name))


def _part(name: str, value: object) -> Iterator[tuple[str, bytes]]:
    if not value or value == _SAME_AS_UNSET.get(name):
        return
    yield name, value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
