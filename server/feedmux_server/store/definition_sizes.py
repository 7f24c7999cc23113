"""Counts the bytes of the definitions of a tenant's subscriptions in Redis: a hash of sizes by name, and their sum.

A size is reserved before its definition is written, in one script, so that simultaneous calls cannot exceed the limit
together. In a cluster, the hash is in the slot of the index of names, not in that of a subscription: after a crash
between the two writes, or for what an older version wrote, a size is wrong until `correct` meets the subscription.
Neighbours: `store` updates the sizes, `rpc` reserves them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.limits.quota import exceeded
from feedmux_server.store.model import StoredSubscription
from feedmux_server.store.scripts import ScriptCall, ScriptRunner, count_of

_NO_LIMIT = 1 << 53


class DefinitionSizes:
    """Every method raises STATE_UNAVAILABLE when Redis does not answer."""

    def __init__(self, scripts: ScriptRunner, key_prefix: str) -> None:
        self._scripts = scripts
        self._prefix = key_prefix

    @asynccontextmanager
    async def reserved(
        self, tenant: str, name: str, size: int, most: int, stored_size: Callable[[], Awaitable[int]]
    ) -> AsyncIterator[None]:
        """Reserve `size` while a definition is written; `stored_size` gets the stored size if the write fails.

        Raises QUOTA_EXCEEDED if all definitions of the tenant would exceed `most` bytes together.
        """
        if not await self._set(tenant, name, size, most):
            raise exceeded("subscription_bytes", most)
        try:
            yield
        except FeedmuxError:
            with suppress(FeedmuxError):
                await self._set(tenant, name, await stored_size())
            raise
        # Set the size again: a call for the same name that failed meanwhile may have restored the old size.
        await self._set(tenant, name, size)

    async def drop(self, tenant: str, name: str) -> None:
        """Remove the size of a subscription that no longer exists."""
        await self._set(tenant, name, 0)

    async def correct(self, tenant: str, found: Sequence[StoredSubscription]) -> None:
        """Correct sizes that differ from the subscriptions found."""
        if not found:
            return
        known = await self._scripts.command("HMGET", self._key(tenant), *(stored.name for stored in found))
        for stored, size in zip(found, known, strict=True):
            if count_of(size) != len(stored.definition):
                await self._set(tenant, stored.name, len(stored.definition))

    async def sums(self, tenants: Sequence[str]) -> Mapping[str, int]:
        """The bytes of all definitions, by tenant."""
        sums = await self._scripts.counts([("HGET", self._key(tenant), "") for tenant in tenants])
        return dict(zip(tenants, sums, strict=True))

    async def _set(self, tenant: str, name: str, size: int, most: int = _NO_LIMIT) -> bool:
        """Set the size of one definition. Returns whether there was room."""
        answer = await self._scripts.run(ScriptCall("size", self._key(tenant), (name, size, min(most, _NO_LIMIT))))
        return bool(answer[0] == b"OK")

    def _key(self, tenant: str) -> str:
        return f"{self._prefix}:sizes:{{{tenant}}}"
