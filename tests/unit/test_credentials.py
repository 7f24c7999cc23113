"""The credentials of a server: what its files must hold, and who is who without them."""

from pathlib import Path
from typing import Any

import pytest

from feedmux_server.config.errors import ConfigError, FileUnreadable
from feedmux_server.config.load import make_config
from feedmux_server.config.tenants_file import QuotaSection
from feedmux_server.core.limits.quota import UNLIMITED_QUOTAS
from feedmux_server.core.positions.position_keys import format_keys
from feedmux_server.credentials import Credentials, read_position_keys

TENANTS = "tenants:\n  - name: shop\n    quotas: {sessions: 7}\n    pipelines: any\n  - name: bank\n    grants: []\n"


def credentials(*, insecure: bool = False, **values: Any) -> Credentials:
    config = make_config({"sources": {"main": {"uri": "mongodb://x"}}, **values})
    return Credentials(config, insecure_no_auth=insecure)


def test_without_authentication_everybody_is_one_tenant_without_limits() -> None:
    made = credentials(insecure=True, tenants_file="absent.yaml")
    assert made.grants() == {"default": None}
    assert made.trusted() == {"default"}
    assert made.quotas_of("default") == UNLIMITED_QUOTAS
    assert not made.position_keys.known, "they are in Redis"


def test_tenants_have_what_their_file_says(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text(TENANTS)
    made = credentials(tenants_file=str(path))
    assert made.trusted() == {"shop"}
    assert made.grants()["bank"] == ()
    assert set(made.grants()) == {"shop", "bank"}
    assert [made.quotas_of(name).sessions for name in ("shop", "gone")] == [7, QuotaSection().sessions]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "--insecure-no-auth"),
        ({"tenants_file": "absent.yaml"}, "tenants_file: .*`feedmux tenants check FILE`"),
        ({"positions": {"key_file": "absent.keys"}}, "positions.key_file .*cannot be read"),
    ],
)
def test_what_prevents_a_start(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        credentials(**values)


@pytest.mark.parametrize(
    ("content", "kind"),
    [(None, FileUnreadable), (b"canary", ConfigError), (b"\xff\xfe", ConfigError), (b"", ConfigError)],
)
def test_a_file_of_keys_that_cannot_be_used(tmp_path: Path, content: bytes | None, kind: type[Exception]) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(kind, match=r"^positions\.key_file") as caught:
        read_position_keys(path)
    assert type(caught.value) is kind
    assert "canary" not in str(caught.value)


def test_keys_of_a_file_are_used_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(format_keys([bytes(32)]))
    assert credentials(insecure=True, positions={"key_file": str(path)}).position_keys.materials == (bytes(32),)
