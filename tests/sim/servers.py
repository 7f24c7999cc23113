"""A feedmux server of the simulation: all code except the network, MongoDB and Redis is that of production."""

import asyncio
import base64
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

from feedmux_server.app import READINESS_EVERY_S, READINESS_TIMEOUT_S
from feedmux_server.assembly import Assembly, assemble
from feedmux_server.config.server import Config
from feedmux_server.core.positions.position_keys import parse_keys
from feedmux_server.core.readiness import ReadinessRules
from feedmux_server.dependencies import check_source
from feedmux_server.jobs.readiness import Check, Readiness
from feedmux_server.rpc.handlers import data_handlers, operator_handlers
from feedmux_server.rpc.health import CHANGE_FEED, OPERATOR, REDIS, SUBSCRIPTIONS, Health
from feedmux_server.store.checks import check_writable
from feedmux_server.streams.key_streams import ManagerLimits
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.audit import AuditEvent, AuditLog
from feedmux_server.telemetry.observer import NOBODY
from feedmux_server.workers import check_worker, render_worker
from feedmux_server.workers.side_process import SideProcess, SideProcessFailed
from feedmux_server.workers.side_worker import Answer
from tests.sim.letters import SimLetters
from tests.sim.loop import SimLoop, process
from tests.sim.mongo import SimMongo, SimSource
from tests.sim.network import Network, Server
from tests.sim.redis import SimRedis, SimRedisClient
from tests.sim.tenants import SimCredentials, Tenant

KEYS: Final = parse_keys(base64.b64encode(bytes(range(32))).decode())
"""The keys of positions, the same in every run."""
_ANSWERS: Final[dict[str, Callable[[bytes], Answer]]] = {
    check_worker.__name__: check_worker.answer,
    render_worker.__name__: render_worker.answer,
}
_ANSWER_S: Final = 0.002


class InlineSideProcess(SideProcess):
    """Answers after a moment, in this process."""

    async def ask(self, head: bytes, data: bytes = b"") -> Answer:
        await asyncio.sleep(_ANSWER_S)
        if self._closed:
            raise SideProcessFailed(f"{self._module} is closed")
        return _ANSWERS[self._module](head + data)

    async def close(self) -> None:
        self._closed = True


class SilentAudit(AuditLog):
    """An audit log that only counts what it would write."""

    def _write(self, event: AuditEvent, suppressed: int, **facts: str) -> None:
        """Do nothing: nobody reads the log."""


@dataclass(slots=True)
class ServerSettings:
    """The settings that a run draws for all its servers."""

    config: Config
    limits: ManagerLimits
    tenants: list[Tenant]
    """If empty, clients need no credentials."""
    unused_s: float = 0.0
    """Subscriptions that are unused for this time are deleted; 0: never."""
    probed: bool = False
    """Whether the server checks MongoDB and Redis, and reports its readiness."""
    letters: SimLetters | None = None
    """The collection for dead letters, if there is one."""


@cache
def config_of(**sections: Any) -> Config:
    """Make a configuration, once: pydantic takes a millisecond for it. Values are tuples of pairs."""
    given = {name: dict(pairs) for name, pairs in sections.items()}
    return Config.model_validate({"sources": {"main": {"uri": "mongodb://sim"}}, **given})


