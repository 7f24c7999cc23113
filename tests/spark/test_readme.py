"""The README's examples work as described."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.support import Site, numbers, running, wait_until

README = Path(__file__).parents[2] / "spark_connector" / "README.md"


def test_its_examples_run(spark: SparkSession, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream, batch, java = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    orders = site.client["shop"].orders
    before = datetime.now(UTC) - timedelta(seconds=5)
    replaced = {
        "localhost:7117": site.endpoint,
        '.option("token", "…")': "",
        '"orders-checkpoint"': repr(str(tmp_path / "checkpoint")),
        '"path", "orders"': f'"path", {str(tmp_path / "out")!r}',
        "2026-11-21T14:00:00Z": before.isoformat(),
    }

    def run(code: str, **more: str) -> dict[str, Any]:
        for old, new in {**replaced, **more}.items():
            code = code.replace(old, new)
        names: dict[str, Any] = {"spark": spark}
        exec(code, names)  # noqa: S102 the README's own
        return names

    orders.insert_many([{"n": n} for n in range(50)])
    query = run(stream)["query"]
    with running(query):
        wait_until(lambda: query.lastProgress is not None and (tmp_path / "out").exists(), query)
        wait_until(lambda: len(found(spark, tmp_path / "out")) == 50, query)
    assert sorted(found(spark, tmp_path / "out")) == list(range(50))
    end = datetime.now(UTC) + timedelta(seconds=1)
    wait_until(lambda: datetime.now(UTC) > end + timedelta(seconds=1))
    names = run(batch, **{"2026-11-21T15:00:00Z": end.isoformat()})
    assert "insert" in capsys.readouterr().out
    assert sorted(numbers(names["one_hour"].collect())) == list(range(50))
    run(java)


def found(spark: SparkSession, folder: Path) -> list[int]:
    return numbers(spark.read.parquet(str(folder)).collect()) if list(folder.glob("*.parquet")) else []
