"""Subscriptions in Redis: one hash each, and per tenant an index of their names.

Invariant: every change of a hash is one script on one key, so it is atomic, even in a cluster. Names are valid before
they get here.
Neighbours: `rpc` calls the store for `Subscriptions`; `leases` has what sessions need.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

from feedmux_server.clock import wall_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.limits.lease import LeaseRules
from feedmux_server.store.answers import check, check_replicated, digits, status
from feedmux_server.store.commands import Argument, replicated_s
from feedmux_server.store.connection import LEASES_MAX, Client
from feedmux_server.store.definition_sizes import DefinitionSizes
from feedmux_server.store.errors import is_of_one_key, state_unavailable
from feedmux_server.store.lease_store import LeaseStore
from feedmux_server.store.model import DAY_S, TIME_MS_MAX, StoredSubscription
from feedmux_server.store.name_index import NameIndex
from feedmux_server.store.schema import KEY_PREFIX, layout_prefix
from feedmux_server.store.scripts import Answer, ScriptCall
from feedmux_server.store.store_scripts import StoreScripts
from feedmux_server.telemetry.observer import NOBODY, Observer

_PAGE: Final = 200
_PIECE: Final = 16
"""The most subscriptions in one answer of Redis: a megabyte at most."""
_MESSAGE_BYTES: Final = 512
"""The most bytes of a subscription's message in addition to its definition and position."""
_ANNOUNCED_MS: Final = round(3_660 * DAY_S * 1000)
"""How long it is known when a source was last announced: longer than any subscription may be unused."""
TOMBSTONE_S: Final = 24 * 3600.0


