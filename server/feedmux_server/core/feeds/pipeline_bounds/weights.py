"""The arithmetic of bounds: weights on parts of the event, and bytes beside them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

ELEMENT_BYTES: Final = 3
SUBDOCUMENT_BYTES: Final = 5
SCALAR_BYTES: Final = 16
# An empty array, which is left of an empty one.
EMPTY_BYTES: Final = 5

Path = tuple[str, ...]
Symbol = int
"""What a path begins at: the document, or the element of a loop."""
DOCUMENT: Final[Symbol] = 0
Part = tuple[Symbol, Path]


@dataclass(frozen=True, slots=True)
class Size:
    """At most `weight` times the size of the event, and `constant` bytes."""

    weight: float
    constant: float


@dataclass(slots=True)
class Bound:
    """A bound of a value's bytes. `weights` are on what the document held when it began, and on loops' elements."""

    constant: float = 0.0
    weights: dict[Part, float] = field(default_factory=dict)
    ref: Part | None = None
    """It is exactly this part."""
    document: bool = False
    """It is the whole document as the stages have left it."""
    element_bytes: int = ELEMENT_BYTES
    """What an element of it has at least, where it is an array."""
    of_objects: bool = False
    """Its elements are objects, where it is an array."""
    element: "Bound | None" = None
    """The bound of one element, where that is less than the whole."""
    back: "Bound | None" = None
    """The bound of the object that `$arrayToObject` makes of it, where that is less than the whole."""

    @property
    def is_constant(self) -> bool:
        return not self.weights

    def times(self, factor: float, constant: float = 0.0) -> "Bound":
        return Bound(
            self.constant * factor + constant, {part: weight * factor for part, weight in self.weights.items()}
        )

    def add(self, other: "Bound") -> None:
        self.constant += other.constant
        for part, weight in other.weights.items():
            self.weights[part] = self.weights.get(part, 0.0) + weight

    def copy(self) -> "Bound":
        return replace(self, weights=dict(self.weights))

    def plain(self) -> "Bound":
        """The size alone."""
        return Bound(self.constant, dict(self.weights))

    def elements(self) -> "Bound":
        """How many elements it has, where it is an array."""
        return self.times(1 / self.element_bytes, 1)

    def same_elements(self) -> "Bound":
        """An array of elements of this one."""
        return replace(
            self, weights=dict(self.weights), ref=None, document=False, constant=self.constant + SCALAR_BYTES
        )


def bound_of(part: Part, constant: float = 0.0) -> Bound:
    return Bound(constant, {part: 1.0}, ref=part)


def sum_of(bounds: Iterable[Bound], constant: float = 0.0) -> Bound:
    total = Bound(constant)
    for each in bounds:
        total.add(each)
    return total


def largest_of(bounds: Iterable[Bound]) -> Bound:
    total = Bound()
    for each in bounds:
        total.constant = max(total.constant, each.constant)
        for part, weight in each.weights.items():
            total.weights[part] = max(total.weights.get(part, 0.0), weight)
    return total


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known about what a symbol stands for."""

    size: Size
    objects: frozenset[Path] = frozenset()
    """Paths that hold objects or nothing."""
    is_event: bool = False
    """It is the event, none of whose fields is an array."""
    small: Mapping[Path, int] = field(default_factory=dict)
    """Paths that hold so few bytes."""

    def is_object(self, path: Path) -> bool:
        return path in self.objects or (self.is_event and len(path) == 1)


Origins = Mapping[Symbol, Origin]


@dataclass(slots=True)
class _Tree:
    """Weights by path."""

    weight: float = 0.0
    children: dict[str, "_Tree"] = field(default_factory=dict)


def weigh(weights: Mapping[Part, float], origins: Origins) -> dict[Symbol, float]:
    """By symbol, the weight on the whole of it."""
    trees: dict[Symbol, _Tree] = {}
    for (symbol, path), weight in weights.items():
        tree = trees.setdefault(symbol, _Tree())
        for name in path:
            tree = tree.children.setdefault(name, _Tree())
        tree.weight += weight
    return {symbol: _heaviest(tree, origins[symbol], (), in_array=False) for symbol, tree in trees.items()}


def _heaviest(tree: _Tree, origin: Origin, path: Path, *, in_array: bool) -> float:
    """The weight of a value whose parts are referred to.

    Of an object: its own and that of its heaviest part. Where it may be an array, each reference to a part is an array
    too, with brackets and an index for each element, of up to 9 bytes where the part had 3; that is three times the
    part. Arrays within arrays leave brackets also where the part is missing, so there all references add up.
    """
    if not tree.children:
        return tree.weight
    is_object = origin.is_object(path)
    parts = [
        _heaviest(child, origin, (*path, name), in_array=in_array or not is_object)
        for name, child in tree.children.items()
    ]
    if is_object:
        return tree.weight + max(parts)
    return tree.weight + (sum(parts) if in_array else min(3 * max(parts), sum(parts)))
