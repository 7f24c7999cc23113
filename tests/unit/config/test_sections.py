"""The sections of the configuration."""

from typing import Any

import pytest

from feedmux_server.config.errors import ConfigError
from feedmux_server.config.load import make_config

JWT = {"issuer": "https://login.example.com/", "audience": "feedmux", "jwks_file": "jwks.json"}


@pytest.mark.parametrize(
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
