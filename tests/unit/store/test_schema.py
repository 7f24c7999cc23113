"""Whether this version of feedmux can work with what is in Redis."""

from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.positions.timeline import TimelineRecord
from feedmux_server.store.checks import check_writable, probe
from feedmux_server.store.connection import StartupError
from feedmux_server.store.schema import LAYOUT, check_layout, schema_key
from feedmux_server.store.signing_keys import SigningKeys, stored_position_keys
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.store.timelines import StoredTimelines
from tests.unit.simulated import sim_redis
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_an_empty_redis_is_marked_and_then_recognised() -> None:
    redis, client = sim_redis()
    await check_layout(client, mark=False)
    assert redis.run(("GET", schema_key())) is None
    for _ in range(2):
        await check_layout(client)
    assert redis.run(("GET", schema_key())) == b"%d" % LAYOUT


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (b"%d" % (LAYOUT + 1), "written by a newer feedmux"),
        (b"0", "did not write"),
        (b"canary", "did not write"),
        (b"\xff", "did not write"),
        (b"9" * 5000, "did not write"),
    ],
)
@in_virtual_time
async def test_another_layout_prevents_the_start_and_is_left_as_it_is(found: bytes, words: str) -> None:
    redis, client = sim_redis()
    redis.run(("SET", schema_key(), found))
    with pytest.raises(StartupError, match=words) as caught:
        await check_layout(client)
    assert "canary" not in str(caught.value)
    assert redis.run(("GET", schema_key())) == found


@in_virtual_time
async def test_a_redis_that_does_not_answer_is_no_wrong_layout() -> None:
    redis, client = sim_redis()
    redis.silent = True
    with pytest.raises(FeedmuxError) as caught:
        await check_layout(client)
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE


@in_virtual_time
async def test_each_key_begins_with_the_prefix_and_two_prefixes_share_nothing() -> None:
    redis, client = sim_redis()
    keys, run = set[bytes](), redis.run

    def noting(command: tuple[Any, ...]) -> Any:
        place = 3 if command[0] in ("EVAL", "EVALSHA") else 1
        if command[0] not in ("INFO", "WAIT") and len(command) > place:
            keys.add(command[place] if isinstance(command[place], bytes) else str(command[place]).encode())
        return run(command)

    redis.run = noting  # type: ignore[method-assign]
    ours = SubscriptionStore(client, lease_s=30.0, key_prefix="ours", control_replicas=1)
    fields: dict[str, Any] = {"definition": b"d", "etag": "1", "position": b"p", "cluster_time": 1, "order": b"o"}
    redis.replicas = 1
    await check_layout(client, key_prefix="ours")
    await check_writable(client, key_prefix="ours")
    await probe(client, key_prefix="ours")
    await SigningKeys(client, PositionKeys(), key_prefix="ours").refresh()
    await StoredTimelines(client, key_prefix="ours").add("one", TimelineRecord())
    await ours.create("t", "s", **fields)
    _, lease = await ours.leases.open("t", "s", instance_id="one")
    await ours.leases.release(lease)
    await ours.claim_sweep(1.0)
    await ours.announce_source("main")
    await ours.unannounced_s("main")
    assert [each.name for each in (await ours.list("t", page_size=1))[0]] == ["s"]
    assert len(keys) > 9
    assert {key for key in keys if not key.startswith(b"ours:")} == set()

    theirs = SubscriptionStore(client, lease_s=30.0)
    assert await theirs.list("t", page_size=1) == ([], "")
    assert await stored_position_keys(client) == ()
    await theirs.create("t", "s", **{**fields, "etag": "2"})
    await theirs.delete("t", "s")
    assert (await ours.get("t", "s")).etag == "1"
