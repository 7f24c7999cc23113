"""The server process: reads the configuration, connects, serves, drains. Owns every long-lived task."""

import asyncio
import gc
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from feedmux_server.config import Config, ConfigError, LimitsSection, Tenant, load_tenants
from feedmux_server.core.credit import CreditLimits
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feed_streams import StreamLimits
from feedmux_server.core.grant import Grants
from feedmux_server.core.replay_buffer import RingLimits
from feedmux_server.fanout.hub import Hub, HubLimits
from feedmux_server.fanout.pump import PumpLimits
from feedmux_server.rpc.auth import ANONYMOUS_TENANT, Authenticator, TenantKeys
from feedmux_server.rpc.server import Listeners, PortInUse, Ports, Servers, Tls
from feedmux_server.rpc.service import Service
from feedmux_server.source.mongo import Source, SourceConfig
from feedmux_server.source.reader import ReadLimits
from feedmux_server.state.batcher import CommitBatcher
from feedmux_server.state.connection import StartupError, check_redis, connect
from feedmux_server.state.store import SubscriptionStore

log = logging.getLogger(__name__)


class CannotStart(Exception):
    """The server must not start like this; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is serving."""

    ports: Ports
    service: Service


def serve(config: Config, *, insecure_no_auth: bool, ready: Callable[[Ports], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Raises CannotStart."""
    uvloop.run(_serve(config, insecure_no_auth, ready))


async def _serve(config: Config, insecure_no_auth: bool, ready: Callable[[Ports], None] | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    started = False

    def on_signal() -> None:
        # A second signal while draining ends it at once, and so does the first one before there is anything to drain.
        if not started or stop.is_set():
            me.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        async with running(config, insecure_no_auth=insecure_no_auth) as server:
            started = True
            if ready is not None:
                ready(server.ports)
            await stop.wait()
            log.info("draining", extra={"count": len(server.service.live), "seconds": config.limits.drain_s})
    except asyncio.CancelledError:
        if not stop.is_set():
            raise


@asynccontextmanager
async def running(config: Config, *, insecure_no_auth: bool = False) -> AsyncIterator[Running]:
    """A server within this event loop; drained at exit. Raises CannotStart."""
    async with AsyncExitStack() as stack:
        try:
            sources = await _connect_sources(config, stack)
            redis = connect(config.redis.url)
            stack.push_async_callback(redis.aclose)
            for warning in await check_redis(redis, config.redis.url):
                log.warning(warning)
            tenants = _tenants(config, insecure_no_auth)
            auth, operator_auth = _authenticators(config, tenants)
            tls = _tls(config)
        except (FeedmuxError, StartupError, ConfigError) as error:
            raise CannotStart(str(error)) from None
        store = SubscriptionStore(redis, lease_s=config.redis.lease_s)
        batcher = CommitBatcher(store, interval_s=config.redis.commit_interval_s)
        refusal: CannotStart | None = None
        async with asyncio.TaskGroup() as tasks:
            hub = Hub(sources, hub_limits(config.limits), tasks)
            service = Service(hub, store, batcher, auth, operator_auth, config.limits.sessions, grants_of(tenants))
            servers = Servers(service, Listeners(config.listen.data, config.listen.operator, config.listen.health, tls))
            committing = tasks.create_task(batcher.run(), name="commit-batcher")
            try:
                ports = await servers.start()
            except PortInUse as error:
                # Raised behind the group, which would wrap it.
                refusal = CannotStart(str(error))
                await servers.stop(0)
                committing.cancel()
            else:
                log.info("serving", extra={"address": _address(config.listen.data, ports.data)})
                _tune_gc()
                try:
                    yield Running(ports, service)
                finally:
                    await servers.drain(config.limits.drain_s)
                    await batcher.flush_all(2.0)
                    committing.cancel()
                    hub.stop()
        if refusal is not None:
            raise refusal


def _tune_gc() -> None:
    """What is loaded by now lives as long as the process; collections need not walk it for every few hundred events."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _address(listen: str, port: int) -> str:
    return f"{listen.rpartition(':')[0]}:{port}"


def hub_limits(limits: LimitsSection) -> HubLimits:
    return HubLimits(
        streams=StreamLimits(
            RingLimits(limits.ring_events, limits.ring_bytes),
            min(limits.read_ahead_bytes, limits.ring_bytes // 2),
            limits.join_distance_s,
        ),
        pump=PumpLimits(limits.gather_ms / 1000, limits.linger_s, limits.idle_close_s),
        read=ReadLimits(limits.batch_events, limits.max_await_ms),
        credit=CreditLimits(limits.credit_events, limits.credit_bytes),
        memory_bytes_max=limits.memory_bytes,
        trailing_max=limits.trailing_streams,
        unacked_events_max=limits.unacked_events,
    )


async def _connect_sources(config: Config, stack: AsyncExitStack) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    for name, section in config.sources.items():
        try:
            source = Source(SourceConfig(name, section.uri, section.id, section.server_selection_timeout_ms))
        except Exception as error:  # noqa: BLE001 pymongo raises several kinds for a URI it cannot read
            raise CannotStart(f"source {name!r}: the MongoDB URI cannot be used ({type(error).__name__})") from None
        stack.push_async_callback(source.close)
        await source.connect()
        sources[name] = source
    return sources


def grants_of(tenants: Iterable[Tenant] | None) -> dict[str, Grants]:
    """The grants of each tenant; without tenants, of everybody."""
    if tenants is None:
        return {ANONYMOUS_TENANT: None}
    return {
        each.name: None if each.grants is None else tuple(section.grant() for section in each.grants)
        for each in tenants
    }


def _tenants(config: Config, insecure_no_auth: bool) -> tuple[Tenant, ...] | None:
    """None: everybody is let in."""
    if insecure_no_auth:
        return None
    if config.tenants_file is None:
        raise CannotStart(
            "no authentication is configured. Name a tenants_file (make a key with `feedmux keys new`), or pass"
            " --insecure-no-auth to let everybody in"
        )
    return load_tenants(config.tenants_file)


def _authenticators(config: Config, tenants: tuple[Tenant, ...] | None) -> tuple[Authenticator, Authenticator]:
    if tenants is None:
        return Authenticator(None), Authenticator(None)
    keys = [TenantKeys(each.name, each.api_key_hashes) for each in tenants]
    return Authenticator(keys), Authenticator([TenantKeys("operator", config.operator_key_hashes)])


def _tls(config: Config) -> Tls | None:
    if config.tls is None:
        return None
    tls = Tls(_read(config.tls.certificate_file), _read(config.tls.key_file))
    try:
        # gRPC says no more of a bad pair than of a port in use.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            config.tls.certificate_file, config.tls.key_file, password=_no_password
        )
    except (ssl.SSLError, ValueError):
        raise ConfigError(
            f"tls: {config.tls.certificate_file} and {config.tls.key_file} are no certificate chain and its private key"
            " in PEM, without a passphrase"
        ) from None
    return tls


def _no_password() -> str:
    raise ValueError("encrypted keys are not supported")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: {path} cannot be read: {error.strerror}") from None
