"""Checks the parts of a feed whose check takes time in proportion to their size: pipeline, collation, comment.

Called on the event loop for small feeds, and in a process of its own for all others.
"""

from dataclasses import dataclass
from hashlib import blake2b

from feedmux_server.core.errors import invalid
from feedmux_server.core.events.bson_check import check_bson, walk
from feedmux_server.core.feeds.pipeline_policy import check_pipeline, pipeline_from_extended_json


@dataclass(frozen=True, slots=True)
class FeedParts:
    """As the client sent them, within their bounds of length."""

    pipeline: bytes = b""
    is_json: bool = False
    """Whether the pipeline is Extended JSON in UTF-8, and not BSON."""
    collation: bytes = b""
    comment: bytes = b""
    bounded: bool = True

    @property
    def size(self) -> int:
        return len(self.pipeline) + len(self.collation) + len(self.comment)

    def digest(self, tenant: str) -> bytes:
        """Names the verdict of these parts, which is the tenant's alone."""
        digest = blake2b(bytes((self.is_json, self.bounded)), digest_size=32, person=b"feedmux-check")
        for part in (tenant.encode(), self.pipeline, self.collation, self.comment):
            digest.update(len(part).to_bytes(4))
            digest.update(part)
        return digest.digest()


def check_parts(parts: FeedParts) -> bytes:
    """The pipeline as BSON. Raises FeedmuxError BSON_INVALID, PIPELINE_INVALID, STAGE_NOT_ALLOWED, MESSAGE_INVALID."""
    pipeline = parts.pipeline
    if pipeline and parts.is_json:
        pipeline = pipeline_from_extended_json(pipeline.decode())
    check_pipeline(pipeline, bounded=parts.bounded)
    if parts.collation:
        check_bson(parts.collation, "feed.collation")
    if parts.comment:
        names = [each.name for each in walk(parts.comment, "feed.comment") if each.depth == 1]
        if names != ["comment"]:
            raise invalid("feed.comment", "must be a BSON document with one field named `comment`")
    return pipeline
