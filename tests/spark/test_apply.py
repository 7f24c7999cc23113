"""Mirrored tables: the latest change of each document, deletes, repeats, crashes, and what cannot be followed."""

import json
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from feedmux.feeds import FullDocument
from feedmux_spark.apply import CannotApply, ParquetMirror, latest_changes, mirror_schema
from feedmux_spark.offsets import Offset
from feedmux_spark.rows import row_maker
from tests.tables import over
from tests.unit.spark.events import event, stream, token

KEY = StructType([StructField("_id", LongType())])
DOCUMENT = StructType([StructField("_id", LongType()), StructField("state", StringType())])
SCHEMA = mirror_schema(DOCUMENT)
SECONDS = 1_700_000_000


def change(
    number: int, operation: str, key: Any, state: str | None = None, *, index: int = 0, **fields: Any
) -> dict[str, Any]:
    """The change `number` of the stream: the document `key` is now `state`, or gone."""
    document = {"_id": key, "state": state} if state else None
    return event(
        number,
        operation,
        _id=token(SECONDS, number, index=index),
        fullDocument=document,
        documentKey=None if key is None else {"_id": key},
        **fields,
    )


def frame(
    spark: SparkSession,
    events: Iterable[dict[str, Any]],
    schema: StructType = SCHEMA,
    full_document: FullDocument = "updateLookup",
) -> DataFrame:
    batches = row_maker("typed", schema, "fail", full_document).record_batches(stream(*events))
    return spark.createDataFrame(pa.Table.from_batches(batches), schema)


