"""An issuer of JWTs, with keys and a web server of its own."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://login.example.com/", "feedmux"


class SigningPair:
    """A private key, and what the issuer publishes of it. With an empty `kid`, neither the key nor its tokens have an
    id."""

    def __init__(self, kid: str, algorithm: str = "RS256") -> None:
        self.kid, self.algorithm = kid, algorithm
        self.private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
        if algorithm.startswith("ES"):
            self.private = ec.generate_private_key(ec.SECP256R1())
            public = ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        else:
            self.private = rsa.generate_private_key(65537, 2048)
            public = RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        self._id = {"kid": kid} if kid else {}
        self.jwk: dict[str, Any] = {**public, **self._id, "alg": algorithm, "use": "sig"}

    def token(self, **claims: Any) -> str:
        """A token for tenant `a`, good for an hour, with `claims` instead."""
        now_s = int(time.time())
        content = {"iss": ISSUER, "aud": AUDIENCE, "tenant": "a", "iat": now_s, "exp": now_s + 3600, **claims}
        return jwt.encode(content, self.private, self.algorithm, headers=self._id)


def jwks(*keys: SigningPair) -> str:
    return json.dumps({"keys": [key.jwk for key in keys]})


class Web:
    """What the issuer's web server answers, and how often it was asked."""

    def __init__(self) -> None:
        self.body: str | None = None
        """None is an error 503."""
        self.piece = b""
        """What it sends again and again, if anything, until the connection is cut."""
        self.location = ""
        self.asked = 0
        self.url = ""


@contextmanager
def web_server() -> Iterator[Web]:
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.asked += 1
            if web.piece:
                with suppress(OSError):
                    while True:
                        self.wfile.write(web.piece)
                        time.sleep(0.02)
                return
            if web.location and self.path == "/jwks.json":
                self.send_response(302)
                self.send_header("Location", web.location)
                self.end_headers()
                return
            self.send_response(503 if web.body is None else 200)
            self.end_headers()
            self.wfile.write((web.body or "").encode())

        def log_message(self, *_: Any) -> None:
            """Not to the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        web.url = f"http://127.0.0.1:{server.server_port}/jwks.json"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()
