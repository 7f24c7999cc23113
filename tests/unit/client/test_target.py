"""Credentials: what can be sent, TLS, and token functions."""

import asyncio
import os
import threading
from typing import Any

import pytest

import feedmux
from feedmux import target
from tests.tables import over


@over("made", [{"api_key": "  \n"}, {"api_key": "two words"}, {"token": "schlüssel"}, {"api_key": 7}])
def test_a_key_that_cannot_be_sent_is_refused_and_not_quoted(made: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as caught:
        feedmux.Client("127.0.0.1:1", **made)
    assert "schl" not in str(caught.value)
    assert "words" not in str(caught.value)


@over("only", [{"certificate": "client.pem"}, {"key": "client.key"}])
def test_a_certificate_needs_its_key(only: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a certificate and its key"):
        feedmux.Tls(root="ca.pem", **only)


class Answers:
    """A token function that must be released, and takes long to end."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.calls += 1
        self.may_end.wait()
        return f"token-{self.calls}"


async def test_calls_that_wait_for_a_token_share_one_call_of_its_function() -> None:
    function = Answers()
    tokens = target.TokenThread(function)
    waiting = [asyncio.create_task(tokens.token()) for _ in range(3)]
    while not function.calls:
        await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    function.may_end.set()
    assert await asyncio.gather(*waiting[1:]) == ["token-1"] * 2
    assert await tokens.token() == "token-2"


async def test_a_token_function_that_does_not_return_holds_one_thread_and_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target, "_TOKEN_S", 0.01)
    function = Answers()
    tokens = target.TokenThread(function)
    try:
        for _ in range(3):
            with pytest.raises(feedmux.Unavailable, match="has not returned within"):
                await tokens.token()
        assert function.calls == 1
        # In a forked process that thread is not there.
        monkeypatch.setattr(os, "getpid", lambda: 0)
        with pytest.raises(feedmux.Unavailable, match="has not returned within"):
            await tokens.token()
        assert function.calls == 2
    finally:
        function.may_end.set()


async def test_where_no_thread_can_be_started_the_next_call_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    tokens = target.TokenThread(lambda: "token")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(RuntimeError, match="new thread"):
            await tokens.token()
    assert await tokens.token() == "token"


@pytest.mark.parametrize("error", [OSError("away"), TimeoutError("slow"), StopIteration(), SystemExit(1)])
async def test_whatever_a_token_function_raises_is_one_failure(error: BaseException) -> None:
    def fails() -> str:
        raise error

    with pytest.raises(feedmux.Unavailable, match=f"the token function failed: {type(error).__name__}"):
        await target.TokenThread(fails).token()
