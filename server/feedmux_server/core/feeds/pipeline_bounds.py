"""Bounds what a pipeline makes of an event, and the work for it, before MongoDB gets the pipeline.

Everything that is not listed here is rejected: a new operator of MongoDB is unknown until somebody has thought about
its size. What is listed gets a bound of its output in bytes of BSON:

    weights x parts of the event + constant

- A weight stands on a path of the document (`fullDocument.items`) or of a loop's element (`$$this.price`). References
  to different paths of one object share its bytes, so 40 projected fields weigh 1 together: the weight of an object is
  its own plus that of its heaviest child. An array in the way gives every reference its own index keys and brackets:
  `_weigh` says how much that adds.
- A scalar is a constant. What builds something weighs the sum of its parts, a choice the maximum of its branches. A
  variable weighs what it was bound to, at every use.
- `$map` multiplies: the weight of its element is the input's, and a constant counts for each element, which has 3 bytes
  at least. What weighs anything outside of the loop is rejected there (elements x event grows with the square), in the
  output as in the work; a comparison costs the smaller of its operands only, and so may look outside. A field that is
  set below a possible array is such a loop too, for MongoDB sets it in every element.
- `$set` and `$project` add fields whose bounds are remembered, so that a later stage which refers to them weighs what
  they were made of. `$replaceRoot` and `$replaceWith` begin a new document, whose weight multiplies what follows.

Work is counted alike, in bytes looked at and 8 for each operator that is evaluated. The limits hold for the document
after each stage, for what an operator throws away (`{$size: {$concatArrays: …}}`), and for the work of all stages.
tests/integration/test_pipeline_bounds.py holds the bounds against a real mongod. What is in the document when the
pipeline begins is an event: the fields of `_OBJECTS` are objects or missing, nothing else is known about it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import bson
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.regex import Regex

from feedmux_server.core.feeds.regex_bounds import check_regex

WEIGHT_MAX: Final = 32
"""The output of a stage, and what lies between, in sizes of the event …"""
CONSTANT_PER_PIPELINE_BYTE: Final = 16
CONSTANT_BYTES: Final = 64 * 1024
"""… and in bytes beside that."""
WORK_MAX: Final = 1024
"""Steps for each byte of the event."""
_WORK_CONSTANT_MAX: Final = 4 << 20
_PATH_PARTS_MAX: Final = 100
_PARTS_MAX: Final = 64

_OPERATOR_WORK: Final = 8
_ELEMENT_BYTES: Final = 3
_SUBDOCUMENT_BYTES: Final = 5
_OBJECT_BYTES: Final = _ELEMENT_BYTES + _SUBDOCUMENT_BYTES
_DEPTH: Final = 100
"""How deep MongoDB lets a stored document be nested."""
_SCALAR_BYTES: Final = 16
# An empty array, which is left of an empty one.
_EMPTY_BYTES: Final = 5
_SHORT_TEXT_BYTES: Final = 64
# {k: name, v: value} of 25 bytes and the two, from a field of 2 bytes and the two.
_PAIR_BYTES: Final = 25
_PAIR_BYTES_MIN: Final = 19
_OBJECT_TO_ARRAY: Final = 13
# An element of 14 bytes and the text, from a separator of 1 byte and the text.
_SPLIT: Final = 15
# Every %-mark of two bytes becomes at most ten.
_DATE_FORMAT: Final = 5
# A text of 10 bytes ("false") and 3 around it, from a boolean of 1 byte and 3 around it.
_TEXT_OF_ELEMENT: Final = 4
# An index of 7 digits where it was one of 1, and 2 bytes around it.
_LONGER_INDEX: Final = 3
_DATE_PARTS_BYTES: Final = 150
_PATTERN_WORK: Final = 8
# 22 comparisons for each of a few million elements, of 3 bytes at least.
_SORT_WORK: Final = 8

Path = tuple[str, ...]
_Key = tuple[int, Path]

_ROOT: Final = 0
_OBJECTS: Final = frozenset(
    {
        (),
        ("_id",),
        ("ns",),
        ("to",),
        ("lsid",),
        ("documentKey",),
        ("fullDocument",),
        ("fullDocumentBeforeChange",),
        ("updateDescription",),
        ("updateDescription", "updatedFields"),
        ("updateDescription", "disambiguatedPaths"),
    }
)
_SMALL: Final[Mapping[Path, int]] = {
    ("operationType",): 64,
    ("clusterTime",): 16,
    ("wallTime",): 16,
    ("collectionUUID",): 32,
    ("ns", "db"): 80,
    ("ns", "coll"): 272,
    ("to", "db"): 80,
    ("to", "coll"): 272,
}
"""Fields of an event that have few bytes."""
_CODEC: Final = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_AUTO)

STAGES: Final = frozenset(
    {
        "$match",
        "$project",
        "$addFields",
        "$set",
        "$unset",
        "$replaceRoot",
        "$replaceWith",
        "$redact",
        "$changeStreamSplitLargeEvent",
    }
)
CONSTANT_VARIABLES: Final = frozenset({"REMOVE", "NOW", "CLUSTER_TIME", "DESCEND", "PRUNE", "KEEP"})
SCALARS: Final = frozenset(
    {
        "$abs", "$add", "$ceil", "$divide", "$exp", "$floor", "$ln", "$log", "$log10", "$mod", "$multiply", "$pow",
        "$round", "$sqrt", "$subtract", "$trunc", "$sin", "$cos", "$tan", "$asin", "$acos", "$atan", "$atan2", "$asinh",
        "$acosh", "$atanh", "$sinh", "$cosh", "$tanh", "$degreesToRadians", "$radiansToDegrees", "$bitAnd", "$bitOr",
        "$bitXor", "$bitNot", "$and", "$or", "$not", "$isArray", "$isNumber", "$size", "$type", "$binarySize",
        "$strLenBytes", "$year", "$month", "$week", "$dayOfYear", "$dayOfMonth", "$dayOfWeek", "$hour", "$minute",
        "$second", "$millisecond", "$isoDayOfWeek", "$isoWeek", "$isoWeekYear", "$dateAdd", "$dateSubtract",
        "$dateDiff", "$dateTrunc", "$dateFromParts", "$tsSecond", "$tsIncrement", "$toBool",
    }
)  # fmt: skip
"""A value of a few bytes, made without looking through the contents of an operand."""
READERS: Final = frozenset(
    {
        "$strLenCP", "$bsonSize", "$strcasecmp", "$setEquals", "$setIsSubset", "$allElementsTrue", "$anyElementTrue",
        "$sum", "$avg", "$stdDevPop", "$stdDevSamp", "$toInt", "$toLong", "$toDouble", "$toDecimal", "$toDate",
        "$toObjectId",
    }
)  # fmt: skip
"""A value of a few bytes, for which MongoDB looks through its operands."""
COMPARISONS: Final = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$cmp"})
SUMS: Final = frozenset({"$concat", "$concatArrays", "$mergeObjects", "$setUnion", "$setIntersection"})
"""At most all operands together."""
FIRSTS: Final = frozenset(
    {
        "$slice", "$reverseArray", "$substr", "$substrBytes", "$substrCP", "$toLower", "$toUpper", "$setDifference",
    }
)  # fmt: skip
"""At most the first operand."""
ELEMENTS: Final = frozenset({"$arrayElemAt", "$first", "$last"})
CHOICES: Final = frozenset({"$ifNull", "$min", "$max"})
"""At most the largest operand."""

QUERY_VALUES: Final = frozenset(
    {
        "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$exists", "$type", "$mod", "$size", "$bitsAllSet", "$bitsAllClear",
        "$bitsAnySet", "$bitsAnyClear",
    }
)  # fmt: skip
QUERY_OPERATORS: Final = QUERY_VALUES | {"$in", "$nin", "$all", "$not", "$elemMatch", "$regex", "$options"}
QUERY_TOP: Final = frozenset({"$and", "$or", "$nor", "$expr", "$comment"})


class PipelineUnbounded(Exception):
    """`operator` is not allowed, or makes too much of the event: `message` says why."""

    def __init__(self, operator: str, path: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.operator = operator
        self.path = tuple(path)
        self.message = message


@dataclass(slots=True)
class _Bound:
    """A bound of a value's bytes. `weights` are on what the document held when it began, and on loops' elements."""

    constant: float = 0.0
    weights: dict[_Key, float] = field(default_factory=dict)
    ref: _Key | None = None
    """It is exactly this path."""
    document: bool = False
    """It is the whole document as the stages have left it."""
    element_bytes: int = _ELEMENT_BYTES
    """What an element of it has at least, where it is an array."""
    of_objects: bool = False
    """Its elements are objects, where it is an array."""
    element: "_Bound | None" = None
    """The bound of one element, where that is less than the whole."""
    back: "_Bound | None" = None
    """The bound of the object that `$arrayToObject` makes of it, where that is less than the whole."""

    @property
    def is_constant(self) -> bool:
        return not self.weights

    def times(self, factor: float, constant: float = 0.0) -> "_Bound":
        return _Bound(self.constant * factor + constant, {key: weight * factor for key, weight in self.weights.items()})

    def add(self, other: "_Bound") -> None:
        self.constant += other.constant
        for key, weight in other.weights.items():
            self.weights[key] = self.weights.get(key, 0.0) + weight

    def raise_to(self, other: "_Bound") -> None:
        self.constant = max(self.constant, other.constant)
        for key, weight in other.weights.items():
            self.weights[key] = max(self.weights.get(key, 0.0), weight)

    def copy(self) -> "_Bound":
        return replace(self, weights=dict(self.weights))

    def plain(self) -> "_Bound":
        """The size alone."""
        return _Bound(self.constant, dict(self.weights))


def _sum(bounds: Iterable[_Bound], constant: float = 0.0) -> _Bound:
    total = _Bound(constant)
    for each in bounds:
        total.add(each)
    return total


@dataclass(slots=True)
class _Node:
    """The bounds of the fields that stages have set, by path."""

    bound: _Bound | None = None
    children: dict[str, "_Node"] = field(default_factory=dict)

    def below(self) -> Iterable[_Bound]:
        for child in self.children.values():
            if child.bound is not None:
                yield child.bound
            yield from child.below()


@dataclass(slots=True)
class _Tree:
    """Weights by path."""

    weight: float = 0.0
    children: dict[str, "_Tree"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Size:
    """At most `weight` times the size of the event, and `constant` bytes."""

    weight: float
    constant: float


_Env = dict[str, _Bound]


def check_bounds(pipeline: bytes) -> Size:
    """Bounds the output of `pipeline`, which `bson_check.walk` has passed and which names no field twice.

    Raises PipelineUnbounded.
    """
    return _Analysis(len(pipeline)).run(bson.decode(pipeline, _CODEC)["pipeline"])


class _Analysis:
    def __init__(self, size: int) -> None:
        self._constant_max = CONSTANT_PER_PIPELINE_BYTE * size + CONSTANT_BYTES
        self._at: list[str] = ["pipeline"]
        self._operator = ""
        self._objects: frozenset[Path] = _OBJECTS
        self._small: Mapping[Path, int] = _SMALL
        self._is_event = True
        """What the paths refer to is the event, none of whose fields is an array."""
        self._scale: dict[int, float] = {_ROOT: 1.0}
        """By symbol (the document, the element of a loop), its size in sizes of the event …"""
        self._base: dict[int, float] = {_ROOT: 0.0}
        """… and in bytes beside that."""
        self._object_loops: set[int] = set()
        """Loops whose elements are objects."""
        self._set = _Node()
        self._work: list[_Bound] = [_Bound()]
        """The work of the stage, and of the loops within one another."""
        self._work_total = Size(0.0, 0.0)
        self._handlers = self._make_handlers()

    def run(self, stages: list[dict[str, Any]]) -> Size:
        size = Size(1.0, 0.0)
        for index, stage in enumerate(stages):
            ((name, content),) = stage.items()
            self._at = ["pipeline", str(index), name]
            self._operator = name
            self._charge(self._document(()))
            self._stage(name, content)
            self._at = ["pipeline", str(index), name]
            self._operator = name
            size = self._checked(self._document(()), name)
            self._end_work(name)
        return size

    # Stages

    def _stage(self, name: str, content: Any) -> None:
        match name:
            case "$match":
                self._match(self._mapping(name, content), ())
            case "$project":
                self._put(self._mapping(name, content), (), flags=True)
            case "$set" | "$addFields":
                self._put(self._mapping(name, content), (), flags=False)
            case "$unset":
                for path in content if isinstance(content, list) else [content]:
                    self._unset(path)
            case "$replaceRoot":
                document = self._mapping(name, content)
                if set(document) != {"newRoot"}:
                    raise self._refusal(name, "takes newRoot and nothing else")
                self._replace(name, document["newRoot"])
            case "$replaceWith":
                self._replace(name, content)
            case "$redact":
                self._redact(content)
            case "$changeStreamSplitLargeEvent":
                if self._mapping(name, content):
                    raise self._refusal(name, "takes no options")
            case _:
                raise self._refusal(name, "this stage may not follow $changeStream")

    def _put(self, content: Mapping[str, Any], above: Path, *, flags: bool) -> None:
        """The fields that `$set` or `$project` (which also has `flags`, 1 and 0) computes."""
        found: list[tuple[Path, _Bound]] = []
        self._computed(content, above, found, flags=flags)
        for path, bound in found:
            self._put_one(path, bound)

    def _computed(
        self, content: Mapping[str, Any], above: Path, found: list[tuple[Path, _Bound]], *, flags: bool
    ) -> None:
        env = self._environment()
        for name, value in content.items():
            self._at.append(name)
            if name.startswith("$"):
                raise self._refusal(name, "a field name may not begin with $ here")
            path = (*above, *self._parts(name))
            nested = isinstance(value, dict) and not any(each.startswith("$") for each in value)
            if nested and value:
                self._computed(value, path, found, flags=flags)
            elif not (flags and _is_flag(value)):
                bound = self._expression(value, env)
                self._checked(bound, self._operator)
                found.append((path, bound))
            self._at.pop()

    def _put_one(self, path: Path, bound: _Bound) -> None:
        names = _names_bytes(path)
        for count in range(1, len(path)):
            prefix = path[:count]
            if self._is_object(prefix):
                continue
            # Where the prefix is an array, the field is set in every element.
            if bound.weights:
                field_, array = ".".join(path)[:100], ".".join(prefix)[:100]
                raise self._refusal(
                    self._operator,
                    f"sets `{field_}`, and `{array}` may be an array: this would copy a part of the event into each of"
                    " its elements",
                )
            added = self._document(prefix)
            self._charge(added)
            whole = added.times(1 + (bound.constant + names) / _ELEMENT_BYTES, bound.constant + names)
            self._store(prefix, whole)
            return
        self._store(path, bound, names)

    def _store(self, path: Path, bound: _Bound, names: float = 0.0) -> None:
        node = self._set
        for part in path:
            if node.bound is not None:
                node.bound = _sum([node.bound, bound], names)
                return
            node = node.children.setdefault(part, _Node())
        kept = bound.copy()
        kept.constant += names
        kept.document = False
        node.bound, node.children = kept, {}

    def _unset(self, path: Any) -> None:
        if not isinstance(path, str):
            raise self._refusal("$unset", "takes names of fields")
        node = self._set
        *parents, last = parts = self._parts(path)
        for part in parents:
            if part not in node.children:
                return
            node = node.children[part]
        if node.children.pop(last, None) is not None and parents:
            # The objects that were made for it stay.
            node.children[last] = _Node(_Bound(_names_bytes(parts)))

    def _replace(self, name: str, expression: Any) -> None:
        bound = self._expression(expression, self._environment())
        size = self._checked(bound, name)
        self._end_work(name)
        self._scale, self._base = {_ROOT: size.weight}, {_ROOT: size.constant}
        self._objects, self._small, self._set = frozenset({()}), {}, _Node()
        self._is_event = False

    def _redact(self, expression: Any) -> None:
        """The expression is evaluated for each document within the document, as CURRENT."""
        document = self._document(())
        loop = self._enter(document, objects=True)
        self._drop(self._expression(expression, self._environment() | {"CURRENT": _element_of(loop)}))
        weight, constant = self._leave(loop, "$redact")
        self._charge(document.times(_DEPTH * weight + (constant + _OPERATOR_WORK) / _SUBDOCUMENT_BYTES))

    # $match

    def _match(self, query: Mapping[str, Any], above: Path) -> None:
        for name, value in query.items():
            self._at.append(name)
            if not name.startswith("$"):
                self._condition((*above, *self._parts(name, empty=True)), value)
            elif name not in QUERY_TOP:
                raise self._refusal(name, "this operator of the query language is not allowed")
            elif name == "$expr":
                if above:
                    raise self._refusal(name, "may not be used within $elemMatch")
                self._operator = "$match"
                self._drop(self._expression(value, self._environment()))
            elif name != "$comment":
                for index, each in enumerate(self._list(name, value)):
                    self._at.append(str(index))
                    self._match(self._mapping(name, each), above)
                    self._at.pop()
            self._at.pop()

    def _condition(self, path: Path, value: Any) -> None:
        if not isinstance(value, dict) or not any(name.startswith("$") for name in value):
            self._predicate(path, value)
            return
        for name, operand in value.items():
            self._at.append(name)
            if name in QUERY_VALUES:
                self._predicate(path, operand)
            elif name in ("$in", "$nin", "$all"):
                self._members(name, path, operand)
            elif name == "$not":
                self._condition(path, operand)
            elif name == "$elemMatch":
                document = self._mapping(name, operand)
                if any(each.startswith("$") and each not in QUERY_TOP for each in document):
                    self._condition(path, document)
                else:
                    self._match(document, path)
            elif name == "$regex":
                self._pattern(name, operand, value.get("$options", ""))
                self._look(path, _PATTERN_WORK)
            elif name != "$options":
                raise self._refusal(name, "this operator of the query language is not allowed")
            self._at.pop()

    def _members(self, name: str, path: Path, operand: Any) -> None:
        members = self._list(name, operand)
        if name == "$all":
            for each in members:
                self._condition(path, each)
            return
        patterns = [each for each in members if isinstance(each, Regex | re.Pattern)]
        for each in patterns:
            self._predicate(path, each)
        self._refuse_code(members)
        self._look(path, len(members).bit_length())

    def _predicate(self, path: Path, value: Any) -> None:
        if isinstance(value, Regex | re.Pattern):
            self._pattern("a regular expression", value, "")
            self._look(path, _PATTERN_WORK)
            return
        self._refuse_code(value)
        self._look(path, 1)

    def _look(self, path: Path, factor: float) -> None:
        """Work of a condition for each element that the path may lead to."""
        self._charge(self._document(path).plain().times(factor * _OPERATOR_WORK / _ELEMENT_BYTES, _OPERATOR_WORK))

    def _refuse_code(self, value: Any) -> None:
        if isinstance(value, Code):
            raise self._refusal("JavaScript", "is not allowed")
        if isinstance(value, list):
            for each in value:
                self._refuse_code(each)
        elif isinstance(value, dict):
            for each in value.values():
                self._refuse_code(each)

    def _pattern(self, operator: str, pattern: Any, options: Any) -> int:
        """Checks a pattern; how many groups it has."""
        if isinstance(pattern, re.Pattern):
            pattern = Regex.from_native(pattern)
        flags = options
        if isinstance(pattern, Regex):
            flags = flags or "".join(c for c, bit in _FLAGS if pattern.flags & bit)
            pattern = pattern.pattern
        if isinstance(pattern, bytes):
            pattern = pattern.decode("utf-8", "replace")
        if not isinstance(pattern, str) or not isinstance(flags, str):
            raise self._refusal(operator, "the pattern must be a constant")
        try:
            return check_regex(pattern, flags)
        except ValueError as error:
            raise self._refusal(operator, str(error)) from None

    # Expressions

    def _environment(self) -> _Env:
        root = self._document(())
        return {"ROOT": root, "CURRENT": root} | {name: _Bound(_SCALAR_BYTES) for name in CONSTANT_VARIABLES}

    def _expression(self, value: Any, env: _Env) -> _Bound:
        self._work[-1].constant += _OPERATOR_WORK
        if isinstance(value, Code):
            raise self._refusal("JavaScript", "is not allowed")
        if isinstance(value, str):
            return self._text(value, env)
        if isinstance(value, list):
            return self._array(value, env)
        if not isinstance(value, dict):
            return _Bound(_literal_bytes(value))
        operators = [name for name in value if name.startswith("$")]
        if not operators:
            return self._object(value, env)
        name = operators[0]
        if len(value) > 1:
            raise self._refusal(name, "an operator must be the only field of its document")
        handler = self._handlers.get(name)
        if handler is None:
            raise self._refusal(name, "this operator is not allowed")
        self._at.append(name)
        before, self._operator = self._operator, name
        bound = handler(name, value[name], env)
        self._operator = before
        self._at.pop()
        return bound

    def _text(self, text: str, env: _Env) -> _Bound:
        if not text.startswith("$") or text == "$":
            return _Bound(_literal_bytes(text))
        if not text.startswith("$$"):
            return self._follow(env["CURRENT"], self._parts(text[1:]))
        name, _, rest = text[2:].partition(".")
        bound = env.get(name)
        if bound is None:
            raise self._refusal(f"$${name}", "this variable is not known")
        return self._follow(bound, self._parts(rest) if rest else ())

    def _follow(self, bound: _Bound, path: Path) -> _Bound:
        """A path within a value."""
        if not path:
            return bound.copy()
        if bound.document:
            return self._document(path, charge=True)
        if bound.ref is not None:
            return self._reference(bound.ref, path)
        self._charge(bound)  # An array would be gone through.
        return bound.plain()

    def _reference(self, ref: _Key, path: Path) -> _Bound:
        symbol, above = ref
        whole = (*above, *path)
        for count in range(len(above), len(whole)):
            if not self._was_object((symbol, whole[:count])):
                # An array on the way is gone through, and copied.
                self._charge(_Bound(0.0, {(symbol, whole[:count]): 1.0}))
                return _Bound(_EMPTY_BYTES, {(symbol, whole): 1.0}, ref=(symbol, whole))
        return self._at_base(symbol, whole)

    def _at_base(self, symbol: int, path: Path) -> _Bound:
        if symbol == _ROOT and path in self._small:
            return _Bound(self._small[path])
        return _Bound(0.0, {(symbol, path): 1.0}, ref=(symbol, path))

    def _document(self, path: Path, *, charge: bool = False) -> _Bound:
        """What the document has at `path` now. `charge`: somebody reads it."""
        node = self._set
        for count, part in enumerate(path):
            child = node.children.get(part)
            if child is None:
                return self._reference((_ROOT, ()), path) if charge else self._at_base(_ROOT, path)
            node = child
            if node.bound is not None:
                rest = path[count + 1 :]
                return self._follow(node.bound, rest) if charge or rest else node.bound.copy()
        bound = self._reference((_ROOT, ()), path) if charge else self._at_base(_ROOT, path)
        if node.children:
            bound = self._few_parts(_sum([bound, *node.below()]))
        bound.document = not path
        return bound

    def _is_object(self, path: Path) -> bool:
        """Whether the document's field, as the stages have left it, is certainly no array."""
        node = self._set
        for part in path:
            child = node.children.get(part)
            if child is None:
                break
            node = child
            if node.bound is not None:
                return False
        return self._was_object((_ROOT, path))

    def _was_object(self, key: _Key) -> bool:
        symbol, path = key
        if symbol == _ROOT:
            return path in self._objects or (len(path) == 1 and self._is_event)
        return not path and symbol in self._object_loops

    def _object(self, fields: Mapping[str, Any], env: _Env) -> _Bound:
        total = _Bound(5.0)
        for name, value in fields.items():
            self._at.append(name)
            total.add(self._expression(value, env))
            total.constant += len(name.encode()) + 2
            self._at.pop()
        total.element_bytes = _ELEMENT_BYTES
        return total

    def _array(self, values: list[Any], env: _Env) -> _Bound:
        total = _Bound(5.0)
        for index, each in enumerate(self._each(values, env)):
            total.add(each)
            total.constant += len(str(index)) + 2
        return total

    def _each(self, values: Any, env: _Env) -> list[_Bound]:
        """Operands: a list, or one alone."""
        found = []
        for index, value in enumerate(values if isinstance(values, list) else [values]):
            self._at.append(str(index))
            found.append(self._expression(value, env))
            self._at.pop()
        return found

    def _some(self, name: str, value: Any, env: _Env) -> list[_Bound]:
        """Operands, one at least."""
        found = self._each(value, env)
        if not found:
            raise self._refusal(name, "needs an operand")
        return found

    def _named(
        self, name: str, value: Any, env: _Env, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, _Bound]:
        """Operands by name."""
        fields = self._fields(name, value, required, optional)
        found = {}
        for each, content in fields.items():
            self._at.append(each)
            found[each] = self._expression(content, env)
            self._at.pop()
        return found

    def _fields(
        self, name: str, value: Any, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        fields = self._mapping(name, value)
        for each in fields:
            if each not in required and each not in optional:
                raise self._refusal(name, f"its option `{each[:50]}` is not allowed")
        for each in required:
            if each not in fields:
                raise self._refusal(name, f"needs `{each}`")
        return fields

    def _make_handlers(self) -> Mapping[str, Callable[[str, Any, _Env], _Bound]]:
        groups = {
            SCALARS: self._scalar,
            READERS: self._reader,
            COMPARISONS: self._comparison,
            SUMS: self._all_together,
            FIRSTS: self._first,
            ELEMENTS: self._one_element,
            CHOICES: self._choice,
        }
        by_group = {name: handler for names, handler in groups.items() for name in names}
        return by_group | {
            "$literal": self._literal,
            "$const": self._literal,
            "$cond": self._cond,
            "$switch": self._switch,
            "$let": self._let,
            "$map": self._map,
            "$filter": self._filter,
            "$in": self._in,
            "$indexOfArray": self._index_of_array,
            "$indexOfBytes": self._index_of_text,
            "$indexOfCP": self._index_of_text,
            "$objectToArray": self._object_to_array,
            "$arrayToObject": self._array_to_object,
            "$split": self._split,
            "$trim": self._trim,
            "$ltrim": self._trim,
            "$rtrim": self._trim,
            "$replaceOne": self._replace_one,
            "$toString": self._to_string,
            "$convert": self._convert,
            "$dateToString": self._date_to_string,
            "$dateToParts": self._date_to_parts,
            "$dateFromString": self._date_from_string,
            "$regexMatch": self._regex_match,
            "$regexFind": self._regex_find,
            "$getField": self._get_field,
            "$setField": self._set_field,
            "$unsetField": self._unset_field,
            "$sortArray": self._sort_array,
        }

    def _scalar(self, name: str, value: Any, env: _Env) -> _Bound:
        self._drop(*self._each(value, env))
        return _Bound(_SHORT_TEXT_BYTES if name == "$type" else _SCALAR_BYTES)

    def _reader(self, name: str, value: Any, env: _Env) -> _Bound:
        operands = self._each(value, env)
        self._drop(*operands)
        self._charge(*operands)
        return _Bound(_SCALAR_BYTES)

    def _comparison(self, name: str, value: Any, env: _Env) -> _Bound:
        operands = self._each(value, env)
        self._drop(*operands)
        inner = len(self._work) - 1
        costs = [each for each in operands if each.is_constant] or [
            each for each in operands if all(symbol == inner for symbol, _ in each.weights)
        ]
        # A comparison ends where the smaller operand does.
        self._charge(*(costs[:1] or operands))
        return _Bound(_SCALAR_BYTES)

    def _all_together(self, name: str, value: Any, env: _Env) -> _Bound:
        total = _sum(self._each(value, env), _EMPTY_BYTES)
        if name == "$concatArrays":
            # An element's index may take more digits than before.
            total = total.times(_LONGER_INDEX)
        self._charge(total.times(_SORT_WORK) if name.startswith("$set") else total)
        return total.times(_LONGER_INDEX) if name == "$setUnion" else total

    def _first(self, name: str, value: Any, env: _Env) -> _Bound:
        first, *others = self._some(name, value, env)
        self._drop(*others)
        if name == "$setDifference":
            self._charge(*(each.times(_SORT_WORK) for each in (first, *others)))
        else:
            self._charge(first)
        if name in ("$slice", "$reverseArray"):
            return self._same_elements(first)
        return self._as_text(first)

    def _as_text(self, bound: _Bound) -> _Bound:
        """A text made of it, also of a number or a date: in a loop by its size, as there a constant counts for more."""
        if len(self._work) > 1:
            return bound.times(_TEXT_OF_ELEMENT, _EMPTY_BYTES)
        return bound.times(2, _SHORT_TEXT_BYTES)

    def _same_elements(self, bound: _Bound) -> _Bound:
        return replace(
            bound, weights=dict(bound.weights), ref=None, document=False, constant=bound.constant + _SCALAR_BYTES
        )

    def _one_element(self, name: str, value: Any, env: _Env) -> _Bound:
        first, *others = self._some(name, value, env)
        self._drop(*others)
        if first.element is None:
            return first.plain()
        self._drop(first)
        return first.element.copy()

    def _choice(self, name: str, value: Any, env: _Env) -> _Bound:
        operands = self._each(value, env)
        if name != "$ifNull":
            self._charge(*operands)
        return self._any_of(operands)

    def _any_of(self, bounds: list[_Bound]) -> _Bound:
        total = _Bound()
        for each in bounds:
            total.raise_to(each)
        return total

    def _literal(self, name: str, value: Any, env: _Env) -> _Bound:
        self._refuse_code(value)
        return _Bound(_literal_bytes(value))

    def _cond(self, name: str, value: Any, env: _Env) -> _Bound:
        if isinstance(value, dict):
            operands = list(self._named(name, value, env, ("if", "then", "else")).items())
            operands.sort(key=lambda each: each[0] != "if")
            condition, *branches = [bound for _, bound in operands]
        else:
            condition, *branches = self._each(self._list(name, value, 3), env)
        self._drop(condition)
        return self._any_of(branches)

    def _switch(self, name: str, value: Any, env: _Env) -> _Bound:
        fields = self._fields(name, value, ("branches",), ("default",))
        results = []
        for index, branch in enumerate(self._list(name, fields["branches"])):
            self._at += ["branches", str(index)]
            found = self._named(name, branch, env, ("case", "then"))
            self._drop(found["case"])
            results.append(found["then"])
            del self._at[-2:]
        if "default" in fields:
            results.append(self._expression(fields["default"], env))
        return self._any_of(results)

    def _let(self, name: str, value: Any, env: _Env) -> _Bound:
        fields = self._fields(name, value, ("vars", "in"))
        bound = {}
        for variable, content in self._mapping(name, fields["vars"]).items():
            self._at += ["vars", variable]
            found = self._expression(content, env)
            self._drop(found)
            bound[self._variable(variable)] = self._few_parts(found)
            del self._at[-2:]
        return self._expression(fields["in"], env | bound)

    def _map(self, name: str, value: Any, env: _Env) -> _Bound:
        fields = self._fields(name, value, ("input", "in"), ("as",))
        over = self._expression(fields["input"], env)
        self._drop(over)
        loop = self._enter(over)
        variable = self._variable(fields.get("as", "this"))
        body = self._expression(fields["in"], env | {variable: _element_of(loop)})
        self._work_in(loop, over, name)
        weight = self._own_weight(body, loop, name)
        elements = over.times(1 / over.element_bytes, 1)
        total = over.times(max(weight, 1.0), _SCALAR_BYTES)
        total.add(elements.times(body.constant))
        if self._is_object_literal(fields["in"]):
            total.element_bytes, total.of_objects = _OBJECT_BYTES, True
        return total

    def _filter(self, name: str, value: Any, env: _Env) -> _Bound:
        fields = self._fields(name, value, ("input", "cond"), ("as", "limit"))
        over = self._expression(fields["input"], env)
        if "limit" in fields:
            self._drop(self._expression(fields["limit"], env))
        loop = self._enter(over)
        variable = self._variable(fields.get("as", "this"))
        self._drop(self._expression(fields["cond"], env | {variable: _element_of(loop)}))
        self._work_in(loop, over, name)
        return self._same_elements(over)

    def _is_object_literal(self, value: Any) -> bool:
        return isinstance(value, dict) and bool(value) and not any(each.startswith("$") for each in value)

    def _in(self, name: str, value: Any, env: _Env) -> _Bound:
        needle, array = self._each(self._list(name, value, 2), env)
        self._drop(needle, array)
        self._charge(array)
        return _Bound(_SCALAR_BYTES)

    def _index_of_array(self, name: str, value: Any, env: _Env) -> _Bound:
        array, *others = self._some(name, value, env)
        self._drop(array, *others)
        self._charge(array)
        return _Bound(_SCALAR_BYTES)

    def _index_of_text(self, name: str, value: Any, env: _Env) -> _Bound:
        text, needle, *others = self._each(self._list(name, value, 2, 4), env)
        self._drop(text, *others)
        self._search(name, text, needle)
        return _Bound(_SCALAR_BYTES)

    def _search(self, name: str, text: _Bound, needle: _Bound) -> None:
        """Looking for a text takes as long as both lengths multiplied."""
        if not needle.is_constant:
            raise self._refusal(name, "what it looks for must be a constant")
        self._charge(text.times(1 + needle.constant / 8))

    def _object_to_array(self, name: str, value: Any, env: _Env) -> _Bound:
        (source,) = self._each(self._single(name, value), env)
        self._charge(source)
        total = source.times(_OBJECT_TO_ARRAY, 5)
        total.element_bytes = _PAIR_BYTES_MIN
        total.of_objects = True
        total.element = source.times(1, _PAIR_BYTES)
        total.back = source.plain()
        return total

    def _array_to_object(self, name: str, value: Any, env: _Env) -> _Bound:
        # [[[k, v]]]: a list with the operand, or the operand.
        operands = value if isinstance(value, list) and len(value) == 1 else [value]
        (source,) = self._each(operands, env)
        self._charge(source)
        if source.back is None:
            return source.plain()
        self._drop(source)
        return source.back.copy()

    def _split(self, name: str, value: Any, env: _Env) -> _Bound:
        text, separator = self._each(self._list(name, value, 2), env)
        self._search(name, text, separator)
        total = text.times(_SPLIT, _SCALAR_BYTES)
        total.element = text.plain()
        return total

    def _trim(self, name: str, value: Any, env: _Env) -> _Bound:
        found = self._named(name, value, env, ("input",), ("chars",))
        self._search(name, found["input"], found.get("chars", _Bound(_SHORT_TEXT_BYTES)))
        return found["input"].plain()

    def _replace_one(self, name: str, value: Any, env: _Env) -> _Bound:
        found = self._named(name, value, env, ("input", "find", "replacement"))
        self._search(name, found["input"], found["find"])
        return _sum([found["input"], found["replacement"]])

    def _to_string(self, name: str, value: Any, env: _Env) -> _Bound:
        (source,) = self._each(self._single(name, value), env)
        self._charge(source)
        return self._as_text(source)

    def _convert(self, name: str, value: Any, env: _Env) -> _Bound:
        found = self._named(name, value, env, ("input", "to"), ("onError", "onNull"))
        self._charge(found["input"])
        self._drop(found["to"])
        others = [found[each] for each in ("onError", "onNull") if each in found]
        return self._any_of([self._as_text(found["input"]), _Bound(_SCALAR_BYTES), *others])

    def _date_to_string(self, name: str, value: Any, env: _Env) -> _Bound:
        found = self._named(name, value, env, ("date",), ("format", "timezone", "onNull"))
        text = found.get("format", _Bound()).times(_DATE_FORMAT, _SHORT_TEXT_BYTES)
        self._drop(found["date"], *(found[each] for each in ("timezone",) if each in found))
        self._charge(text)
        return self._any_of([text, *(found[each] for each in ("onNull",) if each in found)])

    def _date_to_parts(self, name: str, value: Any, env: _Env) -> _Bound:
        self._drop(*self._named(name, value, env, ("date",), ("timezone", "iso8601")).values())
        return _Bound(_DATE_PARTS_BYTES)

    def _date_from_string(self, name: str, value: Any, env: _Env) -> _Bound:
        found = self._named(name, value, env, ("dateString",), ("format", "timezone", "onError", "onNull"))
        others = [found.pop(each) for each in ("onError", "onNull") if each in found]
        self._charge(*found.values())
        self._drop(*found.values())
        return self._any_of([_Bound(_SCALAR_BYTES), *others])

    def _regex(self, name: str, value: Any, env: _Env) -> tuple[_Bound, int]:
        fields = self._fields(name, value, ("input", "regex"), ("options",))
        groups = self._pattern(name, _constant(fields["regex"]), _constant(fields.get("options") or ""))
        text = self._expression(fields["input"], env)
        self._charge(text.times(_PATTERN_WORK))
        return text, groups

    def _regex_match(self, name: str, value: Any, env: _Env) -> _Bound:
        self._drop(self._regex(name, value, env)[0])
        return _Bound(_SCALAR_BYTES)

    def _regex_find(self, name: str, value: Any, env: _Env) -> _Bound:
        text, groups = self._regex(name, value, env)
        return text.times(1 + groups, _SHORT_TEXT_BYTES + _SCALAR_BYTES * groups)

    def _get_field(self, name: str, value: Any, env: _Env) -> _Bound:
        if not isinstance(value, dict) or any(each.startswith("$") for each in value):
            value = {"field": value, "input": "$$CURRENT"}
        fields = self._fields(name, value, ("field",), ("input",))
        wanted = fields["field"]
        source = self._expression(fields.get("input", "$$CURRENT"), env)
        self._drop(source, self._expression(wanted, env))
        constant = _constant(wanted)
        if isinstance(constant, str) and (source.document or source.ref is not None):
            return self._follow(source, (constant,))
        return source.plain()

    def _set_field(self, name: str, value: Any, env: _Env) -> _Bound:
        found = self._named(name, value, env, ("field", "input", "value"))
        self._charge(found["input"])
        return _sum(found.values(), _SCALAR_BYTES)

    def _unset_field(self, name: str, value: Any, env: _Env) -> _Bound:
        found = self._named(name, value, env, ("field", "input"))
        self._drop(found["field"])
        self._charge(found["input"])
        return found["input"].plain()

    def _sort_array(self, name: str, value: Any, env: _Env) -> _Bound:
        fields = self._fields(name, value, ("input", "sortBy"))
        order = fields["sortBy"]
        keys = list(order.values()) if isinstance(order, dict) else [order]
        if not all(_is_flag(each) for each in keys):
            raise self._refusal(name, "sortBy must be 1, -1, or fields with these")
        source = self._expression(fields["input"], env)
        self._charge(source.times(_SORT_WORK * max(1, len(keys))))
        return self._same_elements(source)

    # Loops

    def _enter(self, over: _Bound, *, objects: bool = False) -> int:
        loop = len(self._work)
        self._object_loops.discard(loop)
        if objects or over.of_objects:
            self._object_loops.add(loop)
        size = self._size(over)
        self._scale[loop], self._base[loop] = size.weight, size.constant
        self._work.append(_Bound())
        return loop

    def _leave(self, loop: int, name: str) -> tuple[float, float]:
        """The loop's work, by the size of its elements and for each of them."""
        work = self._work.pop()
        return self._own_weight(work, loop, name), work.constant

    def _work_in(self, loop: int, over: _Bound, name: str) -> None:
        weight, constant = self._leave(loop, name)
        elements = over.times(1 / over.element_bytes, 1)
        self._charge(over.times(weight), elements.times(constant))

    def _own_weight(self, bound: _Bound, loop: int, name: str) -> float:
        """What a bound weighs on the loop's element. Raises where it weighs on anything outside."""
        for symbol, path in bound.weights:
            if symbol != loop:
                what = ".".join(path) or "the document"
                raise self._refusal(
                    name,
                    f"uses `{what[:100]}`, which lies outside, for each element: that grows with the square of the"
                    " event's size. Within it only comparisons may refer to fields outside",
                )
        return self._weigh(bound.weights).get(loop, 0.0)

    # Sizes

    def _weigh(self, weights: Mapping[_Key, float]) -> dict[int, float]:
        """By symbol, the weight on the whole of it."""
        trees: dict[int, _Tree] = {}
        for (symbol, path), weight in weights.items():
            tree = trees.setdefault(symbol, _Tree())
            for part in path:
                tree = tree.children.setdefault(part, _Tree())
            tree.weight += weight
        return {symbol: self._heaviest(tree, (symbol, ()), in_array=False) for symbol, tree in trees.items()}

    def _heaviest(self, tree: _Tree, key: _Key, *, in_array: bool) -> float:
        """The weight of a value whose parts are referred to.

        Of an object: its own and that of its heaviest part. Where it may be an array, each reference to a part is an
        array too, with brackets and an index for each element, of up to 9 bytes where the part had 3; that is three
        times the part. Arrays within arrays leave brackets also where the part is missing, so there all references
        add up.
        """
        if not tree.children:
            return tree.weight
        is_object = self._was_object(key)
        symbol, path = key
        parts = [
            self._heaviest(child, (symbol, (*path, name)), in_array=in_array or not is_object)
            for name, child in tree.children.items()
        ]
        if is_object:
            return tree.weight + max(parts)
        return tree.weight + (sum(parts) if in_array else min(3 * max(parts), sum(parts)))

    def _few_parts(self, bound: _Bound) -> _Bound:
        """The bound, or a coarser one that can be used often without much work."""
        if len(bound.weights) <= _PARTS_MAX:
            return bound
        weights: dict[_Key, float] = {(symbol, ()): weight for symbol, weight in self._weigh(bound.weights).items()}
        return _Bound(bound.constant, weights)

    def _size(self, bound: _Bound) -> Size:
        """In sizes of the event, and bytes."""
        weight, constant = 0.0, bound.constant
        for symbol, each in self._weigh(bound.weights).items():
            weight += each * self._scale[symbol]
            constant += each * self._base[symbol]
        return Size(weight, constant)

    def _checked(self, bound: _Bound, name: str) -> Size:
        size = self._size(bound)
        if not size.weight <= WEIGHT_MAX:
            raise self._refusal(
                name,
                f"its output may have {size.weight:.0f} times the size of the event; {WEIGHT_MAX} times are allowed",
            )
        if not size.constant <= self._constant_max:
            raise self._refusal(
                name,
                f"its output may have {size.constant:.0f} bytes and more, whatever the event; {self._constant_max} are"
                " allowed for a pipeline of this length",
            )
        return size

    def _drop(self, *bounds: _Bound) -> None:
        """Check values that MongoDB makes as operands, although their result is small."""
        for each in bounds:
            if (
                each.constant > self._constant_max
                or len(each.weights) > 1
                or any(weight > 1 for weight in each.weights.values())
            ):
                self._checked(each, self._operator)

    def _charge(self, *bounds: _Bound) -> None:
        for each in bounds:
            self._work[-1].add(each)

    def _end_work(self, name: str) -> None:
        """Counts the work so far, of a stage, in sizes of the event."""
        size = self._size(self._work[-1])
        self._work[-1] = _Bound()
        total = Size(self._work_total.weight + size.weight, self._work_total.constant + size.constant)
        self._work_total = total
        if not (total.weight <= WORK_MAX and total.constant <= _WORK_CONSTANT_MAX):
            raise self._refusal(
                name, f"up to this stage the pipeline is too much work for each event ({total.weight:.0f} steps a byte)"
            )

    # Shapes

    def _parts(self, path: str, *, empty: bool = False) -> Path:
        parts = tuple(path.split("."))
        if len(parts) > _PATH_PARTS_MAX:
            raise self._refusal(path[:50], f"a path of more than {_PATH_PARTS_MAX} parts is not allowed")
        for part in parts:
            if part.startswith("$"):
                raise self._refusal(part, "a field name may not begin with $ here")
            if not part and not empty:
                raise self._refusal(path[:50] or "a path", "a path may not have an empty part")
        return parts

    def _variable(self, name: Any) -> str:
        if isinstance(name, str) and (
            name == "CURRENT" or (name[:1] and not name[:1].isupper() and name.isidentifier())
        ):
            return name
        raise self._refusal(str(name)[:50], "this name of a variable is not allowed")

    def _mapping(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._refusal(name, "takes a document")
        return value

    def _list(self, name: str, value: Any, least: int = 0, most: int = 0) -> list[Any]:
        if not isinstance(value, list) or (least and not least <= len(value) <= (most or least)):
            raise self._refusal(name, f"takes a list of {least}" if least else "takes a list")
        return value

    def _single(self, name: str, value: Any) -> list[Any]:
        operands = value if isinstance(value, list) else [value]
        if len(operands) != 1:
            raise self._refusal(name, "takes one operand")
        return operands

    def _refusal(self, operator: str, message: str) -> PipelineUnbounded:
        return PipelineUnbounded(operator, self._at, message)


_FLAGS: Final = (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))


def _element_of(loop: int) -> _Bound:
    return _Bound(0.0, {(loop, ()): 1.0}, ref=(loop, ()))


def _names_bytes(path: Path) -> float:
    """The bytes of the names on the way to a field, and of the objects that `$set` makes where there are none."""
    return float(sum(len(part.encode()) + 2 + _SUBDOCUMENT_BYTES for part in path))


def _constant(value: Any) -> Any:
    """What a constant expression stands for; None for others."""
    if isinstance(value, dict):
        return value.get("$literal") if len(value) == 1 else None
    return None if isinstance(value, str) and value.startswith("$") else value


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | int | float | bson.Int64 | bson.Decimal128)


def _literal_bytes(value: Any) -> float:
    if isinstance(value, str):
        return len(value.encode()) + 5.0
    if value is None or isinstance(value, bool | int | float):
        return 8.0
    return float(len(bson.encode({"": value}, codec_options=_CODEC)))


OPERATORS: Final = frozenset(_Analysis(0)._handlers)
"""Every operator of expressions that is allowed."""
