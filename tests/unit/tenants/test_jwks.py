"""Which keys of a JSON Web Key Set are usable; an unusable key does not affect the others."""

import asyncio
import json
import logging
import threading
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.tenants.jwks import WAITING_MAX, Jwks, JwksAway, JwksUnusable, parse_jwks, read_url
from tests.tables import over


def rsa_key(kid: str, bits: int = 2048) -> dict[str, Any]:
    # Nothing is signed: any modulus of so many bits does, and takes no time to find when tests are collected.
    public = rsa.RSAPublicNumbers(65537, 2**bits - 1 - 2 * len(kid)).public_key()
    return {**jwt.algorithms.RSAAlgorithm.to_jwk(public, as_dict=True), "kid": kid}


GOOD = rsa_key("good")
OTHER = {
    **jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True),
    "kid": "other",
}
UNUSABLE = {
    "curve": {"kty": "EC", "kid": "x", "crv": "brainpoolP256r1", "x": "AQ", "y": "AQ"},
    "incomplete": {"kty": "RSA", "kid": "x", "e": "AQAB"},
    "not base64": {"kty": "RSA", "kid": "x", "e": "AQAB", "n": "\x00"},
    "of another type": {"kty": "OKP", "kid": "x", "crv": "Ed25519", "x": 7},
    "weak": rsa_key("x", 1024),
    "null": None,
    "a text": "RSA",
    "of a kind that is no text": {**GOOD, "kty": ["RSA"]},
    "with an id that is no text": {**GOOD, "kid": 7},
    "for algorithms": {**GOOD, "alg": ["RS256"]},
    "without a kind": {"kid": "x", "n": "AQ", "e": "AQAB"},
    "for operations that are no list": {**GOOD, "key_ops": 7},
    "for operations in one text": {**GOOD, "key_ops": "verify"},
    "for operations by name": {**GOOD, "key_ops": {"verify": True}},
    "for an operation that is no text": {**GOOD, "key_ops": [["verify"]]},
    "for uses in a list": {**GOOD, "use": ["sig"]},
}


def document(*keys: object) -> bytes:
    return json.dumps({"keys": keys}).encode()


@over("case", UNUSABLE)
def test_a_key_that_cannot_be_used_costs_no_other(case: str) -> None:
    found = parse_jwks(document(GOOD, UNUSABLE[case], OTHER))
    assert set(found.keys) == {"good", "other"}
    assert len(found.left_out) == 1
    with pytest.raises(JwksUnusable, match=r"no public key for signatures; .*[kK]ey"):
        parse_jwks(document(UNUSABLE[case]))


async def test_keys_with_one_id_and_keys_without() -> None:
    again = {**OTHER, "kid": "good", "alg": "ES256"}
    unnamed = [{name: value for name, value in key.items() if name != "kid"} for key in (rsa_key(""), OTHER)]
    found = parse_jwks(document({**GOOD, "alg": "RS256"}, {**GOOD, "alg": "RS512"}, again, *unnamed))
    assert {kid: [(key.kind, key.algorithm) for key in keys] for kid, keys in found.keys.items()} == {
        "good": [("RSA", "RS256"), ("RSA", "RS512"), ("EC", "ES256")],
        "": [("RSA", ""), ("EC", "")],
    }
    keys = Jwks(lambda: document(GOOD, again, *unnamed), "of an issuer")
    keys.load()
    assert [len(await keys.find(kid)) for kid in ("good", "else", None)] == [2, 0, 4]
    assert all(keys.knows(key.fingerprint) for key in await keys.find(None))
    keys = Jwks(lambda: document(*unnamed), "of an issuer")
    keys.load()
    assert [len(await keys.find(kid)) for kid in ("good", None)] == [2, 2]


def test_what_is_not_for_signatures_is_no_news() -> None:
    unknown = [{"kty": "oct", "k": "YQ"}, {"kty": "AKP", "alg": "ML-DSA-44"}, {**OTHER, "use": "enc"}]
    wraps = {**OTHER, "key_ops": ["wrapKey", "encrypt"]}
    found = parse_jwks(document({**GOOD, "key_ops": ["verify"]}, *unknown, wraps))
    assert (set(found.keys), found.left_out) == ({"good"}, ())
    assert set(parse_jwks(document({**GOOD, "key_ops": ["sign"]})).keys) == {"good"}


def test_null_is_what_a_key_does_not_have() -> None:
    unsaid = dict.fromkeys(("kid", "use", "key_ops", "alg", "x5c"))
    found = parse_jwks(document({**GOOD, **unsaid}))
    assert [(key.kind, key.algorithm) for key in found.keys[""]] == [("RSA", "")]


@over("data", [b"", b"[1", b"{}", b"[]", b'{"keys": {}}', document(7), document()])
def test_what_is_no_key_set(data: bytes) -> None:
    with pytest.raises(JwksUnusable):
        parse_jwks(data)


async def test_what_is_left_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    keys = Jwks(lambda: document(GOOD, UNUSABLE["curve"]), "of an issuer")
    for _ in range(3):
        assert await keys.refresh()
    assert [key.kid for key in await keys.find("good")] == ["good"]
    [told] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "1 keys of the JWKS of an issuer" in told.message


async def test_a_source_that_is_away_is_worth_another_try() -> None:
    def away() -> bytes:
        raise JwksAway("it cannot be read: busy")

    assert not await Jwks(away, "of an issuer").refresh()
    assert await Jwks(lambda: b"[1", "of an issuer").refresh()


async def test_few_calls_wait_for_a_slow_source() -> None:
    asked, go_on = threading.Event(), threading.Event()
    holds_up_the_end: list[bool] = []

    def read() -> bytes:
        holds_up_the_end.append(not threading.current_thread().daemon)
        asked.set()
        go_on.wait()
        return document(GOOD)

    keys = Jwks(read, "of an issuer")
    waiting = [asyncio.create_task(keys.find("good")) for _ in range(WAITING_MAX)]
    try:
        await asyncio.to_thread(asked.wait)
        with pytest.raises(FeedmuxError) as caught:
            await keys.find("good")
        assert (caught.value.reason, caught.value.retry_after_s) == (ErrorReason.QUOTA_EXCEEDED, 2.0)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(keys.find("good")))
        await asyncio.sleep(0)
    finally:
        go_on.set()
    assert {len(found) for found in await asyncio.gather(*waiting)} == {1}
    assert holds_up_the_end == [False]


def test_a_proxy_that_may_be_the_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:canary@127.0.0.1:1")
    with pytest.raises(JwksUnusable, match="the proxy that https_proxy names") as caught:
        read_url("https://127.0.0.1:1/jwks.json")
    assert "canary" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(JwksUnusable, match=r"cannot be fetched \(URLError\)"):
        read_url("https://127.0.0.1:1/jwks.json")
