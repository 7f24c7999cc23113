"""The network between clients and servers, and gRPC as both sides see it.

A client's channel has one connection, to one of the servers that listen under the name that the client dials. Messages
arrive in order, after a latency. A connection can be cut (both sides learn of it), or it can fall silent: a message
sent then arrives when the connection is open again, unless a side has given the connection up by then, as gRPC's
keepalive does.

Calls behave like those of grpc.aio: messages come before the status, `write` waits for the window, and a handler is
cancelled when its client is gone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

import grpc
import grpc.aio
from grpc._cython import cygrpc

from feedmux.v1 import change_feed_pb2 as pb
from tests.sim.loop import SimLoop

CLIENT_KEEPALIVE_S: Final = 30.0
"""A client gives up a silent connection: after 20 s it sends a ping, and it waits 10 s for the answer."""
SERVER_KEEPALIVE_S: Final = 40.0
CONNECT_S: Final = 20.0
WINDOW_BYTES: Final = 64 * 1024
"""The bytes that a stream may have sent before the other side has read them."""

Metadata = Sequence[tuple[str, str | bytes]]
Status = tuple[grpc.StatusCode, str, Metadata]

NEWER_FIELD: Final = b"\xf8\x7f\x01"
"""A field of a message that no version has yet: number 2047."""
NEWER_NOTICE: Final = pb.SubscribeResponse(notice=pb.Notice.FromString(NEWER_FIELD)).SerializeToString()

Distortion = Literal["repeated", "cut short"]
SUBSCRIBE: Final = "/feedmux.v1.ChangeFeed/Subscribe"

_OK: Final[Status] = (grpc.StatusCode.OK, "", ())
_CANCELLED: Final[Status] = (grpc.StatusCode.CANCELLED, "Locally cancelled by application!", ())


@dataclass(frozen=True, slots=True)
class _Details:
    """The details by which a generic handler looks up a method."""

    method: str
    invocation_metadata: Metadata = ()


class Node:
    """A process on the network."""

    def __init__(self, name: str, context: Context) -> None:
        self.name = name
        self.context = context
        """The context in which the node handles what arrives."""
        self.connections: dict[Connection, None] = {}
        self.calls: dict[Call, None] = {}
        """The calls that this node makes."""
        self.silent: set[str] = set()
        """Names of the nodes whose connection to this node is silent."""
        self.frozen = False
        self.up = True
        self.is_newer = False
        """Whether its program has a newer version: what it sends has fields and notices that this version does not
        know."""
        self.distorts: Distortion | None = None
        """What happens to the next session message to this node."""


class Server(Node):
    """A node that listens for connections."""

    def __init__(self, name: str, context: Context, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        super().__init__(name, context)
        self.handlers = tuple(handlers)
        self.draining = False
        self.failures: list[BaseException] = []
        """Exceptions that a handler did not catch."""

    def end_calls(self) -> None:
        """End a drain: cancel the handlers that still run."""
        for connection in list(self.connections):
            for call in list(connection.calls):
                call.lost(self)

    def method(self, path: str) -> Any:
        for handler in self.handlers:
            found = handler.service(_Details(path))  # type: ignore[arg-type]
            if found is not None:
                return found
        raise LookupError(path)


class Watcher:
    """Sees every message of a call at its client's end."""

    def sent(self, message: bytes) -> None: ...

    def received(self, message: bytes) -> None: ...

    def read(self, message: bytes) -> None:
        """The client has read the message from those received."""

    def finished(self, status: Status) -> None:
        """The client knows how the call ended, or has cancelled it."""

    def written(self, server: str, message: bytes) -> None:
        """The server's end has written the message."""

    def ended(self, status: Status) -> None: ...


class Network:
    """All nodes and connections."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        self.loop = loop
        self.rng = rng
        self.servers: dict[str, Server] = {}
        """The listening servers, by name."""
        self.clients: dict[str, Node] = {}
        self.watch: Callable[[str, str], Watcher] = lambda client, method: Watcher()
        """Returns the watcher of each call."""

    def listen(self, server: Server) -> None:
        self.servers[server.name] = server

    def client(self, name: str, context: Context) -> Node:
        node = self.clients[name] = Node(name, context)
        return node

    # Faults.

    def killed(self, node: Node) -> None:
        """End a process: the other sides get a reset."""
        node.up = False
        self.servers.pop(node.name, None)
        for call in list(node.calls):
            call.end((grpc.StatusCode.CANCELLED, "the client was killed", ()))
        for connection in list(node.connections):
            connection.cut(by=node)

    def cut(self, node: Node) -> None:
        """Break all connections of the node."""
        for connection in list(node.connections):
            connection.cut()

    def silence(self, one: Node, other: Node) -> None:
        one.silent.add(other.name)
        other.silent.add(one.name)
        for connection in list(one.connections):
            if connection.between(one, other):
                connection.fell_silent()

    def heal(self, one: Node, other: Node) -> None:
        one.silent.discard(other.name)
        other.silent.discard(one.name)
        for connection in list(one.connections):
            if connection.between(one, other):
                connection.healed()

    def froze(self, node: Node) -> None:
        """Stop a process: its peers hear nothing from it."""
        node.frozen = True
        for connection in list(node.connections):
            connection.fell_silent()

    def thawed(self, node: Node) -> None:
        node.frozen = False
        for connection in list(node.connections):
            connection.healed()

    def goaway(self, server: Server) -> None:
        """Make the server accept no new calls; clients make them on other connections."""
        server.draining = True
        self.servers.pop(server.name, None)
        for connection in list(server.connections):
            connection.going_away = True

    def pick(self) -> Server | None:
        """A server to which the service's name resolves."""
        servers = [self.servers[name] for name in sorted(self.servers)]
        return self.rng.choice(servers) if servers else None


