"""Conditions of `$match` that are not known are rejected."""

from typing import Any

import pytest

from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_MATCH_QUERY, assert_refused


@pytest.mark.parametrize(("stages", "operator"), REFUSED_MATCH_QUERY, ids=lambda value: repr(value)[:100])
def test_other_conditions_are_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
