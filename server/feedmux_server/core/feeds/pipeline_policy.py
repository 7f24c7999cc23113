"""Which stages of the user may follow `$changeStream`, decided on the BSON bytes that MongoDB would get.

MongoDB has the last word on everything else; what must be refused here is what it would let through
(`$function`) or what costs it too much. The contents of `$literal` are data, everywhere else a name is what
it says.
"""

from difflib import get_close_matches
from typing import Final

import bson

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.bson_check import Element, shorten_path, walk
from feedmux_server.core.events.bson_walk import ARRAY, DOCUMENT
from feedmux_server.core.feeds.pipeline_bounds.budget import PipelineUnbounded
from feedmux_server.core.feeds.pipeline_bounds.stages import STAGES, check_bounds
from feedmux_server.core.feeds.query_json import QueryInvalid, parse_query

STAGES_MAX: Final = 50
PIPELINE_BYTES_MAX: Final = 64 * 1024
OPERATORS_REFUSED: Final = frozenset({"$function", "$where", "$accumulator"})
_FIELD: Final = "feed.pipeline"
# The longest notation of a value, {"$numberInt":"1"}, takes a few times the bytes of its BSON.
_JSON_CHARS_MAX: Final = 8 * PIPELINE_BYTES_MAX
_STAGE_DEPTH: Final = 2
_STAGE_NAME_MAX: Final = 40
_ADVICE: Final = (
    ". The pipelines of this tenant are bounded (docs/pipelines.md); the operator of feedmux can allow MongoDB's whole"
    " language to tenants that are trusted (`pipelines: any`)"
)


def pipeline_from_extended_json(text: str) -> bytes:
    """From a JSON array of stages to the BSON document `{pipeline: [stages]}`; not yet checked by `check_pipeline`.

    Raises PIPELINE_INVALID."""
    if len(text) > _JSON_CHARS_MAX:
        raise _too_large()
    try:
        stages = parse_query(text, "pipeline")
    except QueryInvalid as error:
        raise _invalid(error.message, error.path) from None
    if not isinstance(stages, list):
        raise _invalid("the pipeline must be a JSON array of stages")
    return bson.encode({"pipeline": stages})


def check_pipeline(pipeline: bytes, *, bounded: bool) -> None:
    """Checks whether these stages may run. `pipeline` is a BSON document `{pipeline: [stages]}`, or empty for none.

    `bounded`: the pipeline is of a tenant that is not trusted with MongoDB's whole language.
    Raises FeedmuxError: BSON_INVALID, PIPELINE_INVALID or STAGE_NOT_ALLOWED, and nothing else.
    """
    if not pipeline:
        return
    if len(pipeline) > PIPELINE_BYTES_MAX:
        raise _too_large()
    fields = stages = stage_fields = 0
    stage: Element | None = None
    literal_depth = 0
    twice = _Twice()
    for element in walk(pipeline, _FIELD):
        if bounded:
            twice.check(element)
        if element.depth == 1:
            fields += 1
            if fields > 1 or element.name != "pipeline" or element.kind != ARRAY:
                raise _invalid("the pipeline must be a BSON document with one field `pipeline`, an array")
        elif element.depth == _STAGE_DEPTH:
            _check_one_field(stage, stage_fields)
            stage, stage_fields = element, 0
            stages += 1
            if stages > STAGES_MAX:
                raise _invalid(f"the pipeline has more than {STAGES_MAX} stages")
            if element.kind != DOCUMENT:
                raise _invalid("a stage must be a document", element.path)
        elif element.depth == _STAGE_DEPTH + 1:
            stage_fields += 1
            if element.name not in STAGES:
                raise _not_allowed(
                    element.name, element.path, f"this stage may not follow $changeStream{_suggestion(element.name)}"
                )
        if literal_depth and element.depth > literal_depth:
            continue
        literal_depth = element.depth if element.name == "$literal" else 0
        if element.name in OPERATORS_REFUSED:
            raise _not_allowed(element.name, element.path, "this operator is not allowed")
    if not fields:
        raise _invalid("the pipeline must be a BSON document with one field `pipeline`, an array")
    _check_one_field(stage, stage_fields)
    if bounded:
        try:
            check_bounds(pipeline)
        except PipelineUnbounded as error:
            raise _not_allowed(error.operator, error.path, f"{error.message}{_ADVICE}") from None


def _suggestion(name: str) -> str:
    """The stage that the user may have meant."""
    close = get_close_matches(name, STAGES, 1, 0.75) if len(name) <= _STAGE_NAME_MAX else []
    return f"; did you mean {close[0]}?" if close else ""


class _Twice:
    """Finds names that stand twice in one document: decoders differ in which of them counts."""

    def __init__(self) -> None:
        self._names: list[set[str]] = []

    def check(self, element: Element) -> None:
        """Raises PIPELINE_INVALID."""
        names = self._names
        del names[element.depth :]
        if len(names) < element.depth:
            names.append(set())
        if element.name in names[-1]:
            raise _invalid("this name appears twice in its document", element.path)
        if element.name == "$ref":
            raise _not_allowed(element.name, element.path, f"this is not allowed{_ADVICE}")
        names[-1].add(element.name)


def _check_one_field(stage: Element | None, count: int) -> None:
    if stage is not None and count != 1:
        raise _invalid("a stage must have exactly one field", stage.path)


def _not_allowed(operator: str, path: tuple[str, ...], message: str) -> FeedmuxError:
    operator = shorten_path(operator)
    return FeedmuxError(
        ErrorReason.STAGE_NOT_ALLOWED,
        f"{operator}: {message}",
        {"operator": operator, "path": _path(path)},
        field=_FIELD,
    )


def _path(path: tuple[str, ...]) -> str:
    return shorten_path(".".join(path))


def _invalid(message: str, path: tuple[str, ...] = ()) -> FeedmuxError:
    if not path:
        return FeedmuxError(ErrorReason.PIPELINE_INVALID, message, field=_FIELD)
    where = _path(path)
    return FeedmuxError(ErrorReason.PIPELINE_INVALID, f"{where}: {message}", {"path": where}, field=_FIELD)


def _too_large() -> FeedmuxError:
    return _invalid(f"the pipeline is larger than {PIPELINE_BYTES_MAX} bytes")
