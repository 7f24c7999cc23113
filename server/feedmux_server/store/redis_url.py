"""Parses the URL of Redis: one server, a primary that sentinels know, or a cluster.

    redis://[USER[:PASSWORD]@]HOST[:6379][/DATABASE]                     rediss:// with TLS, unix://PATH
    redis+sentinel://[USER[:PASSWORD]@]HOST[:26379],HOST…/SERVICE[/DATABASE]     rediss+sentinel:// with TLS
    redis+cluster://[USER[:PASSWORD]@]HOST[:6379],HOST…                  rediss+cluster:// with TLS

Invariant: `str` of the value and every message here contain no user, password or query.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import unquote

_FORMS = (
    "write redis://HOST:6379/0, redis+sentinel://HOST:26379,HOST:26379/SERVICE, redis+cluster://HOST:6379,HOST:6379"
    " (rediss… with TLS), or unix://PATH"
)


class Kind(StrEnum):
    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...] = ()
    """Empty for a Unix socket."""
    path: str = ""
    """The path of a Unix socket."""
    database: int = 0
    service: str = ""
    """The primary's name at the sentinels."""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind is Kind.SERVER else f"+{self.kind.value}")
        rest = {Kind.SERVER: f"/{self.database}", Kind.SENTINEL: f"/{self.service}/{self.database}", Kind.CLUSTER: ""}
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{hosts}{rest[self.kind]}"


def parse_redis_url(url: str) -> RedisUrl:
    """Parse a URL. Raises ValueError with what is wrong and what to write, without any text that may be a password."""
    scheme, separator, rest = url.partition("://")
    name, _, variant = scheme.partition("+")
    if not separator or (scheme != "unix" and name not in ("redis", "rediss")):
        raise ValueError(f"this is not a Redis URL: {_FORMS}")
    if variant not in ("", Kind.SENTINEL, Kind.CLUSTER):
        raise ValueError(f"a Redis URL cannot begin with {scheme}:// : {_FORMS}")
    rest, _, query = rest.partition("?")
    if query:
        raise ValueError(
            "options after ? are not supported: TLS files, user and password have fields of their own in redis"
        )
    login, _, place = rest.rpartition("@")
    username, _, password = (unquote(part) for part in login.partition(":"))
    if scheme == "unix":
        return RedisUrl(Kind.SERVER, False, path=unquote(place), username=username, password=password)
    kind = Kind(variant) if variant else Kind.SERVER
    authority, _, path = place.partition("/")
    hosts = _hosts(authority, 26379 if kind is Kind.SENTINEL else 6379)
    parts = [unquote(part) for part in path.split("/") if part]
    service = ""
    if kind is Kind.SENTINEL:
        if not parts:
            raise ValueError("the name of the primary at the sentinels is missing: redis+sentinel://HOST:26379/SERVICE")
        service = parts.pop(0)
    if kind is Kind.SERVER and len(hosts) != 1:
        raise ValueError(f"several hosts must be sentinels or the nodes of a cluster: {_FORMS}")
    if kind is Kind.CLUSTER and parts not in ([], ["0"]):
        raise ValueError("a cluster has only database 0: remove the path")
    if len(parts) > 1 or (parts and not parts[0].isdecimal()):
        raise ValueError(f"the database is a number: {_FORMS}")
    database = int(parts[0]) if parts else 0
    return RedisUrl(kind, name == "rediss", hosts, "", database, service, username, password)


def _hosts(authority: str, port_default: int) -> tuple[tuple[str, int], ...]:
    hosts: list[tuple[str, int]] = []
    for each in authority.split(","):
        host, port = each, ""
        if each.startswith("["):
            host, closed, port = each[1:].partition("]")
            if not closed or (port and not port.startswith(":")):
                raise ValueError(f"its hosts cannot be read: {_FORMS}")
            port = port[1:]
        elif ":" in each:
            host, _, port = each.rpartition(":")
        if not host or (port and not (port.isdecimal() and 0 < int(port) < 65536)):
            raise ValueError(f"its hosts cannot be read: {_FORMS}")
        hosts.append((host, int(port) if port else port_default))
    return tuple(hosts)