class Connection:
    """A connection between a client and a server."""

    def __init__(self, network: Network, client: Node, server: Server) -> None:
        self.network = network
        self.client = client
        self.server = server
        self.calls: dict[Call, None] = {}
        self.going_away = False
        self._up = {client: True, server: True}
        """Whether each side considers the connection alive."""
        self._latency_s = network.rng.uniform(0.0001, 0.004)
        self._arrives_s = {client: 0.0, server: 0.0}
        """When the last message to each side arrives."""
        self._held: list[tuple[Node, Callable[..., None], tuple[Any, ...]]] = []
        """What has arrived during silence, in order."""
        self._keepalives: list[asyncio.TimerHandle] = []
        client.connections[self] = None
        server.connections[self] = None
        if self.silent:
            self.fell_silent()

    @property
    def usable(self) -> bool:
        """Whether the client can make new calls on it."""
        return self._up[self.client] and not self.going_away

    @property
    def silent(self) -> bool:
        client, server = self.client, self.server
        return client.frozen or server.frozen or server.name in client.silent

    def between(self, one: Node, other: Node) -> bool:
        return {one, other} == {self.client, self.server}

    def send(self, to: Node, arrive: Callable[..., None], *what: Any) -> None:
        """Call `arrive` on the side of `to`."""
        loop = self.network.loop
        at_s = max(loop.time() + self._latency_s, self._arrives_s[to])
        self._arrives_s[to] = at_s
        loop.call_at(at_s, self._arrive, to, arrive, what, context=to.context)

    def _arrive(self, to: Node, arrive: Callable[..., None], what: tuple[Any, ...]) -> None:
        if self.silent:
            self._held.append((to, arrive, what))
        elif self._up[to]:
            arrive(*what)

    def fell_silent(self) -> None:
        if self._keepalives:
            return
        loop = self.network.loop
        # A frozen process checks its timers when it runs again, and finds them due.
        self._keepalives = [
            loop.call_later(CLIENT_KEEPALIVE_S, self._give_up, self.client, context=self.client.context),
            loop.call_later(SERVER_KEEPALIVE_S, self._give_up, self.server, context=self.server.context),
        ]

    def healed(self) -> None:
        if self.silent:
            return
        for timer in self._keepalives:
            timer.cancel()
        self._keepalives = []
        for side, other in ((self.client, self.server), (self.server, self.client)):
            if not self._up[other] and self._up[side]:
                self._break_soon(side)  # what this side sends is answered by a reset
        held, self._held = self._held, []
        for to, arrive, what in held:
            # Before everything that is still on its way.
            self.network.loop.call_soon(self._arrive, to, arrive, what, context=to.context)

    def cut(self, by: Node | None = None) -> None:
        """Break the connection for both sides; `by` is a process that is gone."""
        for side in (self.client, self.server):
            if side is not by:
                self._break_soon(side)
            else:
                self._up[side] = False

    def _break_soon(self, side: Node) -> None:
        self.send(side, self._give_up, side)

    def _give_up(self, side: Node) -> None:
        if not self._up[side]:
            return
        self._up[side] = False
        side.connections.pop(self, None)
        other = self.server if side is self.client else self.client
        if self._up[other] and not self.silent:
            self._break_soon(other)
        for call in list(self.calls):
            call.lost(side)


