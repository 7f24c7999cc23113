"""A part of the event may not be set in each element of an array."""

from typing import Any

import pytest

from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_DOCUMENT, assert_refused


@pytest.mark.parametrize(("stages", "operator"), REFUSED_DOCUMENT, ids=lambda value: repr(value)[:100])
def test_copies_in_each_element_are_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
