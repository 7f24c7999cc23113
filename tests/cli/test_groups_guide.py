"""docs/groups.md: each worker gets an event, and ends with the signal that the page names; the example of a poison
message."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.cli.conftest import FEEDMUX, TIMEOUT_S, Site
from tests.cli.pages import REPOSITORY, blocks
from tests.documents import Documents
from tests.started import Started
from tests.waiting import wait_until

PAGE: Final = "docs/groups.md"


@contextmanager
def worker(site: Site, folder: Path, *command: str) -> Iterator[Started[str]]:
    with Started(
        command, cwd=folder, env=site.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def placed(site: Site, database: Documents, text: str) -> str:
    """A block of the page, for this server and the names of one test."""
    text = text.replace("localhost:7117", site.endpoint).replace("shop.orders ", f"{database.name}.orders ")
    return text.replace('"shop"', f'"{database.name}"').replace("orders-", f"{database.name}-")


def test_the_guide(database: Documents, site: Site, tmp_path: Path) -> None:
    here = partial(placed, site, database)
    programs = [(sys.executable, "-c", here(text)) for text in list(blocks(PAGE, "python"))[:2]]
    create, consume = (shlex.split(line) for line in here(next(blocks(PAGE, "sh"))).splitlines())
    assert site.run(*create[1:]).returncode == 0
    # The programs make the same subscription, which begins then.
    assert site.run("subscriptions", "create", here("orders-workers"), *create[4:]).returncode == 0
    expected = (("insert", 0), ("insert attempt 1", 0), ('"operationType":"insert"', 128 + signal.SIGTERM))
    for number, (command, (words, status)) in enumerate(
        zip((*programs, (*FEEDMUX, *consume[1:])), expected, strict=True)
    ):
        database.orders.insert_one({"_id": number})
        with worker(site, tmp_path, *command) as process:
            assert process.stdout is not None
            assert words in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
            assert process.wait(TIMEOUT_S) == status
    assert (tmp_path / "orders.jsonl").read_text()


@pytest.mark.full
def test_a_poison_message_is_set_aside_fixed_and_replayed(database: Documents, site: Site, tmp_path: Path) -> None:
    here = partial(placed, site, database)
    create, list_, replay = (shlex.split(here(text))[1:] for text in list(blocks(PAGE, "sh"))[1:])
    program, changes = (here(text) for text in list(blocks(PAGE, "python"))[2:])
    found = re.search(r"replace `(.*?)` by `(.*?)`", (REPOSITORY / PAGE).read_text())
    assert found is not None
    corrected = program.replace(found[1], found[2])
    output = tmp_path / "output"

    def printed() -> list[str]:
        return output.read_text().splitlines() if output.exists() else []

    def begun(text: str) -> Started[bytes]:
        """A worker. All append to one file, which so has the order in which they print."""
        buffered = site.environment | {"PYTHONUNBUFFERED": ""}  # a line is one write
        with output.open("ab") as file:
            return Started([sys.executable, "-c", text], env=buffered, stdin=subprocess.DEVNULL, stdout=file)

    def stopped(process: Started[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0

    def letters() -> list[Any]:
        return cast("list[Any]", site.json(*list_)["dead_letters"])

    assert site.run(*create).returncode == 0
    with begun(program) as process:
        exec(changes, {"shop": database})  # noqa: S102 - it is our own guide
        wait_until(lambda: len(letters()) == 2 and printed(), printed)
        assert printed() == ["lamp 5"]
        first, second = letters()
        assert [(each["attempts"], bool(each["reasons"])) for each in (first, second)] == [(2, True), (0, False)]
        stopped(process)
    with ExitStack() as stack:
        workers = [stack.enter_context(begun(corrected))]
        assert site.run(*replay).returncode == 0
        wait_until(lambda: len(printed()) >= 3, printed)
        assert printed() == ["lamp 5", "desk 2", "desk 3"]
        wait_until(lambda: not letters())
        workers += [stack.enter_context(begun(corrected)) for _ in range(7)]
        for amount in range(60):
            for name in "abcdef":
                database.orders.replace_one({"_id": name}, {"amount": str(amount)}, upsert=True)
            if amount == 30:
                for each in workers[1:]:
                    stopped(each)
        wait_until(lambda: len(printed()) >= 3 + 60 * 6, printed)
        for name in "abcdef":
            assert [line for line in printed() if line.startswith(f"{name} ")] == [
                f"{name} {amount}" for amount in range(60)
            ]
        stopped(workers[0])
