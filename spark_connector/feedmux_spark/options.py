"""The options of the format `feedmux`: one table for parsing, validation and documentation.

Spark passes options as text, with names in lower case. A field of `Options` fully describes an option: parsing and the
README's table use `TABLE`, which is made of the fields.
"""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from feedmux.endpoint import checked_endpoint
from feedmux.feeds import Feed, FeedArguments, FullDocument, FullDocumentBeforeChange, ReadPreference
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

    field: str
    """The field's name in `Options`."""
    meaning: str
    parse: Callable[[str], Any]
    default: Any
    """The default as a parsed value; REQUIRED if the option is required, None if it has no default."""
    default_text: str
    """The default as the documentation shows it, if not the value."""
    unit: str
    spark_name: str

    @property
    def name(self) -> str:
        first, *words = self.field.split("_")
        return self.spark_name or first + "".join(map(str.capitalize, words))

    @property
    def shown(self) -> str:
        if self.default_text or self.default is REQUIRED:
            return self.default_text or "required"
        if self.default is None or self.default == ():
            return "none"
        if isinstance(self.default, int) and not isinstance(self.default, bool):
            return f"{self.default:,}"
        return f"`{str(self.default).lower()}`"


def _option(
    meaning: str,
    parse: Callable[[str], Any] = _text,
    default: Any = None,
    *,
    shown: str = "",
    unit: str = "",
    name: str = "",
    secret: bool = False,
) -> Any:
    row = {"meaning": meaning, "parse": parse, "default": default, "default_text": shown, "unit": unit}
    return field(repr=not secret, metadata={**row, "spark_name": name})


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed options of the user. The repr contains no secret."""

    endpoint: str = _option("The address of the feedmux server: `host:port`.", _endpoint, REQUIRED)
    token: str | None = _option(
        "An API key or JWT. Spark redacts an option of this name in plans. Cannot be combined with `tokenFile`.",
        secret=True,
    )
    token_file: str | None = _option(
        "A file with the token, on the driver and on every executor. It is read again for each call, so the token can"
        " be rotated."
    )
    tls: bool = _option(
        "Whether to use TLS. It trusts the system's roots unless `tlsRootFile` is set.", _boolean, False
    )
    tls_root_file: str | None = _option("PEM file of the root certificates to trust.", shown="system's roots")
    tls_certificate_file: str | None = _option("PEM file of the client certificate, for mutual TLS.")
    tls_key_file: str | None = _option("PEM file of the client's private key, for mutual TLS.")
    tls_server_name: str | None = _option(
        "The name to check the server's certificate against.", shown="the endpoint's host"
    )
    source: str = _option("Name of the MongoDB deployment in the server's configuration.", default="main")
    database: str | None = _option("The database to read.", shown="all databases")
    collection: str | None = _option("The collection to read; needs `database`.", shown="all collections")
    pipeline: str | None = _option("Stages after `$changeStream`, as an extended JSON array.", _json_array)
    full_document: FullDocument | None = _option(  # noqa: RUF009
        "As in MongoDB: `default`, `updateLookup`, `whenAvailable`, `required`.", shown="MongoDB's"
    )
    full_document_before_change: FullDocumentBeforeChange | None = _option(  # noqa: RUF009
        "As in MongoDB: `off`, `whenAvailable`, `required`.", shown="MongoDB's"
    )
    show_expanded_events: bool = _option("As in MongoDB: also DDL events, and additional fields.", _boolean, False)
    collation: Mapping[str, Any] | None = _option("As in MongoDB, as a JSON object.", _json_object)
    comment: str | None = _option("A comment for MongoDB's log and profiler.")
    read_preference: ReadPreference | None = _option("As in MongoDB.", shown="the source's")  # noqa: RUF009
    read_concern: str | None = _option("As in MongoDB.", shown="`majority`")
    match_collection_uuid_for_update_lookup: bool = _option(
        "As in MongoDB.", _boolean, False, name="matchCollectionUUIDForUpdateLookup"
    )
    extra_options: tuple[str, ...] = _option(
        "Options of newer MongoDB versions that are true, separated by commas: `showCommitTimestamp`, for example.",
        _names,
        (),
    )
    consumer_name: str | None = _option(
        "Name of the durable subscription that stores the start before the first batch. Use a different name for each"
        " query.",
        shown="required for streams",
    )
    starting_offsets: str | None = _option(
        "Where a batch begins, or a stream without a checkpoint and with a new `consumerName`: `latest`, `earliest`,"
        " an ISO 8601 time with a time zone, or an offset as JSON. Streams of one collection: also `snapshot`, the"
        " existing documents first.",
        shown="`latest`; batch: `earliest`",
    )
    ending_offsets: str = _option(
        "Batches only: where the batch ends, in the same forms as `startingOffsets`.", default="latest"
    )
    max_events_per_trigger: int = _option(
        "Maximum number of events in a micro-batch.", _integer(1, 2**31 - 1), 200_000, unit="events"
    )
    max_bytes_per_trigger: int = _option(
        "Maximum size of a micro-batch as BSON. The event that reaches the maximum still belongs to the micro-batch."
        " The server retains no more than the tenant's quota `retained_bytes`, and ends a micro-batch there.",
        _integer(1, 2**40),
        64 << 20,
        unit="bytes",
    )
    read_partitions: int | None = _option(
        "Number of slices of equal size in bytes into which a micro-batch is divided. One task reads each slice. Set"
        " it to the number of executor cores.",
        _integer(1, 1000),
        shown="cores of the driver's machine",
        unit="tasks",
    )
    fail_on_data_loss: bool = _option(
        "Whether to fail when the position to read from has left MongoDB's oplog. With `false`, reading continues"
        " from the oldest change, and the gap is logged and counted in the offsets.",
        _boolean,
        True,
    )
    on_feed_change: str = _option(
        "Streams only: what to do when a query starts with a pipeline or other feed options that differ from its"
        " checkpoint or its subscription. `fail` fails the query. `update` changes the subscription to the new"
        " options, and reads everything after the checkpoint with them.",
        _one_of("fail", "update"),
        "fail",
    )
    schema_mode: str = _option(
        "What a row contains: `envelope`, `json`, or `typed` with your own schema.",
        _one_of("envelope", "json", "typed"),
        "envelope",
    )
    on_type_mismatch: str = _option(
        "`typed` only: what to do when a value does not fit its column: `fail` the query, or make the value `null`.",
        _one_of("fail", "null"),
        "fail",
    )
    poll_timeout_ms: int = _option(
        "How long an idle trigger waits at the server for the first event.", _integer(0, 60_000), 500, unit="ms"
    )
    call_timeout_ms: int = _option(
        "How long the server may take to answer a call, for instance to plan a micro-batch. The limit does not apply"
        " to reading events.",
        _integer(1_000, 600_000),
        30_000,
        unit="ms",
    )
    retry_timeout_ms: int = _option(
        "How long a running query retries while the server, MongoDB or Redis is unavailable, before it fails.",
        _integer(0, 24 * 3600 * 1000),
        300_000,
        unit="ms",
    )

    @property
    def feed(self) -> Feed:
        names = FeedArguments.__annotations__.keys() & {option.field for option in TABLE}
        return Feed(**{name: getattr(self, name) for name in names})

    @property
    def tls_settings(self) -> Tls | None:
        if not self.tls:
            return None
        return Tls(self.tls_root_file, self.tls_certificate_file, self.tls_key_file, self.tls_server_name)

    @property
    def slices(self) -> int:
        # Spark does not report its parallelism to the Python side of a source.
        return self.read_partitions or os.cpu_count() or 1


TABLE: Final = tuple(Option(each.name, **each.metadata) for each in fields(Options))
_BY_NAME: Final = {option.name.lower(): option for option in TABLE}


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
