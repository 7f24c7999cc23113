"""Runs scripts and commands on the keys of one deployment of feedmux."""

from collections.abc import Awaitable, Callable

from feedmux_server.store.answers import check, damaged, status, subscription
from feedmux_server.store.commands import Argument
from feedmux_server.store.connection import COMMANDS_MAX, Client
from feedmux_server.store.deadlines import Deadlines
from feedmux_server.store.errors import state_unavailable
from feedmux_server.store.model import StoredSubscription
from feedmux_server.store.scripts import Answer, ScriptCall, ScriptRunner
from feedmux_server.telemetry.observer import Observer

Send = Callable[[ScriptCall], Awaitable[tuple[Answer, bool]]]
"""Sends a script; returns its answer, and whether enough replicas have its change."""


class StoreScripts:
    """Every method raises STATE_UNAVAILABLE if Redis rejects a command or does not answer within `timeout_s`."""

    def __init__(
        self,
        redis: Client,
        prefix: str,
        timeout_s: float,
        observer: Observer,
        readable: Callable[[bytes], bool],
        trips_max: int = COMMANDS_MAX,
        in_time_s: float | None = None,
    ) -> None:
        """`readable`: whether a definition can be parsed. `in_time_s`: how long the callers of `in_time` wait, if not
        `timeout_s`."""
        self.runner = ScriptRunner(redis, timeout_s=timeout_s, observer=observer, trips_max=trips_max)
        self.prefix = prefix
        self._deadlines = Deadlines(timeout_s if in_time_s is None else in_time_s)
        self._readable = readable

    def key(self, tenant: str, name: str) -> str:
        """The key of a subscription."""
        return f"{self.prefix}:{{{tenant}/{name}}}"

    def found(self, name: str, answer: Answer) -> StoredSubscription:
        """The subscription of an answer. Raises the error that an answer without one stands for, and STATE_UNAVAILABLE
        (`redis_error` DAMAGED) for a subscription that feedmux would not have written."""
        check(name, answer)
        stored = subscription(name, answer)
        if not self._readable(stored.definition):
            raise damaged(name)
        return stored

    async def run(self, script: str, tenant: str, name: str, *arguments: Argument) -> Answer:
        return await self.runner.run(ScriptCall(script, self.key(tenant, name), arguments))

    async def unreplicated(self, call: ScriptCall) -> tuple[Answer, bool]:
        """Send a script without waiting for replicas."""
        return await self.runner.run(call), True

    async def in_time(
        self, send: Send, script: str, tenant: str, name: str, *arguments: Argument
    ) -> tuple[Answer, bool]:
        """Send a script that Redis must not run after its caller has given up; return what `send` returns."""
        for _ in range(2):
            call = ScriptCall(script, self.key(tenant, name), (*arguments, self._deadlines.next_ms()))
            answer, replicated = await send(call)
            if status(answer) != "LATE":
                if len(answer) > 2:
                    self._deadlines.saw(int(answer[1]))
                return answer, replicated
            self._deadlines.saw(int(answer[1]))
        raise state_unavailable(TimeoutError())
