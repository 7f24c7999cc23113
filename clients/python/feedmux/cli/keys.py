"""`feedmux keys new`: a new API key, and what the server is told of it: only the hash."""

import argparse
import hashlib
import json
import secrets
import sys
from dataclasses import dataclass

from feedmux.cli.connection import add_json_option
from feedmux.cli.terminal import Terminal, print_json

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
    new = actions.add_parser("new", help="make a key", description="Makes a key.", allow_abbrev=False)
    new.add_argument("--tenant", metavar="NAME", default="my-team", help="the name for the line of the tenants file")
    add_json_option(new)


def run(args: argparse.Namespace) -> int:
    made = new_key()
    entry = f'- {{name: {json.dumps(args.tenant)}, api_key_hashes: ["{made.sha256}"]}}'
    if args.json:
        print_json({"key": made.key, "sha256": made.sha256, "tenants_entry": entry})
        return 0
    terminal = Terminal(sys.stdout)
    print(f"{terminal.paint('key', 'dim')}     {terminal.paint(made.key, 'bold')}")
    print(f"{terminal.paint('sha256', 'dim')}  {made.sha256}")
    print(
        "\nThe key is shown this once; give it to the client (FEEDMUX_API_KEY). The server knows its hash only, in the"
        "\nfile that `tenants_file` names (YAML):\n"
        f"\ntenants:\n  {entry}\n"
        f'\nor, for an operator, in the configuration: operator_key_hashes = ["{made.sha256}"]'
    )
    return 0
