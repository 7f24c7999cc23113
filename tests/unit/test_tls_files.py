"""TLS files of the configuration: what is wrong with them is named by field and file."""

from pathlib import Path

import pytest

from feedmux_server.config.errors import ConfigError, FileUnreadable
from feedmux_server.config.sections import TlsSection
from feedmux_server.tls_files import load_tls, tls_paths
from tests.integration.certificates import Authority


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
