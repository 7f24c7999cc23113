"""Subscriptions in Redis: one hash each, and per tenant a sorted set of names for listing.

Invariant: every change of a hash is one script on one key, so it is atomic, even in a cluster. The name index is in
another slot and is therefore only a hint: an entry without a hash is skipped and removed, and create, open and restore
add it again. Names are valid before they get here.
Neighbours: `rpc` calls the store for `Subscriptions`, `committer` for commits; `scripts` runs its scripts.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.lease import LeaseRules
from feedmux_server.store.commands import Argument
from feedmux_server.store.connection import Client
from feedmux_server.store.deadlines import Deadlines
from feedmux_server.store.definition_sizes import DefinitionSizes
from feedmux_server.store.errors import RETRY_AFTER_S, is_of_one_key, state_unavailable
from feedmux_server.store.model import (
    CommitOutcome,
    CommitRequest,
    CommitStatus,
    FenceCause,
    Lease,
    RestoreRequest,
    StoredSubscription,
)
from feedmux_server.store.scripts import Answer, ScriptCall, ScriptRunner
from feedmux_server.telemetry.observer import NOBODY, Observer

_PAGE: Final = 200
_PIECE: Final = 16
"""The most subscriptions in one answer of Redis: a megabyte at most."""
_MESSAGE_BYTES: Final = 512
"""The most bytes of a subscription's message in addition to its definition and position."""
TOMBSTONE_S: Final = 24 * 3600.0


