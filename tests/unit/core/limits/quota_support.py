"""Helpers for the tests of quotas."""

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError


def refused(call: object) -> FeedmuxError:
    assert callable(call)
    with pytest.raises(FeedmuxError) as caught:
        call()
    assert caught.value.reason is ErrorReason.QUOTA_EXCEEDED
    return caught.value
