"""`feedmux subscriptions` and `feedmux streams`."""

import json
import uuid

import pytest

import feedmux
from tests.cli.conftest import Site
from tests.documents import Documents


@pytest.fixture
def name() -> str:
    return f"cli-{uuid.uuid4().hex[:8]}"


def test_a_subscription_s_life(site: Site, database: Documents, name: str) -> None:
    scope = f"{database.name}.orders"
    create = ("subscriptions", "create", name, scope, "--pipeline", '[{"$match": {"operationType": "insert"}}]')
    made = site.json(*create)
    assert made["feed"]["database"] == database.name
    missing = f"-- collection {scope} does not exist yet; events come once it is created\n"
    assert site.run(*create).stderr == missing
    kept = site.run(*create, "--start", "earliest").stderr
    assert kept.removeprefix(missing).startswith(f"-- {name} exists already: --start changes nothing. ")
    assert made["feed"]["collection"] == "orders"
    assert made["on_invalidate"] == "stop"
    assert site.json("subscriptions", "get", name) == made

    changed = site.json("subscriptions", "update", name, "--on-history-lost", "earliest", "--pipeline", "[]")
    assert changed["on_history_lost"] == "earliest"
    assert changed["feed"]["pipeline"] != made["feed"]["pipeline"]
    assert changed["position"] == made["position"]

    moved = site.json("subscriptions", "seek", name, "earliest")
    assert moved["position"] != made["position"]
    back = site.json("subscriptions", "seek", name, made["position"])
    assert back["cluster_time"] == made["cluster_time"]

    listed = site.json("subscriptions", "list")["subscriptions"]
    assert name in [each["name"] for each in listed]
    table = site.run("subscriptions", "list").stdout
    assert name in table
    assert f"main:{scope}" in table

    assert site.json("subscriptions", "delete", name) == {"deleted": name}
    gone = site.run("subscriptions", "delete", name)
    assert gone.returncode == 1
    assert name in gone.stderr
    assert site.run("subscriptions", "delete", name, "--allow-missing").returncode == 0


def test_streams_and_who_is_served(site: Site, database: Documents, name: str) -> None:
    site.json("subscriptions", "create", name, f"{database.name}.orders")
    with (
        feedmux.Client(site.endpoint, api_key=site.key) as client,
        client.subscription(name).open() as session,
    ):
        database.orders.insert_one({"n": 1})
        session.next(10)
        streams = site.json("streams")["shared_streams"]
        mine = next(stream for stream in streams if stream["scope"] == f"{database.name}.orders")
        assert mine["cursor_open"]
        assert mine["subscriber_count"] == 1
        assert mine["subscribers"][0]["subscription"] == name
        assert mine["subscribers"][0]["events_unacked"] == 1
        table = site.run("streams", "--subscribers")
        assert table.returncode == 0
        assert f"main:{database.name}.orders" in table.stdout
        assert name in table.stdout
        assert site.json("subscriptions", "get", name)["active"]
    site.run("subscriptions", "delete", name)


def test_streams_follow_until_its_reader_has_gone(site: Site) -> None:
    with site.start("streams", "--follow", "--json") as following:
        assert following.stdout is not None
        assert following.stderr is not None
        for _ in range(2):
            assert "totals" in json.loads(following.stdout.readline())
        following.stdout.close()
        assert following.wait(60) == 0
        assert following.stderr.read() == b""
