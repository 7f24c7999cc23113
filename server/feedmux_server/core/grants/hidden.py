"""Takes hidden fields out of an event, as stages over the parts that `stages` makes of it.

`$unset` goes through arrays at any depth, but needs paths that are known. The documents have them; `updatedFields` has
dotted names with array indices in them (`items.0.price`). So its entries become a list, entries of hidden names are
dropped, and the value of a name above a hidden path (`items.0`) is put where `$unset` finds the rest of the path.

A map with numeric keys cannot be told from an array in such a name, and `$unset` does not go through it. So a map that
has a document or an array under a numeric key is withheld as a whole where it lies above a hidden field: `$redact`
finds it at any depth. So is a document there in which two fields have the same name, of which `$unset` removes one. For
that the documents become lists of entries too, which say whether they are to be looked into; the event's token, which
nobody can know when he writes a document, marks what is ours.
"""

from collections.abc import Iterable
from typing import Any

from feedmux_server.core.grants.match import Expression

_TOKEN = "$e._id._data"

Hides = list[tuple[int, tuple[str, ...]]]
"""Index of the grant, and its hidden paths, none within another."""


def key_is_hidden(hide: tuple[str, ...]) -> Expression:
    """Whether the document key (a shard key) holds a hidden field, or a part or the whole around one.

    The resume token holds the key too, and cannot be changed: such an event is withheld.
    """
    names = {"$map": {"input": _entries("$e.documentKey"), "as": "field", "in": _normal("$$field.k", hide)}}
    overlaps = [{"$or": [_begins("$$name", path), _begins(path, "$$name")]} for path in map(_dotted, hide)]
    return {"$anyElementTrue": [{"$map": {"input": names, "as": "name", "in": {"$or": overlaps}}}]}


def hidden_stages(hides: Hides) -> list[dict[str, Any]]:
    """Stages that make `h.<index>h` with `after`, `before` and `update` for events of the grants that hide something.

    An update that changed nothing but what is hidden is dropped: that it happened is not shown either.
    """
    if not hides:
        return []
    branches = [
        {"case": {"$eq": ["$g", index]}, "then": {"m": _TOKEN, f"{index}h": _parts(hide)}} for index, hide in hides
    ]
    unset = [path for index, hide in hides for path in _paths(f"h.{index}h", hide)]
    puts: dict[str, Expression] = {}
    nothing = []
    for index, _ in hides:
        root = f"h.{index}h"
        # Not where there is no such part: `$set` would make one.
        puts[f"{root}.update"] = {"$cond": [{"$isArray": f"${root}.fields"}, _update(root), "$$REMOVE"]}
        nothing.append({"$and": [{"$eq": ["$g", index]}, {"$eq": [_size(root), 0]}]})
    entries: dict[str, Expression] = {}
    documents: dict[str, Expression] = {}
    for index, _ in hides:
        root = f"h.{index}h"
        fields = f"${root}.fields"
        entries[f"{root}.fields"] = {
            "$cond": [{"$isArray": [fields]}, _without(fields, {"$eq": ["$$each.v", {}]}), "$$REMOVE"]
        }
        for part in ("after", "before"):
            path = f"${root}.{part}"
            left = _without(path, {"$eq": [{"$type": "$$each.v"}, "missing"]})
            pairs = {"$map": {"input": left, "as": "each", "in": {"k": "$$each.k", "v": "$$each.v"}}}
            documents[f"{root}.{part}"] = {"$cond": [{"$isArray": [path]}, {"$arrayToObject": [pairs]}, path]}
    return [
        {"$set": {"h": {"$switch": {"branches": branches, "default": {}}}}},
        {"$redact": _redaction()},
        {"$set": entries | documents},
        # In a separate field: MongoDB copies what a `$match` reads, and the parts of a change may be large.
        {"$set": {"op": {"$cond": [{"$and": [{"$eq": ["$op", "update"]}, {"$or": nothing}]}, None, "$op"]}}},
        {"$match": {"op": {"$type": "string"}}},
        {"$unset": unset},
        {"$set": puts},
    ]


