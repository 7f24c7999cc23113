"""Where a client's calls go, and what goes with them: addresses, credentials, traces."""

import argparse
import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import feedmux
from feedmux import target
from feedmux.cli.reachability import Server, endpoint, server_at
from feedmux.endpoint import checked_endpoint, host_and_port
from feedmux.target import Target
from tests.tables import over


@over("made", [{"api_key": "  \n"}, {"api_key": "two words"}, {"token": "schlüssel"}, {"api_key": 7}])
def test_a_key_that_cannot_be_sent_is_refused_and_not_quoted(made: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as caught:
        feedmux.Client("127.0.0.1:1", **made)
    assert "schl" not in str(caught.value)
    assert "words" not in str(caught.value)


def test_a_coroutine_function_is_no_token_function() -> None:
    async def token() -> str:
        raise AssertionError("nobody awaits it")

    for kind in (feedmux.Client, feedmux.AsyncClient):
        with pytest.raises(TypeError, match="a coroutine function"):
            kind("127.0.0.1:1", token=token)  # type: ignore[arg-type]


@over(
    ("call", "name"),
    [
        (lambda client: client.list_database_names(), "list_database_names"),
        (lambda client: client.shop.list_collection_names(), "list_collection_names"),
        (lambda client: client.shop.orders.find_one({}), "find_one"),
    ],
)
def test_a_method_of_pymongo_s_that_feedmux_does_not_have_is_named(call: Callable[[Any], object], name: str) -> None:
    for kind in (feedmux.Client, feedmux.AsyncClient):
        with pytest.raises(TypeError, match=f"has no method '{name}'"):
            call(kind("127.0.0.1:1"))


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


@over(
    ("text", "host", "port"),
    [
        ("localhost:7117", "localhost", 7117),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:7117", "::1", 7117),
        ("[fe80::1%eth0]:7117", "fe80::1%eth0", 7117),
        ("feeds_1.example.com.:1", "feeds_1.example.com.", 1),
        ("bücher.example:1", "bücher.example", 1),
    ],
)
def test_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert checked_endpoint(text) == checked_endpoint(f" {text}\n") == text
    assert host_and_port(text) == (host, port)
    assert server_at(text, 1.0) == Server(text, host, port, 1.0)


@over(
    "text",
    [
        "dns:///feedmux:7117",
        "dns:feedmux",
        "dns://10.0.0.53/[fd00::1]:7117",
        "unix:feedmux.sock",
        "unix:///run/feedmux.sock",
        "unix-abstract:feedmux",
        "IPV4:10.0.0.1:1,10.0.0.2:1",
        "ipv6:///[::1]:7117",
        "xds:///feedmux",
    ],
)
def test_another_target_of_grpc_is_taken_as_it_is(text: str) -> None:
    assert checked_endpoint(text) == text


NO_ADDRESSES = (
    *("localhost:", ":7117", "localhost:0", "localhost:65536", f"localhost:{'9' * 5000}", "localhost:٧١١٧", "::1:7117"),
    *("[::1:7117", "[localhost]:7117", "user@host:7117", "two words:7117", "host/path:7117", "a\x00b:7117", ""),
    *(".:7117", "feeds..example.com:7117", f"{'a' * 64}.example.com:7117", "vsock:2:7117"),
)
NO_SERVERS = (
    *("dns://feeds.example.com:7117", "dns:////feeds.example.com:7117", "dns:///feeds.example.com:7117/", "dns:7117"),
    *("ipv4:localhost:7117", "ipv4:10.0.0.1", "ipv4:10.0.0.1:7117, 10.0.0.2:7117", "ipv4:[::1]:7117", "ipv6:::1"),
    *("unix:///", "unix://run/feedmux.sock", "unix-abstract:", "xds:///"),
)


@over(
    ("text", "words"),
    [
        ("localhost", "is not HOST:PORT, as in localhost:7117"),
        *((text, "is not HOST:PORT") for text in NO_ADDRESSES),
        ("dns:///", r"'dns:///' names no server; .* as in dns:///feeds.example.com:7117"),
        ("unix:", "names no server; .* as in unix:/run/feedmux.sock"),
        *((text, "names no server") for text in NO_SERVERS),
        ("http://here:1/path", "is a URL; give HOST:PORT, as in here:1"),
        ("grpcs://here", "is a URL; give HOST:PORT, as in localhost:7117"),
    ],
)
def test_what_is_no_address_is_told_what_one_is(text: str, words: str) -> None:
    for parse, error in (
        (checked_endpoint, ValueError),
        (endpoint, argparse.ArgumentTypeError),
        (feedmux.Client, ValueError),
        (feedmux.AsyncClient, ValueError),
    ):
        with pytest.raises(error, match=words):
            parse(text)


def test_a_call_within_a_span_names_it() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    target = Target("localhost:1", token="a-token")
    outside = dict(target.metadata())
    with sdk.TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("work") as span:
        inside = dict(target.metadata("main/shop"))
    here = span.get_span_context()
    trace_id, span_id = trace.format_trace_id(here.trace_id), trace.format_span_id(here.span_id)
    assert set(outside) == {"authorization"}
    assert inside["traceparent"].startswith(f"00-{trace_id}-{span_id}-")
    assert inside["x-feedmux-route"] == "main/shop"


def test_opentelemetry_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import feedmux; from feedmux.target import Target\n"
        "assert Target('localhost:1', token='t').metadata() == (('authorization', 'Bearer t'),)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
