from dataclasses import fields, replace

import bson

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import effective_stages, stream_key
from tests.tables import over
from tests.unit.core.feeds.test_feed_fingerprint import CHANGES

PIPELINE = bson.encode({"pipeline": [{"$match": {"operationType": "insert"}}, {"$unset": "a"}]})
POLICY = bson.encode({"pipeline": [{"$match": {"fullDocument.tenant": "acme"}}]})
SPEC = FeedSpec(Scope("main", "shop", "orders"), pipeline=PIPELINE)
CHANGED = (*CHANGES, {"collation": PIPELINE}, {"comment": PIPELINE}, {"read_preference": "secondary"})
"""Some with the same bytes in another field."""
OTHERS = [replace(SPEC, **each) for each in CHANGED]


def test_every_field_separates_feeds() -> None:
    keys = {stream_key(SPEC), stream_key(SPEC, POLICY), *(stream_key(other) for other in OTHERS)}
    assert len(keys) == len(OTHERS) + 2
    told_apart = {
        field.name for field in fields(FeedSpec) for o in OTHERS if getattr(o, field.name) != getattr(SPEC, field.name)
    }
    assert told_apart | {"batch_size", "max_await_time_ms", "bounded"} == {field.name for field in fields(FeedSpec)}


def test_batch_size_await_time_and_the_rules_of_its_check_do_not_separate_feeds() -> None:
    key = stream_key(replace(SPEC, batch_size=7, max_await_time_ms=3, bounded=True))
    assert key == stream_key(SPEC)
    assert hash(key) == hash(stream_key(SPEC))
    assert key.spec == SPEC


def test_saying_nothing_and_saying_the_default_is_the_same() -> None:
    assert stream_key(replace(SPEC, read_concern="majority")) == stream_key(SPEC)
    empty = bson.encode({"pipeline": []})
    assert stream_key(replace(SPEC, pipeline=empty), empty) == stream_key(replace(SPEC, pipeline=b""))


def test_the_digest_is_stable_over_releases() -> None:
    """Positions contain the digest: if it changes, every stored position takes the slower way to resume."""
    key = stream_key(SPEC, POLICY)
    assert len(key.digest) == 16
    assert key.short == key.digest[:8]
    assert str(key) == "91f68c9f0948ab59706ee29a35bd8aa6"


@over(
    ("policy", "pipeline", "names"),
    [
        (b"", b"", []),
        (POLICY, b"", ["$match"]),
        (b"", PIPELINE, ["$match", "$unset"]),
        (POLICY, PIPELINE, ["$match", "$match", "$unset"]),
    ],
)
def test_policy_stages_come_first(policy: bytes, pipeline: bytes, names: list[str]) -> None:
    stages = effective_stages(stream_key(replace(SPEC, pipeline=pipeline), policy))
    assert [next(iter(stage)) for stage in stages] == names
    if policy:
        assert stages[0]["$match"]["fullDocument.tenant"] == "acme"
    assert bson.decode(bson.encode({"p": stages}))["p"] == [dict(bson.decode(stage.raw)) for stage in stages]
