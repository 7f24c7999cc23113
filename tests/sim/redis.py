"""A Redis in memory: the server's real scripts, run by Lua, and the few plain commands that the server uses.

It answers as redis-py does with RESP 2: bytes, whole numbers, lists, None. A command's failure is an exception among
the answers of its pipeline.
"""

import asyncio
import hashlib
from bisect import bisect_left
from collections.abc import Callable
from contextvars import Context
from functools import cache
from random import Random
from types import TracebackType
from typing import Any, Self
from weakref import WeakMethod

import lupa.lua54 as lua
from redis import exceptions

from feedmux_server.store import scripts

Hash = dict[bytes, bytes]
Sorted = dict[bytes, float]
Value = bytes | Hash | Sorted
State = tuple[dict[bytes, Value], dict[bytes, float]]
"""Values, and the times at which keys expire."""

SNAPSHOT_S = 0.5
"""The minimum age of the state that survives when Redis loses its last writes."""
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
_WRITES = frozenset(b"SET HSET HDEL ZADD ZREM PEXPIRE PERSIST".split())


@cache
def _runtime() -> Any:
    """One Lua runtime for all runs: a script keeps no state between two calls."""
    return lua.LuaRuntime(encoding=None, register_eval=False, unpack_returned_tuples=True)


@cache
def _compiled(source: bytes) -> Any:
    return _runtime().execute(b"return function(KEYS, ARGV, redis) " + source + b"\nend")


class Down(exceptions.ConnectionError):
    """The server refuses connections."""


