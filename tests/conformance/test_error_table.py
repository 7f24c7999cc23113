"""The rows of the contract's error table that no other scenario provokes; each with its reason and details.

HISTORY_LOST stands in test_history, START_AFTER_REQUIRED and FEED_INVALIDATED in test_invalidate, EVENT_TOO_LARGE in
test_large_events, RESUME_TOKEN_NOT_FOUND in test_tokens, IMAGE_UNAVAILABLE in test_events_images,
RESUME_TOKEN_MODIFIED and PIPELINE_FAILED in test_pipelines, and OPTION_REFUSED in test_options.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient
from pymongo.database import Database

from feedmux_embedded import RedisServer
from tests.conformance.faults import insert
from tests.conformance.statements import FEEDMUX, SERVER, shows
from tests.documents import Document
from tests.integration.servers import Here, serving, settings
from tests.integration.servers import guarded as guarded_mongo
from tests.integration.wire import EARLIEST, Receiver, Refused, at, feed

SECTION = "Errors"


async def watching(here: Here, *args: Any, **kwargs: Any) -> Receiver:
    watch = here.api.watch(*args, **kwargs)
    await watch.opened()
    return watch


def assert_refused(
    outcome: Refused, status: str, reason: str, code: int, code_name: str, words: str = "MongoDB: "
) -> None:
    assert (outcome.code, outcome.reason, outcome.domain) == (status, reason, "feedmux")
    assert (outcome.metadata["code"], outcome.metadata["code_name"]) == (str(code), code_name)
    assert outcome.message.startswith(words)
    if status == "FAILED_PRECONDITION":
        assert "PreconditionFailure" in outcome.details


# --- MongoDB does not let feedmux in.


@dataclass(frozen=True, slots=True)
class Guarded:
    """A MongoDB with access control; feedmux may read the database `granted` only."""

    admin: MongoClient[Document]
    here: Here

    def database(self, name: str) -> Database[Document]:
        return self.admin[name]


@pytest_asyncio.fixture(scope="module")
async def guarded(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    async with guarded_mongo(tmp_path_factory.mktemp("guarded")) as (admin, address):
        roles = [{"role": "read", "db": "granted"}]
        admin.admin.command("createUser", "feeds", pwd="feeds-canary", roles=roles)
        uri = f"mongodb://feeds:feeds-canary@{address}"
        async with serving(settings(uri, redis_server.url)) as here:
            yield Guarded(admin, here)


def assert_unauthorised(outcome: Refused) -> None:
    # MongoDB's own words would quote the whole command, and in it the stages of the tenant's grants.
    words = "MongoDB does not permit feedmux's account to read this"
    assert_refused(outcome, "PERMISSION_DENIED", "SOURCE_UNAUTHORIZED", 13, "Unauthorized", words)
    assert outcome.message == words
    assert outcome.metadata["errmsg"] == words
    assert "canary" not in outcome.message


@shows(SERVER, "Change Stream Namespace Scopes", "A stream respects the read permissions of its account")
@shows(FEEDMUX, SECTION, "SOURCE_UNAUTHORIZED: MongoDB does not let feedmux's account read that")
async def test_mongodb_does_not_permit_it(guarded: Guarded) -> None:
    watch = await watching(guarded.here, feed("granted", "c"))
    insert(guarded.database("granted"), [1])
    assert await watch.numbers(1) == [1]
    for wanted in (feed("other", "c"), feed("other"), feed()):
        assert_unauthorised(await guarded.here.api.watch(wanted).end())
    # Nor the oplog, of which `earliest` would have to ask.
    assert_unauthorised(await guarded.here.api.watch(feed("granted", "c"), EARLIEST).end())
    watch.cancel()


@shows(
    FEEDMUX,
    SECTION,
    "A permission that MongoDB revokes ends the stream; when it is granted again, the stream can continue",
)
async def test_a_permission_is_revoked(guarded: Guarded) -> None:
    database, roles = guarded.database("granted"), [{"role": "read", "db": "granted"}]
    watch = await watching(guarded.here, feed("granted", "d"))
    insert(database, [1], "d")
    assert await watch.numbers(1) == [1]
    guarded.admin.admin.command("revokeRolesFromUser", "feeds", roles=roles)
    try:
        insert(database, [2], "d")
        assert_unauthorised(await watch.end())
    finally:
        guarded.admin.admin.command("grantRolesToUser", "feeds", roles=roles)
    again = await watching(guarded.here, feed("granted", "d"), at(position=watch.position))
    # The event may have come before the end.
    assert await again.numbers(2 - watch.received) == [2][watch.received - 1 :]
    again.cancel()
