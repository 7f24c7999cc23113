"""The calls that list, show and discard dead letters."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bson
import pytest
import pytest_asyncio
from google.protobuf import empty_pb2
from pymongo.database import Database

from feedmux.v1 import subscriptions_pb2 as wire
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.source import letters
from tests.integration.letters_support import NOW_S, is_ready, put
from tests.integration.servers import Here, serving, settings, until
from tests.integration.tenancy import Tenancy, configuration, entry, tenancy
from tests.integration.wire import PATIENCE_S, Api, feed, refused

KEYS = {"a": "key-of-a", "b": "key-of-b"}


@pytest_asyncio.fixture
async def served(
    mongo: ReplicaSet, redis_server: RedisServer, database: Database[Any], tmp_path: Path
) -> AsyncIterator[Tenancy]:
    tenants = [entry(tenant, key) for tenant, key in KEYS.items()]
    configured = configuration(mongo, redis_server, tmp_path, *tenants)
    configured["dead_letters"] = {"source": "main", "database": f"{database.name}_letters"}
    async with tenancy(configured, KEYS["a"]) as served:
        await until(lambda: is_ready(served.here))
        yield served


async def listed(api: Api, name: str, **fields: Any) -> wire.ListDeadLettersResponse:
    call: Any = api.control.ListDeadLetters
    answer = await call(wire.ListDeadLettersRequest(name=name, **fields), metadata=api.metadata, timeout=PATIENCE_S)
    assert isinstance(answer, wire.ListDeadLettersResponse)
    return answer


async def got(api: Api, name: str, id_: bytes) -> wire.DeadLetter:
    call: Any = api.control.GetDeadLetter
    answer = await call(wire.GetDeadLetterRequest(name=name, id=id_), metadata=api.metadata, timeout=PATIENCE_S)
    assert isinstance(answer, wire.DeadLetter)
    return answer


async def discarded(api: Api, name: str, **which: Any) -> int:
    call: Any = api.control.DiscardDeadLetters
    request = wire.DiscardDeadLettersRequest(name=name, **which)
    answer = await call(request, metadata=api.metadata, timeout=PATIENCE_S)
    return int(answer.discarded)


async def test_list_show_discard(
    served: Tenancy, database: Database[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, api = served.here, served.here.api
    await api.create(name, feed(database.name), group={})
    ids = await put(here, "a", name, *range(5))
    page = await listed(api, name, page_size=2)
    found = list(page.dead_letters)
    while page.next_page_token:
        page = await listed(api, name, page_size=2, page_token=page.next_page_token)
        found += page.dead_letters
    assert [each.id for each in found] == ids
    first = found[0]
    assert (first.attempts, list(first.reasons), first.member) == (5, ["canary of 0"], "worker-1")
    assert (first.key, first.event, first.withheld) == (bson.encode({"_id": 0}), b"", False)
    assert first.fail_time.seconds == NOW_S
    assert first.expire_time.seconds == NOW_S + 30 * 86_400
    monkeypatch.setattr(letters, "PAGE_BYTES_MAX", 1)
    page = await listed(api, name)
    assert len(page.dead_letters) == 1, "a page has a bounded size"
    page = await listed(api, name, page_token=page.next_page_token)
    assert [each.id for each in page.dead_letters] == ids[1:2]

    shown = await got(api, name, ids[3])
    assert bson.decode(shown.event)["documentKey"] == {"_id": 3}
    by_key = await listed(api, name, key=bson.encode({"_id": 3.0}))
    assert [each.id for each in by_key.dead_letters] == [ids[3]]

    assert await discarded(api, name, ids={"ids": [ids[0], ids[0], bytes(16)]}) == 1
    assert await discarded(api, name, key=bson.encode({"_id": 3})) == 1
    rejection = await refused(got(api, name, ids[3]))
    assert (rejection.code, rejection.reason) == ("NOT_FOUND", "DEAD_LETTER_NOT_FOUND")
    await api.delete(name)
    assert (await refused(listed(api, name))).reason == "SUBSCRIPTION_NOT_FOUND"
    assert await discarded(api, name, all=empty_pb2.Empty()) == 3, "also of a subscription that is gone"
    audited = Path(served.path).with_name("audit.jsonl").read_text()
    assert audited.count('"event": "discard"') == 3


async def test_a_replay_does_not_count_letters_of_events_that_a_restore_has_lost(
    served: Tenancy, database: Database[Any], name: str
) -> None:
    """They would not be delivered."""
    here, api = served.here, served.here.api
    await api.create(name, feed(database.name), group={})
    ids = await put(here, "a", name, 1, 2, 3)
    forks = here.server.service.manager.source("main").timeline.forks
    call: Any = api.control.ReplayDeadLetters
    counts = []
    for which in ({"ids": {"ids": ids[:1]}}, {"key": bson.encode({"_id": 2})}, {"all": empty_pb2.Empty()}):
        for fork in (Fork(4 << 32, 6 << 32), Fork(6 << 32, 8 << 32)):
            forks[:] = [fork]
            request = wire.ReplayDeadLettersRequest(name=name, **which)
            answer = await call(request, metadata=api.metadata, timeout=PATIENCE_S)
            counts.append((answer.chosen, answer.withheld))
    assert counts == [(0, 1), (1, 0), (0, 0), (1, 0), (0, 3), (1, 0)]
    assert here.server.service.letters is not None
    letters, epoch = here.server.service.letters.letters, (await here.server.service.store.get("a", name)).epoch
    letter = await letters.get("a", name, ids[0], with_event=False)
    assert letter is not None
    late = [await letters.failed_again("a", name, host, letter, ids[0]) for host in (epoch - 1, epoch)]
    assert late == [False, True], "what is chosen is not undone by a host of before"


async def test_other_tenants_have_nothing_of_it(served: Tenancy, database: Database[Any], name: str) -> None:
    here = served.here
    await here.api.create(name, feed(database.name), group={})
    (mine,) = await put(here, "a", name, 1)
    async with here.api.with_key(KEYS["b"]) as other:
        assert (await refused(listed(other, name))).reason == "SUBSCRIPTION_NOT_FOUND"
        await other.create(name, feed(database.name), group={})
        assert not (await listed(other, name)).dead_letters
        assert (await refused(got(other, name, mine))).reason == "DEAD_LETTER_NOT_FOUND"
        everything: list[dict[str, Any]] = [
            {"ids": {"ids": [mine]}}, {"key": bson.encode({"_id": 1})}, {"all": empty_pb2.Empty()},
        ]  # fmt: skip
        for which in everything:
            assert await discarded(other, name, **which) == 0
        after = (await put(here, "b", name, 2))[0]
        token = f"0-{after.hex()}"
        assert [each.id for each in (await listed(other, name, page_token=token)).dead_letters] == [after]
    assert (await got(here.api, name, mine)).event
    stranger = here.api.with_key("")
    async with stranger as api:
        for call in (listed(api, name), got(api, name, mine), discarded(api, name, all=empty_pb2.Empty())):
            assert (await refused(call)).code == "UNAUTHENTICATED"


async def test_grants_that_were_narrowed_withhold_what_they_withhold(
    served: Tenancy, database: Database[Any], name: str
) -> None:
    here, api = served.here, served.here.api
    await api.create(name, feed(database.name, "orders"), group={})
    (id_,) = await put(here, "a", name, 1, fullDocument={"secret": "canary"})
    assert b"canary" in (await got(api, name, id_)).event
    grants: tuple[Any, ...] = (
        [{"source": "main", "database": database.name, "collection": "orders", "hide": ["secret"]}],
        [{"source": "main", "database": database.name, "collection": "others"}],
    )
    for narrowed in grants:
        served.write(entry("a", KEYS["a"], grants=narrowed), entry("b", KEYS["b"]))

        async def is_withheld() -> bool:
            return (await got(api, name, id_)).withheld

        await until(is_withheld)
        for letter in (await got(api, name, id_), *(await listed(api, name)).dead_letters):
            assert b"canary" not in letter.SerializeToString()
            assert (letter.key, letter.event, list(letter.reasons), letter.attempts) == (b"", b"", [], 5)
        page = await listed(api, name, key=bson.encode({"_id": 1}))
        assert not page.dead_letters, "whether a key has letters is part of what is withheld"
        assert await discarded(api, name, key=bson.encode({"_id": 1})) == 0
        served.write(entry("a", KEYS["a"]), entry("b", KEYS["b"]))

        async def is_shown() -> bool:
            return not (await is_withheld())

        await until(is_shown)
    served.write(entry("a", KEYS["a"], grants=grants[1]), entry("b", KEYS["b"]))
    await until(is_withheld)
    assert await discarded(api, name, ids={"ids": [id_]}) == 1, "what is withheld can be discarded"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"page_size": -1}, "MESSAGE_INVALID"),
        ({"page_token": "x"}, "MESSAGE_INVALID"),
        ({"page_token": f"{'9' * 200}-{'00' * 16}"}, "MESSAGE_INVALID"),
        ({"page_token": f"99999999999999999999-{'00' * 16}"}, "MESSAGE_INVALID"),
        ({"page_token": f"-1-{'00' * 16}"}, "MESSAGE_INVALID"),
        ({"page_token": "1-00"}, "MESSAGE_INVALID"),
        ({"key": b"no BSON"}, "BSON_INVALID"),
        ({"key": bson.encode({"_id": "x" * 2_000})}, "MESSAGE_INVALID"),
        ({"key": bson.encode(dict.fromkeys(map(str, range(90))))}, ""),
        ({"name": "no name"}, "NAME_INVALID"),
    ],
)
async def test_requests_that_no_client_sends(
    served: Tenancy, database: Database[Any], name: str, fields: dict[str, Any], reason: str
) -> None:
    await served.here.api.create(name, feed(database.name), group={})
    wanted = {"name": name, **fields}
    if not reason:
        assert not (await listed(served.here.api, **wanted)).dead_letters
        return
    assert (await refused(listed(served.here.api, **wanted))).reason == reason


async def test_a_discard_names_what_it_discards(served: Tenancy, name: str) -> None:
    api = served.here.api
    assert (await refused(discarded(api, name))).reason == "MESSAGE_INVALID"
    assert (await refused(discarded(api, name, key=b""))).reason == "BSON_INVALID"
    assert (await refused(discarded(api, name, ids={"ids": [b"short"]}))).reason == "MESSAGE_INVALID"
    many = [os.urandom(16) for _ in range(1_001)]
    assert (await refused(discarded(api, name, ids={"ids": many}))).reason == "MESSAGE_INVALID"


async def test_without_a_collection(here: Here, name: str) -> None:
    for call in (listed(here.api, name), got(here.api, name, bytes(16)), discarded(here.api, name, all={})):
        rejection = await refused(call)
        assert (rejection.code, rejection.reason) == ("FAILED_PRECONDITION", "DEAD_LETTERS_UNAVAILABLE")


async def test_large_events_take_their_share_of_the_quota(
    mongo: ReplicaSet, redis_server: RedisServer, database: Database[Any], name: str, tmp_path: Path
) -> None:
    quotas = {"bytes_per_s": 1_000_000}
    configured = configuration(mongo, redis_server, tmp_path, entry("a", KEYS["a"], quotas=quotas))
    configured["dead_letters"] = {"source": "main", "database": f"{database.name}_letters"}
    async with tenancy(configured, KEYS["a"]) as served:
        await until(lambda: is_ready(served.here))
        await served.here.api.create(name, feed(database.name), group={})
        (id_,) = await put(served.here, "a", name, 1, fullDocument={"text": "x" * 5_000_000})
        assert len((await got(served.here.api, name, id_)).event) > 5_000_000
        rejection = await refused(got(served.here.api, name, id_))
        assert rejection.reason == "QUOTA_EXCEEDED"


async def test_a_collection_that_is_away_delays_nobody_else(
    mongo: ReplicaSet, redis_server: RedisServer, database: Database[Any], name: str
) -> None:
    configured: dict[str, Any] = settings(mongo.uri, redis_server.url)
    configured["dead_letters"] = {"uri": "mongodb://127.0.0.1:1/?replicaSet=r", "server_selection_timeout_ms": 100}
    async with serving(configured) as here:
        await here.api.create(name, feed(database.name), group={})
        assert (await refused(listed(here.api, name))).reason == "SOURCE_UNAVAILABLE"
        async with asyncio.timeout(PATIENCE_S):
            await here.api.watch(feed(database.name)).opened()