class SimRedis:
    """The data, and the execution of commands. Commands of one pipeline run one after the other, without
    interruption."""

    def __init__(self, loop: Any, rng: Random) -> None:
        self.loop = loop
        self._rng = rng
        self.context = Context()
        self._data: dict[bytes, Value] = {}
        self._expires: dict[bytes, float] = {}
        self._scripts: dict[bytes, bytes] = {}
        self._snapshots: list[tuple[float, State]] = []
        self.commands = 0
        self.wrote: Callable[[bytes], None] = lambda key: None
        """Called with the key after a script has run."""
        self.has_lost = False
        """Whether data were lost at some time."""
        self.lost: Callable[[], None] = lambda: None
        """Called after data were lost."""
        self.down = False
        """Whether connections are refused."""
        self.silent = False
        """Whether commands are neither executed nor answered."""
        self.ahead_s = 0.0
        """How far its clock is ahead of every other clock."""
        self.slow_s = 0.0
        """The longest delay of a pipeline on its way. Each is delayed separately: a later pipeline may overtake an
        earlier one."""
        self.slow_script = ""
        """If set, only pipelines with this script are delayed so."""
        self.loses_answers = 0.0
        """The share of pipelines that are executed but not answered."""
        self.full = False
        """Whether it is out of memory: commands that write are refused."""
        self.replicas = 0
        """The number of connected replicas."""
        self.lag_s = 0.002
        """The time until a replica has what was written, if a command waits for replicas."""
        self._replica: tuple[float, State] | None = None
        """The time and content of the newest state that replicas are known to have."""
        self._lives = 0
        """How often it has restarted."""
        # Lua would keep this object alive: Python's collector does not see what Lua refers to.
        call = WeakMethod(self._call)
        self._lua_redis = _runtime().table_from(
            {
                b"call": lambda name, *arguments: call()(name, *arguments),  # type: ignore[misc]
                b"pcall": lambda name, *arguments: call()(name, *arguments, protected=True),  # type: ignore[misc]
                b"replicate_commands": lambda: True,
                b"sha1hex": _sha1,
            }
        )

    # Faults.

    def restart(self) -> None:
        """Forget scripts and whoever waits for replicas, but not data."""
        self._scripts.clear()
        self._lives += 1

    def lose_everything(self) -> None:
        self._data.clear()
        self._expires.clear()
        self._snapshots.clear()
        self.restart()
        self.has_lost = True
        self.lost()

    def lose_last_writes(self) -> None:
        """Return to the state on disk about a second ago."""
        self._go_back_to(self._snapshots[:1])

    def fail_over(self) -> None:
        """Let a replica take over, with the state that it is known to have, or else the state of about a second ago."""
        # Of a snapshot just before a write and the replica just after it, the replica is newer.
        self._go_back_to([*([self._replica] if self._replica is not None else []), *self._snapshots[:1]])

    def _go_back_to(self, states: list[tuple[float, State]]) -> None:
        """Return to the newest of these states."""
        if states:
            self._data, self._expires = _copied(max(states, key=lambda each: each[0])[1])
        self._replica = None
        self._snapshots.clear()
        self.restart()
        self.has_lost = True
        self.lost()

    # Commands.

    def run(self, command: tuple[Any, ...]) -> Any:
        """Run a command; returns the answer, or the exception that redis-py would give."""
        self.commands += 1
        name, *arguments = [_bytes(part) for part in command]
        try:
            return self._run(name, arguments)
        except exceptions.ResponseError as error:
            return error

    def hash_of(self, key: bytes) -> Hash:
        """The stored fields of a subscription; empty if it does not exist."""
        found = self._get(key)
        return found if isinstance(found, dict) else {}  # type: ignore[return-value]

    def _run(self, name: bytes, arguments: list[bytes]) -> Any:
        match name:
            case b"EVALSHA":
                source = self._scripts.get(arguments[0])
                if source is None:
                    raise exceptions.NoScriptError("NOSCRIPT No matching script.")
                return self._eval(source, arguments[2:3], arguments[3:])
            case b"EVAL":
                self._scripts[_sha1(arguments[0])] = arguments[0]
                return self._eval(arguments[0], arguments[2:3], arguments[3:])
            case b"INFO":
                return {"role": "master", "connected_slaves": self.replicas}
            case b"WAIT":
                return 0
        if name in _WRITES:
            self._before_write()
        answer = self._plain(name, arguments)
        return int(answer) if answer is True or answer is False else answer

    def _eval(self, source: bytes, keys: list[bytes], arguments: list[bytes]) -> Any:
        runtime = _runtime()
        try:
            answer = _compiled(source)(runtime.table_from(keys), runtime.table_from(arguments), self._lua_redis)
        except lua.LuaError as error:
            raise exceptions.ResponseError(str(error)) from None
        self.wrote(keys[0])
        return _from_lua(answer)

    def _call(self, name: bytes, *arguments: Any, protected: bool = False) -> Any:
        if protected:
            try:
                return self._call(name, *arguments)
            except exceptions.ResponseError as error:
                return _runtime().table_from({b"err": str(error).encode()})
        if name == b"TIME":
            now_us = int((self.loop.true_wall_s() + self.ahead_s) * 1_000_000)
            return _runtime().table_from([b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)])
        if name in _WRITES:
            self._before_write()
        answer = self._plain(name, [_bytes(each) for each in arguments])
        if answer is None:
            return False
        if isinstance(answer, list):
            return _runtime().table_from([False if each is None else each for each in answer])
        return answer

    def _before_write(self) -> None:
        if self.full:
            raise exceptions.OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'.")
        now_s = self.loop.time()
        kept = self._snapshots
        if not kept or now_s - kept[-1][0] >= SNAPSHOT_S:
            kept.append((now_s, _copied((self._data, self._expires))))
            while len(kept) > 1 and now_s - kept[1][0] >= 2 * SNAPSHOT_S:
                del kept[0]

    def _plain(self, name: bytes, arguments: list[bytes]) -> Any:
        key = arguments[0]
        if name[:1] == b"H":
            return self._hash_command(name, self._of(dict[bytes, bytes], key), key, arguments[1:])
        if name[:1] == b"Z":
            return self._sorted_command(name, self._of(dict[bytes, float], key), key, arguments[1:])
        match name:
            case b"GET":
                found = self._get(key)
                if isinstance(found, dict):
                    raise exceptions.ResponseError(_WRONG_TYPE)
                return found
            case b"SET":
                return self._set(key, arguments[1], [option.upper() for option in arguments[2:]])
            case b"DEL":
                self._expires.pop(key, None)
                return int(self._data.pop(key, None) is not None)
            case b"PEXPIRE":
                if self._get(key) is None:
                    return 0
                self._expires[key] = self.loop.time() + int(arguments[1]) / 1000
                return 1
            case b"PERSIST":
                return int(self._expires.pop(key, None) is not None)
        raise NotImplementedError(name.decode())

    def _hash_command(self, name: bytes, stored: Hash, key: bytes, arguments: list[bytes]) -> Any:
        match name:
            case b"HGET":
                return stored.get(arguments[0])
            case b"HMGET":
                return [stored.get(field) for field in arguments]
            case b"HGETALL":
                return [part for pair in stored.items() for part in pair]
            case b"HKEYS":
                return list(stored)
            case b"HLEN":
                return len(stored)
            case b"HEXISTS":
                return int(arguments[0] in stored)
            case b"HSET":
                self._data[key] = stored
                fields = dict(zip(arguments[::2], arguments[1::2], strict=True))
                new = len(fields.keys() - stored.keys())
                stored.update(fields)
                return new
            case b"HDEL":
                gone = sum(stored.pop(field, None) is not None for field in arguments)
                if not stored:
                    self._data.pop(key, None)
                return gone
        raise NotImplementedError(name.decode())

    def _sorted_command(self, name: bytes, stored: Sorted, key: bytes, arguments: list[bytes]) -> Any:
        match name:
            case b"ZADD":
                self._data[key] = stored
                new = arguments[1] not in stored
                stored[arguments[1]] = float(arguments[0])
                return int(new)
            case b"ZREM":
                return sum(stored.pop(member, None) is not None for member in arguments)
            case b"ZCARD":
                return len(stored)
            case b"ZSCORE":
                score = stored.get(arguments[0])
                return None if score is None else b"%d" % score
            case b"ZRANGEBYLEX":
                low, _, _, offset, count = arguments
                members = sorted(stored)
                begin = 0
                if low != b"-":
                    begin = bisect_left(members, low[1:])
                    begin += low[:1] == b"(" and members[begin : begin + 1] == [low[1:]]
                begin += int(offset)
                return members[begin : begin + int(count)]
        raise NotImplementedError(name.decode())

    def _set(self, key: bytes, value: bytes, options: list[bytes]) -> bytes | None:
        if b"NX" in options and self._get(key) is not None:
            return None
        self._data[key] = value
        self._expires.pop(key, None)
        if b"PX" in options:
            self._expires[key] = self.loop.time() + int(options[options.index(b"PX") + 1]) / 1000
        return b"OK"

    def _get(self, key: bytes) -> Value | None:
        if self._expires and self._expires.get(key, self.loop.time() + 1) <= self.loop.time():
            del self._data[key], self._expires[key]
        return self._data.get(key)

    def _of(self, kind: Any, key: bytes) -> Any:
        found = self._get(key)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise exceptions.ResponseError(_WRONG_TYPE)
        return found

    # The interface of a client.

    async def answer(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """The answers to a pipeline, after the way there and back. `reach` says whether the network lets the pipeline
        through."""
        loop = self.loop
        answers: asyncio.Future[list[Any]] = loop.create_future()

        def arrive() -> None:
            if self.down:
                loop.call_later(self._way_s(), fail, context=self.context)
            elif not self.silent:
                made = [self.run(command) for command in commands]
                wait_s = 0.0
                if waits := bool(commands) and commands[-1][0] == "WAIT":
                    made[-1], wait_s = self._replicated(commands[-1][2] / 1000)
                if self._rng.random() >= self.loses_answers:
                    life = self._lives if waits else None
                    loop.call_later(self._way_s() + wait_s, tell, made, life, context=self.context)

        def tell(made: list[Any], life: int | None) -> None:
            if life not in (None, self._lives):
                fail()  # it restarted while the connection waited for replicas
            elif not answers.done():
                answers.set_result(made)

        def fail() -> None:
            if not answers.done():
                answers.set_exception(Down("refused"))

        is_slow = not self.slow_script or any(scripts._sha_of(self.slow_script) in command for command in commands)
        delay_s = self._rng.uniform(0.0, self.slow_s) if is_slow else 0.0
        loop.call_later(self._way_s() + delay_s, arrive, context=self.context)
        return await answers

    def _replicated(self, timeout_s: float) -> tuple[int, float]:
        """The number of replicas that will have everything within this time, and the time until that is known."""
        if not self.replicas or self.lag_s > timeout_s:
            return 0, timeout_s
        written, life = (self.loop.time(), _copied((self._data, self._expires))), self._lives

        def arrive() -> None:
            if life == self._lives:
                self._replica = written

        self.loop.call_later(self.lag_s, arrive, context=self.context)
        return self.replicas, self.lag_s

    def _way_s(self) -> float:
        return self._rng.uniform(0.0002, 0.002)


class SimRedisClient:
    """Replaces redis-py's client of one server."""

    def __init__(self, redis: SimRedis) -> None:
        self._redis = redis

    def pipeline(self, transaction: bool = True) -> "_Pipeline":
        assert not transaction
        return _Pipeline(self._redis)

    async def set(self, name: bytes, value: int, *, px: int) -> None:
        """Raises redis-py's errors."""
        [answer] = await self._redis.answer([("SET", name, value, "PX", px)])
        if isinstance(answer, Exception):
            raise answer


class _Pipeline:
    def __init__(self, redis: SimRedis) -> None:
        self._redis = redis
        self._commands: list[tuple[Any, ...]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def execute_command(self, *command: Any) -> None:
        self._commands.append(command)

    async def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        assert not raise_on_error
        return await self._redis.answer(self._commands)


def _copied(state: State) -> State:
    data, expires = state
    return {key: value if isinstance(value, bytes) else value.copy() for key, value in data.items()}, expires.copy()


def _bytes(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    return str(part).encode()


def _sha1(source: bytes) -> bytes:
    return hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()


def _from_lua(value: Any) -> Any:
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if isinstance(value, float):
        return int(value)
    if lua.lua_type(value) == "table":
        found = []
        index = 1
        while (each := value[index]) is not None:
            found.append(_from_lua(each))
            index += 1
        return found
    return value
