"""Addresses as people write them, in whatever option, variable or file."""

import argparse

import pytest

import feedmux
from feedmux.cli.reachability import Server, endpoint, server_at
from feedmux.endpoint import checked_endpoint, host_and_port
from tests.tables import over


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


@over("text", ["dns:///feedmux:7117", "unix:/run/feedmux.sock", "IPV4:10.0.0.1:1,10.0.0.2:1"])
def test_another_target_of_grpc_is_taken_as_it_is(text: str) -> None:
    assert checked_endpoint(text) == text


@over(
    ("text", "words"),
    [
        ("localhost", "is not HOST:PORT, as in localhost:7117"),
        ("localhost:", "is not HOST:PORT"),
        (":7117", "is not HOST:PORT"),
        ("localhost:0", "is not HOST:PORT"),
        ("localhost:65536", "is not HOST:PORT"),
        (f"localhost:{'9' * 5000}", "is not HOST:PORT"),
        ("localhost:٧١١٧", "is not HOST:PORT"),
        ("::1:7117", "is not HOST:PORT"),
        ("[::1:7117", "is not HOST:PORT"),
        ("[localhost]:7117", "is not HOST:PORT"),
        ("user@host:7117", "is not HOST:PORT"),
        ("two words:7117", "is not HOST:PORT"),
        ("host/path:7117", "is not HOST:PORT"),
        ("a\x00b:7117", "is not HOST:PORT"),
        ("", "is not HOST:PORT"),
        (".:7117", "is not HOST:PORT"),
        ("feeds..example.com:7117", "is not HOST:PORT"),
        (f"{'a' * 64}.example.com:7117", "is not HOST:PORT"),
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
