"""docs/reference/configuration.md, from the model in server/feedmux_server/config/."""

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from feedmux_server.config.server import Config
from feedmux_server.config.tenants_file import TenantsFile
from tests.reference.markdown import anchor, described, prose

Schema = dict[str, Any]

_HEAD = """\
# Configuration

`feedmux serve --config FILE` reads one file, TOML or YAML. `feedmux serve --print-sample-config` prints a file with all
options and their defaults. An environment variable takes precedence over the file. It is named after the option, in
upper case, with `__` between the levels; a list is written as JSON. Written by `{command}`
from `server/feedmux_server/config/`.

The server reads its configuration when it starts. While it runs, it reads the files that some options name again when
they change; the description of such an option says so.

"""
_TENANTS_FILE = """\
# Tenants file

The file that [`tenants_file`](#tenants_file) names, YAML or TOML; [tenants.md](../tenants.md) explains it. The server
reads the whole file again when it changes. `feedmux tenants check FILE` reports its errors. `[]` stands for the entries
of a list.

"""
_SUFFIXES = {"_bytes": "bytes", "_ms": "milliseconds", "_s": "seconds", "_days": "days"}
_TYPES = {"integer": "integer", "number": "number", "boolean": "true or false", "string": "text", "object": "mapping"}
_FORMATS = {"path": "path", "password": "secret text", "date-time": "time with a time zone"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
_LENGTHS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} entries",
    "maxItems": "at most {} entries",
}


def page(command: str) -> str:
    """The Markdown of the page."""
    return _HEAD.format(command=command) + _file(Config, "FEEDMUX_") + _TENANTS_FILE + _file(TenantsFile, "")


def _file(model: type[BaseModel], variables: str) -> str:
    """The options of a file; `variables` is the prefix of the environment variables, empty if there are none."""
    whole = model.model_json_schema()
    sections: dict[str, str] = {}
    """The path of each section that is described, by the name of its definition."""

    def section(schema: Schema, path: str) -> Iterator[str]:
        later: list[tuple[Schema, str, str]] = []
        for name, field in schema["properties"].items():
            here = f"{path}.{name}".lstrip(".")
            reference, suffix = _section_of(field)
            if not reference:
                yield _option(field, here, name, name in schema.get("required", ()), variables)
            elif reference in sections:
                also = sections[reference]
                yield f"### `{here}`\n\n{described(field.get('description'), here)} Its options are those of "
                yield f"[`{also}`](#{anchor(also)}).\n\n"
            else:
                sections[reference] = here + suffix
                later.append((whole["$defs"][reference], here + suffix, field.get("description", "")))
        for inner, here, more in later:
            yield f"## `{here}`\n\n{described(inner.get('description'), here)} {prose(more)}".rstrip() + "\n\n"
            yield from section(inner, here)

    return "".join(section(whole, ""))


def _section_of(field: Schema) -> tuple[str, str]:
    """The definition of the section that a field consists of, and what stands for one of its entries in a path."""
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2], ""
    if "additionalProperties" in field and isinstance(field["additionalProperties"], dict):
        return _section_of(field["additionalProperties"])[0], ".NAME"
    if "items" in field:
        return _section_of(field["items"])[0], "[]"
    for choice in field.get("anyOf", ()):
        if (found := _section_of(choice))[0]:
            return found
    return "", ""


def _option(field: Schema, path: str, name: str, required: bool, variables: str) -> str:
    facts = [_type(field, name)]
    default = field.get("default")
    if required:
        facts.append("required")
    elif default is None:
        facts.append("no default")
    else:
        facts.append(f"default {_number(default, name)}")
    if variables:
        facts.append(f"`{variables}{path.upper().replace('.', '__')}`")
    return f"### `{path}`\n\n{' · '.join(facts)}\n\n{described(field.get('description'), path)}\n\n"


def _type(field: Schema, name: str) -> str:
    choices = [each for each in field.get("anyOf", ()) if each != {"type": "null"}]
    if choices:
        return " or ".join(_type(each, name) for each in choices)
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return "one of " + ", ".join(f"`{json.dumps(each)}`" for each in field["enum"])
    facts = []
    if field["type"] == "array":
        facts.append(f"list of {_type(field['items'], name)}")
    else:
        kind = _FORMATS.get(field.get("format", ""), _TYPES[field["type"]])
        unit = _unit(name) if field["type"] in ("integer", "number") else ""
        facts.append(f"{kind} ({unit})" if unit else kind)
    facts += [f"{words} {_number(field[key], name)}" for key, words in _BOUNDS.items() if key in field]
    facts += [words.format(field[key]) for key, words in _LENGTHS.items() if field.get(key, 0) > 1]
    return ", ".join(facts)


def _unit(name: str) -> str:
    if found := re.match(r"([a-z]+)_per_(s|minute)", name):
        return f"{found[1]} per {found[2].replace('s', 'second')}"
    return next((unit for suffix, unit in _SUFFIXES.items() if name.endswith(suffix)), "")


def _number(value: object, name: str) -> str:
    """A default or a bound as it stands in the file; bytes also in the largest unit in which they are whole."""
    text = f"`{json.dumps(value)}`"
    if isinstance(value, int) and "bytes" in name:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value and not value % size:
                return f"{text} ({value // size} {unit})"
    return text
