"""A server on 127.0.0.1 with a port and a temporary folder of its own. Neighbours: `mongod`, `redis_server`."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from feedmux_embedded.ports import free_ports, is_free
from feedmux_embedded.process import EmbeddedError, Process
from feedmux_embedded.workdir import WorkDir


class Server(ABC):
    """Its port and files stay the same over `kill9`, `terminate` and `restart` of the process."""

    def __init__(self, name: str, port: int | None) -> None:
        self._name = name
        self.port = port or free_ports(1)[0]
        self._workdir: WorkDir | None = None
        self._process: Process | None = None

    @abstractmethod
    def _made(self, folder: Path) -> Process:
        """The process to start, whose files are in `folder`."""

    @abstractmethod
    async def _wait_ready(self) -> None:
        """Wait until the server can be used. Raises EmbeddedError if it ends or takes too long."""

    @property
    def process(self) -> Process:
        """The child: pid, CPU, memory, signals. Raises EmbeddedError before `start`."""
        if self._process is None:
            raise EmbeddedError(f"{self._name} was not started")
        return self._process

    async def start(self) -> None:
        """Start the server; returns when it can be used. From the main thread only (see `process`)."""
        try:
            if self._workdir is None:
                self._workdir = WorkDir(self._name)
                self._process = self._made(self._workdir.path)
            await self._begin()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process and delete its files. May be called again, or without `start`."""
        if self._process is not None:
            await self._process.kill9()
            self._process = None
        if self._workdir is not None:
            self._workdir.remove()
            self._workdir = None

    async def restart(self) -> None:
        """Start again on the same port and files; a running process is terminated first."""
        await self.process.terminate()
        await self._begin()

    async def _begin(self) -> None:
        if not self.process.running and not is_free(self.port):
            # Otherwise what listens there would be taken for this server, and written to.
            raise EmbeddedError(f"{self._name} cannot start: another program listens on its port {self.port}; stop it")
        self.process.start()
        await self._wait_ready()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
