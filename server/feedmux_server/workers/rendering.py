"""Extended JSON: a side process renders each chunk once per format, and all sessions that take the chunk share it.

A session asks with a ticket, is woken when the chunk has its rendition (or was evicted, or cannot be rendered), and
takes again. One chunk is rendered at a time, tenant by tenant. A chunk that no session waits for any more is not
rendered.

A rendering is found by its chunk object, and keeps that object alive: the address of a deleted chunk, or any other name
that can be used again, could name another tenant's chunk.
"""

import asyncio
import logging
import sys
from collections.abc import Callable

from feedmux_server.core.delivery.replay_buffer import ReplayBuffer
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.limits.fair_queue import FairQueue
from feedmux_server.telemetry.log import correlation_id
from feedmux_server.workers import render_worker
from feedmux_server.workers.render_worker import rendition_of, request_head
from feedmux_server.workers.side_process import SideProcess, SideProcesses, SideProcessFailed

log = logging.getLogger(__name__)

RELAXED = "extended_json_relaxed"
CANONICAL = "extended_json_canonical"

_LARGE_BYTES = 2 * 1024 * 1024
"""Chunks are cut at half of this size; a chunk larger than this holds a single event."""
FAILED_S = 60.0
"""How long a chunk is not tried again after the process died or froze twice on it: other chunks wait meanwhile."""


def render_timeout_s(size: int) -> float:
    """The CPU time that rendering a chunk may take: several times what the costliest events take."""
    return 5.0 + 4.0 * size / 2**20


class _Rendering:
    """A chunk to be rendered, and the tickets that wait for it."""

    __slots__ = ("begun", "chunk", "ring", "tickets", "wire_format")

    def __init__(self, chunk: Chunk, ring: ReplayBuffer, wire_format: str) -> None:
        self.chunk = chunk
        self.ring = ring
        self.wire_format = wire_format
        self.tickets: dict[Ticket, None] = {}
        self.begun = False


class Ticket:
    """One session's wait for a rendering. Give it back with `withdraw`, even after it is done."""

    __slots__ = ("_renderer", "rendering", "tenant", "wake")

    def __init__(self, renderer: "Renderer", rendering: _Rendering, tenant: str, wake: Callable[[], None]) -> None:
        self._renderer = renderer
        self.rendering: _Rendering | None = rendering
        """None once the ticket is done or withdrawn; the ticket then keeps nothing alive."""
        self.tenant = tenant
        self.wake = wake

    def waits_for(self, chunk: Chunk) -> bool:
        return self.rendering is not None and self.rendering.chunk is chunk

    def withdraw(self) -> None:
        """Give up the ticket: it wakes nobody any more. May be called again."""
        rendering, self.rendering = self.rendering, None
        if rendering is not None:
            self._renderer.withdrawn(self, rendering)


