"""A mirror in a Delta table, on the newest Spark that has a Delta, which is installed beside this one for these tests.

pip gets Spark, and Spark gets Delta's jars from Maven Central. Without them the tests are skipped.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pymongo.database import Database

from feedmux_embedded import Process
from feedmux_server.cli.sample_workload import Shop
from tests.integration.servers import REPOSITORY
from tests.spark.processes import descendants, end
from tests.spark.support import PATIENCE_S, Site
from tests.spark.test_mirror_example import SCRIPT, mirroring, writing
from tests.started import ran
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(4 * PATIENCE_S)]

SPARK, DELTA = "4.2.0", "4.4.0"
"""As in the README's table. pip's delta-spark says which Spark it is for; it is installed for that, its Python is not
used."""
JARS = f"io.delta:delta-spark_{SPARK.rpartition('.')[0]}_2.13:{DELTA}"
DOWNLOAD_S = 600

MERGES = """
import sys
from pyspark.sql import SparkSession
import feedmux_spark
from feedmux_spark.apply import DeltaMirror
from tests.spark.test_apply import DOCUMENT, KEY, change, content, frame
from pyspark.sql.types import StructField, StructType

feedmux_spark.java_home()
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog").getOrCreate()
)
mirror = DeltaMirror(spark, sys.argv[1])
assert not mirror.exists()
copy = StructType([StructField("document_key", KEY), StructField("document", DOCUMENT)])
mirror.create(spark.createDataFrame([((number,), (number, "copied")) for number in (1, 2, 3)], copy))
assert mirror.exists()
first = frame(spark, [
    change(1, "update", 1, "updated"), change(2, "delete", 2), change(3, "insert", 4, "new"),
    change(4, "insert", 5, "short-lived"), change(5, "delete", 5),
])
mirror.apply(first, 0)
assert content(mirror) == {1: "updated", 3: "copied", 4: "new"}, content(mirror)
mirror.apply(first, 0)
assert content(mirror) == {1: "updated", 3: "copied", 4: "new"}, content(mirror)
# After a change of the feed, or with an older checkpoint, a batch of the same number has other changes.
mirror.apply(frame(spark, [change(3, "insert", 4, "another"), change(6, "insert", 6, "new")]), 0)
assert content(mirror) == {1: "updated", 3: "copied", 4: "another", 6: "new"}, content(mirror)
mirror.apply(frame(spark, [change(0, "update", 1, "old"), change(6, "delete", 6)]), 1)
assert content(mirror) == {1: "updated", 3: "copied", 4: "another", 6: "new"}, content(mirror)
dropped = [change(7, "insert", 9, "lost"), change(8, "drop", None), change(9, "insert", 1, "after")]
mirror.apply(frame(spark, dropped), 2)
assert content(mirror) == {1: "after"}, content(mirror)
mirror.create(spark.createDataFrame([((2,), (2, "again"))], copy), replace=True)
mirror.apply(frame(spark, [change(7, "insert", 3, "after")]), 3)
assert content(mirror) == {2: "again", 3: "after"}, content(mirror)
print("passed", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Beside:
    """Another Python, with another Spark and the packages of this one."""

    python: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory, java: None) -> Iterator[Beside]:
    folder = tmp_path_factory.mktemp("delta")
    try:
        yield installed(folder)
    finally:
        shutil.rmtree(folder)  # half a gigabyte


def installed(folder: Path) -> Beside:
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    temporary, python = folder / "tmp", folder / "venv/bin/python"
    temporary.mkdir()
    # pip has no wheel of Spark, and would keep the one that it builds.
    install = ["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    had(
        [str(python), *install, f"pyspark=={SPARK}", f"delta-spark=={DELTA}"],
        {**os.environ, "TMPDIR": str(temporary)},
        "Spark and Delta cannot be installed",
    )
    # After its own packages come those of this environment.
    next(folder.glob("venv/lib/*/site-packages")).joinpath("beside.pth").write_text(
        str(Path(pyspark.__file__).parents[1])
    )
    packages = [REPOSITORY / name for name in (".", "clients/python", "server", "spark_connector")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        "PYSPARK_PYTHON": str(python),
        # Otherwise Spark takes what it finds in ~/.m2, also a module of which Maven has had only the POM, and fails.
        "SPARK_SUBMIT_OPTS": f"-Duser.home={folder}",
        "PYSPARK_SUBMIT_ARGS": f"--packages {JARS} --conf spark.jars.ivy={folder / 'ivy'} pyspark-shell",
    }
    started = (
        "from pyspark.sql import SparkSession; print(SparkSession.builder.master('local[1]').getOrCreate().version)"
    )
    version = had([str(python), "-c", started], environment, "Delta's jars cannot be had")
    assert version.split()[-1] == SPARK
    return Beside(python, environment)


def had(command: list[str], environment: dict[str, str], otherwise: str) -> str:
    """What the command prints. Skips the test if it fails, since most likely a package index is not available."""
    done = ran(*command, env=environment, cwd=REPOSITORY, timeout_s=DOWNLOAD_S)
    if done.returncode:
        pytest.skip(f"{otherwise}: {done.stderr.strip()[-300:]}")
    return done.stdout


def test_changes_are_merged_once(beside: Beside, tmp_path: Path) -> None:
    command = (beside.python, "-c", MERGES, tmp_path / "table")
    done = ran(*command, env=beside.environment, cwd=REPOSITORY, timeout_s=2 * PATIENCE_S)
    assert done.stdout.splitlines()[-1:] == ["passed"], done.stderr


def test_a_table_that_is_killed_and_followed_again_equals_the_collection(
    beside: Beside, site: Site, database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    shop, folder = Shop(seed=1), tmp_path / "mirror"
    database.orders.bulk_write([shop.change() for _ in range(2_000)])
    command = [str(beside.python), str(SCRIPT), *mirroring(site, database, folder), "--format", "delta"]

    def example(name: str, *more: str) -> Process:
        return Process(name, [*command, *more], tmp_path / name, cwd=REPOSITORY, env=beside.environment)

    first, second = example("first", "--follow"), example("second")
    first.start()
    try:
        with writing(database, shop):
            # The copy is version 0; what follows are changes.
            wait_until(
                lambda: len(list(folder.glob("table/_delta_log/*.json"))) > 4 or not first.running, guard_s=PATIENCE_S
            )
            assert first.running, (tmp_path / "first").read_text()
            started = [first.pid, *descendants(first.pid)]
            for pid in started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not first.running, guard_s=PATIENCE_S)
        second.start()
        wait_until(lambda: not second.running, guard_s=PATIENCE_S)
    finally:
        for each in (first, second):
            end(each)
    said = (tmp_path / "second").read_text()
    assert second.returncode == 0, said
    assert f"equal: {database.orders.count_documents({}):,} documents" in said
    assert re.search(r"copied [\d,]+ documents", said) is None
