"""A change event as one line for people: time, operation, namespace, key, and what changed.

Tolerates any shape: a pipeline may have removed or replaced every field.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from bson import Binary, Decimal128, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from feedmux.cli.terminal import Terminal, cut, plain, utc_time

_COLOURS = {
    "insert": ("green",),
    "update": ("yellow",),
    "replace": ("cyan",),
    "delete": ("red",),
    "invalidate": ("magenta", "bold"),
}
_FIELDS_MAX = 20
_TEXT_MAX = 60
_OPERATION_WIDTH = 7
_WIDE = 110


def event_line(terminal: Terminal, event: Mapping[str, Any], *, one_collection: bool = False) -> str:
    """Return one line, cut to the terminal's width. A narrow terminal omits a namespace that is always the same."""
    operation = plain(event.get("operationType", "?"))
    parts = [
        terminal.paint(_time(event), "dim"),
        terminal.paint(operation.ljust(_OPERATION_WIDTH), *_COLOURS.get(operation, ("magenta",))),
        _namespace(event) if terminal.width >= _WIDE or not one_collection else "",
        terminal.paint(_key(event), "bold"),
        ", ".join(_summary(terminal, operation, event)),
    ]
    return cut("  ".join(part for part in parts if part), terminal.width)


def value_text(value: Any, depth: int = 0) -> str:
    """Return a BSON value as a short text."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            shown = value if len(value) <= _TEXT_MAX else value[:_TEXT_MAX] + "…"
            return f'"{plain(shown)}"'
        case ObjectId() | Decimal128():
            return str(value)
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case DatetimeMS():
            return f"{int(value)} ms"
        case Timestamp():
            return f"{value.time}:{value.inc}"
        case Regex():
            return f"/{plain(value.pattern)}/"
        case Binary() | bytes():
            return f"<{len(value)} bytes>"
        case Mapping():
            if depth > 1:
                return "{…}"
            return "{" + ", ".join(_fields(value, depth + 1)) + "}"
        case list():
            if depth > 1 or len(value) > _FIELDS_MAX:
                return f"[{len(value)} items]"
            return "[" + ", ".join(value_text(item, depth + 1) for item in value) + "]"
    return plain(value)


def _fields(document: Mapping[str, Any], depth: int = 0, skip: str = "") -> Iterator[str]:
    for number, (name, value) in enumerate(item for item in document.items() if item[0] != skip):
        if number == _FIELDS_MAX:
            yield "…"
            return
        yield f"{plain(name)}: {value_text(value, depth)}"


def _time(event: Mapping[str, Any]) -> str:
    wall, cluster = event.get("wallTime"), event.get("clusterTime")
    if isinstance(wall, datetime):
        aware = wall if wall.tzinfo else wall.replace(tzinfo=UTC)
        return utc_time(aware.timestamp(), milliseconds=True)
    if isinstance(cluster, Timestamp):
        return utc_time(cluster.time)
    return ""


def _namespace(event: Mapping[str, Any]) -> str:
    place = event.get("ns")
    if not isinstance(place, Mapping):
        return ""
    return plain(".".join(str(place[part]) for part in ("db", "coll") if place.get(part)))


def _key(event: Mapping[str, Any]) -> str:
    key = event.get("documentKey")
    if not isinstance(key, Mapping):
        return ""
    if list(key) == ["_id"]:
        return value_text(key["_id"])
    return value_text(key)


def _summary(terminal: Terminal, operation: str, event: Mapping[str, Any]) -> Iterator[str]:
    change = event.get("updateDescription")
    document = event.get("fullDocument")
    if isinstance(change, Mapping):
        yield from _update(terminal, change)
    elif isinstance(document, Mapping):
        yield from _fields(document, skip="_id")
    elif operation == "rename" and isinstance(event.get("to"), Mapping):
        yield f"to {plain('.'.join(str(part) for part in event['to'].values()))}"
    elif isinstance(event.get("operationDescription"), Mapping):
        yield from _fields(event["operationDescription"])
    elif "operationType" not in event:
        yield from _fields(event, skip="_id")


def _update(terminal: Terminal, change: Mapping[str, Any]) -> Iterator[str]:
    updated = change.get("updatedFields")
    if isinstance(updated, Mapping):
        yield from _fields(updated)
    for name in _list(change, "removedFields"):
        yield terminal.paint(f"-{plain(name)}", "red")
    for array in _list(change, "truncatedArrays"):
        if isinstance(array, Mapping):
            yield f"{plain(array.get('field'))} cut to {plain(array.get('newSize'))}"


def _list(change: Mapping[str, Any], name: str) -> list[Any]:
    found = change.get(name)
    return found if isinstance(found, list) else []
