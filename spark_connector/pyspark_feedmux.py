"""What Spark finds by itself: it imports every top-level module named `pyspark_*` and registers its `DefaultSource`.

If one of these imports fails, Spark registers no source at all, not even those of other packages. So this module
imports only what Spark has already imported, until a query uses the format.
"""

import sys
from collections.abc import MutableMapping
from importlib.util import find_spec
from typing import Any

import pyspark
from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]

_SPARK = (4, 2)
_PACKAGES = ("bson", "google.protobuf", "grpc", "numpy", "orjson", "pandas", "pyarrow")


class DefaultSource(DataSource):
    """Stands for `feedmux_spark.source.FeedmuxSource`, and becomes one when Spark creates it."""

    def __new__(cls, options: MutableMapping[str, str]) -> Any:
        try:
            from feedmux_spark.source import FeedmuxSource
        except ImportError as error:
            raise ImportError(_needs(error)) from error
        return FeedmuxSource(options)

    @classmethod
    def name(cls) -> str:
        return "feedmux"


def _needs(error: ImportError) -> str:
    """What is missing for the format, and the next step."""
    found = pyspark.__version__
    lacks = [name for name in _PACKAGES if not _is_installed(name)]
    problems = [f"has Spark {found}"] if _older(found) else []
    problems += [f"lacks {', '.join(lacks)}"] if lacks else []
    return (
        f"the format feedmux needs Spark {'.'.join(map(str, _SPARK))} or newer and the packages of feedmux[spark], but"
        f" {sys.executable} {' and '.join(problems) or f'cannot import them: {error}'}. Run"
        " `pip install 'feedmux[spark]'` for this Python, on the driver and on every executor"
    )


def _older(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _SPARK


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False
