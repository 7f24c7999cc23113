"""Conditions of `$match` that are not known are rejected."""

from typing import Any

from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_MATCH_QUERY, assert_refused


@over(("stages", "operator"), REFUSED_MATCH_QUERY)
def test_other_conditions_are_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
