"""Bounds of expressions: paths, variables, literals, and the operators that do more than combine their operands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from bson.code import Code

from feedmux_server.core.feeds.pipeline_bounds import arguments
from feedmux_server.core.feeds.pipeline_bounds.budget import Budget
from feedmux_server.core.feeds.pipeline_bounds.document import Document
from feedmux_server.core.feeds.pipeline_bounds.literals import (
    PATTERN_WORK,
    check_pattern,
    constant_of,
    is_flag,
    literal_bytes,
    reject_code,
)
from feedmux_server.core.feeds.pipeline_bounds.operators import COMBINING, SHORT_TEXT_BYTES, SORT_WORK, Listed, Named
from feedmux_server.core.feeds.pipeline_bounds.weights import (
    ELEMENT_BYTES,
    SCALAR_BYTES,
    SUBDOCUMENT_BYTES,
    Bound,
    Symbol,
    bound_of,
    largest_of,
    sum_of,
)

CONSTANT_VARIABLES: Final = frozenset({"REMOVE", "NOW", "CLUSTER_TIME", "DESCEND", "PRUNE", "KEEP"})
_VARIABLES_PER_STEP: Final = 32
"""How many variables are copied in the time of one step of the check."""
_OBJECT_BYTES: Final = ELEMENT_BYTES + SUBDOCUMENT_BYTES


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression may refer to."""

    budget: Budget
    document: Document
    variables: Mapping[str, Bound]

    @classmethod
    def of(cls, budget: Budget, document: Document) -> "Scope":
        root = document.bound()
        constants = {name: Bound(SCALAR_BYTES) for name in CONSTANT_VARIABLES}
        return cls(budget, document, {"ROOT": root, "CURRENT": root} | constants)

    def within(self, variables: Mapping[str, Bound]) -> "Scope":
        """With more variables."""
        self.budget.count(len(self.variables) // _VARIABLES_PER_STEP)
        return replace(self, variables={**self.variables, **variables})

    def in_loop(self, loop: Symbol, name: str) -> "Scope":
        """With a variable for the element of the loop."""
        return self.within({name: bound_of((loop, ()))})


def evaluate(scope: Scope, value: Any) -> Bound:
    """The bound of an expression. Raises PipelineUnbounded."""
    bound = _evaluate(scope, value)
    # The operator around it looks at each of its parts.
    scope.budget.count(1 + len(bound.weights))
    return bound


def _evaluate(scope: Scope, value: Any) -> Bound:
    budget = scope.budget
    budget.charge_operator()
    if isinstance(value, Code):
        raise budget.rejection("JavaScript", "is not allowed")
    if isinstance(value, str):
        return _text(scope, value)
    if isinstance(value, list):
        return _array(scope, value)
    if not isinstance(value, dict):
        return Bound(literal_bytes(value))
    if not arguments.has_operator(value):
        return _object(scope, value)
    name = next(each for each in value if each.startswith("$"))
    if len(value) > 1:
        raise budget.rejection(name, "an operator must be the only field of its document")
    rule = _RULES.get(name)
    if rule is None:
        raise budget.rejection(name, "this operator is not allowed")
    budget.at.append(name)
    outer, budget.operator = budget.operator, name
    bound = rule(scope, name, value[name])
    budget.operator = outer
    budget.at.pop()
    return bound


def _text(scope: Scope, text: str) -> Bound:
    budget = scope.budget
    if not text.startswith("$") or text == "$":
        return Bound(literal_bytes(text))
    if not text.startswith("$$"):
        return scope.document.follow(scope.variables["CURRENT"], arguments.parts(budget, text[1:]))
    name, _, rest = text[2:].partition(".")
    bound = scope.variables.get(name)
    if bound is None:
        raise budget.rejection(f"$${name}", "this variable is not known")
    return scope.document.follow(bound, arguments.parts(budget, rest) if rest else ())


def _object(scope: Scope, fields: Mapping[str, Any]) -> Bound:
    names = sum(len(name.encode()) + 2 for name in fields)
    return sum_of(_by_name(scope, fields).values(), 5.0 + names)


def _array(scope: Scope, values: list[Any]) -> Bound:
    indexes = sum(len(str(index)) + 2 for index in range(len(values)))
    return sum_of(_each(scope, values), 5.0 + indexes)


def _each(scope: Scope, values: list[Any]) -> list[Bound]:
    at, found = scope.budget.at, []
    for index, value in enumerate(values):
        at.append(str(index))
        found.append(evaluate(scope, value))
        at.pop()
    return found


def _by_name(scope: Scope, fields: Mapping[str, Any]) -> dict[str, Bound]:
    at, found = scope.budget.at, {}
    for name, value in fields.items():
        at.append(name)
        found[name] = evaluate(scope, value)
        at.pop()
    return found


def _combine(operator: Listed | Named, scope: Scope, name: str, value: Any) -> Bound:
    """An operator that needs no more than the bounds of its operands."""
    budget = scope.budget
    if isinstance(operator, Listed):
        values = arguments.operands(budget, name, value, operator.least, operator.most)
        return operator.result(budget, name, _each(scope, values))
    fields = arguments.options(budget, name, value, operator.required, operator.optional)
    return operator.result(budget, name, _by_name(scope, fields))


def _literal(scope: Scope, name: str, value: Any) -> Bound:
    reject_code(scope.budget, value)
    return Bound(literal_bytes(value))


def _cond(scope: Scope, name: str, value: Any) -> Bound:
    budget = scope.budget
    if isinstance(value, dict):
        found = _by_name(scope, arguments.options(budget, name, value, ("if", "then", "else")))
        condition, *branches = found["if"], found["then"], found["else"]
    else:
        condition, *branches = _each(scope, arguments.operands(budget, name, value, 3, 3))
    budget.drop(condition)
    return largest_of(branches)


def _switch(scope: Scope, name: str, value: Any) -> Bound:
    budget = scope.budget
    fields = arguments.options(budget, name, value, ("branches",), ("default",))
    results = []
    for index, branch in enumerate(arguments.sequence(budget, name, fields["branches"])):
        budget.at += ["branches", str(index)]
        found = _by_name(scope, arguments.options(budget, name, branch, ("case", "then")))
        budget.drop(found["case"])
        results.append(found["then"])
        del budget.at[-2:]
    if "default" in fields:
        results.append(evaluate(scope, fields["default"]))
    return largest_of(results)


def _let(scope: Scope, name: str, value: Any) -> Bound:
    budget = scope.budget
    fields = arguments.options(budget, name, value, ("vars", "in"))
    variables = {}
    for each, content in arguments.mapping(budget, name, fields["vars"]).items():
        budget.at += ["vars", each]
        found = evaluate(scope, content)
        budget.drop(found)
        variables[arguments.variable(budget, each)] = budget.few_parts(found)
        del budget.at[-2:]
    return evaluate(scope.within(variables), fields["in"])


def _map(scope: Scope, name: str, value: Any) -> Bound:
    budget = scope.budget
    fields = arguments.options(budget, name, value, ("input", "in"), ("as",))
    over, body = evaluate(scope, fields["input"]), fields["in"]
    budget.drop(over)
    loop = budget.enter_loop(over)
    element = evaluate(scope.in_loop(loop, arguments.variable(budget, fields.get("as", "this"))), body)
    _leave_loop(budget, loop, over, name)
    weight = budget.weight_in_loop(element, loop, name)
    total = over.times(max(weight, 1.0), SCALAR_BYTES)
    total.add(over.elements().times(element.constant))
    if isinstance(body, dict) and body and not arguments.has_operator(body):
        total.element_bytes, total.of_objects = _OBJECT_BYTES, True
    return total


def _filter(scope: Scope, name: str, value: Any) -> Bound:
    budget = scope.budget
    fields = arguments.options(budget, name, value, ("input", "cond"), ("as", "limit"))
    over = evaluate(scope, fields["input"])
    if "limit" in fields:
        budget.drop(evaluate(scope, fields["limit"]))
    loop = budget.enter_loop(over)
    inner = scope.in_loop(loop, arguments.variable(budget, fields.get("as", "this")))
    budget.drop(evaluate(inner, fields["cond"]))
    _leave_loop(budget, loop, over, name)
    return over.same_elements()


def _leave_loop(budget: Budget, loop: Symbol, over: Bound, name: str) -> None:
    work = budget.leave_loop(loop, name)
    budget.charge(over.times(work.weight), over.elements().times(work.constant))


def _regex_match(scope: Scope, name: str, value: Any) -> Bound:
    scope.budget.drop(_regex(scope, name, value)[0])
    return Bound(SCALAR_BYTES)


def _regex_find(scope: Scope, name: str, value: Any) -> Bound:
    text, groups = _regex(scope, name, value)
    return text.times(1 + groups, SHORT_TEXT_BYTES + SCALAR_BYTES * groups)


def _regex(scope: Scope, name: str, value: Any) -> tuple[Bound, int]:
    """The text, and how many groups the pattern has."""
    fields = arguments.options(scope.budget, name, value, ("input", "regex"), ("options",))
    flags = constant_of(fields.get("options") or "")
    groups = check_pattern(scope.budget, name, constant_of(fields["regex"]), flags)
    text = evaluate(scope, fields["input"])
    scope.budget.charge(text.times(PATTERN_WORK))
    return text, groups


def _get_field(scope: Scope, name: str, value: Any) -> Bound:
    if not isinstance(value, dict) or arguments.has_operator(value):
        value = {"field": value}
    fields = arguments.options(scope.budget, name, value, ("field",), ("input",))
    source = evaluate(scope, fields.get("input", "$$CURRENT"))
    scope.budget.drop(source, evaluate(scope, fields["field"]))
    wanted = constant_of(fields["field"])
    if isinstance(wanted, str) and (source.document or source.ref is not None):
        return scope.document.follow(source, (wanted,))
    return source.plain()


def _sort_array(scope: Scope, name: str, value: Any) -> Bound:
    fields = arguments.options(scope.budget, name, value, ("input", "sortBy"))
    order = fields["sortBy"]
    keys = list(order.values()) if isinstance(order, dict) else [order]
    if not all(is_flag(each) for each in keys):
        raise scope.budget.rejection(name, "sortBy must be 1, -1, or fields with these")
    source = evaluate(scope, fields["input"])
    scope.budget.charge(source.times(SORT_WORK * max(1, len(keys))))
    return source.same_elements()


_RULES: Final[Mapping[str, Callable[[Scope, str, Any], Bound]]] = {
    **{name: partial(_combine, operator) for name, operator in COMBINING.items()},
    "$literal": _literal,
    "$const": _literal,
    "$cond": _cond,
    "$switch": _switch,
    "$let": _let,
    "$map": _map,
    "$filter": _filter,
    "$regexMatch": _regex_match,
    "$regexFind": _regex_find,
    "$getField": _get_field,
    "$sortArray": _sort_array,
}
OPERATORS: Final = frozenset(_RULES)
"""Every operator of expressions that is allowed."""
