"""`feedmux consume`: what is printed or processed is acknowledged, everything else is delivered again."""

import json
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TIMEOUT_S, Site
from tests.cli.test_watch import on_terminal
from tests.documents import Documents
from tests.waiting import wait_until

Consume = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def name(site: Site) -> Iterator[str]:
    name = f"consume-{uuid.uuid4().hex[:8]}"
    yield name
    site.run("subscriptions", "delete", name, "--allow-missing")


@pytest.fixture
def consume(site: Site, name: str) -> Consume:
    """`feedmux consume NAME …`, which ends by itself."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return site.run("consume", name, *arguments)

    return run


@pytest.fixture
def orders(database: Documents, consume: Consume) -> Documents:
    """Six inserts, the first of them acknowledged."""
    database.orders.insert_many([{"n": number} for number in range(6)])
    first = consume("--create", f"{database.name}.orders", "--start", "earliest", "--limit", "1")
    assert numbers(first.stdout) == [0], first.stderr
    return database


def numbers(lines: str) -> list[int]:
    return [json.loads(line)["fullDocument"]["n"] for line in lines.splitlines()]


def test_a_run_begins_after_what_the_one_before_printed(orders: Documents, consume: Consume) -> None:
    second = consume("--limit", "2")
    assert (second.returncode, second.stderr) == (0, "")
    assert numbers(second.stdout) == [1, 2]
    assert numbers(consume("--until-caught-up").stdout) == [3, 4, 5]
    orders.orders.insert_one({"n": 6})
    # A subscription that is there is not created again, and keeps its position.
    again = consume("--create", f"{orders.name}.orders", "--start", "earliest", "--until-caught-up")
    assert numbers(again.stdout) == [6]
    assert consume("--until-caught-up").stdout == ""


def test_until_caught_up_where_nothing_matches(database: Documents, consume: Consume) -> None:
    database.orders.insert_one({"n": 1})
    none = '[{"$match": {"operationType": "delete"}}]'
    done = consume("--create", database.name, "--start", "earliest", "--pipeline", none, "--until-caught-up")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_event_whose_command_fails_is_delivered_again(orders: Documents, consume: Consume, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    fails = f'line=$(cat); echo "$line" >> {seen}; case $line in *\'"n":2\'*|*\'"n": 2\'*) exit 3;; esac'
    done = consume("--exec", fails)
    assert done.returncode == 1
    assert "exited with 3" in done.stderr
    assert "delivers it again" in done.stderr
    assert numbers(seen.read_text()) == [1, 2]
    assert numbers(consume("--until-caught-up").stdout) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.full)],
)
def test_a_signal_ends_it_with_its_acks_stored(
    orders: Documents, site: Site, name: str, consume: Consume, number: int, code: int
) -> None:
    with site.start("consume", name) as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        for _ in range(5):
            consuming.stdout.readline()
        orders.orders.insert_one({"n": 6})
        consuming.stdout.readline()  # so those before are acknowledged
        consuming.send_signal(number)
        assert consuming.wait(60) == code
        assert consuming.stderr.read() == b""
    assert set(numbers(consume("--until-caught-up").stdout)) <= {6}


def test_what_its_reader_has_not_taken_is_not_acknowledged(orders: Documents, site: Site, name: str) -> None:
    orders.orders.insert_many([{"n": number, "padding": "x" * 100_000} for number in range(6, 16)])
    with site.start("consume", name) as consuming:
        assert consuming.stdout is not None
        assert numbers(consuming.stdout.readline().decode()) == [1]
        consuming.stdout.close()
        assert consuming.wait(60) == 0
    left = numbers(site.run("consume", name, "--until-caught-up").stdout)
    assert left[-1] == 15
    assert len(left) >= 10, "a pipe holds less than one of the large events"


def test_one_reader_at_a_time_unless_it_takes_over(orders: Documents, site: Site, name: str, consume: Consume) -> None:
    with site.start("consume", name) as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        consuming.stdout.readline()
        busy = consume("--limit", "1")
        assert busy.returncode == 1
        assert "--takeover" in busy.stderr
        orders.orders.insert_one({"n": 6})
        assert consume("--takeover", "--until-caught-up").returncode == 0
        assert consuming.wait(60) == 1
        said = consuming.stderr.read().decode()
        assert f"another client has taken over subscription '{name}'" in said
        assert "--takeover" in said


def test_existing_documents_first(database: Documents, consume: Consume, site: Site, name: str) -> None:
    """A run that ends in the middle of the copy is continued by the next one."""
    database.orders.insert_many([{"_id": number, "n": number} for number in range(6)])
    create = ("--create", f"{database.name}.orders", "--start", "snapshot")
    first = consume(*create, "--limit", "2")
    assert numbers(first.stdout) == [0, 1], first.stderr
    stored = json.loads(site.run("subscriptions", "get", name, "--json").stdout)
    assert (stored["snapshot"]["running"], stored["snapshot"]["documents"]) == (True, 2)
    assert "snapshot         2 documents\n" in site.run("subscriptions", "get", name).stdout
    second = consume(*create, "--until-caught-up")
    assert numbers(second.stdout) == [2, 3, 4, 5], second.stderr
    assert "the existing documents are copied (6)" in second.stderr
    database.orders.insert_one({"n": 6})
    third = consume(*create, "--until-caught-up")
    assert numbers(third.stdout) == [6], third.stderr
    created = site.run("subscriptions", "create", f"{name}-2", f"{database.name}.orders", "--start", "snapshot")
    assert "snapshot         0 documents\n" in created.stdout
    terminal = site.environment | {"TERM": "xterm", "COLUMNS": "160"}
    shown = on_terminal(terminal, "watch", f"{database.name}.orders", "--start", "snapshot", "--limit", "2")
    assert f"\r\x1b[K[{'.' * 24}] 0 of about {len(list(database.orders.find()))} documents (0 %)" in shown
    assert shown.rpartition("\x1b[K")[2] == "", "the bar is gone at the end"
    site.run("subscriptions", "delete", f"{name}-2")
    database.items.insert_many([{"_id": number, "n": -number} for number in range(1, 4)])
    whole = site.run("consume", f"{name}-3", "--create", database.name, "--start", "snapshot", "--until-caught-up")
    events = [json.loads(line) for line in whole.stdout.splitlines()]
    assert [(each["ns"]["coll"], each["fullDocument"]["n"]) for each in events] == [
        *(("items", -number) for number in range(1, 4)),
        *(("orders", number) for number in range(7)),
    ]
    assert "the existing documents are copied (10)" in whole.stderr
    assert not {"\r", "\x1b"} & {*whole.stderr}, "there is no terminal for a bar"
    site.run("subscriptions", "delete", f"{name}-3")
    database.create_collection("capped", capped=True, size=4096)
    refused = site.run("watch", f"{database.name}.capped", "--start", "snapshot")
    assert refused.returncode != 0
    assert "is capped" in refused.stderr


def test_two_commands_share_a_group(database: Documents, name: str, site: Site, tmp_path: Path) -> None:
    """Each event is handled once, those of a document in order, and a signal lets the commands end."""
    created = site.json(
        "subscriptions", "create", name, f"{database.name}.orders", "--group", "--reconnect-time", "1.5"
    )
    assert created["group"] == {"reconnect_time_s": 1.5}
    log = tmp_path / "log"
    log.touch()

    def members() -> list[dict[str, Any]]:
        answer = site.json("streams")
        subscribers = [
            *answer["detached_subscribers"],
            *chain(*(each["subscribers"] for each in answer["shared_streams"])),
        ]
        return [each for each in subscribers if each["subscription"] == name]

    def wait_for(condition: Callable[[], bool]) -> None:
        wait_until(condition, lambda: (members(), log.read_text()), guard_s=TIMEOUT_S)

    arguments = ("consume", name, "--join", "--exec", f"cat >> {log}", "--jobs", "3")
    with site.start(*arguments) as one, site.start(*arguments) as two:
        wait_for(lambda: len({each["instance_id"] for each in members()}) == 2)
        database.orders.insert_many([{"_id": key, "n": 0} for key in range(8)])
        for turn in range(1, 5):
            database.orders.update_many({}, {"$set": {"n": turn}})
        wait_for(lambda: len(log.read_text().splitlines()) == 40)
        assert sum(each["events_sent"] for each in members()) == 40
        for each in (one, two):
            each.send_signal(signal.SIGTERM)
        assert {each.wait(TIMEOUT_S) for each in (one, two)} == {128 + signal.SIGTERM}
    seen: dict[int, list[int]] = {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        value = (
            event["fullDocument"] if event["operationType"] == "insert" else event["updateDescription"]["updatedFields"]
        )
        seen.setdefault(event["documentKey"]["_id"], []).append(value["n"])
    assert seen == {key: [0, 1, 2, 3, 4] for key in range(8)}
