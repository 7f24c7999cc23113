"""The keys of positions in Redis, if the operator names no file: the first server creates them, all others use them.

A server keeps the keys in memory and restores them when Redis has lost them, so that the positions that clients hold
outlive a FLUSHALL. Neighbours: `dependencies` calls `refresh` whenever it checks whether Redis is available.
"""

import logging
import secrets

from feedmux_server.core.positions.position_keys import (
    KEY_BYTES_MIN,
    KEYS_MAX,
    PositionKeys,
    format_keys,
    parse_keys,
)
from feedmux_server.store.connection import Client, StartupError
from feedmux_server.store.schema import KEY_PREFIX
from feedmux_server.store.scripts import ScriptCall, ScriptRunner

log = logging.getLogger(__name__)


def keys_key(key_prefix: str = KEY_PREFIX) -> str:
    return f"{key_prefix}:position-keys"


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES_MIN)


class SigningKeys:
    """Keeps `keys` equal to the keys in Redis."""

    def __init__(self, client: Client, keys: PositionKeys, *, key_prefix: str = KEY_PREFIX) -> None:
        self._key = keys_key(key_prefix)
        self._keys = keys
        self._scripts = ScriptRunner(client)
        self._unreadable = ""

    async def refresh(self) -> None:
        """Read the keys again. Raises STATE_UNAVAILABLE, and StartupError if the keys are unreadable and none were read
        before."""
        text = await self._scripts.command("GET", self._key)
        if text is None:
            await self._scripts.command("SET", self._key, format_keys(self._keys.materials or (new_key(),)), "NX")
            text = await self._scripts.command("GET", self._key)
        try:
            stored = parse_keys(text.decode() if isinstance(text, bytes) else "")
        except ValueError as error:
            self._keep_known(str(error))
            return
        self._unreadable = ""
        known = self._keys.materials
        if known and known[0] not in stored:
            # Redis lost the key that signs (an operator takes out others): by an older copy, or a server that never had
            # our keys made its own before we checked. Both are in use.
            both = tuple(dict.fromkeys((*known, *stored)))[:KEYS_MAX]
            await self._scripts.run(ScriptCall("replace", self._key, (text, format_keys(both))))
            stored = both
        if self._keys.replace(stored) and known:
            log.info("the keys of positions were read again", extra={"count": len(stored)})

    def _keep_known(self, error: str) -> None:
        message = _unreadable(self._key, error)
        if not self._keys.known:
            raise StartupError(message)
        if self._unreadable != error:
            log.error("%s. The keys read before stay in force", message)
        self._unreadable = error


async def stored_position_keys(
    client: Client, *, key_prefix: str = KEY_PREFIX, timeout_s: float = 3.0
) -> tuple[bytes, ...]:
    """The keys in Redis; empty if no server has made any yet. Raises STATE_UNAVAILABLE, StartupError."""
    key = keys_key(key_prefix)
    text = await ScriptRunner(client, timeout_s=timeout_s).command("GET", key)
    if text is None:
        return ()
    try:
        return parse_keys(text.decode())
    except ValueError as error:
        raise StartupError(_unreadable(key, str(error))) from None


def _unreadable(key: str, error: str) -> str:
    return f"{key} in Redis does not hold valid keys of positions: {error}. Restore the keys, or set positions.key_file"
