"""Received events as Arrow record batches of a given schema. See `feedmux_spark.rows` for the shapes."""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import bson
import numpy as np
import pyarrow as pa
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from feedmux.feeds import FullDocument
from feedmux.json_writer import event_json
from feedmux_spark.rows import bson_walk, columns
from feedmux_spark.rows.bson_walk import Buffer, Ints, Mask, Values
from feedmux_spark.rows.convert import Policy, column, fixed_binary
from feedmux_spark.rows.errors import InvalidEvents, SchemaRefused, TypeMismatch
from feedmux_spark.rows.keys import with_equal_bytes
from feedmux_spark.rows.token_order import cluster_times_and_sort_keys

FAIL: Final = "fail"
NULL: Final = "null"

_LENIENT: Final = Policy(fail=False)
_STRICT: Final = Policy(fail=True, of_key=True)
_KEY: Final = "document_key"
"""Never null because of a value that does not fit: all such documents would be treated as one."""
_FRAGMENT: Final = ("splitEvent", "fragment")
# Dates stay milliseconds, since those beyond year 9999 have no datetime; text with broken UTF-8 must not end the feed.
_PLAIN: Final = CodecOptions[dict[str, Any]](
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
_RAW: Final = CodecOptions[RawBSONDocument](
    document_class=RawBSONDocument,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="replace",
)


class RowMaker:
    """Creates record batches of one schema. It can be pickled at any time."""

    def __init__(
        self, mode: str, schema: StructType, on_type_mismatch: str, full_document: FullDocument | None
    ) -> None:
        """Raises SchemaRefused."""
        columns.check(mode, schema)
        if on_type_mismatch not in (FAIL, NULL):
            raise SchemaRefused(f"onTypeMismatch {on_type_mismatch!r} is neither {FAIL} nor {NULL}")
        self._policy = Policy(fail=on_type_mismatch == FAIL)
        self._looks_up = full_document == "updateLookup"
        self._arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self._paths = {name: _path(name) for name in schema.fieldNames()}

    def record_batches(self, events: bytes) -> list[pa.RecordBatch]:
        """Converts the events of a batch, concatenated BSON documents, to rows in the same order.

        `event` is laid over `events` without a copy. None for no events. Raises InvalidEvents and TypeMismatch.
        """
        if not events:
            return []
        places = bson_walk.split(events)
        try:
            arrays = self._arrays(_Found(events, places, {path for path in self._paths.values() if path}))
        except TypeMismatch as error:
            raise _located(error, events, places) from None
        return [pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)]

    def _arrays(self, found: "_Found") -> list[pa.Array]:
        if columns.TYPE_MISMATCH not in self._paths:
            return [self._array(field, found, self._policy, _STRICT) for field in self._arrow_schema]
        notes: list[tuple[Ints, str]] = []
        policy, strict = replace(self._policy, notes=notes), replace(_STRICT, notes=notes)
        arrays = [self._array(field, found, policy, strict) for field in self._arrow_schema]
        reasons = found.reasons(notes)
        if notes:
            found = found.without(reasons)
        for number, field in enumerate(self._arrow_schema):
            if field.name == columns.TYPE_MISMATCH:
                arrays[number] = pa.array(reasons, field.type)
            elif notes and pa.types.is_struct(field.type):
                arrays[number] = self._array(field, found, self._policy, _STRICT)
        return arrays

    def _array(self, field: pa.Field, found: "_Found", policy: Policy, strict: Policy) -> pa.Array:
        match field.name:
            case "event":
                return found.events(field.type)
            case "sort_key":
                return fixed_binary(found.sort_keys, field.type)
            case "cluster_time":
                return pa.array(found.seconds * 1_000_000).view(field.type)
            case "cluster_time_increment":
                return pa.array(found.increments)
            case columns.HAS_DOCUMENT:
                return pa.array(found.have_document(self._looks_up))
            case columns.TYPE_MISMATCH:
                return pa.nulls(len(found.seconds), field.type)
        values = found.values[self._paths[field.name]]
        if pa.types.is_struct(field.type):
            return _struct(values, field, strict if field.name == _KEY else policy)
        array = column(values, field, field.name, _LENIENT)
        return with_equal_bytes(values, array) if field.name == _KEY else array


def documents_batch(documents: bytes, document: StructType, on_type_mismatch: str = FAIL) -> pa.RecordBatch:
    """Converts a collection's documents, concatenated BSON, to the rows of a copy: `document_key` (the `_id`) and
    `document`, with the types and rules of typed rows. Raises SchemaRefused, InvalidEvents, TypeMismatch."""
    schema = StructType([StructField(_KEY, columns.key_schema(document)), StructField("document", document)])
    columns.check(columns.TYPED, schema)
    places = bson_walk.split(documents)
    whole = Values(Buffer(documents), np.full(len(places) - 1, bson_walk.DOCUMENT, np.uint8), places[:-1], places[1:])
    policy = Policy(fail=on_type_mismatch == FAIL)
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    arrays = [_struct(whole, field, _STRICT if field.name == _KEY else policy) for field in arrow_schema]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _struct(values: Values, field: pa.Field, policy: Policy) -> pa.Array:
    if field.name == _KEY and field.type.get_field_index("_id") >= 0:
        kind = bson_walk.find(values, ["_id"])["_id"].kind
        absent = ((kind == bson_walk.MISSING) | (kind == bson_walk.UNDEFINED)) & (values.kind == bson_walk.DOCUMENT)
        if absent.any():
            message = (
                f"{_KEY}._id is missing or undefined: a pipeline must not change documentKey, and the documents of a"
                " view must have _id"
            )
            policy.refuse(values.start[absent], message, None)
    return column(values, field, field.name, policy)


