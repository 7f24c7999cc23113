"""Leases that calls have left, and that this server is releasing.

A client that leaves and opens its subscription again at once may arrive before its first lease is released.
"""

import asyncio
from functools import partial


class LeaseReleases:
    """The releases under way, by subscription: an opening that overtook them would be rejected as SUBSCRIPTION_BUSY."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The newest of each subscription."""

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, tenant: str, name: str, release: asyncio.Task[None]) -> None:
        self._tasks[tenant, name] = release
        release.add_done_callback(partial(self._ended, tenant, name))

    async def done(self, tenant: str, name: str) -> None:
        """Wait for the releases of a subscription, each of which waits for Redis as long as any command."""
        while (release := self._tasks.get((tenant, name))) is not None:
            await asyncio.wait([release])
            self._ended(tenant, name, release)

    def _ended(self, tenant: str, name: str, release: asyncio.Task[None]) -> None:
        if self._tasks.get((tenant, name)) is release:
            del self._tasks[tenant, name]
