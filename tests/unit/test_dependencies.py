"""What is unavailable, and what is unfit: only the first may be waited for."""

from typing import Any

import pytest

from feedmux_server.config.errors import ConfigError
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.dependencies import check_source, make_source
from feedmux_server.source.deployment import SourceConfig
from feedmux_server.telemetry.observer import NOBODY
from tests.tables import over


class Source:
    """A source that fails."""

    def __init__(self, reason: ErrorReason, *, connected: bool) -> None:
        self.connected = connected
        self.clock = self
        self._reason = reason

    async def connect(self) -> tuple[str, ...]:
        raise FeedmuxError(self._reason, "why")

    operation_time = connect


@pytest.mark.parametrize(
    ("reason", "connected", "told"),
    [
        (ErrorReason.SOURCE_UNSUITABLE, False, ErrorReason.SOURCE_UNSUITABLE),
        (ErrorReason.SOURCE_UNAVAILABLE, False, ErrorReason.SOURCE_UNAVAILABLE),
        (ErrorReason.SOURCE_UNAUTHORIZED, True, ErrorReason.SOURCE_UNAVAILABLE),
        (ErrorReason.SOURCE_UNAVAILABLE, True, ErrorReason.SOURCE_UNAVAILABLE),
    ],
)
async def test_a_source_that_was_there_once_is_never_unfit(
    reason: ErrorReason, connected: bool, told: ErrorReason
) -> None:
    """A rejected password may be one that is being changed."""
    source: Any = Source(reason, connected=connected)
    with pytest.raises(FeedmuxError, match="why") as caught:
        await check_source(source)
    assert caught.value.reason is told


@over("uri", ["postgres://u:canary@h/", "mongodb://u:canary@:@h/", "mongodb://h/?canary"])
def test_a_uri_that_cannot_be_used_is_not_quoted(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"sources\.main\.uri") as caught:
        make_source(SourceConfig("main", uri), NOBODY)
    assert "canary" not in str(caught.value)
