"""The address of a server as people write it: the one parser of all options, variables, files and arguments."""

import re
from typing import Final

_URL = re.compile(r"[a-z][a-z0-9+.-]*://+", re.IGNORECASE)
_GRPC_SCHEMES: Final = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
"""https://github.com/grpc/grpc/blob/master/doc/naming.md"""
_PORTS: Final = 1 << 16


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
    return host, int(port)
