"""What is not written as MongoDB documents it is rejected."""

from typing import Any

from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_ARGUMENTS, assert_refused


@over(("stages", "operator"), REFUSED_ARGUMENTS)
def test_unusual_forms_are_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
