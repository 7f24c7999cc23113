"""A port that speaks TLS before a server that does not."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.conformance.proxy import Proxy

_TLS_HANDSHAKE = b"\x16"


class Front(Proxy):
    """A port before a server without TLS: TLS for whoever begins with it, and the others pass as they are."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__(port)
        self.tls_count = 0
        """Connections that were made with TLS."""
        self.context = context
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
            await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self.context if tls else None)
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
