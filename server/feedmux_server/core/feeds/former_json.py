"""Finds the conditions of a pipeline as JSON that feedmux read differently before `query_json`, for `feedmux doctor`.

Until then, an object with a text `$regex` was a regular expression, whatever else it contained.
"""

import json
from typing import Any


def changed_conditions(text: str) -> list[str]:
    """The paths of these objects. `text` has passed `parse_query`."""
    found: list[str] = []
    # A member of an array has the operator of the array.
    nodes: list[tuple[str, str, Any]] = [("pipeline", "", json.loads(text))]
    while nodes:
        path, operator, node = nodes.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$regex"), str) and not _has_the_same_meaning(operator, node):
                found.append(path)
            nodes += [(f"{path}.{name}", name, each) for name, each in node.items()]
        elif isinstance(node, list):
            nodes += [(f"{path}.{index}", operator, each) for index, each in enumerate(node)]
    return sorted(found)


def _has_the_same_meaning(operator: str, condition: dict[str, Any]) -> bool:
    """Whether the operator `$regex` matches there what a regular expression matches."""
    return condition.keys() <= {"$regex", "$options"} and (operator == "$not" or not operator.startswith("$"))