@dataclass(slots=True, eq=False)
class SimServer:
    """One replica; each start is a separate process."""

    loop: SimLoop
    name: str
    settings: ServerSettings
    mongo: SimMongo
    redis: SimRedis
    network: Network
    node: Server | None = None
    assembly: Assembly | None = None
    credentials: SimCredentials | None = None
    health: Health | None = None
    keys: tuple[bytes, ...] = KEYS
    process: str = ""
    failure: BaseException | None = None
    """An unexpected error with which the process ended."""
    problems: list[str] = field(default_factory=list)
    _starts: int = 0
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _main: "asyncio.Task[None] | None" = None

    @property
    def running(self) -> bool:
        return self._main is not None and not self._main.done()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self.running and self._stop.is_set()

    def start(self) -> None:
        self._starts += 1
        self.process = f"{self.name}.{self._starts}"
        self._stop = asyncio.Event()
        context = copy_context()
        context.run(process.set, self.process)
        self._main = self.loop.create_task(self._run(), name=self.process, context=context)

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        if self.node is not None:
            self.network.killed(self.node)
        self.loop.kill(self.process)
        self.mongo.killed(self.process)
        self._main = self.node = self.assembly = self.credentials = self.health = None

    @property
    def frozen(self) -> bool:
        return self.node is not None and self.node.frozen

    def freeze(self) -> None:
        self.loop.freeze(self.process)
        if self.node is not None:
            self.network.froze(self.node)

    def thaw(self) -> None:
        self.loop.thaw(self.process)
        if self.node is not None:
            self.network.thawed(self.node)

    async def read_tenants_again(self) -> None:
        """Reread the tenants, as if the tenants file had changed."""
        if self.credentials is not None and self.assembly is not None:
            records = [tenant.record() for tenant in self.settings.tenants]
            await self.credentials.use_tenants(self.assembly.service, records)

    def read_keys_again(self, text: str) -> None:
        """Reread the keys, as if the file of position keys had changed."""
        self.keys = parse_keys(text)
        if self.credentials is not None:
            self.credentials.position_keys.replace(self.keys)

    async def drain(self) -> None:
        """Drain as SIGTERM does; returns when the process has ended."""
        self._stop.set()
        if self._main is not None:
            await asyncio.wait([self._main])

    async def _run(self) -> None:
        try:
            await self._serve()
        except Exception as error:  # noqa: BLE001 - the run fails for it
            self.failure = error

    async def _serve(self) -> None:
        config, stop = self.settings.config, self._stop
        source = SimSource(self.mongo, NOBODY)
        # The first check fails while MongoDB is unavailable, and a supervisor then starts the process again.
        while not source.connected:
            try:
                await source.connect()
            except Exception:  # noqa: BLE001
                await asyncio.sleep(1.0)
        credentials = self.credentials = SimCredentials(self.settings.tenants, self.keys)
        async with Tasks(NOBODY) as tasks:
            audit = SilentAudit(None, config.audit.lines_per_minute)
            self.assembly = assembly = assemble(
                config,
                {"main": source},
                SimRedisClient(self.redis),  # type: ignore[arg-type]
                credentials,
                tasks,
                NOBODY,
                audit,
                stop,
                limits=self.settings.limits,
                side_processes=InlineSideProcess,
                letters=self.settings.letters.dead_letters() if self.settings.letters is not None else None,
            )
            service = assembly.service
            keeping = assembly.start(tasks)
            health = self.health = Health()
            own = (*data_handlers(service), *operator_handlers(service))
            handlers = (*own, *health.handlers((CHANGE_FEED, SUBSCRIPTIONS, OPERATOR)))
            node = self.node = Server(self.process, copy_context(), handlers)
            self.network.listen(node)
            if self.settings.probed:
                keeping.append(tasks.keep_running("readiness", partial(self._look, health, source)))
            health.started()
            await stop.wait()
            await self._drain(node, health, assembly)
            for task in keeping:
                task.cancel()
            await assembly.close()
            audit.close()
        await source.close()
        # A call that waited for Redis ends some turns after the task that it waits for.
        await asyncio.sleep(0.01)
        self._look_for_leftovers(node, assembly)
        self.network.killed(node)
        self.node = self.assembly = self.credentials = self.health = None

    async def _look(self, health: Health, source: SimSource) -> None:
        """Check the dependencies, as `dependencies` and `app` do."""
        redis: Any = SimRedisClient(self.redis)
        checks: dict[str, Check] = {"source/main": partial(check_source, source), REDIS: partial(check_writable, redis)}
        readiness = Readiness(health, checks, {"source/main": True, REDIS: True}, ReadinessRules())
        await readiness.run(READINESS_EVERY_S, READINESS_TIMEOUT_S)

    async def _drain(self, node: Server, health: Health, assembly: Assembly) -> None:
        """Drain, as `rpc.server` and `app` do."""
        health.drain()
        service, deadline_s = assembly.service, self.settings.config.limits.drain_s
        service.begin_drain(deadline_s)
        self.network.goaway(node)
        await service.sessions.all_left(deadline_s + 1.0)
        await asyncio.sleep(0.5)
        node.end_calls()
        await assembly.committer.flush_all(2.0)

    def _look_for_leftovers(self, node: Server, assembly: Assembly) -> None:
        service, manager = assembly.service, assembly.manager
        counts = {
            "sessions": len(service.sessions),
            "sessions counted": service.admission.sessions,
            "keys of the stream manager": sum(1 for each in manager.keyed() if each.streams.subscriber_count),
            "commits": assembly.committer.waiting,
            "cursors": manager.cursors,
        }
        self.problems += [f"Nothing left: {self.process}: {count} {what}" for what, count in counts.items() if count]
        self.problems += [f"{self.process}: a handler raised {error!r}" for error in node.failures]
