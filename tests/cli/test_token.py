"""`feedmux token decode` with tokens of real servers."""

import base64
import json
from typing import Any

from bson import Timestamp
from pymongo.database import Database

from tests.cli.conftest import Site, run


def decoded(*arguments: str) -> Any:
    done = run("token", "decode", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_event_s_token(database: Database[dict[str, Any]]) -> None:
    with database.orders.watch() as stream:
        database.orders.insert_one({"_id": 7})
        event = stream.next()
    said = decoded(event["_id"]["_data"])
    assert said["kind"] == "resume token"
    assert Timestamp(said["cluster_time_seconds"], said["cluster_time_increment"]) == event["clusterTime"]
    assert said["token_type"] == "event"
    assert said["from_invalidate"] is False
    assert said["transaction_index"] == 0
    assert said["event_identifier"] == {"_id": 7}
    assert decoded(json.dumps(event["_id"])) == said
    text = run("token", "decode", event["_id"]["_data"]).stdout
    assert f"Timestamp({event['clusterTime'].time}, {event['clusterTime'].inc})" in text
    assert "{_id: 7}" in text


def test_a_position(site: Site) -> None:
    made = site.json("subscriptions", "create", "token-decode", "shop")
    said = decoded(made["position"])
    assert said["kind"] == "position"
    assert said["token_type"] == "high-water mark"
    seconds, _, increment = made["cluster_time"].partition(":")
    assert (said["cluster_time_seconds"], said["cluster_time_increment"]) == (int(seconds), int(increment))
    padded = made["position"] + "=" * (-len(made["position"]) % 4)
    assert decoded(base64.urlsafe_b64decode(padded).hex()) == said
    site.run("subscriptions", "delete", "token-decode")


def test_a_position_within_a_copy(site: Site, database: Database[dict[str, Any]]) -> None:
    name = "token-of-a-copy"
    database.orders.insert_many([{"_id": number} for number in range(3)])
    for scope, of in ((f"{database.name}.orders", ""), (database.name, f"{database.name}.orders")):
        consume = "consume", name, "--create", scope, "--start", "snapshot", "--limit", "2"
        assert site.run(*consume).returncode == 0
        stored = site.json("subscriptions", "get", name)
        said = decoded(stored["position"])["copied"]
        generation = stored["snapshot"]["generation"]
        assert said == {"documents": 2, "up_to": {"_id": 1}, "namespace": of, "generation": generation}
        text = run("token", "decode", stored["position"]).stdout
        assert "2 documents, the last one {_id: 1}" in text
        assert (f"copied of         {of}" in text) is bool(of)
        site.run("subscriptions", "delete", name)