class SubscriptionStore:
    """Every method raises STATE_UNAVAILABLE if Redis rejects a command or does not answer within `timeout_s`.

    `create`, `update`, `seek` and `delete` also raise it if no replica has confirmed the change in time: a failover
    could undo the change. All four can be repeated, and then wait again; a repeated `delete` raises
    SUBSCRIPTION_NOT_FOUND.
    """

    def __init__(
        self,
        redis: Client,
        *,
        lease_s: float,
        key_prefix: str = "feedmux:1",
        timeout_s: float = 3.0,
        tombstone_s: float = TOMBSTONE_S,
        observer: Observer = NOBODY,
        control_replicas: int | None = None,
    ) -> None:
        """`control_replicas`: how many replicas must have a change of `create`, `update`, `seek` or `delete` before the
        method returns; None: one, if any is connected."""
        self.observer = observer
        self._control_replicas = control_replicas
        self.rules = LeaseRules(lease_s=lease_s, tombstone_s=tombstone_s)
        self._prefix = key_prefix
        self._scripts = ScriptRunner(redis, timeout_s=timeout_s, observer=observer)
        self._deadlines = Deadlines(timeout_s)
        self.sizes = DefinitionSizes(self._scripts, key_prefix)

    def _key(self, tenant: str, name: str) -> str:
        return f"{self._prefix}:{{{tenant}/{name}}}"

    def _names_key(self, tenant: str) -> str:
        return f"{self._prefix}:names:{{{tenant}}}"

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
        place = (position, _digits(cluster_time), order)
        answer, replicated = await self._control("create", tenant, name, definition, etag, *place)
        if _status(answer) == "EXISTS":
            raise FeedmuxError(
                ErrorReason.SUBSCRIPTION_EXISTS,
                f"a subscription {name!r} with another definition exists",
            )
        await self._index(tenant, name)
        _check_replicated(replicated)
        return _subscription(name, answer)

    async def get(self, tenant: str, name: str) -> StoredSubscription:
        """Raises SUBSCRIPTION_NOT_FOUND."""
        return _found(name, await self._run("get", tenant, name))

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
        found: list[StoredSubscription] = []
        size = 0
        while len(found) <= page_size:
            wanted = min(_PIECE, page_size + 1 - len(found))
            lower = f"({after}" if after else "-"
            names = [
                name.decode()
                for name in await self._scripts.command(
                    "ZRANGEBYLEX", self._names_key(tenant), lower, "+", "LIMIT", 0, wanted
                )
            ]
            answers = await self._scripts.run_many([ScriptCall("get", self._key(tenant, n)) for n in names])
            for name, answer in zip(names, answers, strict=True):
                if isinstance(answer, Exception):
                    if not is_of_one_key(answer):
                        raise state_unavailable(answer)
                    on_damaged(name)
                    continue
                if _status(answer) == "OK":
                    try:
                        stored = _subscription(name, answer)
                    except FeedmuxError:
                        on_damaged(name)
                        continue
                    size += len(stored.definition) + len(stored.position) + _MESSAGE_BYTES
                    if found and size > bytes_max:
                        return found[:page_size], found[:page_size][-1].name
                    found.append(stored)
                else:
                    await self._unindex(tenant, name)
            if len(names) < wanted:
                break
            after = names[-1]
        page = found[:page_size]
        return page, page[-1].name if len(found) > page_size else ""

    async def count(self, tenants: Sequence[str]) -> dict[str, int]:
        """How many subscriptions each tenant has, by the index of names."""
        counts = await self._scripts.commands([("ZCARD", self._names_key(tenant)) for tenant in tenants])
        return dict(zip(tenants, counts, strict=True))

    async def exists(self, tenant: str, name: str) -> bool:
        return await self._scripts.command("ZSCORE", self._names_key(tenant), name) is not None

    async def update(
        self, tenant: str, name: str, *, definition: bytes, etag: str, expected_etag: str = ""
    ) -> StoredSubscription:
        """Change the definition and fence an open session; does nothing if `etag` is the stored one.

        Raises SUBSCRIPTION_NOT_FOUND, and ETAG_MISMATCH when `expected_etag` is set and not the stored one.
        """
        answer, replicated = await self._control("update", tenant, name, definition, etag, expected_etag)
        _check_replicated(replicated)
        return _found(name, answer)

    async def seek(
        self, tenant: str, name: str, *, position: bytes, cluster_time: int, order: bytes
    ) -> StoredSubscription:
        """Move the position, forwards or backwards, and fence an open session. Raises SUBSCRIPTION_NOT_FOUND."""
        answer, replicated = await self._control("seek", tenant, name, position, _digits(cluster_time), order)
        _check_replicated(replicated)
        return _found(name, answer)

    async def delete(self, tenant: str, name: str, *, expected_etag: str = "") -> None:
        """Delete a subscription and fence an open session. Raises SUBSCRIPTION_NOT_FOUND, ETAG_MISMATCH."""
        tombstone_ms = round(self.rules.tombstone_s * 1000)
        answer, replicated = await self._control("delete", tenant, name, expected_etag, tombstone_ms)
        if _status(answer) == "OK":
            await self._unindex(tenant, name)
        _check_replicated(replicated)
        _check(name, answer)

    async def expire(self, tenant: str, name: str, unused_s: float) -> bool:
        """Delete a subscription if nobody has used it for `unused_s`; return whether it was deleted."""
        tombstone_ms = round(self.rules.tombstone_s * 1000)
        answer = await self._run("expire", tenant, name, round(unused_s * 1000), tombstone_ms)
        if _status(answer) != "OK":
            return False
        await self._unindex(tenant, name)
        return True

    async def claim_sweep(self, for_s: float) -> bool:
        """Whether this replica should search for unused subscriptions now."""
        return (
            await self._scripts.command("SET", f"{self._prefix}:sweep", 1, "NX", "PX", round(for_s * 1000)) is not None
        )

    async def open(
        self, tenant: str, name: str, *, instance_id: str, takeover: bool = False
    ) -> tuple[StoredSubscription, Lease]:
        """Begin a session with the next epoch; the returned values have that epoch. Does not change a damaged
        subscription.

        An empty `instance_id` never counts as the same instance.
        Raises SUBSCRIPTION_NOT_FOUND, and SUBSCRIPTION_BUSY (metadata `owner`) while another instance holds it.
        """
        nonce = secrets.token_hex(8)
        arguments = (instance_id, nonce, int(takeover), self.rules.lease_ms)
        answer, _ = await self._in_time(self._unreplicated, "open", tenant, name, *arguments)
        if _status(answer) == "BUSY":
            raise FeedmuxError(
                ErrorReason.SUBSCRIPTION_BUSY,
                f"Another client holds subscription {name!r}: wait until that client ends, or open with takeover",
                {"owner": answer[1].decode()},
            )
        stored = _found(name, answer)
        await self._index(tenant, name)
        return stored, Lease(tenant, name, stored.epoch, nonce, instance_id, taken_over=bool(answer[3]))

    async def release(self, lease: Lease) -> None:
        """End the lease, if it is still the current one."""
        await self._run("release", lease.tenant, lease.name, lease.epoch, lease.nonce)

    async def commit_many(self, requests: Sequence[CommitRequest]) -> Sequence[CommitOutcome]:
        """Commit or renew each lease in one round trip, and return the outcome of each."""
        answers = await self._scripts.run_many([self._commit_call(request) for request in requests])
        return [_outcome(answer) for answer in answers]

    async def restore_many(self, requests: Sequence[RestoreRequest]) -> None:
        """Restore what Redis lost, unless Redis has something at least as new. The next commit shows which won."""
        await self._scripts.run_many([self._restore_call(request) for request in requests])
        await self._scripts.commands([("ZADD", self._names_key(r.lease.tenant), 0, r.lease.name) for r in requests])

    def _commit_call(self, request: CommitRequest) -> ScriptCall:
        lease, place = request.lease, request.place
        arguments: tuple[Argument, ...] = (lease.epoch, lease.nonce, self.rules.lease_ms)
        if place is not None:
            arguments += (place.position, _digits(place.cluster_time), place.order)
        return ScriptCall("commit", self._key(lease.tenant, lease.name), arguments)

    def _restore_call(self, request: RestoreRequest) -> ScriptCall:
        lease, stored = request.lease, request.stored
        place = (stored.position, _digits(stored.cluster_time), stored.order)
        owner = (lease.epoch, stored.seek_epoch, lease.nonce, lease.instance_id, self.rules.lease_ms)
        times = (stored.create_ms, stored.update_ms)
        arguments = (stored.definition, stored.etag, *place, *owner, *times)
        return ScriptCall("restore", self._key(lease.tenant, lease.name), arguments)

    async def _control(self, script: str, tenant: str, name: str, *arguments: Argument) -> tuple[Answer, bool]:
        """Run a script; return its answer, and whether enough replicas have its change, made now or in an earlier
        try."""
        if self._control_replicas == 0:
            return await self._in_time(self._unreplicated, script, tenant, name, *arguments)
        mark = ("SET", f"{self._prefix}:mark:{{{tenant}/{name}}}", 1, "PX", 1)
        send = partial(self._scripts.run_replicated, mark=mark, replicas=self._control_replicas)
        answer, replicated = await self._in_time(send, script, tenant, name, *arguments)
        # If there is nothing to delete, an earlier try may have deleted it.
        rejected = _status(answer) == "ETAG_MISMATCH" or (_status(answer) == "NOT_FOUND" and script != "delete")
        return answer, replicated or rejected

    async def _in_time(
        self,
        send: Callable[[ScriptCall], Awaitable[tuple[Answer, bool]]],
        script: str,
        tenant: str,
        name: str,
        *arguments: Argument,
    ) -> tuple[Answer, bool]:
        """Send a script that Redis must not run after its caller has given up; return what `send` returns."""
        for _ in range(2):
            call = ScriptCall(script, self._key(tenant, name), (*arguments, self._deadlines.next_ms()))
            answer, replicated = await send(call)
            if _status(answer) != "LATE":
                if len(answer) > 2:
                    self._deadlines.saw(int(answer[1]))
                return answer, replicated
            self._deadlines.saw(int(answer[1]))
        raise state_unavailable(TimeoutError())

    async def _unreplicated(self, call: ScriptCall) -> tuple[Answer, bool]:
        return await self._scripts.run(call), True

    async def _run(self, script: str, tenant: str, name: str, *arguments: Argument) -> Answer:
        return await self._scripts.run(ScriptCall(script, self._key(tenant, name), arguments))

    async def _index(self, tenant: str, name: str) -> None:
        await self._scripts.command("ZADD", self._names_key(tenant), 0, name)

    async def _unindex(self, tenant: str, name: str) -> None:
        """Remove a name from the index after its subscription was found to be gone."""
        await self._scripts.command("ZREM", self._names_key(tenant), name)
        await self.sizes.drop(tenant, name)
        # If it was created in between, the entry just removed may have been that of the new subscription.
        answer = await self._run("get", tenant, name)
        if _status(answer) == "OK":
            await self._index(tenant, name)
            with suppress(FeedmuxError):
                await self.sizes.correct(tenant, [_subscription(name, answer)])


