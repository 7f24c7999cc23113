"""Leases of subscriptions, and the commits of the sessions that hold them.

Invariant: every change of a subscription's hash is one script on one key, so it is atomic, even in a cluster.
Neighbours: `rpc` opens and releases, `committer` commits, renews and restores.
"""

import logging
import secrets
from collections.abc import Sequence

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.lease import LeaseRules
from feedmux_server.store.answers import digits, outcome, status
from feedmux_server.store.commands import Argument
from feedmux_server.store.model import CommitOutcome, CommitRequest, Lease, RestoreRequest, StoredSubscription
from feedmux_server.store.name_index import NameIndex
from feedmux_server.store.scripts import Answer, ScriptCall
from feedmux_server.store.store_scripts import StoreScripts
from feedmux_server.telemetry.observer import Observer

_log = logging.getLogger(__name__)


class LeaseStore:
    """Every method raises STATE_UNAVAILABLE when Redis does not answer."""

    def __init__(self, scripts: StoreScripts, names: NameIndex, rules: LeaseRules, observer: Observer) -> None:
        self.rules = rules
        self.observer = observer
        self._scripts = scripts
        self._names = names

    async def open(
        self, tenant: str, name: str, *, instance_id: str, takeover: bool = False
    ) -> tuple[StoredSubscription, Lease]:
        """Begin a session with the next epoch; the returned values have that epoch. Does not open a damaged
        subscription.

        An empty `instance_id` never counts as the same instance.
        Raises SUBSCRIPTION_NOT_FOUND, and SUBSCRIPTION_BUSY (metadata `owner`) while another instance holds it.
        """
        nonce = secrets.token_hex(8)
        arguments = (instance_id, nonce, int(takeover), self.rules.lease_ms)
        answer, _ = await self._scripts.in_time(self._scripts.unreplicated, "open", tenant, name, *arguments)
        if status(answer) == "BUSY":
            raise FeedmuxError(
                ErrorReason.SUBSCRIPTION_BUSY,
                f"Another client holds subscription {name!r}: wait until that client ends, or open with takeover",
                {"owner": answer[1].decode(errors="replace")},
            )
        stored = await self._opened(tenant, name, answer, nonce)
        try:
            await self._names.add(tenant, name)
        except FeedmuxError as error:  # a call that failed here would leave a lease that nobody holds
            _log.warning(
                "a subscription may be missing from lists until it is opened again: tenant=%s subscription=%s: %s",
                tenant,
                name,
                error.message,
            )
        taken_over, follows_lost = map(bool, answer[3:5])
        return stored, Lease(tenant, name, stored.epoch, nonce, instance_id, taken_over, follows_lost)

    async def _opened(self, tenant: str, name: str, answer: Answer, nonce: str) -> StoredSubscription:
        """The subscription just opened. Of one that the script took for whole and that cannot be read, nobody keeps the
        lease."""
        try:
            return self._scripts.found(name, answer)
        except FeedmuxError:
            if status(answer) == "OK":
                epoch = dict(zip(answer[2][::2], answer[2][1::2], strict=True))[b"epoch"]
                await self._scripts.run("release", tenant, name, epoch, nonce, "", answer[4], "")
            raise

    async def release(self, lease: Lease, delivered_time: int = 0) -> None:
        """End the lease, if it is still the current one. The next one follows a lost holder if this one does.
        `delivered_time`: 0 if nothing was delivered under it."""
        await self.release_unless_lost(lease, delivered_time, b"")

    async def release_unless_lost(self, lease: Lease, delivered_time: int, position: bytes) -> bool:
        """As `release`, but do nothing if Redis has lost the lease, or the position that it has had by its last answer.
        Returns whether it has lost neither."""
        delivered = digits(delivered_time) if delivered_time else ""
        arguments = (lease.epoch, lease.nonce, delivered, int(lease.follows_lost), position)
        return status(await self._scripts.run("release", lease.tenant, lease.name, *arguments)) != "LOST"

    async def commit_many(self, requests: Sequence[CommitRequest]) -> Sequence[CommitOutcome]:
        """Commit or renew each lease in one round trip, and return the outcome of each."""
        answers = await self._scripts.runner.run_many([self._commit_call(request) for request in requests])
        return [outcome(answer) for answer in answers]

    async def restore_many(self, requests: Sequence[RestoreRequest]) -> None:
        """Restore what Redis lost, unless Redis has something at least as new. The next commit shows which won."""
        await self._scripts.runner.run_many([self._restore_call(request) for request in requests])
        await self._names.add_many([(each.lease.tenant, each.lease.name) for each in requests])

    def _commit_call(self, request: CommitRequest) -> ScriptCall:
        lease, place = request.lease, request.place
        delivered = digits(request.delivered_time)
        members = "" if request.members is None else request.members
        arguments: tuple[Argument, ...] = (lease.epoch, lease.nonce, self.rules.lease_ms, delivered, members)
        if place is not None:
            arguments += (place.position, digits(place.cluster_time), place.order)
            arguments += (request.answered if place.moves_back else "",)
        return ScriptCall("commit", self._scripts.key(lease.tenant, lease.name), arguments)

    def _restore_call(self, request: RestoreRequest) -> ScriptCall:
        lease, stored = request.lease, request.stored
        place = (stored.position, digits(stored.cluster_time), stored.order)
        owner = (lease.epoch, stored.seek_epoch, lease.nonce, lease.instance_id, self.rules.lease_ms)
        times = (stored.create_ms, stored.update_ms)
        arguments = (stored.definition, stored.etag, *place, *owner, *times)
        return ScriptCall("restore", self._scripts.key(lease.tenant, lease.name), arguments)
