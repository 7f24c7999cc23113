"""The parts that the RPCs of one server share, also with its background work."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.position import PositionEncoder, is_of_scope, scope_fingerprint
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.ranges.cache import RangeCache
from feedmux_server.rpc.access import Access
from feedmux_server.rpc.admission import Admission
from feedmux_server.rpc.call_audit import CallAudit
from feedmux_server.rpc.convert import stored_content, stored_scope
from feedmux_server.rpc.lease_releases import LeaseReleases
from feedmux_server.rpc.live_sessions import LiveSessions
from feedmux_server.rpc.receiving import RequestLimits
from feedmux_server.sessions.groups import Groups
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.store.committer import Committer
from feedmux_server.store.model import StoredSubscription
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.resolve_start import StartResolver
from feedmux_server.supervision import Work
from feedmux_server.workers.request_checks import RequestChecks

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    requests: RequestLimits
    drain_s: float
    """How long clients have for their last acks when the server shuts down."""
    connection_age_s: float
    """A session older than this is asked to reconnect, so that new replicas get their share; 0: never."""
    unused_days: float
    """Subscriptions that nobody has used for this time are deleted; 0: never."""


@dataclass(frozen=True, slots=True)
class Service:
    """A record: each RPC keeps all of it and uses some of its parts, as do two of the `jobs`."""

    manager: StreamManager
    store: SubscriptionStore
    committer: Committer
    ranges: RangeCache
    checks: RequestChecks
    position_keys: PositionKeys
    admission: Admission
    access: Access
    sessions: LiveSessions
    groups: Groups
    letters: DeadLetters | None
    """None without `dead_letters` in the configuration."""
    releases: LeaseReleases
    audit: CallAudit
    limits: ServiceLimits
    stop: asyncio.Event
    """Set to drain, by a signal or by an operator."""

    def starts(self, key: StreamKey, tenant: str) -> StartResolver:
        source = self.manager.source(key.spec.scope.source)
        return StartResolver(source, key, tenant, self.position_keys, self.admission.charge_list)

    def positions(self, key: StreamKey, tenant: str) -> PositionEncoder:
        return self.starts(key, tenant).encoder()

    def check_origin(self, stored: StoredSubscription, tenant: str) -> None:
        """Check that a subscription is of the deployment of MongoDB that its source is now. Raises POSITION_FOREIGN for
        that of another deployment of feedmux with the same keys, and SOURCE_UNAVAILABLE."""
        scope = stored_scope(stored_content(stored.definition).feed)
        source_id = self.manager.source(scope.source).source_id
        if not is_of_scope(stored.position, scope_fingerprint(tenant, source_id, scope.namespace)):
            raise FeedmuxError(
                ErrorReason.POSITION_FOREIGN,
                f"the position of subscription {stored.name!r} is of another replica set or cluster than that of source"
                f" {scope.source!r}: either another deployment of feedmux uses the same keys in Redis (set"
                " redis.key_prefix), or MongoDB was recreated: then move the subscription to a time with"
                " SeekSubscription, or delete it (docs/redis.md)",
            )

    def begin_drain(self, deadline_s: float) -> None:
        """Accept no more sessions, and give the open sessions `deadline_s` to acknowledge."""
        self.admission.draining = True
        self.groups.drain()
        self.sessions.drain(deadline_s)

    def spawn(self, work: Callable[[], Work], kind: str) -> asyncio.Task[None]:
        """Run work for a session that has ended. The process does not end if Redis is unavailable then."""

        async def run() -> None:
            try:
                await work()
            except FeedmuxError as error:
                log.warning("could not finish the work of an ended session", extra={"reason": error.reason.value})

        return self.manager.tasks.run_once(kind, run)
