"""Values that stand in the pipeline itself: their sizes, regular expressions, and JavaScript, which is rejected."""

import re
from typing import Any, Final

import bson
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.regex import Regex

from feedmux_server.core.feeds.pipeline_bounds.budget import Budget
from feedmux_server.core.feeds.regex_bounds import check_regex

PATTERN_WORK: Final = 8
CODEC: Final = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_AUTO)
_FLAGS: Final = (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL), ("x", re.VERBOSE))


def constant_of(value: Any) -> Any:
    """What a constant expression stands for; None for others."""
    if isinstance(value, dict):
        return value.get("$literal") if len(value) == 1 else None
    return None if isinstance(value, str) and value.startswith("$") else value


def is_flag(value: Any) -> bool:
    return isinstance(value, bool | int | float | bson.Int64 | bson.Decimal128)


def literal_bytes(value: Any) -> float:
    if isinstance(value, str):
        return len(value.encode()) + 5.0
    if value is None or isinstance(value, bool | int | float):
        return 8.0
    return float(len(bson.encode({"": value}, codec_options=CODEC)))


def reject_code(budget: Budget, value: Any) -> None:
    """Raises PipelineUnbounded if JavaScript is anywhere in the value."""
    if isinstance(value, Code):
        raise budget.rejection("JavaScript", "is not allowed")
    if isinstance(value, list):
        for each in value:
            reject_code(budget, each)
    elif isinstance(value, dict):
        for each in value.values():
            reject_code(budget, each)


def is_pattern(value: Any) -> bool:
    return isinstance(value, Regex | re.Pattern)


def check_pattern(budget: Budget, operator: str, pattern: Any, options: Any) -> int:
    """Checks a regular expression. Returns how many groups it has."""
    if isinstance(pattern, re.Pattern):
        pattern = Regex.from_native(pattern)
    if isinstance(pattern, Regex):
        options = options or "".join(letter for letter, bit in _FLAGS if pattern.flags & bit)
        pattern = pattern.pattern
    if isinstance(pattern, bytes):
        pattern = pattern.decode("utf-8", "replace")
    if not isinstance(pattern, str) or not isinstance(options, str):
        raise budget.rejection(operator, "the pattern must be a constant")
    try:
        return check_regex(pattern, options)
    except ValueError as error:
        raise budget.rejection(operator, str(error)) from None