class Renderer:
    """Renders the chunks of a process. End it with `close`."""

    def __init__(self, filled: Callable[[int], None], side_processes: SideProcesses = SideProcess) -> None:
        """`filled` gets the bytes that a rendering adds to its chunk's ring."""
        self._filled = filled
        self._pending: dict[tuple[Chunk, str], _Rendering] = {}
        self._queue: FairQueue[Ticket] = FairQueue()
        self._working: asyncio.Task[None] | None = None
        self._process = side_processes(render_worker.__name__, render_timeout_s)
        self._closed = False

    @property
    def waiting(self) -> int:
        """Tickets in the queue."""
        return len(self._queue)

    @property
    def memory_bytes(self) -> int:
        """Memory that renderings use outside the rings: chunks of closed rings, and the process's current request."""
        chunks = {each.chunk: None for each in self._pending.values() if each.ring.closed}
        return self._process.held_bytes + sum(chunk.size_bytes for chunk in chunks if not chunk.held_bytes)

    def request(
        self, chunk: Chunk, ring: ReplayBuffer, wire_format: str, tenant: str, wake: Callable[[], None]
    ) -> Ticket:
        """Ask for the chunk's rendition. `wake` is called once, when there is a reason to take again."""
        name = (chunk, wire_format)
        rendering = self._pending.get(name)
        if rendering is None:
            rendering = self._pending[name] = _Rendering(chunk, ring, wire_format)
        ticket = Ticket(self, rendering, tenant, wake)
        rendering.tickets[ticket] = None
        if not rendering.begun:
            self._queue.put(tenant, ticket)
            if self._working is None and not self._closed:
                self._working = asyncio.create_task(self._work(), name="renderer")
        return ticket

    def withdrawn(self, ticket: Ticket, rendering: _Rendering) -> None:
        """Forget a ticket; only the ticket calls this."""
        del rendering.tickets[ticket]
        if rendering.begun:
            return
        self._queue.remove(ticket.tenant, ticket)
        if not rendering.tickets:
            del self._pending[rendering.chunk, rendering.wire_format]

    async def close(self) -> None:
        """End the process. This does not wake waiting sessions: they end for other reasons."""
        self._closed = True
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
        await self._process.close()
        for rendering in list(self._pending.values()):
            for ticket in list(rendering.tickets):
                ticket.withdraw()
        self._pending.clear()

    async def _work(self) -> None:
        try:
            while self._queue:
                rendering = self._queue.get().rendering
                assert rendering is not None, "the queue holds a withdrawn ticket"
                await self._do(rendering)
        finally:
            self._working = None

    async def _do(self, rendering: _Rendering) -> None:
        rendering.begun = True
        for ticket in rendering.tickets:
            self._queue.remove(ticket.tenant, ticket)
        try:
            await self._render(rendering)
        except Exception:  # noqa: BLE001 one chunk's failure must not end everybody's renderings
            _fail(rendering, "a chunk cannot be rendered")
        finally:
            del self._pending[rendering.chunk, rendering.wire_format]
            tickets, rendering.tickets = rendering.tickets, {}
            for ticket in tickets:
                ticket.rendering = None
                ticket.wake()

    async def _render(self, rendering: _Rendering) -> None:
        chunk, wire_format = rendering.chunk, rendering.wire_format
        if chunk.evicted or chunk.bson is None or wire_format in chunk.rendered:
            return
        try:
            answer = await self._process.ask(request_head(wire_format == CANONICAL), chunk.bson.data)
        except SideProcessFailed:
            _fail(rendering, "the renderer's process died or froze while it rendered a chunk")
            return
        rendition = rendition_of(answer)
        if rendition is None:
            error = FeedmuxError(
                ErrorReason.BSON_INVALID, "an event cannot be written as JSON; format BSON delivers it"
            )
            chunk.cannot_render(wire_format, error)
        elif not chunk.evicted:
            chunk.rendered[wire_format] = rendition
            rendering.ring.grew(rendition.size_bytes)
            self._filled(rendition.size_bytes)


def _fail(rendering: _Rendering, what: str) -> None:
    """End the sessions that need this chunk with INTERNAL; the chunk may be tried again after `FAILED_S`."""
    reference, chunk = correlation_id(), rendering.chunk
    log.error(
        what,
        exc_info=sys.exception(),
        extra={"correlation_id": reference, "events": chunk.count, "format": rendering.wire_format},
    )
    error = FeedmuxError(
        ErrorReason.INTERNAL,
        "internal error; find its correlation id in the server's log",
        {"correlation_id": reference},
    )
    failures = chunk.cannot_render(rendering.wire_format, error)
    asyncio.get_running_loop().call_later(FAILED_S, failures.pop, rendering.wire_format, None)


class Renderers:
    """The renderers of a server. Single large events, which take up to a minute each, have their own, so that other
    chunks do not wait for them. End them with `close`."""

    def __init__(self, filled: Callable[[int], None], side_processes: SideProcesses = SideProcess) -> None:
        self.chunks = Renderer(filled, side_processes)
        self.large = Renderer(filled, side_processes)

    def of(self, chunk: Chunk) -> Renderer:
        """The renderer for the chunk."""
        is_large = chunk.bson is not None and chunk.bson.size_bytes > _LARGE_BYTES
        return self.large if is_large else self.chunks

    @property
    def memory_bytes(self) -> int:
        return self.chunks.memory_bytes + self.large.memory_bytes

    async def close(self) -> None:
        await self.chunks.close()
        await self.large.close()
