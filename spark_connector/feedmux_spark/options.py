"""The options of the format `feedmux`: one table for parsing, validation and documentation.

Spark passes options as text, with names in lower case. A row of `TABLE` fully describes an option: the README's table
is written from `TABLE`, and `Options` has a field for each row.
"""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from feedmux.endpoint import checked_endpoint
from feedmux.feeds import Feed, FullDocument, FullDocumentBeforeChange, ReadPreference
from feedmux.target import Tls, clean_token
from feedmux_spark.errors import OptionError

_TRUE_FALSE: Final = {"true": True, "false": False}


def _text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _endpoint(text: str) -> str:
    given = _text(text.strip())
    try:
        return checked_endpoint(given)
    except ValueError:
        hint = ", without http://" if "://" in text else ", with its port, such as localhost:7117"
        raise ValueError(f"must be host:port{hint}") from None


def _boolean(text: str) -> bool:
    try:
        return _TRUE_FALSE[text.lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not least <= number <= most:
            raise ValueError(f"must be {least:,} to {most:,}")
        return number

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _names(text: str) -> tuple[str, ...]:
    return tuple(_text(name.strip()) for name in text.split(","))


def _json_array(text: str) -> str:
    try:
        stages = json.loads(text)  # the server reads the stages
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be a JSON array of stages: {error}") from None
    if not isinstance(stages, list):
        raise ValueError("must be a JSON array of stages")
    return text


def _json_object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be a JSON object: {error}") from None
    if not isinstance(content, dict):
        raise ValueError("must be a JSON object")
    return content


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name appears twice in one object")
    return content


REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table."""

    name: str
    field: str
    """The field's name in `Options`."""
    parse: Callable[[str], Any]
    default: Any
    """The default as a parsed value; REQUIRED if the option is required, None if it has no default."""
    shown: str
    """The default as the documentation shows it."""
    meaning: str
    unit: str = ""


TABLE: Final = (
    Option("endpoint", "endpoint", _endpoint, REQUIRED, "required", "The address of the feedmux server: `host:port`."),
    Option(
        "token",
        "token",
        _text,
        None,
        "none",
        "An API key or JWT. Spark redacts an option of this name in plans. Cannot be combined with `tokenFile`.",
    ),
    Option(
        "tokenFile",
        "token_file",
        _text,
        None,
        "none",
        "A file with the token, on the driver and on every executor. It is read again for each call, so the token can"
        " be rotated.",
    ),
    Option(
        "tls",
        "tls",
        _boolean,
        False,
        "`false`",
        "Whether to use TLS. It trusts the system's roots unless `tlsRootFile` is set.",
    ),
    Option(
        "tlsRootFile", "tls_root_file", _text, None, "system's roots", "PEM file of the root certificates to trust."
    ),
    Option(
        "tlsCertificateFile",
        "tls_certificate_file",
        _text,
        None,
        "none",
        "PEM file of the client certificate, for mutual TLS.",
    ),
    Option("tlsKeyFile", "tls_key_file", _text, None, "none", "PEM file of the client's private key, for mutual TLS."),
    Option(
        "tlsServerName",
        "tls_server_name",
        _text,
        None,
        "the endpoint's host",
        "The name to check the server's certificate against.",
    ),
    Option(
        "source", "source", _text, "main", "`main`", "Name of the MongoDB deployment in the server's configuration."
    ),
    Option("database", "database", _text, None, "all databases", "The database to read."),
    Option("collection", "collection", _text, None, "all collections", "The collection to read; needs `database`."),
    Option(
        "pipeline", "pipeline", _json_array, None, "none", "Stages after `$changeStream`, as an extended JSON array."
    ),
    Option(
        "fullDocument",
        "full_document",
        _text,
        None,
        "MongoDB's",
        "As in MongoDB: `default`, `updateLookup`, `whenAvailable`, `required`.",
    ),
    Option(
        "fullDocumentBeforeChange",
        "full_document_before_change",
        _text,
        None,
        "MongoDB's",
        "As in MongoDB: `off`, `whenAvailable`, `required`.",
    ),
    Option(
        "showExpandedEvents",
        "show_expanded_events",
        _boolean,
        False,
        "`false`",
        "As in MongoDB: also DDL events, and additional fields.",
    ),
    Option("collation", "collation", _json_object, None, "none", "As in MongoDB, as a JSON object."),
    Option("comment", "comment", _text, None, "none", "A comment for MongoDB's log and profiler."),
    Option("readPreference", "read_preference", _text, None, "the source's", "As in MongoDB."),
    Option("readConcern", "read_concern", _text, None, "`majority`", "As in MongoDB."),
    Option(
        "matchCollectionUUIDForUpdateLookup",
        "match_collection_uuid_for_update_lookup",
        _boolean,
        False,
        "`false`",
        "As in MongoDB.",
    ),
    Option(
        "extraOptions",
        "extra_options",
        _names,
        (),
        "none",
        "Options of newer MongoDB versions that are true, separated by commas: `showCommitTimestamp`, for example.",
    ),
    Option(
        "consumerName",
        "consumer_name",
        _text,
        None,
        "required for streams",
        "Name of the durable subscription that stores the start before the first batch. Use a different name for each"
        " query.",
    ),
    Option(
        "startingOffsets",
        "starting_offsets",
        _text,
        None,
        "`latest`; batch: `earliest`",
        "Where a batch begins, or a stream without a checkpoint and with a new `consumerName`: `latest`, `earliest`,"
        " an ISO 8601 time with a time zone, or an offset as JSON.",
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        _text,
        "latest",
        "`latest`",
        "Batches only: where the batch ends, in the same forms as `startingOffsets`.",
    ),
    Option(
        "maxEventsPerTrigger",
        "max_events_per_trigger",
        _integer(1, 2**31 - 1),
        200_000,
        "200,000",
        "Maximum number of events in a micro-batch.",
        "events",
    ),
    Option(
        "maxBytesPerTrigger",
        "max_bytes_per_trigger",
        _integer(1, 2**40),
        64 << 20,
        "67,108,864",
        "Maximum size of a micro-batch as BSON. The event that reaches the maximum still belongs to the micro-batch."
        " The server retains no more than the tenant's quota `retained_bytes`, and ends a micro-batch there.",
        "bytes",
    ),
    Option(
        "readPartitions",
        "read_partitions",
        _integer(1, 1000),
        None,
        "cores of the driver's machine",
        "Number of slices of equal size in bytes into which a micro-batch is divided. One task reads each slice. Set"
        " it to the number of executor cores.",
        "tasks",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        _boolean,
        True,
        "`true`",
        "Whether to fail when the position to read from has left MongoDB's oplog. With `false`, reading continues from"
        " the oldest change, and the gap is logged and counted in the offsets.",
    ),
    Option(
        "onFeedChange",
        "on_feed_change",
        _one_of("fail", "update"),
        "fail",
        "`fail`",
        "Streams only: what to do when a query starts with a pipeline or other feed options that differ from its"
        " checkpoint or its subscription. `fail` fails the query. `update` changes the subscription to the new"
        " options, and reads everything after the checkpoint with them.",
    ),
    Option(
        "schemaMode",
        "schema_mode",
        _one_of("envelope", "json", "typed"),
        "envelope",
        "`envelope`",
        "What a row contains: `envelope`, `json`, or `typed` with your own schema.",
    ),
    Option(
        "onTypeMismatch",
        "on_type_mismatch",
        _one_of("fail", "null"),
        "fail",
        "`fail`",
        "`typed` only: what to do when a value does not fit its column: `fail` the query, or make the value `null`.",
    ),
    Option(
        "pollTimeoutMs",
        "poll_timeout_ms",
        _integer(0, 60_000),
        500,
        "500",
        "How long an idle trigger waits at the server for the first event.",
        "ms",
    ),
    Option(
        "callTimeoutMs",
        "call_timeout_ms",
        _integer(1_000, 600_000),
        30_000,
        "30,000",
        "How long the server may take to answer a call, for instance to plan a micro-batch. The limit does not apply"
        " to reading events.",
        "ms",
    ),
    Option(
        "retryTimeoutMs",
        "retry_timeout_ms",
        _integer(0, 24 * 3600 * 1000),
        300_000,
        "300,000",
        "How long a running query retries while the server, MongoDB or Redis is unavailable, before it fails.",
        "ms",
    ),
)
_BY_NAME: Final = {option.name.lower(): option for option in TABLE}


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options of the user. The repr contains no secret."""

    endpoint: str
    token: str | None = field(repr=False)
    token_file: str | None
    tls: bool
    tls_root_file: str | None
    tls_certificate_file: str | None
    tls_key_file: str | None
    tls_server_name: str | None
    source: str
    database: str | None
    collection: str | None
    pipeline: str | None
    full_document: FullDocument | None
    full_document_before_change: FullDocumentBeforeChange | None
    show_expanded_events: bool
    collation: Mapping[str, Any] | None
    comment: str | None
    read_preference: ReadPreference | None
    read_concern: str | None
    match_collection_uuid_for_update_lookup: bool
    extra_options: tuple[str, ...]
    consumer_name: str | None
    starting_offsets: str | None
    ending_offsets: str
    max_events_per_trigger: int
    max_bytes_per_trigger: int
    read_partitions: int | None
    fail_on_data_loss: bool
    on_feed_change: str
    schema_mode: str
    on_type_mismatch: str
    poll_timeout_ms: int
    call_timeout_ms: int
    retry_timeout_ms: int

    @property
    def feed(self) -> Feed:
        return Feed(
            self.database,
            self.collection,
            self.pipeline,
            full_document=self.full_document,
            full_document_before_change=self.full_document_before_change,
            show_expanded_events=self.show_expanded_events,
            collation=self.collation,
            comment=self.comment,
            read_preference=self.read_preference,
            read_concern=self.read_concern,
            match_collection_uuid_for_update_lookup=self.match_collection_uuid_for_update_lookup,
            extra_options=self.extra_options,
            source=self.source,
        )

    @property
    def tls_settings(self) -> Tls | None:
        if not self.tls:
            return None
        return Tls(self.tls_root_file, self.tls_certificate_file, self.tls_key_file, self.tls_server_name)

    @property
    def slices(self) -> int:
        # Spark does not report its parallelism to the Python side of a source.
        return self.read_partitions or os.cpu_count() or 1


def parse_options(given: Mapping[str, str]) -> Options:
    """Parses the options. Raises OptionError for an option that is unknown, missing or invalid."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        option = _BY_NAME.get(name.lower())
        if option is None:
            raise OptionError(_unknown(name))
        try:
            values[option.field] = option.parse(text)
        except ValueError as error:
            shown = "" if option.field == "token" else f", not {text!r}"
            raise OptionError(f"option {option.name} {error}{shown}") from None
    for option in TABLE:
        if option.field not in values:
            if option.default is REQUIRED:
                raise OptionError(f"option {option.name} is missing: {option.meaning}")
            values[option.field] = option.default
    options = Options(**values)
    _check_together(options)
    return options


def _check_together(options: Options) -> None:
    if options.token is not None and options.token_file is not None:
        raise OptionError("set option token or tokenFile, not both")
    if options.token is not None:
        try:
            clean_token(options.token)
        except ValueError as error:
            raise OptionError(f"option token cannot be sent: {error}") from None
    if options.collection is not None and options.database is None:
        raise OptionError("option collection needs option database")
    if not options.tls:
        for option in TABLE:
            if option.name.startswith("tls") and option.name != "tls" and getattr(options, option.field) is not None:
                raise OptionError(f"option {option.name} needs option tls=true")
    if (options.tls_certificate_file is None) != (options.tls_key_file is None):
        raise OptionError("options tlsCertificateFile and tlsKeyFile go together: set both or neither")


def _unknown(name: str) -> str:
    if name == "path":
        return "the format feedmux takes no path: call load() without an argument, and set what to read with options"
    close = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.6)
    hint = f"; did you mean {_BY_NAME[close[0]].name}?" if close else "."
    return f"unknown option {name!r}{hint} The options are {', '.join(option.name for option in TABLE)}"


def markdown_table() -> str:
    """The table as the README shows it."""
    lines = ["| option | default | unit | |", "|---|---|---|---|"]
    lines += [f"| `{each.name}` | {each.shown} | {each.unit} | {each.meaning} |" for each in TABLE]
    return "\n".join(lines)
