"""`feedmux subscriptions` with a scripted server: what it prints, and what it changes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from bson.timestamp import Timestamp

import feedmux
from feedmux.cli import connection, main, subscriptions
from feedmux.feeds import UNCHANGED

STORED = feedmux.SubscriptionInfo(
    name="orders",
    feed=feedmux.Feed("shop", "orders", source="main", pipeline="[]"),
    on_invalidate="stop",
    on_history_lost="fail",
    position=b"\xf2\x01",
    cluster_time=Timestamp(60, 1),
    create_time=datetime(2026, 1, 2, tzinfo=UTC),
    update_time=None,
    etag="e",
    active=False,
    owner="",
    epoch=3,
    expire_time=None,
    routing_key="r",
)


class Client:
    """Has the subscriptions that it is given, and records what it is asked to change."""

    def __init__(self, *stored: feedmux.SubscriptionInfo) -> None:
        self.stored = stored
        self.changes: list[dict[str, Any]] = []

    def list_subscriptions(self) -> Iterator[feedmux.SubscriptionInfo]:
        return iter(self.stored)

    def get_subscription(self, _name: str) -> feedmux.SubscriptionInfo:
        return self.stored[0]

    def create_subscription(self, _name: str, _feed: feedmux.Feed, **_more: Any) -> feedmux.SubscriptionInfo:
        return self.stored[0]

    def update_subscription(self, _name: str, **changes: Any) -> feedmux.SubscriptionInfo:
        self.changes.append(changes)
        return self.stored[0]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(STORED)

    @contextmanager
    def connected(_args: object) -> Iterator[Client]:
        yield made

    monkeypatch.setattr(connection, "connected", connected)
    return made


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["subscriptions", *arguments]) == 0
    return capsys.readouterr().out


def test_an_update_changes_what_is_given_and_no_more(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "update", "orders", "--on-history-lost", "earliest")
    printed(capsys, "update", "orders", "--full-document", "updateLookup")
    printed(capsys, "update", "orders", "--full-document", "", "--pipeline", '[{"$match": {}}]')
    first, second, third = client.changes
    assert (first["feed"], first["etag"], first["on_history_lost"]) == (None, "", "earliest")
    assert (second["feed"].full_document, second["feed"].pipeline, second["etag"]) == ("updateLookup", "[]", "e")
    assert (third["feed"].full_document, third["feed"].pipeline) == (None, '[{"$match": {}}]')
    assert main(["subscriptions", "update", "orders"]) == 2
    assert "nothing to change" in capsys.readouterr().err


def test_a_name_does_not_control_the_terminal(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.stored = (replace(STORED, feed=feedmux.Feed("shop", "\x1b[2J", source="main"), owner="\x07", active=True),)
    for arguments in (("get", "orders"), ("list",)):
        assert "shop.?[2J" in (shown := printed(capsys, *arguments))
        assert not {"\x1b", "\x07"} & set(shown)


def test_a_client_that_does_not_acknowledge_is_named(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    live = replace(STORED, active=True, owner="me", session_state="catch_up", unacked_events=7)
    client.stored = (live,)
    assert "state            catch up, 7 events not acknowledged\n" in printed(capsys, "get", "orders")
    client.stored = (replace(live, session_state="unacknowledged", unacked_events=50_000),)
    shown = printed(capsys, "get", "orders")
    assert "state            gets no more events until its client acknowledges some of 50,000\n" in shown
    assert "open, unacknowledged" in printed(capsys, "list")
    found = json.loads(printed(capsys, "get", "orders", "--json"))
    assert (found["session_state"], found["unacked_events"]) == ("unacknowledged", 50_000)
    client.stored = (replace(live, session_state=""),)
    assert "\nstate " not in printed(capsys, "get", "orders"), "the session is one of another server"


COPYING = replace(STORED, snapshot=feedmux.SnapshotStatus(True, 40, 0, 100, 30.0, Timestamp(7, 1), "shop.orders"))


def test_a_copy_is_shown_with_how_far_it_is(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.stored = (COPYING,)
    assert "snapshot         40 of about 100 documents (40 %), 2/s, 30 s left\n" in printed(capsys, "get", "orders")
    assert "40 of about 100 documents" in printed(capsys, "list")
    found = json.loads(printed(capsys, "get", "orders", "--json"))["snapshot"]
    assert (found["documents"], found["fraction"], found["documents_per_s"]) == (40, 0.4, 2.0)
    assert (found["remaining_s"], found["read_time"], found["namespace"]) == (30.0, "7:1", "shop.orders")


def test_a_wait_ends_with_the_copy(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports each change, outlives a restart of the server, and says that it copies nothing itself."""
    down = feedmux.Unavailable("restarts")
    answers: list[object] = [COPYING, down, down, replace(COPYING, epoch=4), STORED]

    def get(_name: str) -> feedmux.SubscriptionInfo:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, feedmux.SubscriptionInfo)
        return answer

    monkeypatch.setattr(client, "get_subscription", get)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(subscriptions, "note_if_missing", lambda *_: None)
    client.stored = (COPYING,)
    wait = "subscriptions", "create", "orders", "shop.orders", "--start", "snapshot", "--wait", "--json"
    assert main([*wait]) == 0
    done = capsys.readouterr()
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [(line["epoch"], "snapshot" in line) for line in lines] == [(3, True), (4, True), (3, False)]
    assert answers == []
    assert "feedmux consume orders" in done.err
    assert done.err.count("the server cannot be reached (restarts); trying again") == 1
    assert main([*wait[:4], "--start", "latest", "--wait"]) == 2
    assert "--start snapshot" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "stored", "group"),
    [
        (["--group"], None, feedmux.Group()),
        (["--group", "--attempts", "5"], feedmux.Group(2.0), feedmux.Group(2.0, attempts_max=5)),
        (
            ["--group", "--retry-first", "0.5", "--after-dead-letter", "skip"],
            None,
            feedmux.Group(None, 0.5, None, 0, "skip"),
        ),
        (["--group", "--quarantine"], feedmux.Group(2.0), feedmux.Group(2.0, after_dead_letter="quarantine")),
        (["--no-group"], feedmux.Group(2.0), None),
        (["--on-invalidate", "stop"], feedmux.Group(2.0), UNCHANGED),
    ],
)
def test_update_changes_a_group(
    client: Client, arguments: list[str], stored: feedmux.Group | None, group: object
) -> None:
    client.stored = (replace(STORED, group=stored),)
    assert main(["subscriptions", "update", "orders", *arguments]) == 0
    (change,) = client.changes
    assert change["group"] == group
    assert change["etag"] == ("e" if "--group" in arguments else "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["update", "orders", "--attempts", "5"], "--attempts requires --group"),
        (["update", "orders", "--no-group", "--reconnect-time", "5"], "--reconnect-time requires --group"),
        (["create", "orders", "shop.orders", "--retry-most", "5"], "--retry-most requires --group"),
        (["create", "orders", "shop.orders", "--group", "--retry-most", "nan"], "0 or more"),
    ],
)
def test_wrong_usage_of_groups(
    client: Client, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["subscriptions", *arguments]) == 2
    assert words in capsys.readouterr().err
