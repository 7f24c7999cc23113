"""Runs the Lua scripts: by EVALSHA, many in one round trip, each call with a time limit of its own.

Invariant: nothing of redis-py's exceptions escapes but `ResponseError` values about a single key. Scripts
that Redis does not know (a restart, SCRIPT FLUSH) are loaded and their calls repeated; a NOSCRIPT call has
had no effect.
Neighbours: `store` above, Redis below.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from redis import exceptions as redis_errors
from redis.asyncio import Redis

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.state.failure import code_of, is_of_one_key, state_unavailable
from feedmux_server.telemetry.observer import NOBODY, Observer

_log = logging.getLogger(__name__)

Argument = str | bytes | int
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
    def __init__(self, redis: Redis, *, timeout_s: float, observer: Observer = NOBODY) -> None:
        self._redis = redis
        self._observer = observer
        self._timeout_s = timeout_s

    async def run(self, call: ScriptCall) -> Answer:
        """The script's answer. Raises STATE_UNAVAILABLE."""
        [answer] = await self.run_many([call])
        if isinstance(answer, Exception):
            _log.error("redis refused script %s: %s", call.script, code_of(answer))
            raise state_unavailable(answer)
        return answer

    async def run_many(self, calls: Sequence[ScriptCall]) -> list[Answer | Exception]:
        """The answers in order; an exception among them concerns that key alone. Raises STATE_UNAVAILABLE."""
        answers = await self._pipeline([_command(call) for call in calls])
        unknown = [i for i, answer in enumerate(answers) if isinstance(answer, redis_errors.NoScriptError)]
        if unknown:
            scripts = sorted({calls[i].script for i in unknown})
            again: list[tuple[Argument, ...]] = [("SCRIPT", "LOAD", source_of(script)) for script in scripts]
            again += [_command(calls[i]) for i in unknown]
            for i, answer in zip(unknown, (await self._pipeline(again))[len(scripts) :], strict=True):
                answers[i] = answer
        return answers

    async def command(self, *arguments: Argument) -> Any:
        """One plain command. Raises STATE_UNAVAILABLE."""
        [answer] = await self.commands([arguments])
        return answer

    async def commands(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Plain commands in one round trip. Raises STATE_UNAVAILABLE."""
        answers = await self._pipeline(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise state_unavailable(answer)
        return answers

    async def _pipeline(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        attributes: dict[str, str | int] = {"db.system.name": "redis", "db.operation.batch.size": len(commands)}
        with self._observer.span("redis pipeline", attributes, client=True):
            try:
                return await self._run(commands)
            except FeedmuxError as error:
                self._observer.redis_failed(error.metadata["redis_error"])
                raise

    async def _run(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        try:
            # The one limit of the call: for the pool, a new connection and all reads together; see `connect`.
            async with asyncio.timeout(self._timeout_s), self._redis.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                answers: list[Any] = await pipeline.execute(raise_on_error=False)
        except (redis_errors.RedisError, OSError) as error:
            raise state_unavailable(error) from error
        for answer in answers:
            if isinstance(answer, Exception) and not (
                isinstance(answer, redis_errors.NoScriptError) or is_of_one_key(answer)
            ):
                raise state_unavailable(answer) from answer
        return answers


def _command(call: ScriptCall) -> tuple[Argument, ...]:
    return ("EVALSHA", _sha_of(call.script), 1, call.key, *call.arguments)
