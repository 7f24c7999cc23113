"""A TCP proxy whose connections can be cut, frozen and slowed down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Between a client and `127.0.0.1:port`. What passes is not looked at."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._links: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self.bytes_per_s = 0
        """Towards the client, for each connection; 0 is as fast as it can."""
        self.delay_s = 0.0
        """Before each piece, towards the client."""
        self.cut_after_bytes: int | None = None
        """The connection that carries the next so many bytes to the client is cut in the middle of what it carries."""
        self.port = 0

    @property
    def uri(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._links)

    def cut(self) -> None:
        """Ends all connections; new ones are taken."""
        for link in self._links:
            link.cancel()

    def refuse(self, refusing: bool) -> None:
        """Ends all connections and lets no new one live, until told otherwise."""
        self._refusing = refusing
        if refusing:
            self.cut()

    def freeze(self) -> None:
        """Connections stay, and nothing passes: a cable pulled out."""
        self._flowing.clear()

    def freeze_present(self) -> None:
        """The connections of now carry nothing any more; new ones do: a cable was put into another socket."""
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def thaw(self) -> None:
        self._flowing.set()

    async def linked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        away: asyncio.StreamWriter | None = None
        flowing = self._flowing
        try:
            if self._refusing:
                return
            back, away = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, away, flowing, to_client=False))
                both.create_task(self._carry(back, writer, flowing, to_client=True))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # cut, by one end or by us
        finally:
            self._links.discard(task)
            for each in (writer, away):
                if each is not None:
                    each.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event, *, to_client: bool
    ) -> None:
        while data := await reader.read(16 * 1024):
            await flowing.wait()
            if to_client:
                data = await self._hampered(data)
            writer.write(data)
            await writer.drain()
            if to_client and self.cut_after_bytes == 0:
                self.cut_after_bytes = None
                break
        raise ConnectionResetError

    async def _hampered(self, data: bytes) -> bytes:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.bytes_per_s:
            await asyncio.sleep(len(data) / self.bytes_per_s)
        if self.cut_after_bytes is not None:
            data = data[: self.cut_after_bytes]
            self.cut_after_bytes -= len(data)
        return data


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.linked, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await asyncio.sleep(0)
