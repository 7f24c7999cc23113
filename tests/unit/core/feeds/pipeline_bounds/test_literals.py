"""Costly regular expressions and JavaScript are rejected."""

from typing import Any

import pytest

from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_LITERALS, assert_refused


@pytest.mark.parametrize(("stages", "operator"), REFUSED_LITERALS, ids=lambda value: repr(value)[:100])
def test_patterns_are_checked_wherever_they_stand(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
