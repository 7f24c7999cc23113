"""The files with a server's logins, certificates and keys: what they must hold, and when they are read again."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feedmux_server.config.errors import ConfigError, FileUnreadable
from feedmux_server.config.load import load_tenants, make_config
from feedmux_server.config.sections import TlsSection
from feedmux_server.config.tenants_file import QuotaSection
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.quota import UNLIMITED_QUOTAS
from feedmux_server.core.positions.position_keys import format_keys
from feedmux_server.credentials import Credentials, read_position_keys
from feedmux_server.login_files import LoginFiles
from feedmux_server.tls_files import load_tls, tls_paths
from tests.integration.certificates import Authority


def files(folder: Path) -> LoginFiles:
    return LoginFiles("redis", username_file=folder / "user", password_file=folder / "password")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_end_of_the_line_and_the_mark_of_an_editor_do_not_count(tmp_path: Path, end: str) -> None:
    (tmp_path / "user").write_text("one", "utf-8-sig")
    (tmp_path / "password").write_bytes(f" canary:@{end}".encode())
    read = files(tmp_path)
    assert (read.username, read.password) == ("one", " canary:@")
    assert not LoginFiles("redis", username_file=None, password_file=None).has_files


@pytest.mark.parametrize(
    "content", [b"", b"\xef\xbb\xbf", b"\n", b"canary\nsecond", b"canary\0", b"\xffcanary", b"canary" * 20_000]
)
def test_what_is_no_login_is_rejected_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "user").write_text("one")
    (tmp_path / "password").write_bytes(content)
    with pytest.raises(ConfigError, match=r"redis\.password_file") as caught:
        files(tmp_path)
    assert "canary" not in str(caught.value)
    (tmp_path / "password").unlink()
    with pytest.raises(FileUnreadable):
        files(tmp_path)


async def test_a_changed_file_is_read_again_and_an_unusable_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "user").write_text("one")
    (tmp_path / "password").write_text("first-canary")
    read, seen = files(tmp_path), asyncio.Queue[str]()

    async def changed() -> None:
        if "cannot be used yet: FileNotFoundError" not in caplog.text:
            raise FileNotFoundError("ca.crt")
        seen.put_nowait(read.password)

    async def is_logged() -> None:
        while "one read before stays in force" not in caplog.text:
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.INFO):
        task = asyncio.create_task(read.run(0.001, changed))
        (tmp_path / "password").write_text("")
        await asyncio.wait_for(is_logged(), 60)
        (tmp_path / "password").write_text("second-canary")
        assert await asyncio.wait_for(seen.get(), 60) == "second-canary"
    assert "canary" not in caplog.text
    task.cancel()
    await asyncio.wait([task])


def section(
    folder: Path, certificate: str = "one.pem", key: str = "one.key", authorities: str = "ca.pem"
) -> TlsSection:
    return TlsSection(certificate_file=folder / certificate, key_file=folder / key, client_ca_file=folder / authorities)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority = Authority(tmp_path)
    for name in ("one", "two"):
        authority.sign(name)
    (tmp_path / "text.pem").write_text("canary")
    return tmp_path


def test_files_that_belong_together(folder: Path) -> None:
    loaded = load_tls(section(folder))
    assert (loaded.certificate, loaded.key) == ((folder / "one.pem").read_bytes(), (folder / "one.key").read_bytes())
    assert loaded.client_authorities == (folder / "ca.pem").read_bytes()
    without = TlsSection(certificate_file=folder / "one.pem", key_file=folder / "one.key")
    assert load_tls(without).client_authorities is None
    assert tls_paths(without) == [folder / "one.pem", folder / "one.key"]


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        (("one.pem", "two.key", "ca.pem"), ConfigError, "tls.certificate_file and tls.key_file"),
        (("text.pem", "one.key", "ca.pem"), ConfigError, "tls.certificate_file and tls.key_file"),
        (("one.pem", "one.key", "text.pem"), ConfigError, "tls.client_ca_file"),
        (("absent.pem", "one.key", "ca.pem"), FileUnreadable, "tls.certificate_file"),
        (("one.pem", "absent.key", "ca.pem"), FileUnreadable, "tls.key_file"),
        (("one.pem", "one.key", "absent.pem"), FileUnreadable, "tls.client_ca_file"),
    ],
)
def test_files_that_do_not(folder: Path, names: tuple[str, str, str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        load_tls(section(folder, *names))
    assert str(caught.value).startswith(message)
    assert "canary" not in str(caught.value)
    assert isinstance(caught.value, FileUnreadable) == ("absent" in str(caught.value)), "a later attempt may succeed"


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


async def test_quotas_hold_also_if_the_new_grants_cannot_be_applied(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text(TENANTS)
    made = credentials(tenants_file=str(path))
    accounts = Accounts(made.quotas_of, lambda: 0.0)
    account = accounts.of("shop")

    async def fails(*_: object) -> None:
        raise RuntimeError("a defect")

    service: Any = SimpleNamespace(
        audit=SimpleNamespace(log=SimpleNamespace(record=lambda *_, **__: None)),
        sessions=SimpleNamespace(change_grants=fails),
        manager=SimpleNamespace(accounts=accounts),
    )
    path.write_text(TENANTS.replace("7", "3"))
    with pytest.raises(RuntimeError):
        await made.use_tenants(service, load_tenants(path).records())
    assert account.quotas.sessions == 3