def _path(name: str) -> tuple[str, ...]:
    """Returns the path of a column in the event; empty if the column is computed."""
    if name == columns.HAS_DOCUMENT:
        name = columns.DOCUMENT
    if name == columns.TYPE_MISMATCH:
        return ()
    return columns.DECODED[name] if name in columns.DECODED else columns.COLUMNS[name].path


class _Found:
    """The values found in a batch, from which the columns are made."""

    def __init__(self, raw: bytes, places: Ints, wanted: set[tuple[str, ...]]) -> None:
        self._raw = raw
        self._places = places
        count = len(places) - 1
        whole = Values(Buffer(raw), np.full(count, bson_walk.DOCUMENT, np.uint8), places[:-1], places[1:])
        paths = wanted | {("_id",), _FRAGMENT}
        top = bson_walk.find(whole, sorted({path[0] for path in paths}))
        self.values: dict[tuple[str, ...], Values] = {(name,): values for name, values in top.items()}
        for name in {path[0] for path in paths if len(path) > 1}:
            inner = sorted(path[1] for path in paths if path[0] == name and len(path) > 1)
            for key, values in bson_walk.find(top[name], inner).items():
                self.values[name, key] = values
        self.seconds, self.increments, self.sort_keys = cluster_times_and_sort_keys(
            self.values["_id",], self.values[_FRAGMENT]
        )

    def reasons(self, notes: list[tuple[Ints, str]]) -> list[str | None]:
        """Returns the first note of each row; None for rows without one."""
        found: list[str | None] = [None] * (len(self._places) - 1)
        for places, message in notes:
            for row in np.searchsorted(self._places, places, side="right") - 1:
                found[row] = found[row] or message
        return found

    def without(self, reasons: list[str | None]) -> "_Found":
        """Returns the same with nothing to decode in rows that have a reason."""
        keep = np.array([reason is None for reason in reasons])
        masked = copy(self)
        masked.values = {path: values.masked(keep) for path, values in self.values.items()}
        return masked

    def have_document(self, looks_up: bool) -> Mask:
        """Returns which events have a document, or with `looks_up` are updates of a document that was deleted since."""
        kind = self.values[_path(columns.HAS_DOCUMENT)].kind
        found: Mask = kind == bson_walk.DOCUMENT
        for row in np.flatnonzero(kind == bson_walk.NULL) if looks_up else ():
            found[row] = _deleted_since(RawBSONDocument(self._raw[self._places[row] : self._places[row + 1]], _RAW))
        return found

    def events(self, arrow_type: pa.DataType) -> pa.Array:
        if pa.types.is_string(arrow_type):
            return pa.array(self._texts(), arrow_type)
        offsets = pa.py_buffer(self._places.astype(np.int32))
        return pa.Array.from_buffers(arrow_type, len(self._places) - 1, [None, offsets, pa.py_buffer(self._raw)])

    def _texts(self) -> Iterator[bytes]:
        """The events as relaxed Extended JSON, written here and not by the server: workers do it in parallel."""
        for start, end in pairwise(self._places.tolist()):
            try:
                yield event_json(self._raw[start:end])
            except ValueError:
                raise InvalidEvents(
                    "an event cannot be written as JSON; use schemaMode envelope, which delivers it as BSON"
                ) from None


def _deleted_since(event: RawBSONDocument) -> bool:
    """Whether updateLookup found no document because it was deleted.

    It looks for the document by its former shard key, and does not find one whose shard key the update has changed.
    """
    if event.get("operationType") != "update":
        return False
    try:
        shard_key = [f"{name}." for name in event["documentKey"] if name != "_id"]
        if not shard_key:
            return True
        description = event["updateDescription"]
        changed = [f"{name}." for name in (*description["updatedFields"], *description["removedFields"])]
    except (KeyError, TypeError):  # a pipeline has changed it
        return False
    return not any(one.startswith(other) or other.startswith(one) for one in shard_key for other in changed)


def _located(error: TypeMismatch, events: bytes, places: Ints) -> TypeMismatch:
    """Returns the same error with the event that caused it."""
    if error.place is None:
        return error
    row = int(np.searchsorted(places, error.place, side="right")) - 1
    # Not decoded as a whole, because the value may be undecodable.
    event = RawBSONDocument(events[places[row] : places[row + 1]])
    namespace, token = _decoded(event.get("ns")), _decoded(event.get("_id"))
    advice = f", or take {_KEY} as BINARY" if str(error).startswith(_KEY) else ", or set onTypeMismatch to null"
    return TypeMismatch(
        f"{error}. Change the type{advice}. The event: operationType {event.get('operationType')}, ns {namespace},"
        f" resume token {token}"
    )


def _decoded(value: Any) -> Any:
    return bson.decode(value.raw, _PLAIN) if isinstance(value, RawBSONDocument) else value
