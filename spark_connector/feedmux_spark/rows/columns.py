"""The columns that a row may have: their names, types, and origin in the event."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from feedmux_spark.rows.errors import SchemaRefused

ENVELOPE: Final = "envelope"
JSON: Final = "json"
TYPED: Final = "typed"
MODES: Final = (ENVELOPE, JSON, TYPED)

EVENT: Final = "event"
DOCUMENT: Final = "document"


@dataclass(frozen=True, slots=True)
class Column:
    """What a column contains. `path` is its path in the event; empty if the column is computed."""

    type: DataType
    nullable: bool
    path: tuple[str, ...]
    meaning: str


COLUMNS: Final[Mapping[str, Column]] = MappingProxyType({
    "resume_token": Column(BinaryType(), False, ("_id",), "MongoDB's resume token as BSON; unique for each event"),
    "sort_key": Column(BinaryType(), False, (), "17 bytes that sort as the events do: the later change is greater"),
    "cluster_time": Column(TimestampType(), False, (), "the seconds of the cluster time"),
    "cluster_time_increment": Column(LongType(), False, (), "its increment within the second"),
    "wall_time": Column(TimestampType(), True, ("wallTime",), "the server's clock at the change"),
    "operation": Column(StringType(), True, ("operationType",), "insert, update, replace, delete, drop, …, untouched"),
    "database": Column(StringType(), True, ("ns", "db"), "the database"),
    "collection": Column(StringType(), True, ("ns", "coll"), "the collection; null for events of a whole database"),
    "document_key": Column(
        BinaryType(),
        True,
        ("documentKey",),
        "`_id`, and the shard key if there is one, as BSON; the same for equal keys",
    ),
    EVENT: Column(BinaryType(), False, (), "the whole event as MongoDB sent it: BSON, or relaxed extended JSON"),
})  # fmt: skip
"""The envelope, in its order."""

DECODED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "document_key": ("documentKey",),
    DOCUMENT: ("fullDocument",),
    "document_before": ("fullDocumentBeforeChange",),
    "update_description": ("updateDescription",),
    "rename_target": ("to",),
})  # fmt: skip
"""The columns that a typed schema may declare as a STRUCT of the user's choice, or as BINARY (the BSON)."""

HAS_DOCUMENT: Final = "has_document"
"""Whether there is a fullDocument, or updateLookup found none because the document was deleted. BOOLEAN, typed only."""

TYPE_MISMATCH: Final = "type_mismatch"
"""Why the row's STRUCT columns are null: a value did not fit, which without this column fails. STRING, typed only."""

_LEAVES: Final = (
    StringType, BinaryType, BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType,
    TimestampType, TimestampNTZType, DateType,
)  # fmt: skip


def default_schema(mode: str) -> StructType:
    """The columns of `envelope` and of `json`; a `typed` schema is the user's: `typed_schema`. Raises SchemaRefused."""
    if mode == TYPED:
        raise SchemaRefused(
            "schemaMode typed needs a schema: put the fields of your documents into a struct column `document`,"
            ' such as .schema("document_key BINARY, sort_key BINARY, document STRUCT<_id: BIGINT, name: STRING>")'
        )
    if mode not in MODES:
        raise SchemaRefused(f"schemaMode {mode!r} is not one of {', '.join(MODES)}")
    fields = [StructField(name, column.type, column.nullable) for name, column in COLUMNS.items()]
    if mode == JSON:
        fields[-1] = StructField(EVENT, StringType(), nullable=False)
    return StructType(fields)


def typed_schema(document: StructType, *, document_key: StructType | None = None, before: bool = False) -> StructType:
    """All envelope columns but `event`, and `document`.

    `document_key` is BSON unless its fields are given; `before` adds the pre-image, `document_before`.
    """
    fields = [field for field in default_schema(ENVELOPE) if field.name != EVENT]
    if document_key is not None:
        fields = [StructField(f.name, document_key) if f.name == "document_key" else f for f in fields]
    fields.append(StructField(DOCUMENT, document))
    if before:
        fields.append(StructField("document_before", document))
    return StructType(fields)


def key_schema(document: StructType) -> StructType:
    """The `document_key` of documents: their `_id`. Raises SchemaRefused."""
    if "_id" not in document.fieldNames():
        raise SchemaRefused(f"the schema of the documents has no field _id, only {', '.join(document.fieldNames())}")
    return StructType([document["_id"]])


def check(mode: str, schema: StructType) -> None:
    """Checks that rows of `mode` can have these columns, in any order and number. Raises SchemaRefused."""
    if mode not in MODES:
        raise SchemaRefused(f"schemaMode {mode!r} is not one of {', '.join(MODES)}")
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaRefused(f"the schema names {', '.join(twice)} twice")
    if not names:
        raise SchemaRefused("the schema has no columns")
    if mode == TYPED and (DOCUMENT not in names or not isinstance(schema[DOCUMENT].dataType, StructType)):
        default_schema(TYPED)  # raises
    for field in schema.fields:
        if mode == TYPED and field.name in DECODED and isinstance(field.dataType, StructType):
            _check_type(field.dataType, field.name)
        elif mode != TYPED or not _is_extra(field):
            _check_envelope(mode, field)


def _is_extra(field: StructField) -> bool:
    """A column of typed rows that is none of the envelope's, or is one as BSON."""
    wanted = {HAS_DOCUMENT: BooleanType(), TYPE_MISMATCH: StringType()}.get(field.name)
    return field.dataType == (wanted or (BinaryType() if field.name in DECODED else None))


def _check_envelope(mode: str, field: StructField) -> None:
    column = COLUMNS.get(field.name)
    if column is None:
        known = [*COLUMNS, *([*DECODED, HAS_DOCUMENT, TYPE_MISMATCH][1:] if mode == TYPED else [])]
        hint = (
            ", or a field of the struct column `document`"
            if mode == TYPED
            else "; your own columns need schemaMode typed"
        )
        raise SchemaRefused(f"the column {field.name!r} is not one of {', '.join(known)}{hint}")
    wanted: tuple[DataType, ...] = (column.type,)
    if field.name == EVENT:
        wanted = {ENVELOPE: (BinaryType(),), JSON: (StringType(),), TYPED: (BinaryType(), StringType())}[mode]
    if field.dataType not in wanted:
        types = " or ".join(each.simpleString().upper() for each in wanted)
        raise SchemaRefused(
            f"the column {field.name!r} is {types} in schemaMode {mode}, not {field.dataType.simpleString().upper()}"
        )


def _check_type(data_type: DataType, path: str) -> None:
    if isinstance(data_type, StructType):
        if not data_type.fields:
            raise SchemaRefused(f"{path} is a struct without fields")
        names = data_type.fieldNames()
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SchemaRefused(f"{path} names {', '.join(twice)} twice")
        for field in data_type.fields:
            _check_type(field.dataType, f"{path}.{field.name}")
    elif isinstance(data_type, ArrayType):
        _check_type(data_type.elementType, f"{path}[]")
    elif isinstance(data_type, MapType):
        if not isinstance(data_type.keyType, StringType):
            raise SchemaRefused(f"{path} is a map whose keys are not STRING, but the keys of documents are strings")
        _check_type(data_type.valueType, f"{path}{{}}")
    elif type(data_type) not in _LEAVES:
        raise SchemaRefused(
            f"{path} is of type {data_type.simpleString().upper()}, which has no BSON counterpart here;"
            " for VARIANT, use schemaMode json and parse_json(event)"
        )
