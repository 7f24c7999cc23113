"""docs/groups.md: each worker gets an event, and ends with the signal that the page names."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymongo.database import Database

from tests.cli.conftest import FEEDMUX, TIMEOUT_S, Site
from tests.cli.pages import blocks
from tests.started import Started

Documents = Database[dict[str, Any]]


@contextmanager
def worker(site: Site, folder: Path, *command: str) -> Iterator[Started[str]]:
    with Started(
        command, cwd=folder, env=site.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def test_the_guide(database: Documents, site: Site, tmp_path: Path) -> None:
    def here(text: str) -> str:
        text = text.replace("localhost:7117", site.endpoint).replace("shop", database.name)
        return text.replace("orders-", f"{database.name}-")

    programs = [(sys.executable, "-c", here(text)) for text in blocks("docs/groups.md", "python")]
    (shell,) = blocks("docs/groups.md", "sh")
    create, consume = (shlex.split(line) for line in here(shell).splitlines())
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