class SimChannel:
    """Replaces a client's `grpc.aio.Channel`."""

    def __init__(self, network: Network, node: Node) -> None:
        self._network = network
        self._node = node
        self._connection: Connection | None = None
        self._waiting: list[Call] = []
        """Calls that wait for a connection."""
        self._calls: dict[Call, None] = {}

    def stream_stream(self, method: str) -> Callable[..., "Call"]:
        def make(*, metadata: Metadata = ()) -> Call:
            return self._begin(method, metadata)

        return make

    def unary_unary(
        self, method: str, request_serializer: Callable[[Any], bytes], response_deserializer: Callable[[bytes], Any]
    ) -> Callable[..., Awaitable[Any]]:
        async def make(request: Any, *, timeout: float, metadata: Metadata = ()) -> Any:
            call = self._begin(method, metadata)
            try:
                async with asyncio.timeout(timeout):
                    await call.write(request_serializer(request))
                    call.half_close()
                    answer = await call.read()
                    if answer is grpc.aio.EOF:
                        raise AssertionError(f"{method} was not answered")
                    await call.read()
                return response_deserializer(answer)
            except TimeoutError:
                call.cancel()
                raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ()) from None
            except asyncio.CancelledError:
                call.cancel()
                raise

        return make

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()

    def _begin(self, method: str, metadata: Metadata) -> "Call":
        call = Call(self._network, self._node, method, metadata)
        self._calls[call] = None
        call.when_done(lambda: self._calls.pop(call, None))
        if self._connection is not None and self._connection.usable:
            call.begin(self._connection)
        else:
            self._waiting.append(call)
            if len(self._waiting) == 1:
                self._connect()
        return call

    def _connect(self) -> None:
        loop, server = self._network.loop, self._network.pick()
        if server is not None and not (server.frozen or server.name in self._node.silent):
            loop.call_later(self._network.rng.uniform(0.0005, 0.01), self._connected, server)
        elif server is None:
            loop.call_later(0.001, self._refused, "connection refused")
        else:
            loop.call_later(CONNECT_S, self._refused, "connect timed out")

    def _connected(self, server: Server) -> None:
        if not server.up or server.draining:
            self._refused("connection refused")
            return
        self._connection = Connection(self._network, self._node, server)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.begin(self._connection)

    def _refused(self, why: str) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.end((grpc.StatusCode.UNAVAILABLE, f"failed to connect: {why}", ()))


