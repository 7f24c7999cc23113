"""The layout of the keys in Redis, and the check whether this version of feedmux can work with it.

Each key begins with `redis.key_prefix`, here `feedmux`, so that several deployments of feedmux can share a Redis:

    feedmux:schema                  the layout's number, written by the first server (`LAYOUT`)
    feedmux:position-keys           the keys of positions, unless a file holds them (`signing_keys`)
    feedmux:1:{TENANT/NAME}         a subscription: position, epoch, lease, definition (see lua/)
    feedmux:1:names:{TENANT}        the names of a tenant's subscriptions, for listing
    feedmux:1:sizes:{TENANT}        bytes of a tenant's definitions, by name and in total
    feedmux:1:sweep                 held by the replica that searches for unused subscriptions
    feedmux:1:source:NAME           when a server last had a source of this name
    feedmux:ready                   expires after 1 ms; shows whether Redis accepts writes (`check_writable`)
    feedmux:1:mark:{TENANT/NAME}    expires after 1 ms; the write that WAIT waits for (`Commands.run_replicated`)

Servers with two layouts must not run side by side: a server rejects a newer layout. A change that only adds fields
keeps the layout's number.
"""

from typing import Final

from feedmux_server.store.commands import Commands
from feedmux_server.store.connection import Client, StartupError

KEY_PREFIX: Final = "feedmux"
"""The default of `redis.key_prefix`."""
LAYOUT: Final = 1
_DIGITS: Final = 10
"""No layout has a number of so many digits."""


def schema_key(key_prefix: str = KEY_PREFIX) -> str:
    return f"{key_prefix}:schema"


def layout_prefix(key_prefix: str) -> str:
    """The beginning of the keys that belong to this layout."""
    return f"{key_prefix}:{LAYOUT}"


async def check_layout(
    client: Client, *, key_prefix: str = KEY_PREFIX, timeout_s: float = 5.0, mark: bool = True
) -> None:
    """If `mark`, mark an empty Redis with our layout. Raises StartupError for a newer or unknown layout, and
    STATE_UNAVAILABLE."""
    commands, key = Commands(client, timeout_s=timeout_s), schema_key(key_prefix)
    [answer] = await commands.run([("GET", key)])
    if answer is None:
        if mark:
            await commands.run([("SET", key, LAYOUT, "NX")])
        return
    found = answer.decode(errors="replace") if isinstance(answer, bytes) else ""
    if found == str(LAYOUT):
        return
    if found.isdecimal() and len(found) < _DIGITS and int(found) > LAYOUT:
        raise StartupError(
            f"the keys in Redis have layout {found} ({key}), written by a newer feedmux; this one knows layout"
            f" {LAYOUT}. Start that newer version, or give this one its own redis.key_prefix or its own Redis"
        )
    raise StartupError(
        f"{key} in Redis holds something that feedmux did not write. Give feedmux its own"
        " redis.key_prefix or its own Redis"
    )
