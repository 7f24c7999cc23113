"""A configuration that cannot be used: the message names the field and the next step."""

from pathlib import Path
from typing import Any

import pytest

from feedmux_server.config.errors import ConfigError
from feedmux_server.config.load import load_config
from tests.cli.conftest import write_config

MAIN = {"main": {"uri": "mongodb://127.0.0.1:1/"}}

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown option": ({"limits": {"ring_byte": 1}}, "limits.ring_byte", "did you mean ring_bytes?"),
    "unknown option, as elsewhere": ({"listen": {"url": ""}}, "listen.url", "lists all options"),
    "unknown option of an entry": ({"sources": {"main": {"url": ""}}}, "sources.main.url", "did you mean uri?"),
    "an address without a port": ({"listen": {"data": "127.0.0.1"}}, "listen.data", "write host:port"),
    "unknown option, nothing like it": ({"limits": {"zzz": 1}}, "limits.zzz", "--help"),
    "unknown section": ({"limit": {}}, "limit", "did you mean limits?"),
    "missing": ({"tls": {"key_file": "k"}}, "tls.certificate_file", "required"),
    "no source": ({"sources": {}}, "sources", "at least 1"),
    "not a number": ({"limits": {"drain_s": "soon"}}, "limits.drain_s", "number"),
    "out of range": ({"redis": {"lease_s": 0.5}}, "redis.lease_s", "greater than or equal to 2"),
    "a choice": ({"when_unavailable": "hope"}, "when_unavailable", "'fail' or 'wait'"),
    "rings above all memory": (
        {"limits": {"ring_bytes": 128 << 20, "memory_bytes": 64 << 20}}, "ring_bytes", "lower it",
    ),
    "leases shorter than renewals": ({"redis": {"lease_s": 2, "commit_interval_s": 1}}, "lease_s", "three times"),
    "mutual TLS without authorities": ({"listen": {"data_mtls": "127.0.0.1:0"}}, "listen.data_mtls", "client_ca_file"),
    "an address that is a URL": ({"listen": {"data": "http://here:7117"}}, "listen.data", "is not host:port"),
    "an IPv6 address without brackets": ({"listen": {"data": "::1:7117"}}, "listen.data", "is not host:port"),
    "a port above all": ({"listen": {"operator": "0.0.0.0:65536"}}, "listen.operator", "is not host:port"),
    "an address that is empty": ({"listen": {"health": ""}}, "listen.health", "write host:port"),
    "an address without a host": ({"listen": {"data": ":7117"}}, "listen.data", "write 0.0.0.0:7117 to listen on all"),
    "a source's name": ({"sources": {"a/b": {"uri": "mongodb://h"}}}, "sources", "source"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "field", "advice"), WRONG.values(), ids=list(WRONG))
def test_a_configuration_that_contradicts_itself(
    tmp_path: Path, values: dict[str, Any], field: str, advice: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Path(write_config(tmp_path, **{"sources": MAIN, **values})))
    assert field in str(caught.value)
    assert advice in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_variable_of_no_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMUX_LISTENS__DATA", "127.0.0.1:0")
    monkeypatch.setenv("FEEDMUX_API_KEY", "a client's")
    with pytest.raises(ConfigError, match=r"FEEDMUX_LISTENS__DATA.*did you mean listen"):
        load_config(Path(write_config(tmp_path, sources=MAIN)))
