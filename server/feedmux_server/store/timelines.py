"""What servers know of the history of each deployment, for servers that start later.

A server that did not run when MongoDB was restored finds the restore by what the others have stored here. A loss of
this value costs that, and nothing else. A server adds to what others have stored, and replaces only what it has read:
each may know a restore that the others have not met. Neighbours: `source.timeline` reads and writes it.
"""

import logging
from typing import Final

from feedmux_server.core.positions.timeline import TimelineRecord
from feedmux_server.store.answers import status
from feedmux_server.store.connection import Client
from feedmux_server.store.schema import KEY_PREFIX, layout_prefix
from feedmux_server.store.scripts import ScriptCall, ScriptRunner

log = logging.getLogger(__name__)

_TRIES: Final = 8
"""Against other servers that write at the same time."""


class StoredTimelines:
    """One value for each source id. Its methods raise STATE_UNAVAILABLE."""

    def __init__(self, client: Client, *, key_prefix: str = KEY_PREFIX) -> None:
        self._prefix = f"{layout_prefix(key_prefix)}:timeline:"
        self._scripts = ScriptRunner(client)

    async def read(self, source_id: str) -> TimelineRecord:
        """What is stored; an empty record if nothing is, or if it cannot be read."""
        return _decoded(await self._scripts.command("GET", self._prefix + source_id), source_id)

    async def add(self, source_id: str, record: TimelineRecord) -> TimelineRecord:
        """Store a record, with the forks that other servers have stored meanwhile. Returns what is stored now."""
        key, found = self._prefix + source_id, TimelineRecord()
        for _ in range(_TRIES):
            text = await self._scripts.command("GET", key)
            found = _decoded(text, source_id)
            merged = record.merged_with(found)
            if text is None:
                stored = await self._scripts.command("SET", key, merged.encode(), "NX") is not None
            else:
                answer = await self._scripts.run(ScriptCall("replace", key, (text, merged.encode())))
                stored = status(answer) == "OK"
            if stored:
                return merged
        return found  # the next check tries again


def _decoded(text: bytes | None, source_id: str) -> TimelineRecord:
    try:
        return TimelineRecord.decode((text or b"").decode())
    except ValueError:
        log.error("what Redis has of the history of a source cannot be read, and is replaced: %s", source_id)
        return TimelineRecord()
