"""What makes too much of an event, or takes too much work, is rejected."""

from typing import Any

from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_BUDGET, assert_refused


@over(("stages", "operator"), REFUSED_BUDGET)
def test_what_exceeds_a_limit_is_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
