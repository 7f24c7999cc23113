"""A TCP load balancer in front of replicas: each connection goes to the next replica that accepts it."""

import asyncio
import socket
import ssl
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


_TLS_HANDSHAKE = b"\x16"


class Front(Balancer):
    """A port before a server without TLS: TLS for whoever begins with it, and the others pass as they are."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__([port])
        self.tls_count = 0
        """Connections that were made with TLS."""
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                connection, _ = await loop.sock_accept(self._listener)
                tasks.create_task(self._take(connection))

    async def _take(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        began = asyncio.Event()
        loop.add_reader(connection, began.set)
        try:
            await began.wait()
            tls = connection.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE
        except OSError:
            tls = False
        finally:
            loop.remove_reader(connection)
        self.tls_count += tls
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self.linked)
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._context if tls else None)
        except OSError:
            connection.close()  # it did not shake hands

    def close(self) -> None:
        self._listener.close()
        self.cut()


@asynccontextmanager
async def fronted(port: int, context: ssl.SSLContext) -> AsyncIterator[Front]:
    front = Front(port, context)
    running = asyncio.create_task(front.run(), name=f"front-{port}")
    try:
        yield front
    finally:
        running.cancel()
        await asyncio.wait({running})
        front.close()
        await asyncio.sleep(0)
