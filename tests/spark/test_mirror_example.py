"""The example script as a user runs it: a copy under writes, changes applied, and equal at the end."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from feedmux_embedded import Process
from feedmux_server.cli.sample_workload import Shop
from tests.integration.servers import REPOSITORY
from tests.spark.processes import end
from tests.spark.support import PATIENCE_S, Site
from tests.waiting import wait_until

SCRIPT = REPOSITORY / "spark_connector" / "examples" / "mirror_collection.py"


def mirroring(site: Site, database: Database[dict[str, Any]], folder: Path) -> list[str]:
    """The script's arguments for a mirror of the database's orders."""
    host, port = site.client.primary or ("", 0)  # known once it has written
    mongodb = f"mongodb://{host}:{port}/?directConnection=true"
    return ["--endpoint", site.endpoint, "--mongodb", mongodb, "--database", database.name, "--path", str(folder)]


@contextmanager
def started(log: Path, *arguments: str) -> Iterator[Process]:
    """The running script. Waits at the end until the script ends."""
    script = Process("the example", [sys.executable, str(SCRIPT), *arguments], log, cwd=REPOSITORY)
    script.start()
    try:
        yield script
        wait_until(lambda: not script.running, guard_s=PATIENCE_S)
    finally:
        end(script)


def to_its_end(log: Path, *arguments: str) -> str:
    """What the script says, once it has ended well."""
    with started(log, *arguments) as script:
        pass
    said = log.read_text()
    assert script.returncode == 0, said
    return said


@contextmanager
def writing(database: Database[dict[str, Any]], shop: Shop) -> Iterator[None]:
    """Changes without a pause, a few hundred each second."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            while not stop.wait(0.05):
                database.orders.bulk_write([shop.change() for _ in range(20)])
        except Exception as error:  # noqa: BLE001 the test says it
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


@pytest.mark.full
def test_it_mirrors_a_collection_that_is_being_written(
    site: Site, database: Database[dict[str, Any]], tmp_path: Path, java: None
) -> None:
    shop, log = Shop(seed=1), tmp_path / "log"
    database.orders.bulk_write([shop.change() for _ in range(2_000)])
    with started(log, *mirroring(site, database, tmp_path / "mirror")) as script, writing(database, shop):
        # From before the copy until it is done.
        wait_until(lambda: "copied" in log.read_text() or not script.running, guard_s=PATIENCE_S)
        copied = shop.changes
    assert copied > 2_000
    said = log.read_text()
    assert script.returncode == 0, said
    assert f"equal: {database.orders.count_documents({}):,} documents" in said


@pytest.mark.full
def test_a_second_copy_removes_what_was_deleted_while_nobody_read(
    site: Site, database: Database[dict[str, Any]], tmp_path: Path, java: None
) -> None:
    database.orders.bulk_write([Shop(seed=1).change() for _ in range(10)])
    for more in ([], ["--again"]):
        said = to_its_end(tmp_path / "log", *mirroring(site, database, tmp_path / "mirror"), *more)
        assert f"equal: {database.orders.count_documents({}):,} documents" in said
        database.orders.delete_one({})


@pytest.mark.full
def test_ctrl_c_ends_it_without_a_traceback_of_its_own(
    site: Site, database: Database[dict[str, Any]], tmp_path: Path, java: None
) -> None:
    database.orders.bulk_write([Shop(seed=1).change() for _ in range(10)])
    log, folder = tmp_path / "log", tmp_path / "mirror"
    with started(log, *mirroring(site, database, folder), "--follow") as script:
        # The stream has begun.
        wait_until(lambda: list(folder.glob("checkpoint/*/commits/0")) or not script.running, guard_s=PATIENCE_S)
        script.send_signal(signal.SIGINT)
    said = log.read_text()
    assert script.returncode == 130, said
    # In the middle of a batch, Spark's workers may print where they were when their Java went away.
    assert "KeyboardInterrupt" not in said
    assert f'File "{SCRIPT}"' not in said


def test_it_explains_itself(tmp_path: Path) -> None:
    assert "feedmux dev --workload" in to_its_end(tmp_path / "log", "--help")
