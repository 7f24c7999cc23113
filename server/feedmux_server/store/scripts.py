"""Runs the Lua scripts: by EVALSHA, many in one round trip, each call with its own time limit.

Invariant: no exception of redis-py leaves this module, except as a value about a single key. Scripts that Redis does
not know (after a restart, SCRIPT FLUSH or a failover) are sent whole; a NOSCRIPT call has had no effect.
Neighbours: `store` above, `commands` below.
"""

import hashlib
import logging
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.store.commands import Argument, Command, Commands
from feedmux_server.store.connection import COMMANDS_MAX, Client
from feedmux_server.store.errors import code_of, state_unavailable, words_of
from feedmux_server.telemetry.observer import NOBODY, Observer

_log = logging.getLogger(__name__)

Answer = list[Any]

_DIGITS_MAX = 16


class ScriptCall(NamedTuple):
    """`script` is the name of a file in `lua/`, without the extension."""

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


def count_of(answer: Any) -> int:
    """The number of an answer; 0 for anything that feedmux would not have written."""
    if isinstance(answer, bytes):
        return int(answer) if answer.isdigit() and len(answer) <= _DIGITS_MAX else 0
    return answer if isinstance(answer, int) else 0


class ScriptRunner:
    def __init__(
        self, client: Client, *, timeout_s: float = 3.0, observer: Observer = NOBODY, trips_max: int = COMMANDS_MAX
    ) -> None:
        self._commands = Commands(client, timeout_s=timeout_s, observer=observer, trips_max=trips_max)

    async def run(self, call: ScriptCall) -> Answer:
        """Run a script and return its answer. Raises STATE_UNAVAILABLE."""
        [answer] = await self.run_many([call])
        if isinstance(answer, Exception):
            raise _refused(f"script {call.script}", call.key, answer)
        return answer

    async def run_replicated(
        self, call: ScriptCall, mark: tuple[Argument, ...], replicas: int | None
    ) -> tuple[Answer, bool]:
        """Run a script; return its answer, and whether replicas have its change: see `Commands.run_replicated`.

        The script is sent whole: for a script that Redis does not know, the call would have to wait twice."""
        answer, confirmed = await self._commands.run_replicated(_command(call, with_source=True), mark, replicas)
        if isinstance(answer, Exception):
            raise _refused(f"script {call.script}", call.key, answer)
        return answer, confirmed

    async def run_many(self, calls: Sequence[ScriptCall]) -> list[Answer | Exception]:
        """Run scripts and return the answers in order. An exception among them concerns that key alone. Raises
        STATE_UNAVAILABLE."""
        answers = await self._commands.run([_command(call) for call in calls])
        unknown = [i for i, answer in enumerate(answers) if isinstance(answer, redis_errors.NoScriptError)]
        if unknown:
            # EVAL stores the script as SCRIPT LOAD would, on the cluster node that has the key.
            again = await self._commands.run([_command(calls[i], with_source=True) for i in unknown])
            for i, answer in zip(unknown, again, strict=True):
                answers[i] = answer
        return answers

    async def counts(self, commands: Sequence[tuple[Argument, ...]]) -> list[int]:
        """The number that each plain command answers; 0 for a key that holds no number. Raises STATE_UNAVAILABLE."""
        return [count_of(answer) for answer in await self._commands.run(commands)]

    async def command(self, *arguments: Argument) -> Any:
        """Run one plain command. Raises STATE_UNAVAILABLE."""
        [answer] = await self.commands([arguments])
        return answer

    async def commands(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run plain commands in one round trip. Raises STATE_UNAVAILABLE."""
        answers = await self._commands.run(commands)
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, Exception):
                raise _refused(str(command[0]), str(command[1]), answer)
        return answers


def _refused(what: str, key: str, error: Exception) -> FeedmuxError:
    _log.error("redis refused %s on %s: %s (%s)", what, key, code_of(error), words_of(error))
    return state_unavailable(error, key)


def _command(call: ScriptCall, *, with_source: bool = False) -> Command:
    script = ("EVAL", source_of(call.script)) if with_source else ("EVALSHA", _sha_of(call.script))
    return (*script, 1, call.key, *call.arguments)
