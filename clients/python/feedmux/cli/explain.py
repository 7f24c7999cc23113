"""`feedmux explain`: shows what opening a feed would do, without opening it. Exit code 1 if it would be rejected."""

import argparse
import sys
from dataclasses import asdict

from feedmux.cli.connection import add_connection_options, add_json_option, connected
from feedmux.cli.feed_arguments import START_HELP, add_feed_arguments, feed_of, start
from feedmux.cli.terminal import Painted, Terminal, duration, plain, print_json, say, table
from feedmux.feeds import Explanation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_feed_arguments(parser)
    parser.add_argument("--start", metavar="POSITION", type=start, help=START_HELP)
    add_json_option(parser)
    add_connection_options(parser)


def run(args: argparse.Namespace) -> int:
    with connected(args) as client:
        found = client.feed(feed_of(args)).explain(args.start)
    if args.json:
        print_json(asdict(found))
    else:
        say(Painted(_text(Terminal(sys.stdout), found)))
    return 1 if found.refusal else 0


def _text(terminal: Terminal, found: Explanation) -> str:
    lines: list[str] = []
    if found.refusal is not None:
        lines += [plain(f"rejected   {found.refusal.status} {found.refusal.reason}: {found.refusal.message}")]
    if found.stream_key:
        lines += [
            plain(f"pipeline   {found.pipeline}"),
            plain(f"stream     {found.stream_key} ({'read now; shared' if found.stream_open else 'not read now'})"),
        ]
    if '"fullDocument.' in found.pipeline:
        lines += [
            "           a filter on fullDocument hides deletes, and updates after which a document no longer matches:"
        ]
        lines += ["           match fullDocumentBeforeChange as well, with stored images (docs/pipelines.md)"]
    if found.may_be_view:
        lines += ["           may be a view: read together with other feeds of its database or deployment"]
    if found.scope_missing:
        lines += ["           no events yet: the collection or database does not exist"]
    if found.documents_estimated:
        lines += [f"copy       about {found.documents_estimated:,} documents, read once for this feed"]
    if found.oplog_headroom_s is not None:
        lines += [f"oplog      reaches back {duration(found.oplog_headroom_s)} before the start"]
    if found.withheld:
        lines += ["", table(terminal, ("WITHHELD", "WHY"), [(each.what, each.why) for each in found.withheld])]
    if found.images:
        rows = [
            (
                f"{each.database}.{each.collection}",
                "enabled" if each.enabled else "not enabled",
                "the grants" if each.for_grants else "the feed",
            )
            for each in found.images
        ]
        lines += ["", table(terminal, ("IMAGES OF", "STORED", "NEEDED BY"), rows)]
    return "\n".join(lines)
