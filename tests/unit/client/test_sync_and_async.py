"""The interface of the package: its names, and the same methods in synchronous and asynchronous classes."""

import ast
import inspect
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import feedmux
from feedmux import async_client, async_member, async_session, async_watch, client, member, session, watch
from tests.tables import over

MODULES: Final = ((client, async_client), (member, async_member), (session, async_session), (watch, async_watch))
ONLY_ASYNC: Final = {
    "Member": {"__await__"},  # `join()` of the asynchronous classes returns a member that `await` joins with
    "Session": {"__await__"},  # `open()` of the asynchronous classes returns a session that `await` opens
}
SPECIAL: Final = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
"""The methods that Python calls for `async with` and `async for`, and those for `with` and `for`."""


def classes(module: ModuleType) -> dict[str, type]:
    """The module's public classes, by their names without `Async`."""
    return {
        name.removeprefix("Async"): each
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }


def interface(owner: type) -> dict[str, str]:
    """Public attributes and special methods, with their signatures in the words of the synchronous side."""
    found = {}
    for base in reversed(owner.__mro__[:-1]):
        for name, attribute in vars(base).items():
            if not name.startswith("_") or (name.startswith("__") and inspect.isfunction(attribute)):
                found[SPECIAL.get(name, name)] = signature(attribute)
    return found


def signature(member: object) -> str:
    if isinstance(member, property):
        return f"property{signature(member.fget)}"
    text = str(inspect.signature(member, eval_str=True)) if callable(member) else repr(member)
    return text.replace("asynchronous", "synchronous").replace("async_", "").replace("Async", "")


@over(("sync", "asynchronous"), MODULES)
def test_each_class_has_a_counterpart(sync: ModuleType, asynchronous: ModuleType) -> None:
    assert classes(sync).keys() == classes(asynchronous).keys()


@over(
    ("name", "sync", "asynchronous"),
    [(name, sync, asynchronous) for sync, asynchronous in MODULES for name in classes(sync)],
)
def test_both_have_the_same_interface(name: str, sync: ModuleType, asynchronous: ModuleType) -> None:
    expected, found = interface(classes(sync)[name]), interface(classes(asynchronous)[name])
    assert found.keys() - expected.keys() == ONLY_ASYNC.get(name, set())
    assert {each: found.get(each) for each in expected} == expected


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
