"""A session waits for one rendering at a time."""

from types import SimpleNamespace
from typing import Any, cast

from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import NeedsRender
from feedmux_server.sessions.rendering_wait import RenderingWait
from feedmux_server.streams.wakeup import Wakeup
from feedmux_server.workers.rendering import Renderers

SUBSCRIBER = cast(Subscriber, SimpleNamespace(format="json", tenant="team"))


class Tickets:
    """Renderers that only record what is requested and withdrawn."""

    def __init__(self) -> None:
        self.requested: list[str] = []
        self.withdrawn: list[str] = []

    def of(self, chunk: str) -> Any:
        def request(chunk: str, *_: object) -> Any:
            self.requested.append(chunk)
            return SimpleNamespace(
                waits_for=lambda other: other == chunk, withdraw=lambda: self.withdrawn.append(chunk)
            )

        return SimpleNamespace(request=request)


def wanted(chunk: str) -> NeedsRender:
    return NeedsRender(cast(Any, chunk), cast(Any, None))


def test_the_same_chunk_is_requested_once_and_another_replaces_it() -> None:
    tickets = Tickets()
    wait = RenderingWait(cast(Renderers, tickets), Wakeup())
    for chunk in ("first", "first", "second"):
        wait.request(wanted(chunk), SUBSCRIBER)
    assert (tickets.requested, tickets.withdrawn) == (["first", "second"], ["first"])
    assert wait.waits


def test_a_wait_that_is_over_is_withdrawn_once() -> None:
    tickets = Tickets()
    wait = RenderingWait(cast(Renderers, tickets), Wakeup())
    wait.withdraw()
    wait.request(wanted("first"), SUBSCRIBER)
    wait.withdraw()
    wait.withdraw()
    assert tickets.withdrawn == ["first"]
    assert not wait.waits
