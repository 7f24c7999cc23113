"""`feedmux dead-letters`, on a real server."""

import asyncio
import json
from typing import Any

from pymongo.database import Database

from feedmux_embedded import RedisServer, ReplicaSet
from tests.cli.conftest import clean_environment, run
from tests.integration.letters_support import is_ready, put
from tests.integration.servers import serving, settings, until
from tests.integration.wire import feed


async def test_list_show_discard(mongo: ReplicaSet, redis_server: RedisServer, database: Database[Any]) -> None:
    configuration = settings(mongo.uri, redis_server.url)
    configuration["dead_letters"] = {"source": "main", "database": f"{database.name}_letters"}
    async with serving(configuration) as here:
        await until(lambda: is_ready(here))
        await here.api.create("orders", feed(database.name), group={})
        ids = [each.hex() for each in await put(here, "default", "orders", 1, 2, 3, fullDocument={"text": "a\x9bb"})]
        environment = clean_environment() | {"FEEDMUX_ENDPOINT": f"127.0.0.1:{here.server.ports.data}"}

        async def said(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(run, "dead-letters", *arguments, environment=environment)
            assert done.returncode == code, done.stderr
            return done.stdout + done.stderr

        listed = await said("list", "orders")
        assert all(each in listed for each in (*ids, '{"_id": 2}', "canary of 3"))
        told = json.loads(await said("list", "orders", "--key", "2", "--json"))
        assert [each["id"] for each in told["dead_letters"]] == [ids[1]]
        shown = await said("show", "orders", "--id", ids[0])
        assert '"_id": 1' in shown
        assert "\x9b" not in shown, "no control characters of a document reach a terminal"
        assert json.loads(await said("show", "orders", "--key", '{"_id": 2}', "--json"))["event"]["documentKey"]
        assert "either --id" in await said("show", "orders", code=2)
        assert "either --id" in await said("discard", "orders", code=2)
        assert "either --id" in await said("replay", "orders", code=2)
        assert "1 dead letter will be delivered again" in await said("replay", "orders", "--key", "3")
        assert json.loads(await said("replay", "orders", "--all", "--json")) == {"chosen": 2, "withheld": 0}
        assert "1 dead letter discarded" in await said("discard", "orders", "--id", ids[0])
        assert "no dead letter of this id" in await said("show", "orders", "--id", ids[0], code=1)
        assert "2 dead letters discarded" in await said("discard", "orders", "--all")
        assert "No dead letters" in await said("list", "orders")
