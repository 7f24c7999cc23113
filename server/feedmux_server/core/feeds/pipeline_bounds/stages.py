"""Bounds a pipeline, stage by stage: what each makes of the document."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import bson

from feedmux_server.core.feeds.pipeline_bounds import arguments
from feedmux_server.core.feeds.pipeline_bounds.budget import OPERATOR_WORK, Budget
from feedmux_server.core.feeds.pipeline_bounds.document import Document
from feedmux_server.core.feeds.pipeline_bounds.expressions import Scope, evaluate
from feedmux_server.core.feeds.pipeline_bounds.literals import CODEC, is_flag
from feedmux_server.core.feeds.pipeline_bounds.match_query import check_query
from feedmux_server.core.feeds.pipeline_bounds.weights import SUBDOCUMENT_BYTES, Bound, Path, Size

_DEPTH: Final = 100
"""How deep MongoDB lets a stored document be nested."""


def check_bounds(pipeline: bytes) -> Size:
    """Bounds the output of `pipeline`, which `bson_check.walk` has passed and which names no field twice.

    Raises PipelineUnbounded.
    """
    budget = Budget(len(pipeline))
    document = Document(budget)
    size = Size(1.0, 0.0)
    for index, stage in enumerate(bson.decode(pipeline, CODEC)["pipeline"]):
        ((name, content),) = stage.items()
        budget.at, budget.operator = ["pipeline", str(index), name], name
        budget.charge(document.bound())
        check = _STAGES.get(name)
        if check is None:
            raise budget.rejection(name, "this stage may not follow $changeStream")
        check(Scope.of(budget, document), name, content)
        size = budget.check(document.bound(), name)
        budget.end_stage(name)
    return size


def _match(scope: Scope, name: str, content: Any) -> None:
    check_query(scope, arguments.mapping(scope.budget, name, content))


def _put(scope: Scope, name: str, content: Any, *, flags: bool) -> None:
    """Set the fields that a stage computes from the document before it. `flags`: 1 and 0 compute nothing."""
    for path, bound in list(_computed(scope, arguments.mapping(scope.budget, name, content), (), flags=flags)):
        scope.document.put(path, bound)


def _computed(scope: Scope, content: Mapping[str, Any], above: Path, *, flags: bool) -> Iterator[tuple[Path, Bound]]:
    budget = scope.budget
    for name, value in content.items():
        budget.at.append(name)
        if name.startswith("$"):
            raise budget.rejection(name, "a field name may not begin with $ here")
        path = (*above, *arguments.parts(budget, name))
        if isinstance(value, dict) and value and not arguments.has_operator(value):
            yield from _computed(scope, value, path, flags=flags)
        elif not (flags and is_flag(value)):
            bound = evaluate(scope, value)
            budget.check(bound, budget.operator)
            yield path, bound
        budget.at.pop()


def _unset(scope: Scope, name: str, content: Any) -> None:
    for path in content if isinstance(content, list) else [content]:
        if not isinstance(path, str):
            raise scope.budget.rejection(name, "takes names of fields")
        scope.document.remove(arguments.parts(scope.budget, path))


def _replace_root(scope: Scope, name: str, content: Any) -> None:
    fields = arguments.mapping(scope.budget, name, content)
    if set(fields) != {"newRoot"}:
        raise scope.budget.rejection(name, "takes newRoot and nothing else")
    _replace_with(scope, name, fields["newRoot"])


def _replace_with(scope: Scope, name: str, content: Any) -> None:
    size = scope.budget.check(evaluate(scope, content), name)
    scope.budget.end_stage(name)
    scope.document.replace(size)


def _redact(scope: Scope, name: str, content: Any) -> None:
    """The expression is evaluated for each document within the document, as CURRENT."""
    budget, document = scope.budget, scope.document.bound()
    loop = budget.enter_loop(document, objects=True)
    budget.drop(evaluate(scope.in_loop(loop, "CURRENT"), content))
    work = budget.leave_loop(loop, name)
    budget.charge(document.times(_DEPTH * work.weight + (work.constant + OPERATOR_WORK) / SUBDOCUMENT_BYTES))


def _split_large_event(scope: Scope, name: str, content: Any) -> None:
    if arguments.mapping(scope.budget, name, content):
        raise scope.budget.rejection(name, "takes no options")


_STAGES: Final[Mapping[str, Callable[[Scope, str, Any], None]]] = {
    "$match": _match,
    "$project": partial(_put, flags=True),
    "$addFields": partial(_put, flags=False),
    "$set": partial(_put, flags=False),
    "$unset": _unset,
    "$replaceRoot": _replace_root,
    "$replaceWith": _replace_with,
    "$redact": _redact,
    "$changeStreamSplitLargeEvent": _split_large_event,
}
STAGES: Final = frozenset(_STAGES)
