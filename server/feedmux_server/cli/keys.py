"""`feedmux keys new`: makes an API key, and the entry for the server's tenants file, which holds only its hash."""

import argparse
import hashlib
import json
import os
import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from feedmux.cli.connection import add_json_option
from feedmux.cli.failure import CliError, UsageError
from feedmux.cli.terminal import Painted, Terminal, iso_time, plain, print_json, say, silence_stdout

_PREFIX = "fmx_"
_KEY_BYTES = 32
_LABEL_CHARACTERS_MAX = 120
"""As the tenants file has it."""


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
        "--tenant",
        metavar="NAME",
        type=_tenant,
        default="my-team",
        help="the tenant's name in the printed tenants entry",
    )
    new.add_argument(
        "--label", metavar="TEXT", type=_label, default="", help="what the key is for, to recognize it later"
    )
    new.add_argument(
        "--expires", metavar="TIME", type=_time, help="when the key expires: 2027-01-31 or 2027-01-31T12:00:00Z (UTC)"
    )
    output = new.add_mutually_exclusive_group()
    output.add_argument(
        "--create",
        metavar="FILE",
        type=Path,
        help="write the tenants file FILE with the key; make no key if there is one",
    )
    add_json_option(output)


def run(args: argparse.Namespace) -> int:
    if args.create and _exists(args.create):
        say(f"{args.create} exists. No key was made.")
        return 0
    made = new_key()
    facts = {"sha256": made.sha256}
    if args.label:
        facts["label"] = args.label
    if args.expires:
        facts["expires"] = iso_time(args.expires) or ""
    # JSON is valid YAML, and quotes any label safely; control characters that JSON allows are escaped for YAML, which
    # has no pairs of escapes for one character.
    key_entry = "".join(
        each if each.isprintable() else f"\\u{ord(each):04x}" if ord(each) < 0x10000 else f"\\U{ord(each):08x}"
        for each in json.dumps(facts, ensure_ascii=False)
    )
    entry = f"- {{name: {json.dumps(args.tenant)}, api_keys: [{key_entry}]}}"
    if args.json:
        print_json({"key": made.key, "sha256": made.sha256, "key_entry": facts, "tenants_entry": entry})
        return 0
    content = f"tenants:\n  - name: {json.dumps(args.tenant)}\n    api_keys:\n      - {key_entry}\n"
    if args.create:
        _create(args.create, content, made)
        say()
        say(f"{args.create} now has the tenant {args.tenant} with the hash. The key is shown only once. Use it:")
        say()
        say(f"  FEEDMUX_API_KEY={made.key} feedmux watch shop.orders")
        return 0
    _print_key(made)
    text = (
        "\nThe key is shown only once; give it to the client (FEEDMUX_API_KEY). The server needs only its hash. Add it"
        "\nto the YAML file that `tenants_file` names; the server reloads that file when it changes:\n"
        f"\n{content}"
        f'\nor, for an operator, in the configuration: operator_key_hashes = ["{made.sha256}"]'
    )
    say(Painted("\n".join(map(plain, text.split("\n")))))
    return 0


def _print_key(made: NewKey) -> None:
    terminal = Terminal(sys.stdout)
    say(terminal.paint("key   ", "dim"), "", terminal.paint(made.key, "bold"))
    say(terminal.paint("sha256", "dim"), "", made.sha256, flush=True)


def _exists(file: Path) -> bool:
    """Return whether there is a tenants file. Raises CliError if there is anything else, or one cannot be made."""
    if file.suffix == ".toml":
        raise UsageError("--create writes YAML, and feedmux reads a file whose name ends in .toml as TOML")
    if not os.path.lexists(file):  # a link whose file is missing exists, too
        return False
    try:
        # Whether all of it can be used, `feedmux tenants check` says, with packages that this command does not need.
        if file.is_file() and b"tenants" in file.read_bytes():
            return True
        reason = "it is no tenants file"
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
    raise CliError(f"{file} exists, but {reason}. No key was made.", "Remove it, or name another file.")


def _create(file: Path, content: str, made: NewKey) -> None:
    """Print the key, and write a new file with its hash. Raises CliError.

    Without the key the file would be of no use, and the next run would make no other one. So the file gets its name
    when the key is printed and the file is complete.
    """
    if _goes_nowhere(sys.stdout):
        raise CliError(
            "standard output is closed or the null device, so nobody would get the key. No key was made.",
            "Run the command with another standard output.",
        )
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    failure = f"cannot write {file}"
    try:
        with draft.open("x", encoding="utf-8") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            _print_key(made)
        except OSError as error:
            silence_stdout()
            raise CliError(
                f"the key cannot be printed ({error.strerror}), so {file} was not written",
                "Run the command with another standard output.",
            ) from None
        failure = f"the printed key is of no use: {failure}"
        os.link(draft, file)  # replaces no file, unlike a rename
    except OSError as error:
        raise CliError(f"{failure} ({error.strerror})", "Name a file in a folder that you may write.") from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _goes_nowhere(stream: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), Path(os.devnull).stat())
    except (OSError, ValueError):
        return False


def _tenant(text: str) -> str:
    from feedmux_server.core.errors import FeedmuxError
    from feedmux_server.core.feeds.names import check_name

    try:
        check_name("it", text)
    except FeedmuxError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a tenant: {error}") from None
    return text


def _label(text: str) -> str:
    if len(text) > _LABEL_CHARACTERS_MAX:
        raise argparse.ArgumentTypeError(f"it has more than {_LABEL_CHARACTERS_MAX} characters")
    return text


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # a time in the year 1 or 9999 may have none in UTC
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2027-01-31T12:00:00Z") from None
