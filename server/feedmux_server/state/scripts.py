"""Runs the Lua scripts: by EVALSHA, many in one round trip, each call with a time limit of its own.

Invariant: nothing of redis-py's exceptions escapes but values about a single key. Scripts that Redis does not know (a
restart, SCRIPT FLUSH, a failover) are sent whole; a NOSCRIPT call has had no effect.
Neighbours: `store` above, `commands` below.
"""

import hashlib
import logging
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from feedmux_server.state.commands import Argument, Command, Commands
from feedmux_server.state.connection import Client
from feedmux_server.state.failure import code_of, state_unavailable
from feedmux_server.telemetry.observer import NOBODY, Observer

_log = logging.getLogger(__name__)

Answer = list[Any]


class ScriptCall(NamedTuple):
    """`script` is a file name in `lua/` without its ending."""

    script: str
    key: str
    arguments: tuple[Argument, ...] = ()


@cache
def source_of(script: str) -> str:
    folder = resources.files(__package__) / "lua"
    return (folder / "prelude.lua").read_text() + (folder / f"{script}.lua").read_text()


@cache
def _sha_of(script: str) -> str:
    return hashlib.sha1(source_of(script).encode(), usedforsecurity=False).hexdigest()


class ScriptRunner:
    def __init__(self, client: Client, *, timeout_s: float, observer: Observer = NOBODY) -> None:
        self._commands = Commands(client, timeout_s=timeout_s, observer=observer)

    async def run(self, call: ScriptCall) -> Answer:
        """The script's answer. Raises STATE_UNAVAILABLE."""
        [answer] = await self.run_many([call])
        if isinstance(answer, Exception):
            _log.error("redis refused script %s: %s", call.script, code_of(answer))
            raise state_unavailable(answer)
        return answer

    async def run_replicated(
        self, call: ScriptCall, mark: tuple[Argument, ...], replicas: int | None
    ) -> tuple[Answer, bool]:
        """The script's answer, and whether replicas have what it changed: see `Commands.run_replicated`.

        Sent whole: a script that Redis does not know would be waited for twice."""
        answer, confirmed = await self._commands.run_replicated(_command(call, with_source=True), mark, replicas)
        if isinstance(answer, Exception):
            _log.error("redis refused script %s: %s", call.script, code_of(answer))
            raise state_unavailable(answer)
        return answer, confirmed

    async def run_many(self, calls: Sequence[ScriptCall]) -> list[Answer | Exception]:
        """The answers in order; an exception among them concerns that key alone. Raises STATE_UNAVAILABLE."""
        answers = await self._commands.run([_command(call) for call in calls])
        unknown = [i for i, answer in enumerate(answers) if isinstance(answer, redis_errors.NoScriptError)]
        if unknown:
            # EVAL stores the script as SCRIPT LOAD would, on the very node of a cluster that has the key.
            again = await self._commands.run([_command(calls[i], with_source=True) for i in unknown])
            for i, answer in zip(unknown, again, strict=True):
                answers[i] = answer
        return answers

    async def command(self, *arguments: Argument) -> Any:
        """One plain command. Raises STATE_UNAVAILABLE."""
        [answer] = await self.commands([arguments])
        return answer

    async def commands(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Plain commands in one round trip. Raises STATE_UNAVAILABLE."""
        answers = await self._commands.run(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise state_unavailable(answer)
        return answers


def _command(call: ScriptCall, *, with_source: bool = False) -> Command:
    script = ("EVAL", source_of(call.script)) if with_source else ("EVALSHA", _sha_of(call.script))
    return (*script, 1, call.key, *call.arguments)
