"""Clients of earlier logins: they live as long as their cursors."""

import asyncio
from typing import Any

from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.logins import Logins
from feedmux_server.telemetry.observer import NOBODY
from tests.virtual_time import in_virtual_time


class Client:
    def __init__(self, *login: str) -> None:
        self.login = login
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class Cursor:
    """Anything that a weak reference can refer to."""


@in_virtual_time
async def test_a_client_is_closed_when_its_last_cursor_is_gone() -> None:
    first: Any = Client()
    new_client: Any = Client
    commands = SourceCommands("main", first, 1.0, NOBODY)
    logins = Logins(commands, new_client, "a", "1")
    cursor: Any = Cursor()
    logins.cursors.add(cursor)
    assert not logins.is_former(cursor)
    logins.use("user", "password")
    second: Any = commands.client
    assert (second.login, logins.is_former(cursor)) == (("user", "password"), True)
    await asyncio.sleep(1000)
    await logins.close_unused()
    assert not first.closed
    del cursor
    await logins.close_unused()
    assert (first.closed, second.closed) == (True, False)
    logins.use("user", "again")
    await logins.close_unused()
    assert not second.closed, "a command may still use it"
    await logins.close()
    assert second.closed
