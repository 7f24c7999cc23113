"""One session's wait for the rendering of its next chunk."""

from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import NeedsRender
from feedmux_server.streams.wakeup import Wakeup
from feedmux_server.workers.rendering import Renderers, Ticket


class RenderingWait:
    """The session waits by its wakeup, as for events: heartbeats, notices and commits continue meanwhile."""

    __slots__ = ("_renderers", "_signal", "_ticket")

    def __init__(self, renderers: Renderers, signal: Wakeup) -> None:
        self._renderers = renderers
        self._signal = signal
        self._ticket: Ticket | None = None

    @property
    def waits(self) -> bool:
        return self._ticket is not None

    def request(self, wanted: NeedsRender, subscriber: Subscriber) -> None:
        if self._ticket is not None and self._ticket.waits_for(wanted.chunk):
            return
        self.withdraw()
        renderer = self._renderers.of(wanted.chunk)
        wake = self._signal.set
        self._ticket = renderer.request(wanted.chunk, wanted.ring, subscriber.format, subscriber.tenant, wake)

    def withdraw(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.withdraw()
