"""What is not written as MongoDB documents it is rejected."""

from typing import Any

import pytest

from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_ARGUMENTS, assert_refused


@pytest.mark.parametrize(("stages", "operator"), REFUSED_ARGUMENTS, ids=lambda value: repr(value)[:100])
def test_unusual_forms_are_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
