"""`feedmux keys new`: makes an API key, and the entry for the server's tenants file, which holds only its hash."""

import argparse
import hashlib
import json
import secrets
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from feedmux.cli.connection import add_json_option
from feedmux.cli.failure import CliError
from feedmux.cli.terminal import Terminal, iso_time, print_json

_PREFIX = "fmx_"
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key, and its hash as the server's configuration holds it."""

    key: str
    sha256: str


def new_key() -> NewKey:
    """Return a key of 256 random bits: too many to find the key from a plain hash by trying."""
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return NewKey(key, hashlib.sha256(key.encode()).hexdigest())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    new = actions.add_parser("new", help="make an API key", description="Makes an API key.")
    new.add_argument(
        "--tenant", metavar="NAME", default="my-team", help="the tenant's name in the printed tenants entry"
    )
    new.add_argument("--label", metavar="TEXT", default="", help="what the key is for, to recognize it later")
    new.add_argument(
        "--expires", metavar="TIME", type=_time, help="when the key expires: 2027-01-31 or 2027-01-31T12:00:00Z (UTC)"
    )
    output = new.add_mutually_exclusive_group()
    output.add_argument(
        "--create",
        metavar="FILE",
        type=Path,
        help="write the tenants file FILE with the key; make no key if FILE exists",
    )
    add_json_option(output)


def run(args: argparse.Namespace) -> int:
    made = new_key()
    facts = {"sha256": made.sha256}
    if args.label:
        facts["label"] = args.label
    if args.expires:
        facts["expires"] = iso_time(args.expires) or ""
    # JSON is valid YAML, and quotes any label safely.
    key_entry = json.dumps(facts, ensure_ascii=False)
    entry = f"- {{name: {json.dumps(args.tenant)}, api_keys: [{key_entry}]}}"
    if args.json:
        print_json({"key": made.key, "sha256": made.sha256, "key_entry": facts, "tenants_entry": entry})
        return 0
    content = f"tenants:\n  - name: {json.dumps(args.tenant)}\n    api_keys:\n      - {key_entry}\n"
    if args.create and not _create(args.create, content):
        print(f"{args.create} exists. No key was made.")
        return 0
    terminal = Terminal(sys.stdout)
    print(f"{terminal.paint('key', 'dim')}     {terminal.paint(made.key, 'bold')}")
    print(f"{terminal.paint('sha256', 'dim')}  {made.sha256}")
    if args.create:
        print(
            f"\n{args.create} now has the tenant {args.tenant} with the hash. The key is shown only once. Use it:\n"
            f"\n  FEEDMUX_API_KEY={made.key} feedmux watch shop.orders"
        )
        return 0
    print(
        "\nThe key is shown only once; give it to the client (FEEDMUX_API_KEY). The server needs only its hash. Add it"
        "\nto the YAML file that `tenants_file` names; the server reloads that file when it changes:\n"
        f"\n{content}"
        f'\nor, for an operator, in the configuration: operator_key_hashes = ["{made.sha256}"]'
    )
    return 0


def _create(file: Path, content: str) -> bool:
    """Write a new file. Return False if the file exists."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(content)
    except FileExistsError:
        return False
    except OSError as error:
        raise CliError(
            f"cannot write {file} ({error.strerror})", "Name a file in a folder that you may write."
        ) from None
    return True


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2027-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
