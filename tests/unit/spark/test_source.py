"""The data source as Spark creates it, before it connects."""

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import pyspark_feedmux
from feedmux_spark.batch import FeedmuxBatchReader
from feedmux_spark.errors import OptionError
from feedmux_spark.rows import default_schema
from feedmux_spark.source import FeedmuxSource
from feedmux_spark.stream import FeedmuxStreamReader
from tests.tables import over


@over(
    ("more", "says"),
    [
        ({}, "consumerName is missing"),
        ({"consumerName": "q", "endingOffsets": "earliest"}, "endingOffsets is for batches"),
        ({"consumerName": "q", "startingOffsets": "snapshot"}, "needs the option collection"),
        ({"consumerName": "q", "schemaMode": "typed"}, "schemaMode typed needs a schema"),
    ],
)
def test_what_a_stream_lacks_is_an_error_of_each_first_call(more: dict[str, str], says: str) -> None:
    """Where streamReader raises, Spark's last line is that it cannot stop a reader that it has not got."""
    reader = FeedmuxSource({"endpoint": "x:1", **more}).streamReader(default_schema("envelope"))
    assert isinstance(reader, FeedmuxStreamReader)
    calls: list[Callable[[], object]] = [
        reader.initialOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({"position": ""}, reader.getDefaultReadLimit()),
        reader.reportLatestOffset,
        lambda: reader.partitions({"position": ""}, {"position": ""}),
        lambda: reader.read(InputPartition(None)),
    ]
    for call in calls:
        with pytest.raises(OptionError, match=says):
            call()
    reader.stop()


def test_a_table_carries_its_options_in_its_schema() -> None:
    """What Spark passes: at CREATE TABLE all properties, at a query only the options of the query."""
    given = {"endpoint": "x:1", "comment": "of the feed", "schemamode": "json"}
    created = {"provider": "feedmux", "owner": "me", "some.prop": "1", **given, "comment": "of the table"}
    schema = FeedmuxSource({**created, **{f"option.{name}": text for name, text in given.items()}}).schema()
    assert schema.fieldNames() == FeedmuxSource(dict(given)).schema().fieldNames()
    stored = StructType.fromJson(json.loads(schema.json()))
    for query, endpoint in (dict[str, str](), "x:1"), ({"endpoint": "y:1"}, "y:1"):
        options = FeedmuxSource(query)._options(stored)
        assert (options.endpoint, options.comment, options.schema_mode) == (endpoint, "of the feed", "json")
        assert isinstance(FeedmuxSource(query).reader(stored), FeedmuxBatchReader)
    with pytest.raises(OptionError, match="takes no path"):
        FeedmuxSource({"provider": "feedmux", "path": "/x", "option.endpoint": "x:1"}).schema()
    with pytest.raises(OptionError, match="endpoint is missing"):
        FeedmuxSource({}).schema()


def test_readers_are_pickled_before_anything_is_opened() -> None:
    source = FeedmuxSource({"endpoint": "x:1", "consumerName": "q"})
    for reader in (source.streamReader(source.schema()), source.reader(source.schema())):
        assert type(pickle.loads(pickle.dumps(reader))) is type(reader)


NEEDED = ("feedmux", "feedmux_spark", "bson", "google", "grpc", "numpy", "orjson", "pandas", "pyarrow")
_LOOK_UP = f"""
import io, sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {NEEDED}:
            raise ModuleNotFoundError("No module named " + repr(name))

sys.meta_path.insert(0, Missing())
from pyspark.sql.worker import lookup_data_sources
written = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), written)
print(*sorted(name for name in (b"feedmux", b"other") if name in written.getvalue()))
import pyspark_feedmux
try:
    pyspark_feedmux.DefaultSource(options={{}})
except ImportError as error:
    print(error)
"""


def test_other_data_sources_are_found_where_packages_of_this_one_are_missing(tmp_path: Path) -> None:
    """At the first `pyspark_*` module that it cannot import, Spark gives up on all."""
    (tmp_path / "pyspark_other.py").write_text(
        "from pyspark.sql.datasource import DataSource\n"
        "class DefaultSource(DataSource):\n"
        "    name = classmethod(lambda cls: 'other')\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(pyspark_feedmux.__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", _LOOK_UP]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    found, _, error = shown.stdout.partition("\n")
    assert found == "b'feedmux' b'other'"
    assert "needs Spark 4.2 or newer" in error
    assert "lacks bson, google.protobuf, grpc, numpy, orjson, pandas, pyarrow. Run `pip install" in error


def test_an_older_spark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "feedmux_spark.source", None)
    for version in ("4.1.4", "4.0.0.dev1"):
        monkeypatch.setattr("pyspark.__version__", version)
        with pytest.raises(ImportError, match=f"has Spark {re.escape(version)}. Run"):
            pyspark_feedmux.DefaultSource(options={})
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    with pytest.raises(ImportError, match=r"cannot import them: import of feedmux_spark.source halted"):
        pyspark_feedmux.DefaultSource(options={})


def test_the_source_that_spark_finds_becomes_the_real_one() -> None:
    assert pyspark_feedmux.DefaultSource.name() == FeedmuxSource.name()
    assert type(pyspark_feedmux.DefaultSource(options={"endpoint": "x:1"})) is FeedmuxSource
