"""The options of a group, for the commands that create or change subscriptions."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import feedmux
from feedmux.cli.event_output import count
from feedmux.cli.failure import UsageError

_FIELDS = ("reconnect_time_s", "retry_first_s", "retry_most_s", "attempts_max", "after_dead_letter")


def add_group_options(parser: argparse.ArgumentParser, *, removable: bool = False) -> None:
    """Add --group and the options that require it; with `removable`, also --no-group."""
    group = parser.add_argument_group("a group, whose members share the events in order per key")
    group.add_argument(
        "--group",
        action=argparse.BooleanOptionalAction if removable else "store_true",
        help="make the subscription a group" + (", or with --no-group an ordinary one again" if removable else ""),
    )
    for name, summary in (
        ("reconnect-time", "how long a member without a connection keeps its events, 0 to 60 (default 5)"),
        ("retry-first", "the first delay before a failed event is delivered again"),
        ("retry-most", "the longest delay before a failed event is delivered again"),
    ):
        dest = name.replace("-", "_") + "_s"
        group.add_argument(f"--{name}", metavar="SECONDS", dest=dest, type=seconds, help=f"with --group: {summary}")
    group.add_argument(
        "--attempts",
        metavar="N",
        dest="attempts_max",
        type=count,
        help="with --group: how often an event is delivered before it becomes a dead letter",
    )
    after = group.add_mutually_exclusive_group()
    after.add_argument(
        "--after-dead-letter",
        choices=("skip", "quarantine"),
        help="with --group: deliver the later events of its key, or make them dead letters too",
    )
    after.add_argument(
        "--quarantine",
        action="store_const",
        const="quarantine",
        dest="after_dead_letter",
        help="with --group: --after-dead-letter quarantine",
    )


def group_of(args: argparse.Namespace, stored: feedmux.Group | None = None) -> feedmux.Group | None:
    """Return the group that the options describe, with what they leave out from the stored one; None for no group.
    Raises UsageError."""
    given = {name: getattr(args, name) for name in _FIELDS if getattr(args, name) is not None}
    if args.group:
        return replace(stored or feedmux.Group(), **given)
    if given:
        names = {"attempts_max": "attempts"}
        option = next(iter(given))
        raise UsageError(f"--{names.get(option, option.removesuffix('_s')).replace('_', '-')} requires --group")
    return None


def seconds(text: str) -> float:
    """Parse an argument that is a number of seconds, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError("must be a number of seconds, 0 or more")
    return number
