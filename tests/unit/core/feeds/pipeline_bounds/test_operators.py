"""Operators whose result grows too much, or whose work does, are rejected."""

from typing import Any

from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_OPERATORS, assert_refused


@over(("stages", "operator"), REFUSED_OPERATORS)
def test_what_grows_is_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
