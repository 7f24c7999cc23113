"""Checks how stages and operators are written: documents, lists, options, and the names in them."""

from collections.abc import Iterable
from typing import Any, Final

from feedmux_server.core.feeds.pipeline_bounds.budget import Budget
from feedmux_server.core.feeds.pipeline_bounds.weights import Path

_PATH_PARTS_MAX: Final = 100


def has_operator(fields: Iterable[str]) -> bool:
    """Whether a name begins with $."""
    return any(name.startswith("$") for name in fields)


def mapping(budget: Budget, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise budget.rejection(name, "takes a document")
    return value


def sequence(budget: Budget, name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise budget.rejection(name, "takes a list")
    return value


def operands(budget: Budget, name: str, value: Any, least: int, most: int | None) -> list[Any]:
    """Operands in a list, or one alone."""
    found = value if isinstance(value, list) else [value]
    if len(found) < least or (most is not None and len(found) > most):
        needs = "takes one operand" if most == 1 else "needs an operand" if least == 1 else f"takes a list of {least}"
        raise budget.rejection(name, needs)
    return found


def options(
    budget: Budget, name: str, value: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Operands by name."""
    fields = mapping(budget, name, value)
    for each in fields:
        if each not in required and each not in optional:
            raise budget.rejection(name, f"its option `{each[:50]}` is not allowed")
    for each in required:
        if each not in fields:
            raise budget.rejection(name, f"needs `{each}`")
    return fields


def parts(budget: Budget, path: str, *, empty: bool = False) -> Path:
    """The names in a dotted path. `empty`: one may be empty."""
    names = tuple(path.split("."))
    if len(names) > _PATH_PARTS_MAX:
        raise budget.rejection(path[:50], f"a path of more than {_PATH_PARTS_MAX} parts is not allowed")
    for each in names:
        if each.startswith("$"):
            raise budget.rejection(each, "a field name may not begin with $ here")
        if not each and not empty:
            raise budget.rejection(path[:50] or "a path", "a path may not have an empty part")
    return names


def variable(budget: Budget, name: Any) -> str:
    if isinstance(name, str) and (name == "CURRENT" or (name[:1] and not name[:1].isupper() and name.isidentifier())):
        return name
    raise budget.rejection(str(name)[:50], "this name of a variable is not allowed")
