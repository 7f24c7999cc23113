"""Costly regular expressions and JavaScript are rejected."""

from typing import Any

from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_LITERALS, assert_refused


@over(("stages", "operator"), REFUSED_LITERALS)
def test_patterns_are_checked_wherever_they_stand(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
