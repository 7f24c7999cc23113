"""The public keys of a JWT issuer: read from a file or URL, kept in memory, and replaced as a whole.

Invariants: the event loop never waits for the source itself; keys that were read stay in force until others have been
read; unknown keys cause a URL to be read again at most every `MISS_REFRESH_S`, whoever sends them; few calls wait.
"""

import asyncio
import hashlib
import json
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.error import HTTPError

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.supervision import in_daemon_thread

log = logging.getLogger(__name__)

MISS_REFRESH_S: Final = 10.0
FETCH_TIMEOUT_S: Final = 5.0
WAITING_MAX: Final = 256
"""The most calls that wait for a source: their caller is not known yet, and each holds up to 28 KiB."""
JWKS_BYTES_MAX: Final = 1024 * 1024
RSA_BITS_MIN: Final = 2048
_RETRY_AFTER_S: Final = 2.0
_TOO_MUCH: Final = "it is too large or arrives too slowly"
_KINDS: Final = frozenset({"RSA", "EC", "OKP"})
_OPERATIONS: Final = frozenset({"verify", "sign"})


class JwksUnusable(Exception):
    """The keys cannot be read; the message says why, without quoting what was read."""


class JwksAway(JwksUnusable):
    """The source cannot be read now, which may be temporary."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    kid: str
    kind: str
    """`kty`: RSA, EC or OKP."""
    algorithm: str
    """The only algorithm that the key is for; '': any that fits its kind."""
    public: PublicKeyTypes = field(repr=False)
    fingerprint: str
    """A hash of the key itself, because some issuers give two keys the same id."""


class Keys(Protocol):
    """Where `JwtVerifier` looks keys up."""

    async def find(self, kid: str | None, tried: Collection[str] = ()) -> Sequence[SigningKey]:
        """The keys with this id, which need not be unique (RFC 7517, section 4.5); all keys for a token that names
        none. Without those of the fingerprints `tried`, which did not sign the token: an issuer may have replaced a
        key that has no id, or by one with the same id. Raises QUOTA_EXCEEDED if too many calls already wait for the
        keys."""

    def knows(self, fingerprint: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class KeySet:
    """The contents of a JWKS."""

    keys: Mapping[str, Sequence[SigningKey]]
    """By id; under "" those without one."""
    left_out: tuple[str, ...] = ()
    """Why keys for signatures cannot be used, one entry for each such key."""


def parse_jwks(data: bytes) -> KeySet:
    """Parse the keys that can check signatures. Symmetric keys are ignored, and so are unusable keys, because issuers
    add keys of new kinds to those in use (RFC 7517, section 5). Raises JwksUnusable."""
    try:
        listed = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise JwksUnusable("it is not a JSON Web Key Set") from None
    if not isinstance(listed, list):
        raise JwksUnusable("it is not a JSON Web Key Set")
    found: list[SigningKey] = []
    left_out: list[str] = []
    for each in listed:
        try:
            # Some issuers write null for what a key does not have.
            content = {name: value for name, value in each.items() if value is not None}
            if _checks_signatures(content):
                found.append(_key(content))
        except AttributeError:
            left_out.append("one entry is not a JSON Web Key")
        except JwksUnusable as error:
            left_out.append(str(error))
    if not found:
        raise JwksUnusable(f"it holds no public key for signatures{''.join(f'; {why}' for why in left_out[:1])}")
    by_id: dict[str, list[SigningKey]] = {}
    for key in found:
        by_id.setdefault(key.kid, []).append(key)
    return KeySet(by_id, tuple(left_out))


def _checks_signatures(content: dict[str, Any]) -> bool:
    """Whether the key says that it is for signatures, or does not say what it is for. Raises JwksUnusable."""
    kind, use, operations = content.get("kty"), content.get("use", "sig"), content.get("key_ops", [*_OPERATIONS])
    if not isinstance(kind, str) or not isinstance(use, str):
        raise JwksUnusable("the `kty` or `use` of one key is not a text")
    if not isinstance(operations, list) or not all(isinstance(each, str) for each in operations):
        raise JwksUnusable("the `key_ops` of one key are not a list of texts")
    # Some issuers name what they do with the private key.
    return use == "sig" and not _OPERATIONS.isdisjoint(operations) and kind in _KINDS


def _key(content: dict[str, Any]) -> SigningKey:
    """Raises JwksUnusable."""
    if any(not isinstance(content.get(name, ""), str) for name in ("kid", "alg")):
        raise JwksUnusable("the `kid` or `alg` of one key is not a text")
    # Any algorithm of the kind lets PyJWT read the key; the verifier decides which algorithm a token may use.
    some = jwt.get_algorithm_by_name({"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}[content["kty"]])
    try:
        public = some.from_jwk({name: content[name] for name in content if name not in _PRIVATE})
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError):
        raise JwksUnusable("one key is malformed, or uses a curve that is not supported") from None
    if isinstance(public, RSAPublicKey) and public.key_size < RSA_BITS_MIN:
        raise JwksUnusable(f"an RSA key has fewer than {RSA_BITS_MIN} bits")
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return SigningKey(
        kid=content.get("kid", ""),
        kind=content["kty"],
        algorithm=content.get("alg", ""),
        public=public,
        fingerprint=hashlib.sha256(der).hexdigest(),
    )


_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


class Jwks:
    """The keys of one source."""

    def __init__(self, read: Callable[[], bytes], where: str, *, miss_refresh_s: float | None = MISS_REFRESH_S) -> None:
        """`miss_refresh_s` None: an unknown key does not cause the source to be read again."""
        self._read = read
        self._where = where
        self._miss_refresh_s = miss_refresh_s
        self._keys: Mapping[str, Sequence[SigningKey]] = {}
        self._reading: asyncio.Task[bool] | None = None
        self._waiting = 0
        self._read_at_s = float("-inf")
        self._failed = False
        self._left_out: tuple[str, ...] = ()

    def load(self) -> None:
        """Read the source now, blocking: for the start. Raises JwksUnusable."""
        self._take(parse_jwks(self._read()))

    async def find(self, kid: str | None, tried: Collection[str] = ()) -> Sequence[SigningKey]:
        found = self._look_up(kid, tried)
        if not found and self._miss_refresh_s is not None:
            if self._reading is not None or time.monotonic() - self._read_at_s >= self._miss_refresh_s:
                await self._wait()
            found = self._look_up(kid, tried)
        return found

    def knows(self, fingerprint: str) -> bool:
        return any(key.fingerprint == fingerprint for keys in self._keys.values() for key in keys)

    async def refresh(self) -> bool:
        """Read the source again; calls made meanwhile wait for the same read. Failures are logged once. Returns False
        if the source is unavailable."""
        if self._reading is None:
            self._read_at_s = time.monotonic()
            self._reading = asyncio.create_task(self._refresh(), name="jwks")
            self._reading.add_done_callback(self._done)
        return await asyncio.shield(self._reading)

    async def _wait(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise FeedmuxError(
                ErrorReason.QUOTA_EXCEEDED,
                "too many calls wait for the keys of the token's issuer; try again",
                {"quota": "unnamed"},
                retry_after_s=_RETRY_AFTER_S,
            )
        self._waiting += 1
        try:
            await self.refresh()
        finally:
            self._waiting -= 1

    async def run(self, every_s: float) -> None:
        """Read the source now, and again every `every_s`."""
        while True:
            await self.refresh()
            await asyncio.sleep(every_s)

    def _look_up(self, kid: str | None, tried: Collection[str]) -> Sequence[SigningKey]:
        # In a set whose keys have no ids, any may be the one that a token names.
        named = self._keys.values() if kid is None or self._keys.keys() == {""} else [self._keys.get(kid, ())]
        return [key for keys in named for key in keys if key.fingerprint not in tried]

    def _done(self, _: asyncio.Task[bool]) -> None:
        self._reading = None

    def _take(self, read: KeySet) -> None:
        self._keys = read.keys
        if read.left_out and read.left_out != self._left_out:
            log.warning(
                "ignored %d keys of the JWKS %s: %s",
                len(read.left_out),
                self._where,
                "; ".join(sorted(set(read.left_out))),
            )
        self._left_out = read.left_out

    async def _refresh(self) -> bool:
        try:
            # The end of the server does not wait for the issuer.
            self._take(parse_jwks(await in_daemon_thread(self._read, "jwks")))
        except JwksUnusable as error:
            if not self._failed:
                log.error("the JWKS %s cannot be used; the keys read before stay in force: %s", self._where, error)
            self._failed = True
            return not isinstance(error, JwksAway)
        if self._failed:
            log.info("the JWKS %s can be used again", self._where)
        self._failed = False
        return True


def read_file(path: Path) -> bytes:
    """Raises JwksUnusable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise JwksAway(f"it cannot be read: {error.strerror}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class _Cuttable(urllib.request.AbstractHTTPHandler):
    """Makes one connection, which another thread can cut."""

    _connection: HTTPConnection | None = None

    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        def connection(*args: Any, **more: Any) -> HTTPConnection:
            made: HTTPConnection = http_class(*args, **more)
            self._connection = made
            return made

        return super().do_open(connection, req, **options)

    def cut(self) -> None:
        """End a read that waits for the head of the answer."""
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with suppress(OSError):
                # Beneath TLS, whose object belongs to the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Http(_Cuttable, urllib.request.HTTPHandler): ...


class _Https(_Cuttable, urllib.request.HTTPSHandler): ...


def read_url(url: str, timeout_s: float = FETCH_TIMEOUT_S) -> bytes:
    """Read a URL, blocking. A redirect is a failure: it could lead away from https. Raises JwksUnusable."""
    deadline_s = time.monotonic() + 2 * timeout_s
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    # A URL without TLS is of this machine. A proxy does not know it, and could answer with keys of its own.
    proxies = urllib.request.getproxies() if url.lower().startswith("https:") else {}
    through = "https" in proxies and not urllib.request.proxy_bypass(request.host)
    handler = _Https() if request.type == "https" else _Http()
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler(proxies), handler)
    # The timeout is for each piece of the answer, and its head may come in any number of pieces.
    cut = threading.Timer(2 * timeout_s, handler.cut)
    cut.daemon = True
    cut.start()
    try:
        with opener.open(request, timeout=timeout_s) as response:
            data = b""
            while part := response.read1(65536):
                data += part
                if len(data) > JWKS_BYTES_MAX or time.monotonic() > deadline_s:
                    raise JwksUnusable(_TOO_MUCH)
            if time.monotonic() > deadline_s:
                raise JwksUnusable(_TOO_MUCH)
            return data
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        if time.monotonic() > deadline_s:
            raise JwksUnusable(_TOO_MUCH) from None
        # The text of an error may contain the URL, and the URL may contain a password.
        code = getattr(error, "code", None)
        reason = f"HTTP {code}" if code else type(error).__name__
        if through:
            reason += ", through the proxy that https_proxy names"
        raise JwksUnusable(f"it cannot be fetched ({reason})") from None
    finally:
        cut.cancel()
