"""The address of a server as people write it, and the HTTP proxy through which gRPC reaches it."""

import os
import re
from base64 import b64encode
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import unquote, urlsplit

_URL = re.compile(r"[a-z][a-z0-9+.-]*://+", re.IGNORECASE)
_GRPC_SCHEMES: Final = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
"""https://github.com/grpc/grpc/blob/master/doc/naming.md"""
_PORTS: Final = 1 << 16
_PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY_VARIABLES: Final = ("no_grpc_proxy", "no_proxy")
_WITHOUT_PROXY: Final = ("grpc.enable_http_proxy", 0)


def checked_endpoint(text: str) -> str:
    """Return HOST:PORT, or a target with one of gRPC's schemes, without surrounding white space.

    gRPC itself accepts any text, and retries what cannot be an address like a server that is down. Raises ValueError.
    """
    stripped = text.strip()
    if stripped.lower().startswith(_GRPC_SCHEMES) or host_and_port(stripped) is not None:
        return stripped
    if found := _URL.match(stripped):
        rest = stripped[found.end() :].partition("/")[0]
        example = rest if host_and_port(rest) else "localhost:7117"
        raise ValueError(f"{text!r} is a URL; give HOST:PORT, as in {example}")
    raise ValueError(f"{text!r} is not HOST:PORT, as in localhost:7117")


def host_and_port(text: str) -> tuple[str, int] | None:
    """Return the two parts of HOST:PORT; None for any other text."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and len(port) <= len(str(_PORTS)) and 0 < int(port) < _PORTS):
        return None
    if host.startswith("[") and host.endswith("]") and ":" in host:
        return host[1:-1], int(port)
    if not host or any(each in "[]:/@?#" or each.isspace() or not each.isprintable() for each in host):
        return None
    try:
        host.encode("idna")  # as the functions of sockets do
    except UnicodeError:  # an empty label, or one of more than 63 characters
        return None
    return host, int(port)


def proxy_options(address: str) -> tuple[tuple[str, int], ...]:
    """Return options for a channel: gRPC would ask a proxy even for an address of this machine, which no proxy knows.

    Containers often get http_proxy from the engine that runs them.
    """
    scheme = next((each for each in _GRPC_SCHEMES if address.lower().startswith(each)), "")
    parts = host_and_port(address[len(scheme) :].rpartition("/")[2])
    return (_WITHOUT_PROXY,) if parts is not None and is_loopback(parts[0]) else ()


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", "ip6-localhost")


@dataclass(frozen=True, slots=True)
class Proxy:
    """The HTTP proxy that gRPC uses for an address, and the variable that names it."""

    variable: str
    host: str
    port: int
    authorization: str = field(default="", repr=False)
    """The value of Proxy-Authorization."""

    def __str__(self) -> str:
        return f"{self.host}{f':{self.port}' if self.port else ''} ({self.variable})"


def proxy_of(host: str) -> Proxy | None:
    """Return the proxy that gRPC uses for a host, by its rules for environment variables (http_proxy_mapper.cc).

    gRPC also tries what is no address, and then says nothing of a proxy. Such a proxy has the port 0.
    """
    if is_loopback(host):
        return None
    variable = next((name for name in _PROXY_VARIABLES if os.environ.get(name)), None)
    if variable is None:
        return None
    excepted = next((value for name in _NO_PROXY_VARIABLES if (value := os.environ.get(name))), "")
    if any(_matches(host, entry.strip()) for entry in excepted.split(",")):
        return None
    text = os.environ[variable]
    try:
        url = urlsplit(text)
        port = url.port or 443
        (url.hostname or "").encode("idna")
    except ValueError:
        return Proxy(variable, text.rpartition("@")[2], 0) if text.lower().startswith("http://") else None
    if url.scheme != "http" or not url.hostname:
        return None
    user = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else ""
    authorization = f"Basic {b64encode(user.encode('utf-8', 'surrogateescape')).decode()}" if user else ""
    return Proxy(variable, url.hostname, port, authorization)


def _matches(host: str, entry: str) -> bool:
    if not entry:
        return False
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())
