"""`feedmux dead-letters`: list, show, discard, replay."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import feedmux
from feedmux.cli.connection import Action, add_action, run_action
from feedmux.cli.failure import UsageError
from feedmux.cli.terminal import Painted, Terminal, iso_time, plain, print_json, say, size, table, utc_time
from feedmux.cli.typed_json import parse, shown

_REASON_CHARS = 60

run = run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    _add_key(_add(actions, "list", "list the dead letters of a group, in the order in which they failed", _list))

    show = _add(actions, "show", "show dead letters with their events", _show)
    _add_ids(show)
    _add_key(show)

    discard = _add(actions, "discard", "delete dead letters", _discard)
    _add_ids(discard)
    _add_key(discard)
    discard.add_argument("--all", action="store_true", help="all letters of the subscription")

    replay = _add(actions, "replay", "deliver dead letters again, to the members of the group", _replay)
    _add_ids(replay)
    _add_key(replay)
    replay.add_argument("--all", action="store_true", help="all letters of the subscription")


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, act: Action
) -> argparse.ArgumentParser:
    parser = add_action(actions, name, summary, act)
    parser.add_argument("name", metavar="NAME", help="the subscription")
    return parser


def _add_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--id", metavar="ID", dest="ids", action="append", type=_id, help="a letter, as `list` prints it; repeatable"
    )


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        metavar="JSON",
        type=_key,
        help="the letters of a documentKey, as Extended JSON: a document, or the value of its _id",
    )


def _id(text: str) -> str:
    try:
        return bytes.fromhex(text).hex()
    except ValueError:
        raise argparse.ArgumentTypeError("must be an id as `feedmux dead-letters list` prints it") from None


def _key(text: str) -> dict[str, Any]:
    try:
        value = parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'must be Extended JSON, such as {{"_id": 5}} or "a text": {error}') from None
    return value if isinstance(value, dict) else {"_id": value}


def _list(client: feedmux.Client, args: argparse.Namespace) -> int:
    found = list(client.dead_letters(args.name).list(key=args.key))
    if args.json:
        print_json({"dead_letters": [as_json(each) for each in found]})
        return 0
    if not found:
        say("No dead letters.")
        return 0
    rows = [
        (
            each.id,
            "withheld" if each.withheld else _key_text(each),
            utc_time(each.fail_time.timestamp()),
            each.attempts,
            size(each.event_bytes),
            each.reasons[-1][:_REASON_CHARS] if each.reasons else "-",
        )
        for each in found
    ]
    say(table(Terminal(sys.stdout), ("ID", "KEY", "FAILED", "ATTEMPTS", "SIZE", "LAST REASON"), rows))
    return 0


def _show(client: feedmux.Client, args: argparse.Namespace) -> int:
    letters = client.dead_letters(args.name)
    if (args.ids is None) == (args.key is None):
        raise UsageError("give either --id or --key")
    ids = args.ids or [each.id for each in letters.list(key=args.key)]
    terminal = Terminal(sys.stdout)
    for number, each in enumerate(map(letters.get, ids)):
        if args.json:
            print_json(as_json(each))
            continue
        facts = {
            "id": each.id,
            "key": _key_text(each),
            "failed": iso_time(each.fail_time),
            "expires": iso_time(each.expire_time),
            "attempts": each.attempts,
            "member": each.member,
            **{f"reason {place}": reason for place, reason in enumerate(each.reasons, 1)},
            "event": "withheld: the subscription has another feed, or other grants" if each.withheld else "",
        }
        say(end="\n" if number else "")
        for name, value in facts.items():
            say(terminal.paint(name.ljust(10), "dim"), plain(value))
        if each.raw:
            say(Painted("\n".join(map(plain, json.dumps(shown(each.raw), indent=2, ensure_ascii=False).split("\n")))))
    return 0


def _check_which(args: argparse.Namespace) -> None:
    if (args.ids is not None) + (args.key is not None) + args.all != 1:
        raise UsageError("give either --id, or --key, or --all")


def _discard(client: feedmux.Client, args: argparse.Namespace) -> int:
    _check_which(args)
    count = client.dead_letters(args.name).discard(args.ids, key=args.key, everything=args.all)
    if args.json:
        print_json({"discarded": count})
    else:
        say(f"{count} dead letter{'' if count == 1 else 's'} discarded.")
    return 0


def _replay(client: feedmux.Client, args: argparse.Namespace) -> int:
    _check_which(args)
    found = client.dead_letters(args.name).replay(args.ids, key=args.key, everything=args.all)
    if args.json:
        print_json({"chosen": found.chosen, "withheld": found.withheld})
        return 0
    say(f"{found.chosen} dead letter{'' if found.chosen == 1 else 's'} will be delivered again.")
    if found.withheld:
        say(f"{found.withheld} withheld: the subscription has another feed, or other grants.")
    return 0


def as_json(letter: feedmux.DeadLetter) -> dict[str, Any]:
    """Return a letter as --json prints it, its documents in relaxed Extended JSON."""
    return {
        "id": letter.id,
        "key": shown(letter.raw_key) if letter.raw_key else None,
        "fail_time": iso_time(letter.fail_time),
        "expire_time": iso_time(letter.expire_time),
        "cluster_time": f"{letter.cluster_time.time}:{letter.cluster_time.inc}",
        "attempts": letter.attempts,
        "reasons": list(letter.reasons),
        "member": letter.member,
        "event_bytes": letter.event_bytes,
        "withheld": letter.withheld,
        **({"event": shown(letter.raw)} if letter.raw else {}),
    }


def _key_text(letter: feedmux.DeadLetter) -> str:
    return json.dumps(shown(letter.raw_key), ensure_ascii=False) if letter.raw_key else "-"
