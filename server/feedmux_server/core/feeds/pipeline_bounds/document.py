"""The document as the stages leave it: what an event has, and the fields that stages have set."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from feedmux_server.core.feeds.pipeline_bounds.budget import Budget
from feedmux_server.core.feeds.pipeline_bounds.weights import (
    DOCUMENT,
    ELEMENT_BYTES,
    EMPTY_BYTES,
    SUBDOCUMENT_BYTES,
    Bound,
    Origin,
    Part,
    Path,
    Size,
    Symbol,
    bound_of,
    sum_of,
)

_EVENT: Final = Origin(
    Size(1.0, 0.0),
    frozenset({(), ("updateDescription", "updatedFields"), ("updateDescription", "disambiguatedPaths")}),
    is_event=True,
    small={
        ("operationType",): 64,
        ("clusterTime",): 16,
        ("wallTime",): 16,
        ("collectionUUID",): 32,
        ("ns", "db"): 80,
        ("ns", "coll"): 272,
        ("to", "db"): 80,
        ("to", "coll"): 272,
    },
)


@dataclass(slots=True)
class _Node:
    """The bounds of the fields that stages have set, by path."""

    bound: Bound | None = None
    children: dict[str, "_Node"] = field(default_factory=dict)

    def below(self) -> Iterable[Bound]:
        for child in self.children.values():
            if child.bound is not None:
                yield child.bound
            yield from child.below()


class Document:
    """Begins as an event."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._begin(_EVENT)

    def replace(self, size: Size) -> None:
        """Another document takes its place, of this size; nothing else is known of that."""
        self._begin(Origin(size, frozenset({()})))

    def _begin(self, origin: Origin) -> None:
        self._origins = self._budget.origins
        self._origins.clear()
        self._origins[DOCUMENT] = origin
        self._set = _Node()

    def bound(self, path: Path = (), *, charge: bool = False) -> Bound:
        """What the document has at `path` now. `charge`: an expression reads it."""
        node = self._set
        for count, name in enumerate(path, 1):
            child = node.children.get(name)
            if child is None:
                return self._reference((DOCUMENT, ()), path) if charge else self._original(DOCUMENT, path)
            node = child
            if node.bound is not None:
                return self.follow(node.bound, path[count:])
        bound = self._reference((DOCUMENT, ()), path) if charge else self._original(DOCUMENT, path)
        if node.children:
            below = list(node.below())
            self._budget.count(sum(1 + len(each.weights) for each in below))
            bound = self._budget.few_parts(sum_of([bound, *below]))
        bound.document = not path
        return bound

    def follow(self, bound: Bound, path: Path) -> Bound:
        """What an expression reads at a path within a value."""
        if not path:
            return bound.copy()
        if bound.document:
            return self.bound(path, charge=True)
        if bound.ref is not None:
            return self._reference(bound.ref, path)
        self._budget.charge(bound)  # An array would be gone through.
        return bound.plain()

    def _reference(self, ref: Part, path: Path) -> Bound:
        symbol, above = ref
        whole = (*above, *path)
        for count in range(len(above), len(whole)):
            if not self._origins[symbol].is_object(whole[:count]):
                # An array on the way is gone through, and copied.
                self._budget.charge(bound_of((symbol, whole[:count])))
                return bound_of((symbol, whole), EMPTY_BYTES)
        return self._original(symbol, whole)

    def _original(self, symbol: Symbol, path: Path) -> Bound:
        small = self._origins[symbol].small.get(path)
        return bound_of((symbol, path)) if small is None else Bound(small)

    def put(self, path: Path, bound: Bound) -> None:
        """Set a field. Raises PipelineUnbounded where that could copy a part of the event into many elements."""
        names = _names_bytes(path)
        for count in range(1, len(path)):
            prefix = path[:count]
            if self._is_object(prefix):
                continue
            # Where the prefix is an array, the field is set in every element.
            if bound.weights:
                wanted, array = ".".join(path)[:100], ".".join(prefix)[:100]
                raise self._budget.rejection(
                    self._budget.operator,
                    f"sets `{wanted}`, and `{array}` may be an array: this would copy a part of the event into each of"
                    " its elements",
                )
            added = self.bound(prefix)
            self._budget.charge(added)
            each = bound.constant + names
            self._store(prefix, added.times(1 + each / ELEMENT_BYTES, each))
            return
        self._store(path, bound, names)

    def _is_object(self, path: Path) -> bool:
        """Whether the field is certainly no array."""
        node = self._set
        for name in path:
            child = node.children.get(name)
            if child is None:
                break
            node = child
            if node.bound is not None:
                return False
        return self._origins[DOCUMENT].is_object(path)

    def _store(self, path: Path, bound: Bound, names: float = 0.0) -> None:
        node = self._set
        for name in path:
            if node.bound is not None:
                node.bound = self._budget.few_parts(sum_of([node.bound, bound], names))
                return
            node = node.children.setdefault(name, _Node())
        kept = self._budget.few_parts(bound).copy()
        kept.constant += names
        kept.document = False
        node.bound, node.children = kept, {}

    def remove(self, path: Path) -> None:
        """Remove a field: only one that a stage has set makes a difference."""
        node = self._set
        *parents, last = path
        for name in parents:
            if name not in node.children:
                return
            node = node.children[name]
        if node.children.pop(last, None) is not None and parents:
            # The objects that were made for it stay.
            node.children[last] = _Node(Bound(_names_bytes(path)))


def _names_bytes(path: Path) -> float:
    """The bytes of the names on the way to a field, and of the objects that `$set` makes where there are none."""
    return float(sum(len(name.encode()) + 2 + SUBDOCUMENT_BYTES for name in path))
