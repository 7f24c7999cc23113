"""The names of the package `feedmux`, which are imported at their first use."""

import ast
from pathlib import Path

import pytest

import feedmux


def test_every_name_can_be_imported() -> None:
    for name in feedmux.__all__:
        assert getattr(feedmux, name) is not None
    assert set(feedmux.__all__) <= set(dir(feedmux))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        feedmux.nothing  # noqa: B018


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    tree = ast.parse(Path(feedmux.__file__).read_text())
    (checking,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: str(node.module)
        for node in checking.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"feedmux.{module}" for name, module in feedmux._MODULE_OF.items()}
    assert sorted(seen) == sorted(feedmux.__all__)