class SubscriptionStore:
    """Every method raises STATE_UNAVAILABLE if Redis rejects a command or does not answer each within `timeout_s`.

    `create`, `update`, `seek` and `delete` also raise it if no replica has confirmed the change in time: a failover
    could undo the change. All four can be repeated, and then wait again; a repeated `delete` raises
    SUBSCRIPTION_NOT_FOUND.
    """

    def __init__(
        self,
        redis: Client,
        *,
        lease_s: float,
        key_prefix: str = KEY_PREFIX,
        timeout_s: float = 3.0,
        tombstone_s: float = TOMBSTONE_S,
        observer: Observer = NOBODY,
        control_replicas: int | None = None,
        readable: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        """`control_replicas`: how many replicas must have a change of `create`, `update`, `seek` or `delete` before the
        method returns; None: one, if any is connected. `readable`: whether a definition can be parsed; a subscription
        with another definition is damaged."""
        prefix = layout_prefix(key_prefix)
        self._rules = LeaseRules(lease_s=lease_s, tombstone_s=tombstone_s)
        self._control_replicas = control_replicas
        self._scripts = StoreScripts(
            redis, prefix, timeout_s, observer, readable, in_time_s=replicated_s(timeout_s, control_replicas)
        )
        self.sizes = DefinitionSizes(self._scripts.runner, prefix)
        self.names = NameIndex(self._scripts, self.sizes)
        of_leases = StoreScripts(redis, prefix, timeout_s, observer, readable, LEASES_MAX)
        self.leases = LeaseStore(of_leases, self.names, self._rules, observer)

    async def create(
        self,
        tenant: str,
        name: str,
        *,
        definition: bytes,
        etag: str,
        position: bytes,
        cluster_time: int,
        order: bytes,
    ) -> StoredSubscription:
        """Create a subscription; the same `etag` again changes nothing. Raises SUBSCRIPTION_EXISTS."""
        place = (position, digits(cluster_time), order)
        answer, replicated = await self._control("create", tenant, name, definition, etag, *place)
        if status(answer) == "EXISTS":
            raise FeedmuxError(
                ErrorReason.SUBSCRIPTION_EXISTS,
                f"a subscription {name!r} with another definition exists",
            )
        await self.names.add(tenant, name)
        check_replicated(replicated)
        return self._scripts.found(name, answer)

    async def get(self, tenant: str, name: str) -> StoredSubscription:
        """Raises SUBSCRIPTION_NOT_FOUND."""
        return self._scripts.found(name, await self._scripts.run("get", tenant, name))

    async def every(
        self, tenant: str, on_damaged: Callable[[str], None] = lambda _: None
    ) -> AsyncIterator[StoredSubscription]:
        """All subscriptions of a tenant by name, read page by page. `on_damaged` gets the names of damaged ones."""
        after, more = "", True
        while more:
            page, after = await self.list(
                tenant, page_size=_PAGE, after=after, bytes_max=_PIECE << 16, on_damaged=on_damaged
            )
            more = bool(after)
            await self.sizes.correct(tenant, page)
            for stored in page:
                yield stored

    async def list(
        self,
        tenant: str,
        *,
        page_size: int,
        after: str = "",
        bytes_max: int = 1 << 20,
        on_damaged: Callable[[str], None] = lambda _: None,
    ) -> tuple[Sequence[StoredSubscription], str]:
        """At most `page_size` subscriptions with names after `after`, and the `after` of the next page or ''.

        Fewer if their messages would take more than `bytes_max` bytes together, but at least one. Damaged subscriptions
        are omitted, and `on_damaged` gets their names.
        """
        listed: list[StoredSubscription] = []
        size, last = 0, after.encode()
        while len(listed) <= page_size:
            wanted = min(_PIECE, page_size + 1 - len(listed))
            found = await self.names.page(tenant, last, wanted)
            names = _valid(found, on_damaged)
            calls = [ScriptCall("get", self._scripts.key(tenant, name)) for name in names]
            answers = await self._scripts.runner.run_many(calls)
            for name, answer in zip(names, answers, strict=True):
                if isinstance(answer, Exception):
                    if not is_of_one_key(answer):
                        raise state_unavailable(answer)
                    on_damaged(name)
                    continue
                if status(answer) == "OK":
                    try:
                        stored = self._scripts.found(name, answer)
                    except FeedmuxError:
                        on_damaged(name)
                        continue
                    size += len(stored.definition) + len(stored.position) + _MESSAGE_BYTES
                    if listed and size > bytes_max:
                        return listed[:page_size], listed[:page_size][-1].name
                    listed.append(stored)
                else:
                    await self.names.remove(tenant, name)
            if len(found) < wanted:
                break
            last = found[-1]
        page = listed[:page_size]
        return page, page[-1].name if len(listed) > page_size else ""

    async def update(
        self, tenant: str, name: str, *, definition: bytes, etag: str, expected_etag: str = ""
    ) -> StoredSubscription:
        """Change the definition and fence an open session; does nothing if `etag` is the stored one.

        Raises SUBSCRIPTION_NOT_FOUND, and ETAG_MISMATCH when `expected_etag` is set and not the stored one.
        """
        answer, replicated = await self._control("update", tenant, name, definition, etag, expected_etag)
        check_replicated(replicated)
        return self._scripts.found(name, answer)

    async def seek(
        self, tenant: str, name: str, *, position: bytes, cluster_time: int, order: bytes
    ) -> StoredSubscription:
        """Move the position, forwards or backwards, and fence an open session. Raises SUBSCRIPTION_NOT_FOUND."""
        answer, replicated = await self._control("seek", tenant, name, position, digits(cluster_time), order)
        check_replicated(replicated)
        return self._scripts.found(name, answer)

    async def delete(self, tenant: str, name: str, *, expected_etag: str = "") -> None:
        """Delete a subscription and fence an open session. Raises SUBSCRIPTION_NOT_FOUND, ETAG_MISMATCH."""
        tombstone_ms = round(self._rules.tombstone_s * 1000)
        answer, replicated = await self._control("delete", tenant, name, expected_etag, tombstone_ms)
        if status(answer) == "OK":
            await self.names.remove(tenant, name)
        check_replicated(replicated)
        check(name, answer)

    async def expire(self, tenant: str, name: str, unused_s: float) -> bool:
        """Delete a subscription if nobody has used it for `unused_s`; return whether it was deleted."""
        tombstone_ms = round(self._rules.tombstone_s * 1000)
        answer = await self._scripts.run("expire", tenant, name, round(unused_s * 1000), tombstone_ms)
        if status(answer) != "OK":
            return False
        await self.names.remove(tenant, name)
        return True

    def key(self, tenant: str, name: str) -> str:
        """The key of a subscription in Redis."""
        return self._scripts.key(tenant, name)

    async def claim_sweep(self, for_s: float) -> bool:
        """Whether this replica should search for unused subscriptions now."""
        key, now_ms, for_ms = f"{self._scripts.prefix}:sweep", round(wall_s() * 1000), round(for_s * 1000)
        command = self._scripts.runner.command
        if await command("SET", key, now_ms, "NX", "PX", for_ms) is not None:
            return True
        held = await command("GET", key)  # raises for a key of another type, which would never expire
        if held is None or now_ms - _time_ms(held) < 2 * for_ms:
            return False
        # The key has lost its expiry, as in a copy of Redis's data.
        return await command("SET", key, now_ms, "PX", for_ms) is not None

    async def announce_source(self, source: str) -> None:
        """Note that a deployment of feedmux with these keys has a source of this name now."""
        await self._scripts.runner.command("SET", self._source_key(source), round(wall_s() * 1000), "PX", _ANNOUNCED_MS)

    async def unannounced_s(self, source: str) -> float:
        """For how long no deployment of feedmux with these keys has had a source of this name. Begins to count now if
        that is not known."""
        key, now_ms = self._source_key(source), round(wall_s() * 1000)
        if await self._scripts.runner.command("SET", key, now_ms, "NX", "PX", _ANNOUNCED_MS) is not None:
            return 0.0
        found = await self._scripts.runner.command("GET", key)
        return 0.0 if found is None else (now_ms - _time_ms(found)) / 1000

    def _source_key(self, source: str) -> str:
        return f"{self._scripts.prefix}:source:{source}"

    async def _control(self, script: str, tenant: str, name: str, *arguments: Argument) -> tuple[Answer, bool]:
        """Run a script; return its answer, and whether enough replicas have its change, made now or in an earlier
        try."""
        if self._control_replicas == 0:
            return await self._scripts.in_time(self._scripts.unreplicated, script, tenant, name, *arguments)
        mark = ("SET", f"{self._scripts.prefix}:mark:{{{tenant}/{name}}}", 1, "PX", 1)
        send = partial(self._scripts.runner.run_replicated, mark=mark, replicas=self._control_replicas)
        answer, replicated = await self._scripts.in_time(send, script, tenant, name, *arguments)
        # If there is nothing to delete, an earlier try may have deleted it.
        rejected = status(answer) == "ETAG_MISMATCH" or (status(answer) == "NOT_FOUND" and script != "delete")
        return answer, replicated or rejected


def _time_ms(stored: bytes) -> int:
    """A time that a server has stored; 0 for anything else."""
    return int(stored) if stored.isdigit() and len(stored) <= len(str(TIME_MS_MAX)) else 0


def _valid(names: Sequence[bytes], on_damaged: Callable[[str], None]) -> list[str]:
    """The names that a subscription can have. No call can name the others, so nobody but the operator can remove them;
    `on_damaged` gets them in a form that can be printed."""
    valid = list[str]()
    for raw in names:
        name = raw.decode("ascii", errors="replace")
        try:
            check_name("name", name)
        except FeedmuxError:
            on_damaged(repr(raw)[2:-1])
        else:
            valid.append(name)
    return valid
