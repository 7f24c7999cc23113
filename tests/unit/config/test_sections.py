"""The sections of the configuration."""

from typing import Any

import pytest

from feedmux_server.config.errors import ConfigError
from feedmux_server.config.load import make_config
from tests.tables import over

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
