"""Checks the conditions of `$match`: they make nothing, but take work."""

from collections.abc import Mapping
from typing import Any, Final

from feedmux_server.core.feeds.pipeline_bounds import arguments
from feedmux_server.core.feeds.pipeline_bounds.budget import OPERATOR_WORK
from feedmux_server.core.feeds.pipeline_bounds.expressions import Scope, evaluate
from feedmux_server.core.feeds.pipeline_bounds.literals import PATTERN_WORK, check_pattern, is_pattern, reject_code
from feedmux_server.core.feeds.pipeline_bounds.weights import ELEMENT_BYTES, Path

_VALUES: Final = frozenset(
    {
        "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$exists", "$type", "$mod", "$size", "$bitsAllSet", "$bitsAllClear",
        "$bitsAnySet", "$bitsAnyClear",
    }
)  # fmt: skip
"""They compare with a value."""
QUERY_OPERATORS: Final = _VALUES | {"$in", "$nin", "$all", "$not", "$elemMatch", "$regex", "$options"}
QUERY_TOP: Final = frozenset({"$and", "$or", "$nor", "$expr", "$comment"})


def check_query(scope: Scope, query: Mapping[str, Any], above: Path = ()) -> None:
    """`above`: the array whose elements the query is about. Raises PipelineUnbounded."""
    budget = scope.budget
    for name, value in query.items():
        budget.at.append(name)
        if not name.startswith("$"):
            _check_condition(scope, (*above, *arguments.parts(budget, name, empty=True)), value)
        elif name not in QUERY_TOP:
            raise budget.rejection(name, "this operator of the query language is not allowed")
        elif name == "$expr":
            if above:
                raise budget.rejection(name, "may not be used within $elemMatch")
            budget.drop(evaluate(scope, value))
        elif name != "$comment":
            for index, each in enumerate(arguments.sequence(budget, name, value)):
                budget.at.append(str(index))
                check_query(scope, arguments.mapping(budget, name, each), above)
                budget.at.pop()
        budget.at.pop()


def _check_condition(scope: Scope, path: Path, value: Any) -> None:
    budget = scope.budget
    if not isinstance(value, dict) or not arguments.has_operator(value):
        _compare(scope, path, value)
        return
    for name, operand in value.items():
        budget.at.append(name)
        if name in _VALUES:
            _compare(scope, path, operand)
        elif name in ("$in", "$nin", "$all"):
            _check_members(scope, name, path, arguments.sequence(budget, name, operand))
        elif name == "$not":
            _check_condition(scope, path, operand)
        elif name == "$elemMatch":
            document = arguments.mapping(budget, name, operand)
            if any(each.startswith("$") and each not in QUERY_TOP for each in document):
                _check_condition(scope, path, document)
            else:
                check_query(scope, document, path)
        elif name == "$regex":
            check_pattern(budget, name, operand, value.get("$options", ""))
            _charge(scope, path, PATTERN_WORK)
        elif name != "$options":
            raise budget.rejection(name, "this operator of the query language is not allowed")
        budget.at.pop()


def _check_members(scope: Scope, name: str, path: Path, members: list[Any]) -> None:
    for each in members:
        if name == "$all":
            _check_condition(scope, path, each)
        elif is_pattern(each):
            _compare(scope, path, each)
    if name != "$all":
        reject_code(scope.budget, members)
        _charge(scope, path, len(members).bit_length())


def _compare(scope: Scope, path: Path, value: Any) -> None:
    if is_pattern(value):
        check_pattern(scope.budget, "a regular expression", value, "")
    else:
        reject_code(scope.budget, value)
    _charge(scope, path, PATTERN_WORK if is_pattern(value) else 1)


def _charge(scope: Scope, path: Path, factor: float) -> None:
    """Work for each element that the path may lead to."""
    elements = scope.document.bound(path).plain()
    scope.budget.charge(elements.times(factor * OPERATOR_WORK / ELEMENT_BYTES, OPERATOR_WORK))
