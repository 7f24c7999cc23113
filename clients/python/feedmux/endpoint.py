"""The address of a server as people write it, and the HTTP proxy through which gRPC reaches it."""

import os
import re
from base64 import b64encode
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import unquote, urlsplit

_URL = re.compile(r"[a-z][a-z0-9+.-]*://+", re.IGNORECASE)
_GRPC_SCHEMES: Final = {
    "dns:": "dns:///feeds.example.com:7117",
    "ipv4:": "ipv4:10.0.0.1:7117,10.0.0.2:7117",
    "ipv6:": "ipv6:[fd00::1]:7117",
    "unix:": "unix:/run/feedmux.sock",
    "unix-abstract:": "unix-abstract:feedmux",
    "xds:": "xds:///feedmux",
}
"""The schemes of https://github.com/grpc/grpc/blob/master/doc/naming.md that gRPC has here, each with an example."""
_PORTS: Final = 1 << 16
_PROXY_VARIABLES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXY_VARIABLES: Final = ("no_grpc_proxy", "no_proxy")
_WITHOUT_PROXY: Final = ("grpc.enable_http_proxy", 0)


def checked_endpoint(text: str) -> str:
    """Return HOST:PORT, or a target with one of gRPC's schemes, without surrounding white space.

    gRPC itself accepts any text, and retries what cannot be an address like a server that is down. Raises ValueError.
    """
    stripped = text.strip()
    if scheme := _scheme(stripped):
        if not _names_a_server(scheme, stripped[len(scheme) :]):
            raise ValueError(f"{text!r} names no server; give HOST:PORT, or the target as in {_GRPC_SCHEMES[scheme]}")
        return stripped
    if host_and_port(stripped) is not None:
        return stripped
    if found := _URL.match(stripped):
        rest = stripped[found.end() :].partition("/")[0]
        example = rest if host_and_port(rest) else "localhost:7117"
        raise ValueError(f"{text!r} is a URL; give HOST:PORT, as in {example}")
    raise ValueError(f"{text!r} is not HOST:PORT, as in localhost:7117")


def _scheme(text: str) -> str:
    return next((each for each in _GRPC_SCHEMES if text.lower().startswith(each)), "")


def _names_a_server(scheme: str, rest: str) -> bool:
    """Return whether gRPC finds an address in what follows the scheme: PATH, or //AUTHORITY/PATH."""
    authority, path = "", rest
    if rest.startswith("//"):
        authority, slash, name = rest[2:].partition("/")
        path = slash + name
    if scheme in ("unix:", "unix-abstract:"):
        return not authority and bool(path.strip("/"))
    path = path.removeprefix("/")
    if scheme in ("ipv4:", "ipv6:"):
        return not authority and all(_is_ip_and_port(each, int(scheme[3])) for each in path.split(","))
    if scheme == "xds:":
        return bool(path)
    # Without a port, gRPC takes that of HTTPS.
    return host_and_port(path if host_and_port(path) else f"{path}:443") is not None and not path.isdecimal()


def _is_ip_and_port(text: str, version: int) -> bool:
    parts = host_and_port(text)
    try:
        return parts is not None and ip_address(parts[0]).version == version
    except ValueError:
        return False


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
    parts = host_and_port(address[len(_scheme(address)) :].rpartition("/")[2])
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
