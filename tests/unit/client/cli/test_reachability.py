"""Addresses as users type them. `tests/cli/test_reachability.py` asks real ports."""

import argparse

import pytest

from feedmux.cli.reachability import Server, endpoint, server_at


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:7117", "localhost", 7117),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:7117", "::1", 7117),
    ],
)
def test_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert endpoint(text) == text
    assert server_at(text, 1.0) == Server(text, host, port, 1.0)


@pytest.mark.parametrize("text", ["dns:///feedmux:7117", "unix:/run/feedmux.sock", "IPV4:10.0.0.1:1,10.0.0.2:1"])
def test_another_target_of_grpc_is_taken_as_it_is(text: str) -> None:
    assert endpoint(text) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("localhost", "is not HOST:PORT, as in localhost:7117"),
        ("localhost:", "is not HOST:PORT"),
        (":7117", "is not HOST:PORT"),
        ("localhost:0", "is not HOST:PORT"),
        ("localhost:65536", "is not HOST:PORT"),
        ("::1:7117", "is not HOST:PORT"),
        ("", "is not HOST:PORT"),
        ("http://here:1/path", "is a URL; give HOST:PORT, as in here:1"),
        ("grpcs://here", "is a URL; give HOST:PORT, as in localhost:7117"),
    ],
)
def test_what_is_no_address_is_told_what_one_is(text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        endpoint(text)
