"""Replaces the client of a source when its user or password has changed.

pymongo's client has one login for its life. Cursors that are open keep the client that opened them: MongoDB does not
end connections whose password has changed. Neighbours: `deployment` opens cursors, `dependencies` reads the files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakSet

from feedmux_server.clock import monotonic_s
from feedmux_server.source.commands import Client, SourceCommands
from feedmux_server.source.cursor import RawChangeStreamCursor

_KEPT_S: Final = 60.0
"""Longer than a command waits for its answer."""

Cursors = WeakSet[RawChangeStreamCursor]


@dataclass(slots=True)
class _Former:
    client: Client
    cursors: Cursors
    since_s: float


class Logins:
    """The present login of a source, and earlier ones that still have cursors."""

    def __init__(
        self, commands: SourceCommands, new_client: Callable[[str, str], Client], username: str, password: str
    ) -> None:
        """`new_client` makes a client for a user and a password."""
        self._commands = commands
        self._new_client = new_client
        self._login = username, password
        self._former: list[_Former] = []
        self.cursors: Cursors = WeakSet()
        """Cursors of the present client."""

    def use(self, username: str, password: str) -> None:
        """Use another login for new connections. Raises as pymongo does for a file of TLS that cannot be read; then
        nothing has changed."""
        client = self._new_client(username, password)
        self._former.append(_Former(self._commands.client, self.cursors, monotonic_s()))
        self._login = username, password
        self._commands.client, self.cursors = client, WeakSet()

    def new_client(self) -> Client:
        """Another client with the present login."""
        return self._new_client(*self._login)

    def is_former(self, cursor: RawChangeStreamCursor) -> bool:
        """Whether a cursor was opened with an earlier login, whose user may no longer exist."""
        return any(cursor in former.cursors for former in self._former)

    async def close_unused(self) -> None:
        """Close the clients of earlier logins that have no cursor any more."""
        for former in tuple(self._former):
            if not former.cursors and monotonic_s() - former.since_s > _KEPT_S:
                self._former.remove(former)
                await former.client.close()

    async def close(self) -> None:
        """Close the clients of all earlier logins."""
        for former in self._former:
            await former.client.close()
