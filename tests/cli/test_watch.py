"""`feedmux watch`: JSON lines, lines for people, BSON, starts, and how it ends."""

import json
import os
import pty
import re
import signal
import subprocess

import bson
import pytest

from tests.cli.conftest import FEEDMUX, TIMEOUT_S, Site
from tests.documents import Documents
from tests.started import Started


def test_start_at_a_token_a_cluster_time_or_so_long_ago(site: Site, database: Documents) -> None:
    name = f"{database.name}.orders"
    database.orders.insert_many([{"n": number} for number in range(4)])
    first = site.run("watch", name, "--start", "5m", "--limit", "2")
    second = json.loads(first.stdout.splitlines()[1])
    assert second["fullDocument"]["n"] == 1
    for start in (second["_id"]["_data"], json.dumps(second["_id"])):
        done = site.run("watch", name, "--start", start, "--limit", "1")
        assert json.loads(done.stdout)["fullDocument"]["n"] == 2
    at = second["clusterTime"]["$timestamp"]
    done = site.run("watch", name, "--start", f"{at['t']}:{at['i']}", "--limit", "1")
    assert json.loads(done.stdout)["fullDocument"]["n"] == 1


def test_raw_is_bson(site: Site, database: Documents) -> None:
    database.orders.insert_many([{"n": number} for number in range(3)])
    command = [*FEEDMUX, "watch", f"{database.name}.orders", "--start", "earliest", "--limit", "3", "--raw"]
    done = subprocess.run(command, env=site.environment, capture_output=True, timeout=TIMEOUT_S, check=True)
    assert [event["fullDocument"]["n"] for event in bson.decode_all(done.stdout)] == [0, 1, 2]


def test_on_a_terminal_it_is_for_people(site: Site, database: Documents) -> None:
    key = database.orders.insert_one({"customer": 7, "note": "evil \x1b[31m"}).inserted_id
    database.orders.update_one({"_id": key}, {"$set": {"status": "paid"}, "$unset": {"note": ""}})
    database.orders.delete_one({"_id": key})
    arguments = ("watch", f"{database.name}.orders", "--start", "earliest", "--limit", "3")
    text = on_terminal(site.environment | {"TERM": "xterm", "COLUMNS": "160"}, *arguments)
    assert "\x1b[32minsert" in text
    assert "\x1b[31mdelete" in text
    plain = on_terminal(site.environment | {"TERM": "xterm", "COLUMNS": "160", "NO_COLOR": "1"}, *arguments)
    assert "\x1b" not in plain
    head, insert, update, delete = plain.splitlines()
    assert head.startswith("watching")
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3}Z  insert ", insert)
    assert f"{key}  customer: 7" in insert
    assert 'status: "paid", -note' in update
    assert delete.rstrip().endswith(str(key))
    narrow = on_terminal(site.environment | {"TERM": "dumb", "COLUMNS": "40"}, *arguments)
    assert all(len(line) <= 40 for line in narrow.splitlines()[1:])


def test_a_reader_that_goes_ends_it_silently(site: Site, database: Documents) -> None:
    database.orders.insert_many([{"n": number} for number in range(3)])
    with site.start("watch", f"{database.name}.orders", "--start", "earliest") as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert b"operationType" in watching.stdout.readline()
        watching.stdout.close()
        # Nothing more happens in the collection: it must notice by itself.
        assert watching.wait(60) == 0
        assert watching.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_silently(number: signal.Signals, site: Site, database: Documents) -> None:
    database.orders.insert_one({})
    with site.start("watch", f"{database.name}.orders", "--start", "earliest") as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        watching.stdout.readline()
        watching.send_signal(number)
        assert watching.wait(60) == 128 + number
        assert watching.stderr.read() == b""


def test_the_end_by_an_invalidate_says_how_to_go_on(site: Site, database: Documents) -> None:
    name = f"{database.name}.orders"
    database.orders.insert_one({"n": 1})
    database.orders.drop()
    database.orders.insert_one({"n": 2})
    done = site.run("watch", name, "--start", "earliest")
    assert done.returncode == 1
    operations = [json.loads(line)["operationType"] for line in done.stdout.splitlines()]
    assert operations == ["insert", "drop", "invalidate"]
    found = re.search(r"--start (\S+)", done.stderr)
    assert found is not None
    after = site.run("watch", name, "--start", found[1], "--limit", "1")
    assert json.loads(after.stdout)["fullDocument"]["n"] == 2


def test_a_collection_that_does_not_exist_is_named(site: Site, database: Documents) -> None:
    name = f"{database.name}.later"
    with site.start("watch", name, "--limit", "1") as watching:
        assert watching.stderr is not None
        assert watching.stdout is not None
        said = watching.stderr.readline().decode()
        assert said == f"-- collection {name} does not exist yet; events come once it is created\n"
        database.later.insert_one({"n": 1})
        assert json.loads(watching.stdout.read())["fullDocument"]["n"] == 1
        assert watching.stderr.read() == b""
    assert site.json("explain", name)["scope_missing"] is False
    assert site.json("explain", f"{database.name}.never")["scope_missing"] is True
    assert "does not exist" in site.run("explain", f"{database.name}_never").stdout


def on_terminal(environment: dict[str, str], *arguments: str) -> str:
    """What a command that ends by itself writes to a terminal."""
    reader, writer = pty.openpty()
    with Started([*FEEDMUX, *arguments], env=environment, stdin=writer, stdout=writer, stderr=writer):
        os.close(writer)
        written = b""
        while True:
            try:
                piece = os.read(reader, 65536)
            except OSError:
                break
            if not piece:
                break
            written += piece
    os.close(reader)
    return written.decode().replace("\r\n", "\n")
