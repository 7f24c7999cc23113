"""Files that are read again when they change: the tenants file, TLS certificates, a JWKS file.

They are compared by content, because Kubernetes swaps a symbolic link two levels up, and checked every few seconds,
because no file notification works on every mount. Neighbour: `app` runs one task for each group.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

Seen = tuple[bytes | None, ...]


class WatchedFiles:
    """A group of files that belong together."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = tuple(paths)
        self._acted_on = self.check()

    def check(self) -> Seen:
        return tuple(_digest(path) for path in self.paths)

    async def run(self, reload: Callable[[], Awaitable[bool]], *, every_s: float) -> None:
        """Call `reload` once for each change, and again at the next check if `reload` raised, or could not read a file
        that this check could read.

        `reload` is called only when two checks in a row find the same content: a file that is being written may be
        valid and yet lack its second half, which for a tenants file would remove tenants.
        """
        before = self._acted_on
        while True:
            await asyncio.sleep(every_s)
            now = await asyncio.to_thread(self.check)
            if now == before and now != self._acted_on and (await self._guarded(reload) or None in now):
                self._acted_on = now
            before = now

    async def _guarded(self, reload: Callable[[], Awaitable[bool]]) -> bool:
        """Call `reload`; a defect in a new file must not end the process, which still serves with the old file."""
        try:
            return await reload()
        except Exception as error:  # noqa: BLE001 the error's text may quote the file
            log.error("failed to reload %s: %s", ", ".join(map(str, self.paths)), type(error).__name__)
            return False


def _digest(path: Path) -> bytes | None:
    try:
        return hashlib.blake2b(path.read_bytes()).digest()
    except OSError:
        return None
