"""Operators whose result grows too much, or whose work does, are rejected."""

from typing import Any

import pytest

from tests.unit.core.feeds.pipeline_bounds.pipelines import REFUSED_OPERATORS, assert_refused


@pytest.mark.parametrize(("stages", "operator"), REFUSED_OPERATORS, ids=lambda value: repr(value)[:100])
def test_what_grows_is_refused(stages: list[Any], operator: str) -> None:
    assert_refused(stages, operator)
