"""The check of the private pymongo names that the server uses."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pymongo.asynchronous.command_cursor import AsyncCommandCursor, AsyncRawBatchCommandCursor
from pymongo.asynchronous.mongo_client import AsyncMongoClient

from feedmux_server.source.private_names import RELEASES, missing


def test_nothing_is_missing() -> None:
    assert list(missing()) == []


def other(self: Any, *, new: int) -> None:
    """A replacement with other parameters."""


@pytest.mark.parametrize(
    ("owner", "name"),
    [(AsyncMongoClient, "_retryable_read"), (AsyncRawBatchCommandCursor, "_unpack_response")],
)
@pytest.mark.parametrize("becomes", [other, None])
def test_a_method_that_is_gone_or_has_changed_is_named(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, becomes: Any
) -> None:
    monkeypatch.setattr(owner, name, becomes)
    assert list(missing()) == [f"{owner.__name__}.{name} as it was"]


def test_an_attribute_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(self: Any) -> None:
        self._id = self._ns = self._killed = self._max_await_time_ms = None

    monkeypatch.setattr(AsyncCommandCursor, "__init__", without)
    assert list(missing()) == ["AsyncCommandCursor._postbatchresumetoken"]


def test_the_releases_are_those_that_are_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    [pinned] = [each for each in project["optional-dependencies"]["server"] if each.startswith("pymongo")]
    first, last = re.findall(r"4\.(\d+)", RELEASES)
    assert pinned == f"pymongo>=4.{first},<4.{int(last) + 1}"
