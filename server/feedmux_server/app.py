"""The server process: it reads the configuration, connects, listens and drains. It owns every long-lived task."""

import asyncio
import ctypes
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import uvloop

from feedmux_server.assembly import Assembly, assemble
from feedmux_server.config.errors import ConfigError
from feedmux_server.config.server import Config
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.credentials import Credentials
from feedmux_server.dependencies import Dependencies
from feedmux_server.gc_tuning import looking_for_cycles
from feedmux_server.jobs.metrics_collector import MetricsCollector
from feedmux_server.jobs.readiness import Readiness
from feedmux_server.rpc.health import Health
from feedmux_server.rpc.server import HealthServer, Listeners, PortInUse, Ports, Servers
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.transport import Transport
from feedmux_server.store.connection import StartupError
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.audit import AuditLog
from feedmux_server.telemetry.exporters import TelemetryMisconfigured
from feedmux_server.telemetry.otel_setup import MetricsPortInUse, Telemetry, TelemetryOptions, start_telemetry

log = logging.getLogger(__name__)

READINESS_EVERY_S = 2.0
READINESS_TIMEOUT_S = 3.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""From glibc's malloc.h."""


class CannotStart(Exception):
    """The server cannot start with this configuration or environment; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is serving."""

    ports: Ports
    assembly: Assembly
    metrics_port: int | None = None
    """Port of the metrics page, if there is one."""

    @property
    def service(self) -> Service:
        return self.assembly.service


def serve(config: Config, *, insecure_no_auth: bool) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain. Raises CannotStart."""
    reuse_freed_memory()
    uvloop.run(_serve(config, insecure_no_auth))


def reuse_freed_memory() -> None:
    """Let malloc retain up to 16 MiB of freed memory, instead of returning it to the operating system.

    A batch of MongoDB is copied twice, and the copies are freed in the same turn of the event loop. By default,
    glibc returns them at once, and each batch of 2 MB then costs 1,500 page faults: 2 to 7 ms of the event loop, more
    than everything else that is done with the batch. Other C libraries have no such option.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 4 << 20)  # larger blocks are mapped, and unmapped
        libc.mallopt(_M_TRIM_THRESHOLD, 16 << 20)


async def _serve(config: Config, insecure_no_auth: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    started = False

    def on_signal() -> None:
        # A second signal ends the drain at once. A signal before the server serves ends the process at once.
        if not started or stop.is_set():
            me.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, on_signal)
    try:
        async with running(config, insecure_no_auth=insecure_no_auth, stop=stop) as server:
            started = True
            async with looking_for_cycles():
                await stop.wait()
            log.info("draining", extra={"count": len(server.service.sessions), "seconds": config.limits.drain_s})
    except asyncio.CancelledError:
        if not stop.is_set():
            raise


@asynccontextmanager
async def running(
    config: Config, *, insecure_no_auth: bool = False, stop: asyncio.Event | None = None
) -> AsyncIterator[Running]:
    """Run a server within this event loop, and drain it at exit. `stop` is set when an operator asks for a drain.

    Raises CannotStart.
    """
    stop = stop or asyncio.Event()
    async with AsyncExitStack() as stack:
        try:
            credentials = Credentials(config, insecure_no_auth=insecure_no_auth)
            audit = _audit_log(config)
            stack.callback(audit.close)
        except (StartupError, ConfigError) as error:
            raise CannotStart(str(error)) from None
        health = Health()
        health_server = HealthServer(health)
        stack.push_async_callback(health_server.stop)
        try:
            health_port = await health_server.start(config.listen.health)
        except PortInUse as error:
            raise CannotStart(str(error)) from error
        try:
            telemetry = _telemetry(config)
            stack.push_async_callback(telemetry.close)
            observer = telemetry.observer
            dependencies = await Dependencies.connect(config, stack, observer, credentials.position_keys)
        except (FeedmuxError, StartupError, ConfigError) as error:
            raise CannotStart(str(error)) from None
        refusal: CannotStart | None = None
        async with Tasks(observer) as tasks:
            assembly = assemble(
                config,
                dependencies.sources,
                dependencies.redis,
                credentials,
                tasks,
                observer,
                audit,
                stop,
                letters=dependencies.letters,
            )
            service = assembly.service
            listen = config.listen
            limits = config.limits
            transport = Transport(
                limits.request_bytes, limits.connections, limits.streams_per_connection, limits.connection_age_s
            )
            listeners = Listeners(listen.data, listen.operator, credentials.tls, listen.data_mtls, transport)
            servers = Servers(service, health, listeners)
            readiness = dependencies.readiness(health)
            keeping = [*assembly.start(tasks), *dependencies.start(tasks)]
            try:
                ports = await servers.start(health_port)
            except PortInUse as error:
                # Raised only after the tasks have ended: their task group would wrap the exception.
                refusal = CannotStart(str(error))
                refusal.__cause__ = error
                await servers.stop(0)
                _cancel(keeping)
                await assembly.close()
            else:
                log.info("serving", extra={"address": f"{listen.data.rpartition(':')[0]}:{ports.data}"})
                if not insecure_no_auth:
                    _warn_of_plaintext(config)
                unfit = _Unfit(stop)
                collect = MetricsCollector(
                    assembly.manager,
                    service.sessions,
                    assembly.results,
                    assembly.ranges,
                    assembly.committer,
                    service.groups,
                    config.limits.sessions,
                    lambda: health.ready,
                    service.letters,
                )
                keeping += [
                    *credentials.start(service, tasks),
                    *telemetry.watch(collect, tasks),
                    tasks.keep_running("readiness", partial(unfit.watch, readiness)),
                ]
                try:
                    health.show(readiness.there)
                    health.started()
                    yield Running(ports, assembly, telemetry.port)
                finally:
                    await servers.drain(config.limits.drain_s, config.limits.drain_delay_s)
                    await assembly.committer.flush_all(2.0)
                    _cancel(keeping)
                    await assembly.close()
                refusal = unfit.found
        if refusal is not None:
            raise refusal


def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()


class _Unfit:
    """Stop the server when a dependency that was unavailable at the start proves unusable, as at the start."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.found: CannotStart | None = None
        self._stop = stop

    async def watch(self, readiness: Readiness) -> None:
        try:
            await readiness.run(READINESS_EVERY_S, READINESS_TIMEOUT_S)
        except (FeedmuxError, StartupError) as error:
            log.error("a dependency is available again but cannot be used, so the server stops: %s", error)
            self.found = CannotStart(str(error))
            self._stop.set()


def _telemetry(config: Config) -> Telemetry:
    options = TelemetryOptions(
        config.listen.metrics,
        "metrics" in config.listen.model_fields_set,
        config.telemetry.tenants,
        config.telemetry.shutdown_s,
    )
    try:
        return start_telemetry(options)
    except (TelemetryMisconfigured, MetricsPortInUse) as error:
        raise CannotStart(str(error)) from None


def _audit_log(config: Config) -> AuditLog:
    try:
        return AuditLog(config.audit.file, config.audit.lines_per_minute)
    except OSError as error:
        raise ConfigError(
            f"audit.file {config.audit.file} cannot be written: {error.strerror}. Name a file in a folder that this"
            " user may write to, or leave audit.file out to write the lines to standard error"
        ) from None


def _warn_of_plaintext(config: Config) -> None:
    if addresses := config.plaintext_addresses:
        log.warning(
            "keys and events cross the network in plaintext: %s does not use TLS. Set tls.certificate_file and"
            " tls.key_file, or set listen.accept_plaintext if a proxy or a service mesh encrypts the connection",
            " and ".join(addresses),
        )
