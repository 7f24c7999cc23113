"""The data source `feedmux`, which Spark creates from the format's name and options."""

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from feedmux_spark.batch import FeedmuxBatchReader
from feedmux_spark.errors import OptionError
from feedmux_spark.options import Options, parse_options
from feedmux_spark.rows import default_schema
from feedmux_spark.stream import FeedmuxStreamReader, RejectedStreamReader

_CREATING: Final = "provider"
"""A property that only CREATE TABLE passes, beside `owner`, the table's properties and comment."""
_OPTION: Final = "option."
"""The prefix under which CREATE TABLE passes the options among the properties."""
_TABLE_OPTIONS: Final = "feedmux.options"
_READ_ONLY: Final = "the format feedmux only reads changes: write documents with MongoDB's own connector"


class FeedmuxSource(DataSource):
    """`spark.readStream.format("feedmux")`, `spark.read.format("feedmux")` and `CREATE TABLE … USING feedmux`.

    Spark stores the options of a table, but a query of the table does not pass them to a source in Python. The schema
    is passed, so it carries them.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = {name.lower(): text for name, text in options.items()}
        # A query of a table passes no options, or some that replace the table's.
        if "endpoint" in self._given and _CREATING not in self._given:
            parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        return "feedmux"

    def schema(self) -> StructType:
        if _CREATING not in self._given:
            return default_schema(parse_options(self._given).schema_mode)
        return _table_schema(self._given)

    def reader(self, schema: StructType) -> DataSourceReader:
        return FeedmuxBatchReader(self._options(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 Spark's name
        try:
            return FeedmuxStreamReader(_for_stream(self._options(schema)), schema)
        except Exception as error:  # noqa: BLE001 - raised by the reader
            # Where this raises, Spark then stops the reader that it has not got, and ends with an error about that.
            return RejectedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise OptionError(_READ_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        raise OptionError(_READ_ONLY)

    def _options(self, schema: StructType) -> Options:
        stored: dict[str, str] = schema.fields[0].metadata.get(_TABLE_OPTIONS, {}) if schema.fields else {}
        if not stored and not self._given:
            raise OptionError(
                "no options: Spark does not pass the options of a table with columns of its own to a source in Python."
                " Create the table without columns, or a view: CREATE TEMPORARY VIEW name (columns) USING feedmux"
                " OPTIONS (…)"
            )
        return parse_options({**stored, **self._given})


def _table_schema(properties: Mapping[str, str]) -> StructType:
    """The columns of a new table, with its options as metadata. Raises OptionError."""
    given = {name.removeprefix(_OPTION): text for name, text in properties.items() if name.startswith(_OPTION)}
    if "path" in properties:
        given["path"] = properties["path"]
    options = parse_options(given)
    if options.token is not None:
        raise OptionError(
            "option token would be stored with the table, where everybody who may see the table can read it: use"
            " tokenFile; or pass the token in each query, as in SELECT * FROM name WITH (token '…')"
        )
    first, *others = default_schema(options.schema_mode).fields
    metadata: dict[str, Any] = {_TABLE_OPTIONS: given}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def _for_stream(options: Options) -> Options:
    """Checks the options that a stream needs. Raises OptionError."""
    if options.consumer_name is None:
        raise OptionError(
            "option consumerName is missing: a stream needs its own name, under which its start is stored before the"
            " first batch"
        )
    if options.starting_offsets == "snapshot" and options.collection is None:
        raise OptionError(
            "option startingOffsets=snapshot needs the option collection: Spark reads the existing documents of one"
            " collection, each with a query of its own"
        )
    if options.ending_offsets != "latest":
        raise OptionError(
            "option endingOffsets is for batches only: to end a stream at the latest available event, use the trigger"
            " availableNow"
        )
    return options