def _parts(hide: tuple[str, ...]) -> dict[str, Expression]:
    update = "$e.updateDescription"
    return {
        "m": _TOKEN,
        "after": _document_entries("$e.fullDocument", hide),
        "before": _document_entries("$e.fullDocumentBeforeChange", hide),
        "fields": _updated_fields(hide),
        "removed": _shown_names(f"{update}.removedFields", "$$each", hide),
        "truncated": _shown_names(f"{update}.truncatedArrays", "$$each.field", hide),
        "paths": _shown_names(_entries(f"{update}.disambiguatedPaths"), "$$each.k", hide),
    }


def _paths(root: str, hide: tuple[str, ...]) -> Iterable[str]:
    for path in hide:
        yield f"{root}.after.{path}"
        yield f"{root}.before.{path}"
    for number, above in enumerate(_above(hide)):
        for path in hide:
            if path.startswith(f"{above}."):
                yield f"{root}.fields.v.x{number}.{path[len(above) + 1 :]}"


def _above(hide: tuple[str, ...]) -> list[str]:
    """Every path that leads to a hidden one."""
    found: set[str] = set()
    for path in hide:
        parts = path.split(".")
        found.update(".".join(parts[:count]) for count in range(1, len(parts)))
    return sorted(found)


def _updated_fields(hide: tuple[str, ...]) -> Expression:
    """The shown entries, as `{k, v: {slot: value}}`: the slot says which paths are hidden below it."""
    slots = [
        {"case": {"$eq": ["$$each.n", _dotted(above)]}, "then": {f"x{number}": "$$each.v"}}
        for number, above in enumerate(_above(hide))
    ]
    value: Expression = {"o": "$$each.v"}
    above = {"$in": ["$$each.n", [_dotted(path) for path in _above(hide)]]}
    if slots:  # few names are above a path, and the cases are evaluated one by one
        value = {"$cond": [above, {"$switch": {"branches": slots, "default": value}}, value]}
    named = {
        "$map": {
            "input": _entries("$e.updateDescription.updatedFields"),
            "as": "each",
            "in": {"k": "$$each.k", "v": "$$each.v", "n": _normal("$$each.k", hide)},
        }
    }
    # A name without parts is of numbers only: a key of a map around all hidden fields.
    around = {"$and": [{"$eq": ["$$each.n", "."]}, _is_container("$$each.v")]}
    shown = {
        "$filter": {"input": named, "as": "each", "cond": {"$not": [{"$or": [_hidden("$$each.n", hide), around]}]}}
    }
    return {"$map": {"input": shown, "as": "each", "in": {"k": "$$each.k", "m": _TOKEN, "d": above, "v": value}}}


def _document_entries(document: str, hide: tuple[str, ...]) -> Expression:
    """A document as entries, without its numeric keys that hold a document or an array; what is none, as it is."""
    firsts = sorted({path.partition(".")[0] for path in hide if "." in path})
    around = {"$and": [_is_number("$$each.k"), _is_container("$$each.v")]}
    shown = {"$filter": {"input": {"$objectToArray": document}, "as": "each", "cond": {"$not": [around]}}}
    above = {"$in": ["$$each.k", [{"$literal": first} for first in firsts]]}
    entry = {"k": "$$each.k", "m": _TOKEN, "d": above, "v": "$$each.v"}
    is_document = {"$eq": [{"$type": document}, "object"]}
    return {"$cond": [is_document, {"$map": {"input": shown, "as": "each", "in": entry}}, document]}


def _redaction() -> Expression:
    """Within entries that lead to a hidden field, prunes what has a document or an array under a numeric key, or a
    name twice."""
    keys = {"$objectToArray": "$$CURRENT"}
    names = {"$map": {"input": keys, "as": "each", "in": "$$each.k"}}
    has_a_name_twice = {"$ne": [{"$size": {"$setUnion": [names]}}, {"$size": names}]}
    maps = {
        "$filter": {"input": keys, "as": "each", "cond": {"$and": [_is_number("$$each.k"), _is_container("$$each.v")]}}
    }
    return {
        "$switch": {
            "branches": [
                {"case": {"$eq": ["$e._id._data", "$$ROOT.e._id._data"]}, "then": "$$DESCEND"},
                {"case": {"$eq": ["$_id._data", "$$ROOT.e._id._data"]}, "then": "$$KEEP"},
                {
                    "case": {"$eq": ["$m", "$$ROOT.e._id._data"]},
                    "then": {"$cond": [{"$eq": ["$d", False]}, "$$KEEP", "$$DESCEND"]},
                },
                {"case": {"$or": [{"$ne": [maps, []]}, has_a_name_twice]}, "then": "$$PRUNE"},
            ],
            "default": "$$DESCEND",
        }
    }