@pytest.fixture(scope="module")
def copied(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a mirror of a collection with documents 1, 2 and 3, all `copied`."""
    folder = tmp_path_factory.mktemp("copied") / "mirror"
    documents = [((number,), (number, "copied")) for number in (1, 2, 3)]
    schema = StructType([StructField("document_key", KEY), StructField("document", DOCUMENT)])
    ParquetMirror(spark, str(folder)).create(spark.createDataFrame(documents, schema))
    return folder


@pytest.fixture
def mirror(spark: SparkSession, copied: Path, tmp_path: Path) -> ParquetMirror:
    """A mirror like `copied`, of one test."""
    return ParquetMirror(spark, str(shutil.copytree(copied, tmp_path / "mirror")))


def content(mirror: ParquetMirror) -> dict[int, str]:
    return {row.document_key._id: row.document.state for row in mirror.read().collect()}


def test_of_each_document_the_latest_change_is_left(spark: SparkSession) -> None:
    changes = [
        change(5, "update", 1, "third"),
        change(4, "update", 1, "second", index=2),
        change(4, "insert", 1, "first", index=1),
        change(4, "delete", 2, index=3),
        change(4, "insert", 2, "again", index=130),
        change(6, "create", None),
    ]
    for order in (changes, changes[::-1]):
        found = latest_changes(frame(spark, order)).collect()
        assert {row.document_key._id: row.document.state for row in found} == {1: "third", 2: "again"}


def test_changes_that_are_applied_again_do_no_harm(spark: SparkSession, mirror: ParquetMirror) -> None:
    assert content(mirror) == {1: "copied", 2: "copied", 3: "copied"}
    first = frame(
        spark,
        [
            change(1, "update", 1, "updated"),
            change(2, "delete", 2),
            change(3, "insert", 4, "inserted"),
            change(4, "insert", 5, "short-lived"),
            change(5, "delete", 5),
            change(6, "createIndexes", None),
        ],
    )
    mirror.apply(first, 0)
    state = {1: "updated", 3: "copied", 4: "inserted"}
    assert content(mirror) == state
    mirror.apply(first, 0)
    assert content(mirror) == state
    # A later batch with changes that are not later: nothing goes backwards.
    mirror.apply(frame(spark, [change(0, "update", 1, "old"), change(2, "replace", 4, "old")]), 1)
    assert content(mirror) == state
    mirror.apply(frame(spark, [change(7, "replace", 1, "replaced"), change(8, "insert", 2, "back")]), 2)
    assert content(mirror) == {1: "replaced", 2: "back", 3: "copied", 4: "inserted"}


def test_batches_that_come_again_end_in_the_same_table(spark: SparkSession, mirror: ParquetMirror) -> None:
    """Under the numbers of other batches, as with an older checkpoint that was put back."""
    changes = [
        [change(1, "insert", 4, "short-lived"), change(2, "update", 1, "updated")],
        [change(3, "delete", 4), change(4, "delete", 3)],
        [change(5, "insert", 3, "back"), change(6, "insert", 5, "lost"), change(7, "delete", 2)],
        [change(8, "drop", None), change(9, "insert", 6, "after")],
        [change(10, "insert", 7, "new"), change(11, "delete", 6)],
        [change(12, "insert", 2, "last")],
    ]
    runs: list[tuple[list[tuple[int, int]], dict[int, str]]] = [
        ([(0, 2), (2, 4)], {6: "after"}),
        ([(2, 4)], {6: "after"}),  # the last batch
        ([(2, 5)], {7: "new"}),  # the last batch, longer
        ([(1, 3), (3, 6)], {2: "last", 7: "new"}),  # in other parts
        ([(0, 1), (1, 4), (4, 6)], {2: "last", 7: "new"}),  # all
    ]
    for batches, state in runs:
        for batch_id, (begin, end) in enumerate(batches):
            named(spark, mirror).apply(frame(spark, [one for some in changes[begin:end] for one in some]), batch_id)
        assert content(mirror) == state, batches


def test_a_batch_that_comes_again_has_the_new_feed(spark: SparkSession, mirror: ParquetMirror) -> None:
    """As with onFeedChange=update: documents that the former pipeline left out, or had in another form."""
    mirror.apply(frame(spark, [change(1, "insert", 4, "former"), change(2, "delete", 1)]), 0)
    changes = [change(1, "insert", 4, "new"), change(2, "delete", 1), change(3, "insert", 5, "new")]
    mirror.apply(frame(spark, changes), 0)
    assert content(mirror) == {2: "copied", 3: "copied", 4: "new", 5: "new"}


def test_a_crash_while_writing_leaves_the_old_state_and_is_written_over(
    spark: SparkSession, mirror: ParquetMirror
) -> None:
    changes = frame(spark, [change(1, "update", 1, "updated")])
    mirror.apply(changes, 0)
    (newest,) = Path(mirror.path).glob("state-000000000001-*")
    (newest / "_SUCCESS").unlink()
    assert content(mirror) == {1: "copied", 2: "copied", 3: "copied"}
    mirror.apply(changes, 0)
    assert content(mirror) == {1: "updated", 2: "copied", 3: "copied"}


def test_a_failure_while_writing_leaves_the_old_state(spark: SparkSession, mirror: ParquetMirror) -> None:
    changes = frame(spark, [change(number, "insert", number, "new") for number in range(10, 40)])
    broken = changes.withColumn("sort_key", changes.sort_key).where("raise_error('disk full') IS NULL")
    with pytest.raises(Exception, match="disk full"):
        mirror.apply(broken, 0)
    assert content(mirror) == {1: "copied", 2: "copied", 3: "copied"}


def test_a_sweep_keeps_what_the_copy_or_a_later_change_has_brought(spark: SparkSession, mirror: ParquetMirror) -> None:
    """With a later offset, as if it were asked for again, that is nothing."""

    def offset(number: int) -> str:
        return json.dumps(Offset(b"position", (SECONDS, number), copied=0).as_json())

    mirror.apply(frame(spark, [change(1, "update", 1, "updated")]), 0)
    with pytest.raises(CannotApply, match="the offset at which its stream began"):
        mirror.sweep(offset(3))
    assert content(mirror) == {1: "updated", 2: "copied", 3: "copied"}
    mirror.sweep(offset(2))
    assert content(mirror) == {1: "updated"}


def test_old_states_are_removed(spark: SparkSession, mirror: ParquetMirror) -> None:
    for batch_id in range(4):
        mirror.apply(frame(spark, [change(batch_id + 1, "insert", 10 + batch_id, "new")]), batch_id)
    assert [path.name.split("-")[1] for path in sorted(Path(mirror.path).iterdir())] == ["000000000003", "000000000004"]
    assert len(content(mirror)) == 7


def test_a_drop_empties_the_table_up_to_it(spark: SparkSession, mirror: ParquetMirror) -> None:
    changes = [change(1, "insert", 9, "lost"), change(2, "drop", None), change(3, "insert", 1, "after")]
    mirror.apply(frame(spark, changes), 0)
    assert content(mirror) == {1: "after"}


ELSEWHERE = {"db": "shop", "coll": "baskets"}


def named(spark: SparkSession, mirror: ParquetMirror) -> ParquetMirror:
    return ParquetMirror(spark, mirror.path, "shop.orders")


@pytest.mark.parametrize("dropped", [ELSEWHERE, {"db": "shop2"}], ids=["another collection", "another database"])
def test_a_drop_elsewhere_empties_nothing(spark: SparkSession, mirror: ParquetMirror, dropped: dict[str, str]) -> None:
    operation = "drop" if "coll" in dropped else "dropDatabase"
    named(spark, mirror).apply(frame(spark, [change(1, operation, None, ns=dropped)]), 0)
    assert content(mirror) == {1: "copied", 2: "copied", 3: "copied"}
    changes = [change(2, "insert", 4, "new"), change(3, operation, None, ns=dropped)]
    mirror.apply(frame(spark, changes), 1)
    assert content(mirror) == {1: "copied", 2: "copied", 3: "copied", 4: "new"}
    # Of which collection it is was kept with the table.
    ParquetMirror(spark, mirror.path).apply(frame(spark, [change(4, operation, None, ns=dropped)]), 2)
    assert len(content(mirror)) == 4


def test_a_drop_of_the_database_empties_the_table(spark: SparkSession, mirror: ParquetMirror) -> None:
    named(spark, mirror).apply(frame(spark, [change(1, "dropDatabase", None, ns={"db": "shop"})]), 0)
    assert content(mirror) == {}


def test_a_named_mirror_leaves_other_collections_out(spark: SparkSession, mirror: ParquetMirror) -> None:
    changes = [change(1, "insert", 1, "another's", ns=ELSEWHERE), change(2, "update", 2, ns=ELSEWHERE)]
    named(spark, mirror).apply(frame(spark, [*changes, change(3, "update", 2, "updated")]), 0)
    assert content(mirror) == {1: "copied", 2: "updated", 3: "copied"}


def test_values_of_other_collections_may_have_any_type(spark: SparkSession, mirror: ParquetMirror) -> None:
    """A value that does not fit stops the mirror only where it is of its collection."""

    def odd(number: int, **fields: Any) -> dict[str, Any]:
        return change(number, "insert", 1, "odd") | {"documentKey": {"_id": "one"}, **fields}

    state = {1: "copied", 2: "updated", 3: "copied"}
    changes = [odd(1, ns=ELSEWHERE), change(2, "update", 2, "updated"), odd(3, ns=ELSEWHERE, fullDocument={"state": 1})]
    named(spark, mirror).apply(frame(spark, changes), 0)
    assert content(mirror) == state
    says = r"a change of shop\.orders does not fit the schema of the stream: document_key\._id: a BSON string that"
    with pytest.raises(CannotApply, match=says):
        named(spark, mirror).apply(frame(spark, [odd(4), change(5, "update", 1, "updated")]), 1)
    with pytest.raises(CannotApply, match=r"document\.state: a BSON int that a column of type STRING cannot hold"):
        named(spark, mirror).apply(frame(spark, [change(4, "insert", 1) | {"fullDocument": {"state": 1}}]), 1)
    assert content(mirror) == state


def test_a_mirror_stays_with_the_collection_of_its_first_batch(spark: SparkSession, mirror: ParquetMirror) -> None:
    mirror.apply(frame(spark, [change(1, "update", 1, "updated")]), 0)
    another = frame(spark, [change(2, "update", 2, "another's", ns=ELSEWHERE)])
    with pytest.raises(CannotApply, match=r"shop\.baskets, shop\.orders"):
        ParquetMirror(spark, mirror.path).apply(another, 1)
    with pytest.raises(CannotApply, match=r"mirrors shop\.orders, not shop\.baskets"):
        ParquetMirror(spark, mirror.path, "shop.baskets").apply(another, 1)
    assert content(mirror) == {1: "updated", 2: "copied", 3: "copied"}


def test_the_schema_of_the_stream_may_change(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def ddl(text: str) -> StructType:
        schema = DataType.fromDDL(text)
        assert isinstance(schema, StructType)
        return schema

    def apply(text: str, number: int, key: Any, **fields: Any) -> list[Any]:
        changed = change(number, "insert", key) | {"fullDocument": {"_id": key, **fields}}
        table.apply(frame(spark, [changed], mirror_schema(ddl(text))), number)
        return [row.asDict(recursive=True)["document"] for row in table.read().orderBy("sort_key").collect()]

    table = ParquetMirror(spark, str(tmp_path / "mirror"))
    first = ddl(
        "_id INT, a INT, lost STRING, l ARRAY<STRUCT<x: INT, y: STRING>>, m MAP<STRING, FLOAT>, o STRUCT<p INT>"
    )
    copy = StructType([StructField("document_key", ddl("_id INT")), StructField("document", first)])
    row = ((0,), (0, 1, "x", [(1, "y"), None], {"k": 1.5}, None))
    table.create(spark.createDataFrame([row], copy))
    # Another order, wider types, new and lost fields, at every depth.
    second = "o STRUCT<q: INT, p: INT>, m MAP<STRING, DOUBLE>, l ARRAY<STRUCT<y: STRING, x: BIGINT, z: INT>>, a BIGINT,"
    second += " _id BIGINT, new STRING"
    with caplog.at_level(logging.WARNING, "feedmux_spark"):
        old, new = apply(second, 1, 1, new="n", o={"q": 1, "p": 2})
    assert old == {
        "o": None, "m": {"k": 1.5}, "l": [{"y": "y", "x": 1, "z": None}, None], "a": 1, "_id": 0, "new": None,
    }  # fmt: skip
    assert (list(new), new["o"], new["new"]) == (list(old), {"q": 1, "p": 2}, "n")
    assert "document.o.q, document.l[].z, document.new. Fields removed from the table: document.lost" in caplog.text
    wrong: list[tuple[str, Any, str]] = [
        ("_id BIGINT, a STRING", 2, r"document\.a is BIGINT, which cannot become STRING"),
        ("_id BIGINT, l ARRAY<STRUCT<x: INT>>", 2, r"document\.l\[\]\.x is BIGINT, which cannot become INT"),
        ("_id STRING", "two", r"document_key\._id is BIGINT, which cannot become STRING"),
        ("_id STRUCT<a: INT>", {"a": 2}, r"document_key\._id is BIGINT, which cannot become STRUCT<A:INT>"),
    ]
    for text, key, says in wrong:
        with pytest.raises(CannotApply, match=says):
            apply(text, 2, key)
    assert table.read().count() == 2


def test_a_document_that_moved_to_another_shard_is_there(spark: SparkSession, mirror: ParquetMirror) -> None:
    first = [change(1, "delete", 1), change(1, "insert", 1, "moved")]
    second = [change(1, "insert", 2, "moved"), change(1, "delete", 2)]
    mirror.apply(frame(spark, [*first, *second]), 0)
    assert content(mirror) == {1: "moved", 2: "moved", 3: "copied"}
    apart = [change(2, "insert", 3, "moved"), change(2, "delete", 3)]
    for batch_id, one in enumerate([*apart, *apart[::-1]], 1):
        mirror.apply(frame(spark, [one]), batch_id)
    assert content(mirror) == {1: "moved", 2: "moved", 3: "moved"}


NOT_FOUND: dict[str, Any] = {"fullDocument": None}


def test_a_document_that_was_gone_when_looked_up_is_there_until_its_delete(
    spark: SparkSession, mirror: ParquetMirror
) -> None:
    mirror.apply(frame(spark, [change(1, "update", 1, "updated"), change(2, "update", 1) | NOT_FOUND]), 0)
    assert content(mirror) == {1: "updated", 2: "copied", 3: "copied"}
    mirror.apply(frame(spark, [change(3, "delete", 1)]), 1)
    assert content(mirror) == {2: "copied", 3: "copied"}


def test_without_a_post_image_nothing_is_deleted(spark: SparkSession, mirror: ParquetMirror) -> None:
    changes = frame(spark, [change(1, "update", 1) | NOT_FOUND], full_document="whenAvailable")
    with pytest.raises(CannotApply, match="MongoDB has no post-image"):
        mirror.apply(changes, 0)


def renamed(number: int, source: str | None, target: str | None) -> dict[str, Any]:
    of, to = (name and {"db": "shop", "coll": name} for name in (source, target))
    return change(number, "rename", None, ns=of, to=to)


def test_only_renames_of_the_collection_or_to_its_name_are_an_error(spark: SparkSession, mirror: ParquetMirror) -> None:
    """The grants may cover one side alone: the other is not shown."""
    elsewhere = [renamed(1, "x", "y"), renamed(2, None, "y"), renamed(3, "x", None)]
    named(spark, mirror).apply(frame(spark, [*elsewhere, change(4, "update", 1, "updated")]), 0)
    ParquetMirror(spark, mirror.path).apply(frame(spark, elsewhere), 1)
    assert content(mirror) == {1: "updated", 2: "copied", 3: "copied"}
    for source, target in ("orders", "y"), ("orders", None), ("x", "orders"), (None, "orders"):
        with pytest.raises(CannotApply, match="copy it again"):
            named(spark, mirror).apply(frame(spark, [renamed(5, source, target)]), 2)


def test_events_without_ns_are_not_left_out(spark: SparkSession, mirror: ParquetMirror) -> None:
    half = {"db": "shop"}
    events = [
        change(1, "insert", 1, "a", ns=None),
        change(1, "delete", 1, ns=half),
        change(1, "drop", None, ns=half),
        change(1, "dropDatabase", None, ns=None),
    ]
    for one in events:
        for each in mirror, named(spark, mirror):
            with pytest.raises(CannotApply, match="the pipeline must keep this field"):
                each.apply(frame(spark, [one]), 0)
    mirror.apply(frame(spark, [change(1, "invalidate", None, ns=None)]), 0)
    assert content(mirror) == {1: "copied", 2: "copied", 3: "copied"}


@over(
    ("events", "says"),
    [
        ([change(1, "update", 1)], "updateLookup"),
        ([change(1, "rename", None)], "copy it again"),
        ([change(1, "insert", 1, "a", operationType=None)], "operationType"),
        ([change(1, "insert", None, "a")], "documentKey"),
        ([change(1, "drop", None)], "name it"),
        (
            [change(1, "insert", 1, "a"), change(2, "insert", 1, "a", ns={"db": "shop", "coll": "x"})],
            "shop.orders, shop.x",
        ),
    ],
)
def test_what_a_mirror_cannot_follow_is_an_error(
    spark: SparkSession, mirror: ParquetMirror, copied: Path, events: list[dict[str, Any]], says: str
) -> None:
    with pytest.raises(CannotApply, match=says):
        mirror.apply(frame(spark, events), 0)
    assert [path.name for path in Path(mirror.path).glob("state-*")] == [path.name for path in copied.glob("state-*")]


def test_a_mirror_is_created_once_and_before_it_is_read(
    spark: SparkSession, mirror: ParquetMirror, tmp_path: Path
) -> None:
    with pytest.raises(CannotApply, match="already"):
        mirror.create(mirror.read())
    assert content(mirror) == {1: "copied", 2: "copied", 3: "copied"}
    with pytest.raises(CannotApply, match="create it"):
        ParquetMirror(spark, str(tmp_path / "none")).read()


def test_a_copy_over_the_table_removes_what_it_does_not_contain(spark: SparkSession, mirror: ParquetMirror) -> None:
    """After lost history. Its changes are those of another query, whose batches begin at 0 again."""
    mirror = ParquetMirror(spark, str(Path(mirror.path).rename(f"{mirror.path} [1] {{a,b}}*?\\")))
    mirror.apply(frame(spark, [change(1, "update", 2, "changed"), change(2, "insert", 4, "new")]), 0)
    for _ in range(3):
        copy = spark.createDataFrame([((2,), (2, "again"))], mirror.read().drop("sort_key").schema)
        mirror.create(copy, replace=True)
        assert content(mirror) == {2: "again"}
    assert len(list(Path(mirror.path).glob("state-*"))) == 2
    mirror.apply(frame(spark, [change(3, "update", 2, "after")]), 1)
    assert content(mirror) == {2: "after"}
