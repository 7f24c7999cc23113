"""The names of a tenant's subscriptions are a hint: what is wrong with them is corrected when it is found."""

from typing import Any

import pytest

from feedmux_server.store.commands import Argument
from feedmux_server.store.model import StoredSubscription
from feedmux_server.store.scripts import ScriptRunner
from tests.integration.state_support import create
from tests.unit.store.store_support import key, redis_and_store
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_name_without_a_subscription_is_skipped_and_removed() -> None:
    redis, store = redis_and_store()
    for name in "abcdef":
        await create(store, "t", name)
    for name in "abde":
        redis.run(("DEL", key(name)))
    await store.names.add("t", "zz")
    page, after = await store.list("t", page_size=2)
    assert ([s.name for s in page], after) == (["c", "f"], "")
    assert await store.names.page("t", b"", 9) == [b"c", b"f"]


@in_virtual_time
async def test_what_is_created_while_it_is_deleted_is_listed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = redis_and_store()
    await create(store, "t", "s")
    plain, created = ScriptRunner.command, list[StoredSubscription]()

    async def command(self: ScriptRunner, *arguments: Argument) -> Any:
        if arguments[0] == "ZREM" and not created:
            created.append(await create(store, "t", "s", content="longer"))
        return await plain(self, *arguments)

    monkeypatch.setattr(ScriptRunner, "command", command)
    await store.delete("t", "s")
    assert [each.definition for each in (await store.list("t", page_size=9))[0]] == [created[0].definition]
    assert (await store.sizes.sums(["t"]))["t"] == len(created[0].definition)


@in_virtual_time
async def test_names_are_counted_by_tenant() -> None:
    _, store = redis_and_store()
    for name in ("s", "s", "other"):
        await create(store, "t", name)
    assert await store.names.count(["t", "nobody"]) == {"t": 2, "nobody": 0}
    assert [await store.names.has("t", name) for name in ("s", "absent")] == [True, False]
