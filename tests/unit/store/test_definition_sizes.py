"""The bytes of a tenant's definitions: reserved before they are written, and given back when that fails."""

import asyncio

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.definition_sizes import DefinitionSizes
from feedmux_server.store.errors import state_unavailable
from tests.integration.state_support import create
from tests.unit.store.store_support import redis_and_store
from tests.virtual_time import in_virtual_time

MOST = 100


async def old_size() -> int:
    return 30


async def write(sizes: DefinitionSizes, name: str, size: int, error: FeedmuxError | None = None) -> None:
    async with sizes.reserved("t", name, size, MOST, old_size):
        await asyncio.sleep(0.01 if error else 0.03)
        if error is not None:
            raise error


async def total(sizes: DefinitionSizes) -> int:
    return (await sizes.sums(["t"]))["t"]


@in_virtual_time
async def test_a_definition_that_does_not_fit_is_rejected_and_one_that_shrinks_never_is() -> None:
    _, store = redis_and_store()
    await write(store.sizes, "a", 60)
    await write(store.sizes, "b", 40)
    with pytest.raises(FeedmuxError) as caught:
        await write(store.sizes, "c", 1)
    assert caught.value.metadata == {"quota": "subscription_bytes", "limit": "100"}
    await write(store.sizes, "a", 59)
    await write(store.sizes, "c", 1)
    await store.sizes.drop("t", "b")
    assert await total(store.sizes) == 60


@in_virtual_time
async def test_simultaneous_calls_do_not_exceed_the_limit_together() -> None:
    _, store = redis_and_store()
    outcomes = await asyncio.gather(*(write(store.sizes, name, 60) for name in "abc"), return_exceptions=True)
    assert sum(isinstance(each, FeedmuxError) for each in outcomes) == 2
    assert await total(store.sizes) == 60


@in_virtual_time
async def test_a_write_that_fails_leaves_the_size_that_is_stored() -> None:
    _, store = redis_and_store()
    await write(store.sizes, "a", 30)
    failure = FeedmuxError(ErrorReason.ETAG_MISMATCH, "changed")
    with pytest.raises(FeedmuxError) as caught:
        await write(store.sizes, "a", 80, failure)
    assert (caught.value, await total(store.sizes)) == (failure, 30)


@in_virtual_time
async def test_a_write_that_fails_meanwhile_does_not_undo_the_size_of_one_that_succeeds() -> None:
    _, store = redis_and_store()
    await write(store.sizes, "a", 30)
    succeeds = asyncio.create_task(write(store.sizes, "a", 80))
    fails = write(store.sizes, "a", 90, FeedmuxError(ErrorReason.ETAG_MISMATCH, "changed"))
    with pytest.raises(FeedmuxError):
        await fails
    await succeeds
    assert await total(store.sizes) == 80


@in_virtual_time
async def test_the_first_error_is_told_where_redis_fails_altogether() -> None:
    redis, store = redis_and_store()
    failure = state_unavailable(TimeoutError())
    asyncio.get_running_loop().call_later(0.008, setattr, redis, "down", True)
    with pytest.raises(FeedmuxError) as caught:
        await write(store.sizes, "a", 10, failure)
    assert (caught.value, redis.down) == (failure, True)


@in_virtual_time
async def test_sizes_that_differ_from_what_is_found_are_corrected() -> None:
    redis, store = redis_and_store()
    found = [await create(store, "t", name) for name in "ab"]
    await store.sizes.correct("t", found)
    assert await total(store.sizes) == sum(len(each.definition) for each in found)
    before = redis.commands
    await store.sizes.correct("t", found)
    await store.sizes.correct("t", [])
    assert redis.commands - before == 1, "reads the sizes once, and writes nothing"
