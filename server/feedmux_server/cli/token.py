"""`feedmux token decode`: shows the content of a resume token, also of the one inside a feedmux position."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

import bson
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion

from feedmux.cli.connection import add_json_option
from feedmux.cli.event_line import value_text
from feedmux.cli.failure import CliError
from feedmux.cli.feed_arguments import place_of
from feedmux.cli.terminal import Terminal, print_json, say
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import Copied, TokenDescription, UnknownTokenLayout, describe

_ANY_DATE = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_AUTO)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    decode = actions.add_parser(
        "decode",
        help="show the content of a token",
        description="Shows the content of a token. It does not verify a position: only the servers of the deployment"
        " that made it have the key.",
    )
    decode.add_argument(
        "token",
        metavar="TOKEN",
        help='hex (82…), JSON ({"_data": "82…"}), or a position of feedmux (base64 or hex); - reads standard input',
    )
    add_json_option(decode)


def run(args: argparse.Namespace) -> int:
    text = sys.stdin.read() if args.token == "-" else args.token
    try:
        kind, facts, copied = _describe(text)
    except (UnknownTokenLayout, argparse.ArgumentTypeError) as error:
        raise CliError(
            f"not a readable token or position: {error}", 'A token looks like 82… in hex, or {"_data": "82…"}.'
        ) from None
    except FeedmuxError as error:
        raise CliError(error.message) from None
    if args.json:
        shown = {"kind": kind, **({"verified": False} if kind == "position" else {}), **_as_json(facts)}
        print_json(shown if copied is None else {**shown, "copied": _copied_as_json(copied)})
    else:
        _show(kind, facts, copied)
    return 0


def _describe(text: str) -> tuple[str, TokenDescription, Copied | None]:
    place = place_of(text)
    if isinstance(place, bytes):
        token = inspect_position(place).token
        return "position", describe(token.raw), token.copied
    return "resume token", describe(bson.encode(place)), None


def _last_id(copied: Copied) -> dict[str, Any] | None:
    """The `_id` of the last copied document, as `{_id: …}`; None before the first, and for what is no document."""
    try:
        return bson.decode(copied.up_to, _ANY_DATE) if copied.up_to else None
    except Exception:  # noqa: BLE001 - bson raises several kinds, for any malformed bytes
        return None


def _copied_as_json(copied: Copied) -> dict[str, Any]:
    return {
        "documents": copied.documents,
        "up_to": json.loads(json_util.dumps(_last_id(copied))),
        "namespace": f"{copied.database}.{copied.collection}" if copied.collection else "",
        "generation": copied.generation,
    }


def _as_json(facts: TokenDescription) -> dict[str, Any]:
    said = asdict(facts)
    if facts.event_identifier is not None:
        said["event_identifier"] = json.loads(json_util.dumps(facts.event_identifier))
    return said


def _show(kind: str, facts: TokenDescription, copied: Copied | None) -> None:
    terminal = Terminal(sys.stdout)
    shown: dict[str, object] = {
        "kind": f"{kind} (not verified)" if kind == "position" else kind,
        "cluster time": f"{facts.time}, increment {facts.cluster_time_increment}"
        f" (Timestamp({facts.cluster_time_seconds}, {facts.cluster_time_increment}))",
        "type": facts.token_type,
        "version": facts.version,
        "transaction index": facts.transaction_index,
        "from invalidate": "yes" if facts.from_invalidate else "no",
    }
    if facts.collection_uuid is not None:
        shown["collection uuid"] = facts.collection_uuid
    if facts.event_identifier is not None:
        shown["event"] = value_text(facts.event_identifier)
    if facts.fragment is not None:
        shown["fragment"] = facts.fragment
    if facts.undecoded:
        shown["undecoded"] = facts.undecoded
    if copied is not None:
        last = _last_id(copied)
        shown["copied"] = f"{copied.documents} documents" + (f", the last one {value_text(last)}" if last else "")
        if copied.collection:
            shown["copied of"] = f"{copied.database}.{copied.collection}"
        shown["generation"] = copied.generation
    for name, value in shown.items():
        say(terminal.paint(name.ljust(17), "dim"), value)
