"""`feedmux drain`: makes a server move its clients to other servers, store their acknowledgements, and stop."""

import argparse

from feedmux.cli.connection import add_json_option
from feedmux.cli.operator import add_operator_options, connected_operator
from feedmux.cli.terminal import print_json, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    add_operator_options(parser)


def run(args: argparse.Namespace) -> int:
    from feedmux.v1 import operator_pb2

    with connected_operator(args) as ask:
        answer = ask("Drain", operator_pb2.DrainRequest())
    deadline_s = answer.deadline.ToTimedelta().total_seconds()
    if args.json:
        print_json({"sessions": answer.sessions, "deadline_s": deadline_s})
    else:
        say(f"draining: {answer.sessions} sessions have {deadline_s:.0f} s to acknowledge, then the server stops")
    return 0
