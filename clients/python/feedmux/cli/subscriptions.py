"""`feedmux subscriptions`: list, create, get, update, seek, delete."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, fields, replace
from typing import Any

import feedmux
from feedmux.cli.connection import add_action, run_action
from feedmux.cli.copy_bar import CopyBar, copy_json, copy_text
from feedmux.cli.event_output import note_if_missing, remark
from feedmux.cli.failure import UsageError, cause_of
from feedmux.cli.feed_arguments import (
    FULL_DOCUMENT,
    START_HELP,
    add_feed_arguments,
    feed_of,
    pipeline,
    position_text,
    scope_name,
    start,
)
from feedmux.cli.group_arguments import add_group_options, group_of
from feedmux.cli.terminal import Painted, Terminal, duration, flush, iso_time, plain, print_json, say, table, utc_time
from feedmux.cli.typed_json import shown_definition
from feedmux.feeds import UNCHANGED, Unchanged

_WAIT_S = 2.0
"""How often --wait asks."""

run = run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    add_action(actions, "list", "list all subscriptions of the tenant", _list)
    _name(add_action(actions, "get", "show one subscription", _get))

    create = _name(
        add_action(
            actions, "create", "create a subscription; changes nothing if it exists with the same definition", _create
        )
    )
    add_feed_arguments(create)
    create.add_argument("--start", metavar="POSITION", type=start, help=START_HELP)
    create.add_argument(
        "--wait",
        action="store_true",
        help="with --start snapshot: wait until a client has acknowledged all existing documents, and report how far it"
        " is. This command copies nothing: run `feedmux consume NAME`, or your own program, beside it",
    )
    _add_policies(create)
    add_group_options(create)

    update = _name(
        add_action(actions, "update", "change the filter, the policies or the group; the position stays", _update)
    )
    update.add_argument("--pipeline", metavar="JSON", type=pipeline, help="the new stages; [] removes them")
    update.add_argument(
        "--full-document", metavar="MODE", choices=("", *FULL_DOCUMENT), help="the new mode; an empty one removes it"
    )
    _add_policies(update)
    add_group_options(update, removable=True)

    seek = _name(add_action(actions, "seek", "move the stored position, forwards or backwards", _seek))
    seek.add_argument("to", metavar="POSITION", type=start, help=START_HELP)

    delete = _name(add_action(actions, "delete", "delete a subscription with its stored position", _delete))
    delete.add_argument("--allow-missing", action="store_true", help="succeed even if it does not exist")


def _name(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("name", metavar="NAME", help="the durable subscription")
    return parser


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-invalidate",
        choices=("stop", "continue"),
        help="when the collection is dropped or renamed: stop (default), or continue after that event",
    )
    parser.add_argument(
        "--on-history-lost",
        choices=("fail", "earliest", "snapshot"),
        help="when the position has left the oplog: fail (default), continue from the oldest event, or begin with the"
        " existing documents; the last two with a notice",
    )


def _list(client: feedmux.Client, args: argparse.Namespace) -> int:
    found = list(client.list_subscriptions())
    if args.json:
        print_json({"subscriptions": [as_json(each) for each in found]})
        return 0
    terminal = Terminal(sys.stdout)
    if not found:
        say("No subscriptions yet. Create one: feedmux subscriptions create NAME DB.COLL")
        return 0
    rows = [
        (
            each.name,
            f"{each.feed.source}:{scope_name(each.feed)}",
            _stored(each) + (f", {copy_text(each.snapshot)}" if each.snapshot is not None else ""),
            _open(terminal, each) if each.active else "closed",
            each.epoch,
        )
        for each in found
    ]
    say(table(terminal, ("NAME", "FEED", "STORED POSITION", "SESSION", "EPOCH"), rows))
    return 0


def _open(terminal: Terminal, info: feedmux.SubscriptionInfo) -> str:
    if info.session_state == "unacknowledged":
        return terminal.paint("open, unacknowledged", "yellow")
    return terminal.paint("open", "green")


def _get(client: feedmux.Client, args: argparse.Namespace) -> int:
    return _show(client.get_subscription(args.name), args)


def _create(client: feedmux.Client, args: argparse.Namespace) -> int:
    if args.wait and (args.start is None or args.start.kind != "snapshot"):
        raise UsageError("--wait is for a copy of existing documents: give --start snapshot too")
    group = group_of(args)
    exists = args.start is not None and _exists(client, args.name)
    info = client.create_subscription(
        args.name,
        feed_of(args),
        start=args.start,
        on_invalidate=args.on_invalidate or "stop",
        on_history_lost=args.on_history_lost or "fail",
        group=group,
    )
    note_if_missing(client, info.feed)
    if exists:
        remark(
            f"-- {args.name} exists already: --start changes nothing."
            f" To move it: feedmux subscriptions seek {args.name} POSITION"
        )
    if args.wait:
        info = _copied(client, info, args)
    return _show(info, args)


def _exists(client: feedmux.Client, name: str) -> bool:
    try:
        client.get_subscription(name)
    except feedmux.SubscriptionNotFound:
        return False
    return True


def _copied(
    client: feedmux.Client, info: feedmux.SubscriptionInfo, args: argparse.Namespace
) -> feedmux.SubscriptionInfo:
    """Wait until the stored position is after the copy, and report how far it is."""
    reported: dict[str, Any] = {}
    reachable = True
    if info.snapshot is not None and not info.active:
        remark(f"-- nothing is copied until a client reads it: feedmux consume {args.name}")
    with CopyBar() as bar:
        while info.snapshot is not None:
            bar.show(info.snapshot, "" if info.active else "no client reads it")
            if args.json and (now := as_json(info)) != reported:
                print_json(now)
                flush()
                reported = now
            time.sleep(_WAIT_S)
            try:
                info, reachable = client.get_subscription(args.name), True
            except feedmux.Unavailable as error:  # a restart of the server is no end of a copy of hours
                if reachable:
                    bar.hide()
                    remark(f"-- the server cannot be reached ({cause_of(error)}); trying again")
                reachable = False
    return info


def _update(client: feedmux.Client, args: argparse.Namespace) -> int:
    group_of(args)  # Its mistakes come before the first call.
    if (args.pipeline, args.full_document, args.on_invalidate, args.on_history_lost, args.group) == (None,) * 5:
        raise UsageError(
            "nothing to change: give --pipeline, --full-document, --on-invalidate, --on-history-lost, --group or"
            " --no-group"
        )
    feed, etag = None, ""
    group: feedmux.Group | Unchanged | None = None if args.group is False else UNCHANGED
    if args.pipeline is not None or args.full_document is not None or args.group:
        stored = client.get_subscription(args.name)
        etag = stored.etag
        if args.group:
            group = group_of(args, stored.group)
        if args.pipeline is not None or args.full_document is not None:
            feed = stored.feed
    if feed is not None:
        if args.pipeline is not None:
            feed = replace(feed, pipeline=args.pipeline)
        if args.full_document is not None:
            feed = replace(feed, full_document=args.full_document or None)
    info = client.update_subscription(
        args.name,
        feed=feed,
        on_invalidate=args.on_invalidate,
        on_history_lost=args.on_history_lost,
        group=group,
        etag=etag,
    )
    return _show(info, args)


def _seek(client: feedmux.Client, args: argparse.Namespace) -> int:
    return _show(client.seek_subscription(args.name, args.to), args)


def _delete(client: feedmux.Client, args: argparse.Namespace) -> int:
    client.delete_subscription(args.name, allow_missing=args.allow_missing)
    if args.json:
        print_json({"deleted": args.name})
    else:
        say(f"{args.name} is deleted.")
    return 0


def _show(info: feedmux.SubscriptionInfo, args: argparse.Namespace) -> int:
    if args.json:
        print_json(as_json(info))
        return 0
    terminal = Terminal(sys.stdout)
    facts = as_json(info)
    shown = {
        "name": info.name,
        "feed": f"{info.feed.source}:{scope_name(info.feed)}",
        **{
            name.replace("_", " "): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in facts["feed"].items()
            if name not in _SCOPE
        },
        "on invalidate": info.on_invalidate,
        "on history lost": info.on_history_lost,
        "stored position": _stored(info),
        **({"snapshot": copy_text(info.snapshot)} if info.snapshot is not None else {}),
        "position": facts["position"],
        "session": f"open, epoch {info.epoch}, owner {info.owner}" if info.active else f"closed, epoch {info.epoch}",
        **({"state": _state(info)} if info.active and info.session_state else {}),
        "created": facts["create_time"],
        "updated": facts["update_time"],
        **({"expires": facts["expire_time"]} if info.expire_time else {}),
        **({"group": _group_text(info.group)} if info.group is not None else {}),
    }
    for name, value in shown.items():
        lines = map(plain, str(value).splitlines())  # A pipeline may have several.
        say(terminal.paint(name.ljust(16), "dim"), Painted("\n".join(lines)))
    return 0


_SCOPE = ("source", "database", "collection")
_TYPED = ("pipeline", "collation", "comment")


def as_json(info: feedmux.SubscriptionInfo) -> dict[str, Any]:
    """Return a subscription as --json prints it; unset options of the feed are left out."""
    stored = info.cluster_time
    left_out = {name for name in ("snapshot", "group") if getattr(info, name) is None}
    shown = asdict(info) | {
        "feed": _feed_json(info.feed),
        "position": position_text(info.position),
        "cluster_time": f"{stored.time}:{stored.inc}" if stored else None,
        **{name: iso_time(getattr(info, name)) for name in ("create_time", "update_time", "expire_time")},
        "snapshot": info.snapshot and copy_json(info.snapshot),
        "group": info.group and _set_options(info.group),
    }
    return {name: value for name, value in shown.items() if name not in left_out}


def _feed_json(feed: feedmux.Feed) -> dict[str, Any]:
    """Return the options that are set, with the pipeline as `--pipeline` takes it."""
    values = {each.name: getattr(feed, each.name) for each in fields(feed)}
    options = {name: values[name] for name in _TYPED if values[name] is not None and not isinstance(values[name], str)}
    typed = shown_definition(options)
    return {
        each.name: typed.get(each.name, values[each.name])
        for each in fields(feed)
        if each.name == "source" or values[each.name] != each.default
    }


def _state(info: feedmux.SubscriptionInfo) -> str:
    """Return what the open session does."""
    if info.session_state == "unacknowledged":
        return f"gets no more events until its client acknowledges some of {info.unacked_events:,}"
    return f"{info.session_state.replace('_', ' ')}, {info.unacked_events:,} events not acknowledged"


def _set_options(group: feedmux.Group) -> dict[str, Any]:
    return {name: value for name, value in asdict(group).items() if value or (value == 0.0 and name != "attempts_max")}


def _group_text(group: feedmux.Group) -> str:
    options = _set_options(group).items()
    return ", ".join(f"{name.removesuffix('_s').replace('_', ' ')} {value}" for name, value in options) or "yes"


def _stored(info: feedmux.SubscriptionInfo) -> str:
    if info.cluster_time is None:
        return "-"
    at_s = info.cluster_time.time
    return f"{utc_time(at_s)} ({duration(max(0.0, time.time() - at_s))} ago)"
