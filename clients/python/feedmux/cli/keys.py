"""`feedmux keys new`: a new API key, and what the server is told of it: only the hash."""

import argparse
import hashlib
import json
import secrets
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

from feedmux.cli.connection import add_json_option
from feedmux.cli.terminal import Terminal, iso_time, print_json

_PREFIX = "fmx_"
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key, and its hash as the server's configuration holds it."""

    key: str
    sha256: str


def new_key() -> NewKey:
    """256 random bits; so many that a plain hash cannot be searched."""
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return NewKey(key, hashlib.sha256(key.encode()).hexdigest())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    new = actions.add_parser("new", help="make a key", description="Makes a key.")
    new.add_argument("--tenant", metavar="NAME", default="my-team", help="the name for the line of the tenants file")
    new.add_argument("--label", metavar="TEXT", default="", help="what the key is for, to know it when it is replaced")
    new.add_argument("--expires", metavar="TIME", type=_time, help="2027-01-31 or 2027-01-31T12:00:00Z (UTC)")
    add_json_option(new)


def run(args: argparse.Namespace) -> int:
    made = new_key()
    facts = {"sha256": made.sha256}
    if args.label:
        facts["label"] = args.label
    if args.expires:
        facts["expires"] = iso_time(args.expires) or ""
    # JSON is YAML: quoted, whatever is in a label.
    key_entry = json.dumps(facts, ensure_ascii=False)
    entry = f"- {{name: {json.dumps(args.tenant)}, api_keys: [{key_entry}]}}"
    if args.json:
        print_json({"key": made.key, "sha256": made.sha256, "key_entry": facts, "tenants_entry": entry})
        return 0
    terminal = Terminal(sys.stdout)
    print(f"{terminal.paint('key', 'dim')}     {terminal.paint(made.key, 'bold')}")
    print(f"{terminal.paint('sha256', 'dim')}  {made.sha256}")
    print(
        "\nThe key is shown this once; give it to the client (FEEDMUX_API_KEY). The server knows its hash only, in the"
        "\nfile that `tenants_file` names (YAML), which it reads again when it changes:\n"
        f"\ntenants:\n  - name: {json.dumps(args.tenant)}\n    api_keys:\n      - {key_entry}\n"
        f'\nor, for an operator, in the configuration: operator_key_hashes = ["{made.sha256}"]'
    )
    return 0


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2027-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
