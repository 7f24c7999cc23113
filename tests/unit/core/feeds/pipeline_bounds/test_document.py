"""A part of the event may not be set in each element of an array."""

from typing import Any

from tests.tables import over
from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_DOCUMENT, assert_refused


@over(("stages", "operator"), REFUSED_DOCUMENT)
def test_copies_in_each_element_are_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
