"""Reads YAML with the line of every value, so that an error message can name the line of a mistake.

`config` reads its files with this module. Beyond YAML's own rules it rejects a key that appears twice in one mapping:
of two `api_keys` one would silently win. In mappings that are `exact`, it also rejects words and numbers that only YAML
1.1 reads as such: `no` (a country, or a field) as false, `0123` as 83, `12:30` as 750. Every text is valid Unicode:
the two halves of a character, as JSON may escape it ("\\ud83d\\ude00"), are joined, and half a character is rejected.
Invariant: no message quotes the file, because it may hold passwords.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

_QUOTED: Final = re.compile(r"'[^']{4,}'")
"""PyYAML's messages quote the characters and words of the file that it met."""
_NUMBER_OF_YAML_1_2: Final = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+|0o[0-7]+")
"""PyYAML reads YAML 1.1, in which these are texts."""


class MarkedError(Exception):
    """The text is not YAML; the message names the line and the column."""


@dataclass(frozen=True, slots=True)
class Marked:
    """The values of a document, and their lines."""

    content: Any
    _root: yaml.Node | None

    def line(self, path: Sequence[int | str]) -> int | None:
        """Return the line (from 1) of the value at `path`, or of the innermost existing value around it."""
        node, line = self._root, None
        for step in path:
            line = line if node is None else node.start_mark.line + 1
            match node:
                case yaml.MappingNode():
                    found = [(key, value) for key, value in node.value if key.value == str(step)]
                    if not found:
                        return line
                    # The line of the key: the value may begin below it.
                    line, node = found[0][0].start_mark.line + 1, found[0][1]
                case yaml.SequenceNode() if isinstance(step, int) and step < len(node.value):
                    node = node.value[step]
                    line = node.start_mark.line + 1
                case _:
                    return line
        return line


class _Loader(yaml.SafeLoader):
    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if not node.value.isascii():
            try:
                node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                raise MarkedError(
                    f"line {node.start_mark.line + 1}: this text holds half of a surrogate pair"
                ) from None
        return node


def parse_yaml(text: str, exact: Collection[str] = ()) -> Marked:
    """`exact`: the keys of mappings whose values are compared with data. Raises MarkedError."""
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is not None:
            _check(root, set(), exact, is_exact=False)
        content = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise MarkedError(where + _QUOTED.sub("…", error.problem or "not YAML")) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise MarkedError("not YAML: an unreadable character or value") from None
    return Marked(content, root)


def _check(node: yaml.Node, seen: set[tuple[int, bool]], exact: Collection[str], *, is_exact: bool) -> None:
    if (id(node), is_exact) in seen:
        return
    seen.add((id(node), is_exact))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if is_exact and not key.tag.endswith((":str", ":merge")):
                    raise _ambiguous(key)
                if key.value in keys:
                    raise MarkedError(f"line {key.start_mark.line + 1}: this key appears twice in its mapping")
                keys.add(key.value)
                _check(value, seen, exact, is_exact=is_exact or key.value in exact)
            else:
                _check(value, seen, exact, is_exact=is_exact)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check(each, seen, exact, is_exact=is_exact)
    elif is_exact and _is_ambiguous(node):
        raise _ambiguous(node)


def _ambiguous(node: yaml.Node) -> MarkedError:
    return MarkedError(
        f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}: YAML reads this word or number as"
        " another value; write true, false or a decimal number, or put a text in quotes"
    )


def _is_ambiguous(node: yaml.Node) -> bool:
    text = str(node.value)
    match node.tag.rpartition(":")[2]:
        case "bool":
            return text.lower() not in ("true", "false")
        case "int":
            digits = text.removeprefix("-")
            return not digits.isdecimal() or (digits[0] == "0" and digits != "0")
        case "float":
            return ":" in text or "_" in text
        case "str":
            is_plain = isinstance(node, yaml.ScalarNode) and not node.style
            return is_plain and _NUMBER_OF_YAML_1_2.fullmatch(text) is not None
    return False