def _digits(cluster_time: int) -> str:
    """The cluster time in a fixed width, so that the scripts compare 64 bits as text; a Lua number holds only 53."""
    return f"{cluster_time:020d}"


def _status(answer: Answer) -> str:
    status: bytes = answer[0]
    return status.decode()


def _check_replicated(replicated: bool) -> None:
    if not replicated:
        raise FeedmuxError(
            ErrorReason.STATE_UNAVAILABLE,
            "the change is made, but too few replicas of Redis confirmed it in time, so a failover could undo it:"
            " repeat the call (docs/redis.md)",
            {"redis_error": "NOT_REPLICATED"},
            retry_after_s=RETRY_AFTER_S,
        )


def _check(name: str, answer: Answer) -> None:
    match _status(answer):
        case "NOT_FOUND":
            raise FeedmuxError(
                ErrorReason.SUBSCRIPTION_NOT_FOUND,
                f"there is no subscription {name!r}",
            )
        case "ETAG_MISMATCH":
            raise FeedmuxError(
                ErrorReason.ETAG_MISMATCH,
                f"Subscription {name!r} was changed after this etag was read: get the subscription again and repeat",
            )
        case "DAMAGED":
            raise _damaged(name)


def _found(name: str, answer: Answer) -> StoredSubscription:
    _check(name, answer)
    return _subscription(name, answer)


