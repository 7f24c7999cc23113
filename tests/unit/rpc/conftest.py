"""The caller of a test must not be that of the next one."""

from collections.abc import Iterator

import pytest

from feedmux_server.rpc import caller


@pytest.fixture(autouse=True)
def nobody_calls() -> Iterator[None]:
    """A test that is not asynchronous runs in the context of all tests."""
    yield
    caller._caller.set(None)
