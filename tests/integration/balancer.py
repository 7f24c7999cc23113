"""A TCP balancer as one stands before replicas: a connection goes to the next replica that takes it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager


class Balancer:
    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        """May be changed while it runs."""
        self.port = 0
        self.taken: Counter[int] = Counter()
        """Connections by replica."""
        self._turn = 0
        self._links: set[asyncio.Task[None]] = set()

    async def linked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        away: asyncio.StreamWriter | None = None
        try:
            found = await self._next()
            if found is None:
                return
            back, away = found
            async with asyncio.TaskGroup() as both:
                both.create_task(_carry(reader, away))
                both.create_task(_carry(back, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # cut, by one end or by us
        finally:
            self._links.discard(task)
            for each in (writer, away):
                if each is not None:
                    each.transport.abort()

    async def _next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in self.ports:
            self._turn += 1
            port = self.ports[self._turn % len(self.ports)]
            try:
                found = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            self.taken[port] += 1
            return found
        return None

    def cut(self) -> None:
        for link in self._links:
            link.cancel()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError


@asynccontextmanager
async def balanced(ports: Sequence[int]) -> AsyncIterator[Balancer]:
    balancer = Balancer(ports)
    server = await asyncio.start_server(balancer.linked, "127.0.0.1", 0)
    balancer.port = server.sockets[0].getsockname()[1]
    try:
        yield balancer
    finally:
        server.close()
        balancer.cut()
        await asyncio.sleep(0)
