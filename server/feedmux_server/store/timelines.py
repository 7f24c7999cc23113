"""What servers know of the history of each deployment, for servers that start later.

A server that did not run when MongoDB was restored finds the restore by what the others have stored here. A loss of
this value costs that, and nothing else. Neighbours: `source.timeline` reads and writes it.
"""

import logging

from feedmux_server.core.positions.timeline import TimelineRecord
from feedmux_server.store.connection import Client
from feedmux_server.store.schema import KEY_PREFIX, layout_prefix
from feedmux_server.store.scripts import ScriptRunner

log = logging.getLogger(__name__)


class StoredTimelines:
    """One value for each source id. Its methods raise STATE_UNAVAILABLE."""

    def __init__(self, client: Client, *, key_prefix: str = KEY_PREFIX, timeout_s: float = 3.0) -> None:
        self._prefix = f"{layout_prefix(key_prefix)}:timeline:"
        self._scripts = ScriptRunner(client, timeout_s=timeout_s)

    async def read(self, source_id: str) -> TimelineRecord:
        """What is stored; an empty record if nothing is, or if it cannot be read."""
        text = await self._scripts.command("GET", self._prefix + source_id)
        try:
            return TimelineRecord.decode((text or b"").decode())
        except ValueError:
            log.error("what Redis has of the history of a source cannot be read, and is replaced: %s", source_id)
            return TimelineRecord()

    async def write(self, source_id: str, record: TimelineRecord) -> None:
        await self._scripts.command("SET", self._prefix + source_id, record.encode())
