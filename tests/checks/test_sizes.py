"""Classes stay small enough to read: a larger one has a reason."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
FOLDERS: Final = ("server", "clients/python", "spark_connector")
METHODS_MAX: Final = 15
"""Without properties and special methods."""
ARGUMENTS_MAX: Final = 8
"""Of a constructor."""
REASONS: Final = {
    "Api": "the unary calls of one client, by name",
    "Chunk": "what many readers ask of the same bytes, while they are in a ring and after that",
    "ClientTarget": "the options of a client, by name",
    "Connection": "one session: each message of the server may change what is delivered, acked and granted",
    "DeliveryTracker": "one numbering: sequences, acks and repeats of a session change together",
    "FeedStreams": "all that changes which stream a subscriber reads: its invariants hold between any two methods",
    "Group": "what members, the committer and the end of a feed do to one subscription",
    "GroupReader": "one read for many members: each of their steps may change what others can take",
    "KeyLedger": "one table of events and keys: what is read, taken, settled and failed must agree after each method",
    "Letters": "one collection: each of its queries names a tenant, and what they find has one form",
    "ReplicaSet": "the options of mongod, by name",
    "ReplayBuffer": "one ring: what its readers, its evictions and its bounds ask of the same chunks",
    "ResumeToken": "one position, in every order and form in which it is used",
    "Session": "what a client, an operator, a drain and the committer may do with one call",
    "Settlements": "what a member has in hand, and each way in which an event comes and leaves",
    "Source": "one deployment: all that is asked of it goes through its client and its spans",
    "StreamKeeper": "one stream after another: all of it acts on the state of the connection",
    "Subscriber": "what differs between a session, a Watch call and a range, by name",
}


def large_classes() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                yield from _large(ast.parse(path.read_text()))


def _large(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        methods = [each for each in functions if not _is_property(each) and not each.name.startswith("__")]
        arguments = [len(each.args.args) - 1 + len(each.args.kwonlyargs) for each in functions if _is_init(each)]
        if len(methods) > METHODS_MAX or max(arguments, default=0) > ARGUMENTS_MAX:
            yield node.name


def _is_init(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name == "__init__"


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in function.decorator_list)


def test_large_classes_have_a_reason() -> None:
    assert set(large_classes()) == set(REASONS)
