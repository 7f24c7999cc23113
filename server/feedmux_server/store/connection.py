"""Makes the Redis client for one server, for the primary that sentinels name, or for a cluster.

Invariant: no password leaves this module. Neighbours: `dependencies` calls it, `commands` takes the client,
`redis_url` parses the URL.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import (
    BlockingConnectionPool,
    Connection,
    ConnectionPool,
    Redis,
    RedisCluster,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
)
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisClusterException

from feedmux_server.store.errors import FAILURES, code_of
from feedmux_server.store.redis_url import Kind, RedisUrl, parse_redis_url

COMMANDS_MAX = 16
"""The most round trips to one server at a time, so that a frozen Redis does not gather a connection per request."""
LEASES_MAX = 8
"""The most additional round trips for leases and commits, which do not wait for tenants that list and read."""
REPLICATED_MAX = 8
"""The most additional round trips that wait for a replica. Commits and leases need no replica, and so do not wait."""
CONNECTIONS_MAX = COMMANDS_MAX + LEASES_MAX + REPLICATED_MAX
SENTINEL_TIMEOUT_S = 1.0
_CONNECT_TIMEOUT_S = 2.0
_NO_PRIMARY = frozenset({"READONLY", "MASTERDOWN", "UNBLOCKED"})


class StartupError(Exception):
    """The server must not start with this configuration; the message says what to do."""


class WatchedCluster(RedisCluster):
    """A cluster that is found again by its configured addresses if all nodes that it had have gone.

    redis-py asks only the nodes that it knows, by the addresses that they had. In Kubernetes, each node has another
    address after a restart, and only the configured name leads to it.
    """

    def __init__(self, hosts: Sequence[tuple[str, int]], **options: Any) -> None:
        self._hosts = hosts
        self.default_host = hosts[0][0]
        """That of nodes which do not know by which host they are reached, and name only their port
        (cluster-preferred-endpoint-type unknown-endpoint)."""
        self._layout_read: asyncio.Task[None] | None = None
        nodes = [ClusterNode(host, port) for host, port in hosts]
        # Without full coverage, a slot that no node has fails only the calls for its own keys.
        super().__init__(
            startup_nodes=nodes,
            require_full_coverage=False,
            address_remap=lambda address: (address[0] or self.default_host, address[1]),
            **options,
        )
        connection = _ClusterTlsConnection if options.get("ssl") else _ClusterConnection
        self.connection_kwargs["connection_class"] = connection
        for node in self.nodes_manager.startup_nodes.values():
            node.connection_class = connection

    async def initialize(self, *arguments: Any, **options: Any) -> RedisCluster:
        if self._initialize:
            self._add_hosts()
        try:
            return await super().initialize(*arguments, **options)
        except IndexError:
            raise RedisClusterException("no node has slots") from None

    def read_layout_soon(self, timeout_s: float) -> None:
        """Ask for the nodes and their slots again, in a task."""
        if self._layout_read is None or self._layout_read.done():
            self._layout_read = asyncio.create_task(self._read_layout(timeout_s), name="redis-cluster-layout")

    async def aclose(self) -> None:
        if self._layout_read is not None:
            self._layout_read.cancel()
            await asyncio.gather(self._layout_read, return_exceptions=True)
        await super().aclose()

    async def _read_layout(self, timeout_s: float) -> None:
        self._add_hosts()
        with suppress(*FAILURES, IndexError):
            async with asyncio.timeout(timeout_s):
                await self.nodes_manager.initialize()

    def _add_hosts(self) -> None:
        """The nodes to ask next; redis-py replaces them by those that it finds."""
        for host, port in self._hosts:
            node = ClusterNode(host, port, **self.connection_kwargs)
            self.nodes_manager.startup_nodes.setdefault(node.name, node)


class TlsConnection(SSLConnection):
    """Reads the TLS files again when they have changed: redis-py reads them once for each connection, which its pools
    keep, and connect again after the certificates have expired."""

    _files: Sequence[tuple[int, int] | None] = ()

    def _connection_arguments(self) -> Mapping[str, Any]:
        tls = self.ssl_context
        files = [_version_of(path) for path in (tls.ca_certs, tls.certfile, tls.keyfile) if path is not None]
        if files != self._files:
            self._files, tls.context = files, None
        arguments: Mapping[str, Any] = super()._connection_arguments()
        return arguments


class _SentinelTlsConnection(SentinelManagedConnection, TlsConnection):
    """The same for the primary that sentinels name."""


class _ClusterConnection(Connection):
    """Connects again before use if the node has closed it: the nodes of a cluster do not look, unlike other pools."""

    def should_reconnect(self) -> bool:
        reader = self._reader
        closed = reader is not None and (reader.at_eof() or reader.exception() is not None)
        return closed or bool(super().should_reconnect())  # type: ignore[no-untyped-call]


class _ClusterTlsConnection(_ClusterConnection, TlsConnection):
    """The same with TLS."""


def _version_of(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


Client = Redis | WatchedCluster


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """The access settings outside the URL. Empty: as in the URL, or not used."""

    username: str = ""
    password: str = field(default="", repr=False)
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    login: Callable[[], tuple[str, str]] | None = field(default=None, repr=False)
    """Gives user and password of a new connection, instead of `username` and `password`; either may be empty."""
    sentinel_login: Callable[[], tuple[str, str]] | None = field(default=None, repr=False)
    """The same at the sentinels."""


def connect(url: str, access: RedisAccess | None = None) -> Client:
    """Make a client that connects at the first command. Raises StartupError.

    The client retries nothing: not all scripts are idempotent, and the committer has its own backoff. A connection that
    died in the pool is replaced before use.

    The caller of a command (`commands`, `checks`) sets its time limit, not `socket_timeout`: with `socket_timeout`,
    redis-py writes under `asyncio.wait_for`, which in Python 3.11 swallows a cancellation that arrives as the write
    completes (measured: one cancelled task in four continued; see `cancellation`).
    """
    try:
        where = parse_redis_url(url)
    except ValueError as error:
        raise StartupError(f"redis.url: {error}") from None
    access = access or RedisAccess()
    if where.tls:
        _check_files(access)
    elif access.ca_file or access.certificate_file or access.key_file:
        raise StartupError(f"redis: TLS files are set, but redis.url ({where}) does not use TLS: begin it with rediss")
    if where.kind is not Kind.SENTINEL and (
        access.sentinel_username or access.sentinel_password or access.sentinel_login
    ):
        raise StartupError(
            f"redis: the user or password at the sentinels is set, but redis.url ({where}) names no sentinels: write"
            " redis+sentinel://HOST:26379/SERVICE, or leave out the options that begin with sentinel_"
        )
    common: dict[str, Any] = {
        "socket_timeout": None,
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "protocol": 2,
    }
    login = _login(access.username or where.username, access.password or where.password, access.login)
    tls = _tls(access) if where.tls else {}
    match where.kind:
        case Kind.SERVER:
            return Redis.from_pool(_pool(where, {**common, **login, **tls}))
        case Kind.SENTINEL:
            sentinel_login = _login(access.sentinel_username, access.sentinel_password, access.sentinel_login)
            return WatchedPrimary(where, {**common, **login, **tls}, {**common, **sentinel_login, **tls})
        case Kind.CLUSTER:
            return WatchedCluster(
                where.hosts,
                max_connections=2 * CONNECTIONS_MAX,  # `commands` bounds the calls; redirections take a second one
                retry=_no_retry(),
                ssl=where.tls,
                **common,
                **login,
                **tls,
            )


async def leave_demoted(client: Redis, error: Exception) -> None:
    """Close the idle connections if the server's answer shows that it is no longer the primary: it would keep them
    open, and its host name may lead to another server now. Connections in use get the same answer later."""
    if code_of(error) in _NO_PRIMARY:
        with suppress(*FAILURES):
            await client.connection_pool.disconnect(inuse_connections=False)


def beside(client: Redis, host: str, port: int) -> Redis:
    """Make a client for another server, with the login and the TLS of `client`."""
    pool = client.connection_pool
    options = {name: value for name, value in pool.connection_kwargs.items() if name not in ("connection_pool", "path")}
    kind = TlsConnection if issubclass(pool.connection_class, SSLConnection) else Connection
    options |= {"host": host, "port": port}
    return Redis.from_pool(ConnectionPool(connection_class=kind, max_connections=CONNECTIONS_MAX, **options))


def _pool(where: RedisUrl, options: dict[str, Any]) -> Any:
    if where.path:
        del options["socket_keepalive"]
        options |= {"connection_class": UnixDomainSocketConnection, "path": where.path}
    else:
        [(host, port)] = where.hosts
        options |= {"host": host, "port": port}
        if where.tls:
            options["connection_class"] = TlsConnection
    return BlockingConnectionPool(
        max_connections=CONNECTIONS_MAX, timeout=2.0, retry=_no_retry(), db=where.database, **options
    )


class WatchedPrimary(Redis):
    """The primary that the sentinels name. After a failover, the next connection is made to the new one."""

    def __init__(self, where: RedisUrl, options: dict[str, Any], sentinel_options: dict[str, Any]) -> None:
        self._sentinels = _Sentinels(where, sentinel_options)
        if where.tls:
            options = {**options, "connection_class": _SentinelTlsConnection}
        pool: Any = SentinelConnectionPool(  # type: ignore[no-untyped-call]
            where.service,
            self._sentinels,
            ssl=where.tls,
            max_connections=2 * CONNECTIONS_MAX,
            retry=_no_retry(),
            db=where.database,
            **options,
        )
        super().__init__(connection_pool=pool)
        self.auto_close_connection_pool = True

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        await self._sentinels.aclose()

    async def findings_of_sentinels(self) -> Sequence[tuple[str, str]]:
        """Each sentinel with the primary it names, `HOST:PORT`, or with `!` and why it names none."""
        return [(name, await self._sentinels.says(name)) for name in self._sentinels.by_name]


class _Sentinels(Sentinel):
    """Asks all sentinels at the same time, each within a time limit: frozen sentinels do not hide the others."""

    def __init__(self, where: RedisUrl, options: dict[str, Any]) -> None:
        super().__init__((), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        self.service = where.service
        self.by_name = {
            f"{host}:{port}": Redis(
                host=host, port=port, ssl=where.tls, max_connections=CONNECTIONS_MAX, retry=_no_retry(), **options
            )
            for host, port in where.hosts
        }
        self.sentinels = list(self.by_name.values())
        if where.tls:
            for each in self.sentinels:
                each.connection_pool.connection_class = TlsConnection

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """The primary that most of the sentinels name. If no majority answers in time, the one that has the newest
        configuration, and most of the votes. Raises MasterNotFoundError.

        A sentinel that was cut off, or has lost its configuration, may name a former primary that still runs."""
        asked = {asyncio.create_task(self._ask(each), name="redis-sentinel") for each in self.sentinels}
        failure: Exception | None = None
        named: dict[tuple[str, int], list[int]] = {}
        try:
            for answered in asyncio.as_completed(asked):
                try:
                    state = (await answered).get(service_name)
                except FAILURES as error:
                    failure = error
                    continue
                if state and self.check_master_state(state, service_name):
                    primary = str(state["ip"]), int(state["port"])
                    epochs = named.setdefault(primary, [])
                    epochs.append(int(state.get("config-epoch", 0)))
                    if len(epochs) > len(self.sentinels) / 2:
                        return primary
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if named:
            return max(named, key=lambda primary: (max(named[primary]), len(named[primary])))
        raise MasterNotFoundError(f"no sentinel knows a primary {service_name!r}") from failure

    async def _ask(self, sentinel: Redis) -> Any:
        """All primaries that the sentinel knows, by name. Raises as redis-py does."""
        async with asyncio.timeout(SENTINEL_TIMEOUT_S):
            return await sentinel.sentinel_masters()

    async def says(self, name: str) -> str:
        try:
            state = (await self._ask(self.by_name[name])).get(self.service)
        except FAILURES as error:
            return f"!{type(error).__name__}"
        return f"{state['ip']}:{state['port']}" if state else "!it knows no primary with that name"


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)


def _login(username: str, password: str, read: Callable[[], tuple[str, str]] | None) -> dict[str, Any]:
    if read is not None:
        return {"credential_provider": _Login(read, username, password)}
    return {"username": username or None, "password": password or None}


class _Login(CredentialProvider):
    """Asks for the login whenever a connection is made."""

    def __init__(self, login: Callable[[], tuple[str, str]], username: str, password: str) -> None:
        self._login = login
        self._otherwise = username, password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        username, password = (read or set_ for read, set_ in zip(self._login(), self._otherwise, strict=True))
        return (username, password) if username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def _tls(access: RedisAccess) -> dict[str, Any]:
    named = {"ssl_ca_certs": access.ca_file, "ssl_certfile": access.certificate_file, "ssl_keyfile": access.key_file}
    return {name: str(path) for name, path in named.items() if path is not None}


def _check_files(access: RedisAccess) -> None:
    if (access.certificate_file is None) != (access.key_file is None):
        raise StartupError("redis.certificate_file and redis.key_file belong together: set both, or neither")
    for name in ("ca_file", "certificate_file", "key_file"):
        path: Path | None = getattr(access, name)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            raise StartupError(f"redis.{name}: {path} cannot be read ({error.strerror}); name a PEM file") from None
