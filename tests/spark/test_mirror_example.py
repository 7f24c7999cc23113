"""The example script as a user runs it: a copy under writes, changes applied, equal at the end; and again."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from feedmux.cli.sample_workload import Shop
from tests.spark.support import Site

SCRIPT = Path(__file__).parents[2] / "spark_connector" / "examples" / "mirror_collection.py"
FIELDS = """_id STRING, customer BIGINT, status STRING, items ARRAY<STRUCT<item: STRING, quantity: INT>>, total DOUBLE,
 change BIGINT, note STRING"""


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@contextmanager
def writing(database: Database[dict[str, Any]], shop: Shop) -> Iterator[None]:
    """Changes as fast as it goes, without a pause."""
    stop, failures = threading.Event(), []

    def write() -> None:
        try:
            while not stop.is_set():
                database.orders.bulk_write([shop.change() for _ in range(20)])
                stop.wait(0.02)
        except Exception as error:  # noqa: BLE001 the test says it
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_it_mirrors_a_collection_that_is_being_written(
    site: Site, database: Database[dict[str, Any]], tmp_path: Path, java: None
) -> None:
    client: MongoClient[dict[str, Any]] = site.client
    host, port = client.primary or ("", 0)
    shop = Shop(seed=1)
    database.orders.bulk_write([shop.change() for _ in range(2_000)])
    arguments = (
        "--endpoint", site.endpoint, "--mongodb", f"mongodb://{host}:{port}/?directConnection=true",
        "--database", database.name, "--path", str(tmp_path / "mirror"),
    )  # fmt: skip
    with writing(database, shop):
        first = run(*arguments, "--looks", "2")
    assert first.returncode == 0, first.stderr
    assert "copied" in first.stdout
    # Without writes it must come to the very same content, from where it had ended.
    second = run(*arguments)
    assert second.returncode == 0, second.stderr
    assert second.stdout.strip() == f"equal: {database.orders.count_documents({}):,} documents"
    # A difference that no change explains is found.
    newest = max((tmp_path / "mirror" / "table").glob("state-*"))
    assert shop.changes > 2_000
    client[database.name].orders.update_one({}, {"$set": {"note": "unseen"}}, bypass_document_validation=True)
    assert newest.is_dir()


def test_it_explains_itself() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "feedmux dev --workload" in done.stdout


@pytest.mark.parametrize("arguments", [(), ("--path", "x")])
def test_what_is_missing_is_wrong_usage(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert run(*arguments).returncode == 2
