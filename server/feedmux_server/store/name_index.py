"""The names of each tenant's subscriptions: a sorted set for each tenant, for listing.

The index is in another slot than the subscriptions, and is therefore only a hint: an entry without a subscription is
skipped and removed, and create, open and restore add it again.
"""

from collections.abc import Sequence
from contextlib import suppress

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.store.answers import status
from feedmux_server.store.definition_sizes import DefinitionSizes
from feedmux_server.store.store_scripts import StoreScripts


class NameIndex:
    """Every method raises STATE_UNAVAILABLE when Redis does not answer."""

    def __init__(self, scripts: StoreScripts, sizes: DefinitionSizes) -> None:
        self._scripts = scripts
        self._sizes = sizes

    async def add(self, tenant: str, name: str) -> None:
        await self.add_many([(tenant, name)])

    async def add_many(self, names: Sequence[tuple[str, str]]) -> None:
        """Add pairs of a tenant and a name."""
        await self._scripts.runner.commands([("ZADD", self._key(tenant), 0, name) for tenant, name in names])

    async def remove(self, tenant: str, name: str) -> None:
        """Remove a name after its subscription was found to be gone."""
        await self._scripts.runner.command("ZREM", self._key(tenant), name)
        await self._sizes.drop(tenant, name)
        # If it was created in between, the entry just removed may have been that of the new subscription.
        answer = await self._scripts.run("get", tenant, name)
        if status(answer) == "OK":
            await self.add(tenant, name)
            with suppress(FeedmuxError):
                await self._sizes.correct(tenant, [self._scripts.found(name, answer)])

    async def page(self, tenant: str, after: bytes, most: int) -> list[bytes]:
        """At most `most` names after `after`; all names are after b"". They may be invalid if feedmux has not written
        them."""
        lower = b"(" + after if after else "-"
        found: list[bytes] = await self._scripts.runner.command(
            "ZRANGEBYLEX", self._key(tenant), lower, "+", "LIMIT", 0, most
        )
        return found

    async def count(self, tenants: Sequence[str]) -> dict[str, int]:
        """How many names each tenant has."""
        counts = await self._scripts.runner.counts([("ZCARD", self._key(tenant)) for tenant in tenants])
        return dict(zip(tenants, counts, strict=True))

    async def has(self, tenant: str, name: str) -> bool:
        return await self._scripts.runner.command("ZSCORE", self._key(tenant), name) is not None

    def _key(self, tenant: str) -> str:
        return f"{self._scripts.prefix}:names:{{{tenant}}}"