def _without(entries: str, pruned: Expression) -> Expression:
    return {"$filter": {"input": entries, "as": "each", "cond": {"$not": [pruned]}}}


def _shown_names(names: Expression, name: str, hide: tuple[str, ...]) -> Expression:
    """The elements of a list whose `name` is not hidden."""
    hidden = {"$let": {"vars": {"n": _normal(name, hide)}, "in": _hidden("$$n", hide)}}
    return {"$filter": {"input": _list(names), "as": "each", "cond": {"$not": [hidden]}}}


def _update(root: str) -> dict[str, Expression]:
    value = {"$arrayElemAt": [{"$map": {"input": {"$objectToArray": "$$each.v"}, "as": "slot", "in": "$$slot.v"}}, 0]}
    entries = {"$map": {"input": f"${root}.fields", "as": "each", "in": {"k": "$$each.k", "v": value}}}
    paths = {"$eq": [{"$type": "$e.updateDescription.disambiguatedPaths"}, "object"]}
    return {
        "updatedFields": {"$arrayToObject": [entries]},
        "removedFields": f"${root}.removed",
        "truncatedArrays": f"${root}.truncated",
        "disambiguatedPaths": {"$cond": [paths, {"$arrayToObject": f"${root}.paths"}, "$$REMOVE"]},
    }


def _size(root: str) -> Expression:
    return {"$add": [{"$size": _list(f"${root}.{part}")} for part in ("fields", "removed", "truncated")]}


def _hidden(name: str, hide: tuple[str, ...]) -> Expression:
    """Whether a normalised name is a hidden path or lies below one.

    As many parts as a path has, from the first on, are searched for in all paths of that number at once: to compare
    with each of 100 paths takes MongoDB three times as long. Neither a path nor the name of a field contains NUL.
    """
    found = []
    for count in sorted({path.count(".") + 1 for path in hide}):
        paths = "\0".join(f".{path}." for path in hide if path.count(".") + 1 == count)
        parts = {"$slice": ["$$parts", 1, count]}  # a normalised name begins with a dot
        begin = {"$reduce": {"input": parts, "initialValue": "\0.", "in": {"$concat": ["$$value", "$$this", "."]}}}
        found.append({"$ne": [{"$indexOfBytes": [f"\0{paths}\0", {"$concat": [begin, "\0"]}]}, -1]})
    return {"$let": {"vars": {"parts": {"$split": [name, "."]}}, "in": {"$or": found}}}


def _begins(name: Expression, path: Expression) -> Expression:
    """Whether a normalised name is the path or lies below it."""
    return {"$eq": [{"$indexOfBytes": [name, path]}, 0]}


def _dotted(path: str) -> Expression:
    return {"$literal": f".{path}."}


def _normal(name: str, hide: tuple[str, ...]) -> Expression:
    """`items.0.price` as `.items.price.`: without array indices, and so that one name begins with another by parts.

    Only as many parts as a hidden path has: to put together all parts of a name takes a time that grows with the square
    of their number, and a name may have millions of dots.
    """
    parts = {"$filter": {"input": {"$split": [name, "."]}, "as": "part", "cond": {"$not": [_is_number("$$part")]}}}
    first = {"$slice": [parts, max(path.count(".") for path in hide) + 1]}
    return {"$reduce": {"input": first, "initialValue": ".", "in": {"$concat": ["$$value", "$$this", "."]}}}


def _is_number(part: str) -> Expression:
    """Compare bytes, because a field name need not be UTF-8, and a regular expression would fail on such a name."""
    digits_only = {"$eq": [{"$trim": {"input": part, "chars": "0123456789"}}, ""]}
    return {"$and": [{"$ne": [part, ""]}, digits_only]}


def _is_container(value: str) -> Expression:
    return {"$in": [{"$type": value}, ["object", "array"]]}


def _entries(document: str) -> Expression:
    return {"$objectToArray": {"$cond": [{"$eq": [{"$type": document}, "object"]}, document, {}]}}


def _list(value: Expression) -> Expression:
    return {"$cond": [{"$isArray": [value]}, value, []]}