class Call:
    """Both ends of a call; the public methods are the client's."""

    def __init__(self, network: Network, node: Node, method: str, metadata: Metadata) -> None:
        self._loop = network.loop
        self._rng = network.rng
        self._node = node
        self._method = method
        self._metadata = metadata
        self._watcher = network.watch(node.name, method)
        self._connection: Connection | None = None
        self._begun = asyncio.Event()
        self._inbox: deque[bytes] = deque()
        self._status: Status | None = None
        self._cancelled = False
        self._is_served = False
        """Whether the server's end is finished."""
        self._is_distorted = False
        """A message to the client was cut short: the client must not accept what comes after it."""
        self._changed: asyncio.Future[None] | None = None
        self._done: Callable[[], None] = lambda: None
        self._pending: list[bytes | None] = []
        """Messages written before there was a connection; None is the end of the client's side."""
        self._server: _ServerCall | None = None
        node.calls[self] = None

    # The client's end.

    async def wait_for_connection(self) -> None:
        await self._begun.wait()
        if self._status is not None and not self._inbox:
            self._raise_status()

    async def read(self) -> Any:
        """The next message; EOF after the last. Raises AioRpcError, and CancelledError after `cancel`."""
        while not self._inbox and self._status is None:
            self._changed = self._loop.create_future()
            try:
                await self._changed
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self._cancelled:
            raise asyncio.CancelledError
        if self._inbox:
            message = self._inbox.popleft()
            self._to_server("client_read", len(message))
            self._watcher.read(message)
            return message
        self._raise_status()
        return grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        if self._status is not None:
            raise cygrpc.InternalError("the call has ended")
        self._watcher.sent(message)
        if self._node.is_newer:
            message += NEWER_FIELD
        if self._connection is None:
            self._pending.append(message)
        else:
            self._to_server("request", message)

    def half_close(self) -> None:
        if self._connection is None:
            self._pending.append(None)
        else:
            self._to_server("request", None)

    def cancel(self) -> None:
        if self._status is None:
            self._cancelled = True
            self._to_server("cancel")
            self.end(_CANCELLED)
            self._watcher.finished(_CANCELLED)

    def _raise_status(self) -> None:
        assert self._status is not None
        self._watcher.finished(self._status)
        code, details, trailing = self._status
        if code is not grpc.StatusCode.OK:
            raise _error(code, details, trailing)

    # Transport between the ends.

    def when_done(self, done: Callable[[], None]) -> None:
        self._done = done

    def begin(self, connection: Connection) -> None:
        if self._status is not None:
            return
        self._connection = connection
        connection.calls[self] = None
        self._server = _ServerCall(self, connection.server, self._method, self._metadata, self._node.name)
        self._begun.set()
        self._to_server("start")
        pending, self._pending = self._pending, []
        for message in pending:
            self._to_server("request", message)

    def _to_server(self, what: str, *arguments: Any) -> None:
        if self._connection is not None and self._server is not None:
            self._connection.send(self._connection.server, getattr(self._server, what), *arguments)

    def to_client(self, arrive: Callable[..., None], *what: Any) -> None:
        if self._connection is not None:
            self._connection.send(self._node, arrive, *what)

    def written(self, server: str, message: bytes) -> None:
        self._watcher.written(server, message)
        distortion = None
        if self._method == SUBSCRIBE:
            distortion, self._node.distorts = self._node.distorts, None
        if distortion == "cut short":
            self.to_client(self._arrived_short, message[: self._rng.randint(1, len(message) - 1)])
            return
        self.to_client(self.arrived, message)
        if distortion == "repeated":
            self.to_client(self._take_in, message)

    def arrived(self, message: bytes) -> None:
        if self._status is None and not self._is_distorted:
            self._watcher.received(message)
        self._take_in(message)

    def _arrived_short(self, message: bytes) -> None:
        self._is_distorted = True
        self._take_in(message)

    def _take_in(self, message: bytes) -> None:
        if self._status is None:
            self._inbox.append(message)
            self._wake()

    def end(self, status: Status) -> None:
        """End the call on the client's side, where the status is now known."""
        if self._status is not None:
            return
        self._status = status
        self._watcher.ended(status)
        self._begun.set()
        self._node.calls.pop(self, None)
        self._done()
        self._leave_connection()
        self._wake()

    def lost(self, side: Node) -> None:
        """Handle the loss of this side's connection."""
        if side is self._node:
            self.end((grpc.StatusCode.UNAVAILABLE, "connection lost", ()))
        elif self._server is not None:
            self._server.cancel()

    def served(self) -> None:
        """The server's end is finished."""
        self._is_served = True
        self._leave_connection()

    def _leave_connection(self) -> None:
        # The status may still be on its way when the server's end is finished, and be lost with the connection.
        if self._connection is not None and self._is_served and self._status is not None:
            self._connection.calls.pop(self, None)

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class _ServerCall:
    """The server's end of a call: the handler's requests and its context."""

    def __init__(self, call: Call, server: Server, method: str, metadata: Metadata, client: str) -> None:
        self._call = call
        self._node = server
        self._method = method
        self._metadata = metadata
        self._client = client
        self._requests: deque[bytes | None] = deque()
        self._changed: asyncio.Future[None] | None = None
        self._unread = 0
        self._room: asyncio.Future[None] | None = None
        self._status: Status | None = None
        self._task: asyncio.Task[None] | None = None

    # Incoming messages.

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._node.draining:
            self._end((grpc.StatusCode.UNAVAILABLE, "the server takes no new calls", ()))
            self._call.served()
            return
        self._task = loop.create_task(self._serve(), name=f"rpc-{self._method}", context=copy_context())

    def request(self, message: bytes | None) -> None:
        self._requests.append(message)
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def client_read(self, size: int) -> None:
        self._unread -= size
        if self._room is not None and not self._room.done() and self._unread < WINDOW_BYTES:
            self._room.set_result(None)

    def cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()

    # The interface of the handler.

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._requests:
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed
        message = self._requests[0]
        if message is None:
            raise StopAsyncIteration
        self._requests.popleft()
        return message

    async def write(self, message: bytes) -> None:
        while self._unread >= WINDOW_BYTES:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        if self._node.is_newer:
            message += NEWER_FIELD
        self._send(bytes(message))
        # Nothing comes between the fragments of an event.
        if (
            self._node.is_newer
            and self._method == SUBSCRIBE
            and not pb.SubscribeResponse.FromString(message).HasField("event_fragment")
        ):
            self._send(NEWER_NOTICE)

    def _send(self, message: bytes) -> None:
        self._unread += len(message)
        self._call.written(self._node.name, message)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Metadata = ()) -> None:
        self._end((code, details, trailing))
        raise grpc.aio.AbortError("Locally aborted.")

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return f"ipv4:{self._client}:1"

    def auth_context(self) -> dict[str, Iterable[bytes]]:
        return {}

    async def _serve(self) -> None:
        handler: Any = self._node.method(self._method)
        try:
            if handler.response_streaming:
                await handler.stream_stream(self, self)
            else:
                answer = await handler.stream_unary(self, self)
                self._call.to_client(self._call.arrived, answer)
            self._end(_OK)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            pass
        except BaseException as error:  # noqa: BLE001 - the run fails for it
            self._node.failures.append(error)
            self._end((grpc.StatusCode.UNKNOWN, repr(error), ()))
        finally:
            self._call.served()

    def _end(self, status: Status) -> None:
        if self._status is None:
            self._status = status
            self._call.to_client(self._call.end, status)


def _error(code: grpc.StatusCode, details: str, trailing: Metadata) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details)