def _damaged(name: str) -> FeedmuxError:
    return FeedmuxError(
        ErrorReason.STATE_UNAVAILABLE,
        f"Redis has lost a part of subscription {name!r}: restore its key from a backup, or delete the subscription and"
        " create it at a known position (docs/redis.md)",
        {"redis_error": "DAMAGED"},
        retry_after_s=RETRY_AFTER_S,
    )


def _subscription(name: str, answer: Answer) -> StoredSubscription:
    """Parse an answer. Raises STATE_UNAVAILABLE (`redis_error` DAMAGED) if feedmux would not have written it like this.
    Fields that a session does not need may be missing."""
    now_ms, flat = int(answer[1]), answer[2]
    try:
        return _parse(name, dict(zip(flat[::2], flat[1::2], strict=True)), now_ms)
    except (KeyError, ValueError):
        raise _damaged(name) from None


def _parse(name: str, fields: dict[bytes, bytes], now_ms: int) -> StoredSubscription:
    active = fields.get(b"nonce", b"") != b"" and int(fields.get(b"lease_until_ms", 0)) > now_ms
    return StoredSubscription(
        name=name,
        definition=fields[b"definition"],
        etag=fields[b"etag"].decode(),
        position=fields[b"position"],
        cluster_time=int(fields[b"cluster_time"]),
        order=fields[b"order"],
        epoch=int(fields.get(b"epoch", 0)),
        seek_epoch=int(fields.get(b"seek_epoch", 0)),
        commit_epoch=int(fields.get(b"commit_epoch", 0)),
        owner=fields.get(b"owner", b"").decode() if active else "",
        active=active,
        create_ms=int(fields.get(b"create_ms", 0)),
        update_ms=int(fields.get(b"update_ms", 0)),
        used_ms=max(int(fields.get(name, 0)) for name in (b"used_ms", b"lease_until_ms", b"update_ms")),
    )


def _outcome(answer: Answer | Exception) -> CommitOutcome:
    if isinstance(answer, Exception):
        return CommitOutcome(CommitStatus.FAILED)
    status = CommitStatus(_status(answer))
    if status is CommitStatus.OK:
        return CommitOutcome(status, position=answer[1])
    if status is CommitStatus.FENCED:
        return CommitOutcome(status, cause=_cause(answer[1]))
    return CommitOutcome(status)


def _cause(stored: bytes) -> FenceCause:
    """Parse a fence cause. An unknown cause of a newer version counts as LEASE: the client should open again."""
    try:
        return FenceCause(stored.decode())
    except ValueError:
        return FenceCause.LEASE
