"""A configuration that cannot be used: the message names the field and the next step."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from feedmux_server.config.errors import ConfigError
from feedmux_server.config.load import load_config, make_config
from feedmux_server.config.sample import sample_config
from feedmux_server.config.sections import LimitsSection
from feedmux_server.config.server import Config
from tests.cli.conftest import write_config
from tests.tables import over

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
    "no finite number": (
        {"limits": {"unused_subscription_days": math.inf}}, "limits.unused_subscription_days", "finite number",
    ),
    "no finite number, at the top level": ({"reload_s": math.nan}, "reload_s", "finite number"),
    "a lease longer than tombstones allow": ({"redis": {"lease_s": 30_000}}, "redis.lease_s", "less than or equal to"),
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


def test_the_mark_that_editors_put_at_the_beginning_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "feedmux.toml"
    path.write_text('[sources.main]\nuri = "mongodb://h"\n', "utf-8-sig")
    assert list(load_config(path).sources) == ["main"]


def test_a_variable_of_no_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMUX_LISTENS__DATA", "127.0.0.1:0")
    monkeypatch.setenv("FEEDMUX_API_KEY", "a client's")
    with pytest.raises(ConfigError, match=r"FEEDMUX_LISTENS__DATA.*did you mean listen"):
        load_config(Path(write_config(tmp_path, sources=MAIN)))


@pytest.mark.parametrize(
    "variable",
    ["FEEDMUX_OPERATOR_KEY_HASHES", "FEEDMUX_LIMITS__HISTORY_AT_RISK_S", "FEEDMUX_SOURCES", "FEEDMUX_LIMITS"],
)
def test_a_list_in_the_environment_that_is_not_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "canary, other")
    with pytest.raises(ConfigError, match=f"{variable}: it should be JSON") as caught:
        load_config(Path(write_config(tmp_path, sources=MAIN)))
    assert "canary" not in str(caught.value)


JWT = {"issuer": "https://login.example.com/", "audience": "feedmux", "jwks_file": "jwks.json"}


@over(
    "change",
    [
        {"jwks_file": None},
        {"jwks_url": "https://login.example.com/jwks.json"},
        {"jwks_file": None, "jwks_url": "http://login.example.com/jwks.json"},
        {"jwks_file": None, "jwks_url": "file:///etc/passwd"},
        {"algorithms": ["HS256"]},
        {"algorithms": ["none"]},
        {"algorithms": []},
        {"issuer": ""},
        {"colour": "blue"},
    ],
)
def test_jwt_settings_that_contradict_each_other_or_trust_anyone(change: dict[str, Any]) -> None:
    values = {"sources": {"main": {"uri": "mongodb://x"}}, "jwt": {**JWT, **change}}
    with pytest.raises(ConfigError, match="jwt"):
        make_config(values)


@over(
    ("change", "told"),
    [
        ({}, "name a source, or a uri"),
        ({"source": "strange"}, "which sources does not have"),
        ({"source": "main", "password_file": "p"}, "belong to uri"),
        ({"uri": "mongodb://x", "password_file": "p"}, "needs username_file"),
        ({"source": "main", "database": "admin"}, "internal databases"),
        ({"source": "main", "collection": "a$b"}, "must not contain"),
        ({"source": "main", "keep_days": 0}, "greater than 0"),
    ],
)
def test_a_place_for_dead_letters_that_cannot_be(change: dict[str, Any], told: str) -> None:
    values = {"sources": {"main": {"uri": "mongodb://x"}}, "dead_letters": change}
    with pytest.raises(ConfigError, match="dead_letters") as raised:
        make_config(values)
    assert told in str(raised.value)


PLAIN = {"sources": {"main": {"uri": "mongodb://x"}}}


FILES = {"certificate_file": "c", "key_file": "k"}


@over(
    ("listen", "tls", "exposed"),
    [
        ({}, None, ()),
        ({"data": "localhost:7117", "operator": "[::1]:7118"}, None, ()),
        ({"data": "unix:/run/feedmux.sock", "health": "0.0.0.0:1", "metrics": "0.0.0.0:2"}, None, ()),
        ({"data": "0.0.0.0:7117"}, None, ("0.0.0.0:7117",)),
        ({"data": "[::]:7117", "operator": "10.1.2.3:7118"}, None, ("[::]:7117", "10.1.2.3:7118")),
        ({"data": "feeds.example.com:7117"}, None, ("feeds.example.com:7117",)),
        ({"data": "0.0.0.0:7117"}, FILES, ()),
        ({"data": "0.0.0.0:7117", "accept_plaintext": True}, None, ()),
    ],
)
def test_where_keys_cross_the_network_in_plaintext(
    listen: dict[str, Any], tls: dict[str, str] | None, exposed: tuple[str, ...]
) -> None:
    assert make_config({**PLAIN, "listen": listen, "tls": tls}).plaintext_addresses == exposed


def test_the_sample_is_a_configuration_with_every_option() -> None:
    sample = sample_config()
    config = make_config(tomllib.loads(sample))
    assert config.limits == LimitsSection()
    uncommented = re.sub(r"^# (?=\w+ = |\[)", "", sample, flags=re.MULTILINE)
    full = tomllib.loads(uncommented)
    assert set(full["limits"]) == set(LimitsSection.model_fields)
    assert set(full) == set(Config.model_fields)
