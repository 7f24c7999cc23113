"""Arguments that describe a feed and a start, as users type them: `DB.COLL`, `--pipeline`, `--start`."""

import argparse
import base64
import binascii
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from bson.timestamp import Timestamp

from feedmux.cli.typed_json import parse
from feedmux.feeds import Feed, Start

START_HELP = (
    "where to begin: latest, earliest, snapshot (the documents that exist, then every change), a time"
    " (2026-11-21T10:00:00Z; without a zone UTC), how long ago (90s, 15m, 2h, 7d), a cluster time"
    " (SECONDS:INCREMENT), a resume token (hex or JSON), or a position of feedmux"
)
FULL_DOCUMENT = ("default", "updateLookup", "whenAvailable", "required")
FULL_DOCUMENT_BEFORE_CHANGE = ("off", "whenAvailable", "required")
POSITION_FIRST_BYTE = 0xF2
_TOKEN_FIRST_BYTE = 0x82
_TOKEN_BYTES_MIN = 15
"""Of a high-water mark; every other token is longer."""
_AGO = re.compile(r"(\d{1,9})([smhd])")
_AGO_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_CLUSTER_TIME = re.compile(r"(\d{9,10}):(\d{1,10})")
_BARE_NUMBER = re.compile(r"\d{9,16}")
_NAME_MAX = 256
_FILE_BYTES: Final = 1 << 20
"""The most of a file that is read as a pipeline; the server takes less."""
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")


def add_feed_arguments(parser: argparse.ArgumentParser, *, optional: bool = True) -> None:
    """Add DB[.COLL] and the options that shape the events."""
    if optional:
        parser.add_argument(
            "namespace", metavar="DB[.COLL]", nargs="?", type=namespace, default=(None, None),
            help="a database or a collection, split at the first dot; without it, the whole deployment",
        )  # fmt: skip
    group = parser.add_argument_group("feed")
    group.add_argument(
        "--pipeline",
        metavar="JSON",
        type=pipeline,
        help="stages that MongoDB runs, as an extended JSON array; @FILE reads them from a file",
    )
    group.add_argument(
        "--full-document",
        metavar="MODE",
        choices=FULL_DOCUMENT,
        help="add the full document to updates: updateLookup, whenAvailable or required",
    )
    group.add_argument(
        "--full-document-before-change",
        metavar="MODE",
        choices=FULL_DOCUMENT_BEFORE_CHANGE,
        help="add the document before the change: whenAvailable or required",
    )
    group.add_argument(
        "--show-expanded-events", action="store_true", help="also deliver DDL events (MongoDB 6.0 and later)"
    )
    group.add_argument(
        "--extra-option",
        metavar="NAME",
        action="append",
        default=[],
        dest="extra_options",
        help="an option of $changeStream that newer MongoDB knows, such as showCommitTimestamp; may be repeated",
    )


def feed_of(args: argparse.Namespace) -> Feed:
    """Return the feed that the arguments describe."""
    database, collection = args.namespace
    return Feed(
        database,
        collection,
        args.pipeline,
        full_document=args.full_document,
        full_document_before_change=args.full_document_before_change,
        show_expanded_events=args.show_expanded_events,
        extra_options=args.extra_options,
        source=args.source,
    )


def namespace(text: str) -> tuple[str | None, str | None]:
    """Parse `DB`, or `DB.COLL` split at the first dot; `*` is the whole deployment."""
    if text == "*":
        return None, None
    if text.startswith("[") or "[." in text:
        raise argparse.ArgumentTypeError(f"{text!r}: the brackets in DB[.COLL] mark an optional part; leave them out")
    database, dot, collection = text.partition(".")
    if not database or (dot and not collection):
        raise argparse.ArgumentTypeError(f"{text!r} is not DB or DB.COLL")
    return database, collection or None


def scope_name(feed: Feed) -> str:
    """Return the feed's scope as `*`, `db` or `db.collection`."""
    if feed.database is None:
        return "*"
    return f"{feed.database}.{feed.collection}" if feed.collection else feed.database


def pipeline(text: str) -> str:
    """Parse extended JSON, or @FILE with it, and check that it is an array; the server checks the stages."""
    origin, hint = "", ""
    if text.startswith("@"):
        origin = f"{text[1:]} is "
        try:
            with Path(text[1:]).open("rb") as file:  # also a pipe: @<(command)
                content = file.read(_FILE_BYTES + 1)
            if len(content) > _FILE_BYTES:
                raise argparse.ArgumentTypeError(f"{text[1:]} is larger than {_FILE_BYTES >> 10} KiB")
            text = content.decode("utf-8-sig")
        except OSError as error:
            raise argparse.ArgumentTypeError(f"{text[1:]} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise argparse.ArgumentTypeError(f"{text[1:]} is not UTF-8") from None
    elif len(text) < _NAME_MAX and Path(text).is_file():
        hint = f"; to read the file, write @{text}"
    try:
        text.encode()
        stages = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise argparse.ArgumentTypeError(f"{origin}not JSON: {error.msg} ({where}){hint}") from None
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("not UTF-8") from None
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"{origin}nested too deeply, or has a number with too many digits") from None
    if not isinstance(stages, list):
        raise argparse.ArgumentTypeError('expected an array of stages: [{"$match": {…}}]')
    return text


def start(text: str) -> Start:
    """Parse a start in any of the notations of START_HELP."""
    if text in ("latest", "now"):
        return Start.latest()
    if text == "earliest":
        return Start.earliest()
    if text == "snapshot":
        return Start.snapshot()
    if found := _AGO.fullmatch(text):
        try:
            return Start.at_time(datetime.now(UTC) - timedelta(**{_AGO_UNITS[found[2]]: int(found[1])}))
        except (OverflowError, ValueError):
            raise argparse.ArgumentTypeError(f"{text!r} is too long ago") from None
    if found := _CLUSTER_TIME.fullmatch(text):
        try:
            return Start.operation_time(Timestamp(int(found[1]), int(found[2])))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a cluster time") from None
    if _BARE_NUMBER.fullmatch(text):  # Python would read 1711011512345 as a date
        raise argparse.ArgumentTypeError(f"{text!r}: write seconds since 1970 as SECONDS:1, or as a time")
    try:
        return Start.at_time(datetime.fromisoformat(text))
    except (ValueError, OverflowError, OSError):
        pass
    place = place_of(
        text,
        "a time (2026-11-21T10:00:00Z), how long ago (15m), earliest, latest, snapshot, a resume token or a position",
    )
    return Start.position(place) if isinstance(place, bytes) else Start.start_after(place)


def place_of(text: str, wanted: str = "a resume token or a position") -> bytes | dict[str, Any]:
    """Parse a position into bytes, or a resume token into its document. Raises ArgumentTypeError."""
    text = text.strip()
    if text.startswith("{"):
        try:
            document = parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"not a resume token: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("_data"), str):
            raise argparse.ArgumentTypeError('a resume token in JSON is {"_data": "82…"}')
        return document
    if _HEX.fullmatch(text):
        data = bytes.fromhex(text)
        if data[0] == _TOKEN_FIRST_BYTE and len(data) >= _TOKEN_BYTES_MIN:
            return {"_data": text.upper()}
    else:
        data = _from_base64(text)
    if data[:1] != bytes([POSITION_FIRST_BYTE]):
        raise argparse.ArgumentTypeError(f"{_short(text)!r} is not {wanted}")
    return data


def position_text(position: bytes) -> str:
    """Return a position as the commands print and accept it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(position).decode().rstrip("=")


def _from_base64(text: str) -> bytes:
    usual = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(usual + "=" * (-len(usual) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
