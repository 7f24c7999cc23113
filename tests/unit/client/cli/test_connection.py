"""The client that a command makes of its options, and what it says about certificates and keys that do not fit."""

import argparse
from pathlib import Path
from typing import Any

import pytest

import feedmux
from feedmux.cli.connection import connected, tls_of
from feedmux.cli.failure import CliError, UsageError
from tests.integration.certificates import Authority


def given(**options: Any) -> argparse.Namespace:
    unset = dict.fromkeys(("api_key", "tls", "ca_file", "certificate_file", "key_file"))
    return argparse.Namespace(**unset | {"endpoint": "here:1", "source": "main"} | options)


def test_any_file_means_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("client")
    files = {"certificate_file": Path(str(client.certificate)), "key_file": Path(str(client.key))}
    assert tls_of(given()) is tls_of(given(tls=False)) is False
    assert tls_of(given(tls=True)) is True
    assert tls_of(given(ca_file=authority.path)) == feedmux.Tls(root=authority.path)
    assert tls_of(given(**files)) == feedmux.Tls(certificate=files["certificate_file"], key=files["key_file"])


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    one, two = Authority(tmp_path, "one").sign("a"), Authority(tmp_path, "two").sign("b")
    text = tmp_path / "text"
    text.write_text("no certificate")
    for options, words in (
        ({"ca_file": tmp_path / "none"}, "--ca-file .*none cannot be read: No such file"),
        ({"ca_file": tmp_path}, "--ca-file .* is not a file"),
        ({"ca_file": Path("/dev/zero")}, "--ca-file /dev/zero is not a file"),
        ({"ca_file": text}, "--ca-file .*text contains no PEM certificate"),
        ({"certificate_file": one.certificate, "key_file": text}, "are not a certificate and its private key"),
        ({"certificate_file": one.certificate, "key_file": two.key}, "are not a certificate and its private key"),
    ):
        with pytest.raises(CliError, match=words):
            tls_of(given(**{name: Path(str(path)) for name, path in options.items()}))
    with pytest.raises(UsageError, match="must be given together"):
        tls_of(given(key_file=text))


def test_a_key_that_cannot_be_sent_is_wrong_usage_and_not_shown() -> None:
    with (
        pytest.raises(UsageError, match="--api-key or FEEDMUX_API_KEY: ") as caught,
        connected(given(api_key="two words")),
    ):
        pass
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"api_key": "k"}, "here:1 rejects this API key"),
        ({"certificate_file": "c", "key_file": "k"}, "does not know this client certificate, and no API key was given"),
        ({}, "here:1 wants an API key, and none was given"),
    ],
)
def test_rejected_credentials_are_those_that_were_sent(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmux.cli.connection.tls_of", lambda _: False)
    with pytest.raises(CliError, match=words), connected(given(**options)):
        raise feedmux.Unauthenticated("no", status="UNAUTHENTICATED")
