"""Files that are read again when they change: the tenants file, TLS certificates, a JWKS file.

They are compared by content, because what Kubernetes swaps is a symbolic link two levels up, and by looking every
few seconds, because no file notification works on every mount. Neighbour: `app` runs one task for each group.
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
        self._acted_on = self.look()

    def look(self) -> Seen:
        return tuple(_digest(path) for path in self.paths)

    async def run(self, reload: Callable[[], Awaitable[bool]], *, every_s: float) -> None:
        """Calls `reload` once for each change; again at the next look where it says that it could not read a file
        which could be read for this look.

        Only when a look finds what the one before it found: a file that is being written may be valid and yet lack
        its second half, which for a tenants file would throw tenants out.
        """
        before = self._acted_on
        while True:
            await asyncio.sleep(every_s)
            now = await asyncio.to_thread(self.look)
            if now == before and now != self._acted_on and (await self._guarded(reload) or None in now):
                self._acted_on = now
            before = now

    async def _guarded(self, reload: Callable[[], Awaitable[bool]]) -> bool:
        """A defect met in a new file must not end the process that serves by the old one."""
        try:
            return await reload()
        except Exception as error:  # noqa: BLE001 its text may hold what stands in the file
            log.error("failed to reload %s: %s", ", ".join(map(str, self.paths)), type(error).__name__)
            return True


def _digest(path: Path) -> bytes | None:
    try:
        return hashlib.blake2b(path.read_bytes()).digest()
    except OSError:
        return None
