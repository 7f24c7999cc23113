"""Expressions that grow through variables and loops are rejected, and operators that are not known."""

from typing import Any

from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_EXPRESSIONS, assert_refused


@over(("stages", "operator"), REFUSED_EXPRESSIONS)
def test_what_grows_is_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
