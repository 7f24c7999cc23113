"""What tenants may read: their grants, and the pipelines that they may send."""

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import replace

from feedmux.v1 import feed_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.grants.grant import Grants, granted
from feedmux_server.core.grants.stages import PolicyCache, apply_grants, without_database
from feedmux_server.rpc import convert
from feedmux_server.rpc.admission import Admission
from feedmux_server.streams.manager import StreamManager
from feedmux_server.workers.request_checks import RequestChecks

log = logging.getLogger(__name__)

Rights = tuple[Grants, bool]
"""What a tenant may read, and whether it may use MongoDB's whole language for that."""


class Access:
    """Decides what a call may read."""

    def __init__(
        self,
        manager: StreamManager,
        checks: RequestChecks,
        admission: Admission,
        grants: Mapping[str, Grants],
        trusted: Set[str],
        hidden_database: Callable[[Scope], str] = lambda scope: "",
    ) -> None:
        """`hidden_database` names the database of a scope that nobody may watch, empty for none."""
        self.grants = grants
        """The grants of each tenant, by its name: a tenant missing here sees nothing. Replaced by
        `LiveSessions.change_grants`."""
        self.trusted = trusted
        """Tenants with `pipelines: any`. All others may send bounded pipelines only. Replaced in the same way."""
        self.policies = PolicyCache()
        self._manager = manager
        self._checks = checks
        self._admission = admission
        self.hidden_database = hidden_database

    def grants_of(self, tenant: str) -> Grants:
        return self.grants.get(tenant, ())

    def rights_of(self, tenant: str) -> Rights:
        return self.grants_of(tenant), tenant in self.trusted

    async def feed_of(self, feed: feed_pb2.Feed, tenant: str) -> FeedSpec:
        """Convert a tenant's feed and check it by the rules for the tenant. Raises FeedmuxError.

        A feed that the tenant may not see is rejected before its pipeline costs anything.
        """
        bounded = tenant not in self.trusted
        spec = convert.feed_spec(feed, bounded=bounded)
        grants = self.grants_of(tenant)
        if grants is not None:
            granted(grants, spec.scope)
        self._manager.source(spec.scope.source)
        account = self._manager.accounts.of(tenant)
        parts = convert.feed_parts(feed, bounded=bounded)
        if not parts.is_json:
            account.check_pipeline(len(parts.pipeline))
        return replace(spec, pipeline=await self._checks.check(parts, tenant, self._admission.charge_cpu(tenant)))

    def key_of(self, spec: FeedSpec, tenant: str) -> StreamKey:
        """The stream key of a tenant's feed, with its policy. Raises NAMESPACE_DENIED, OPTION_REFUSED, QUOTA_EXCEEDED.

        The grants are checked first, so that a tenant learns nothing about a source that it may not see.
        """
        asked = without_database(
            apply_grants(self.grants_of(tenant), spec, self.policies), self.hidden_database(spec.scope)
        )
        self._manager.source(spec.scope.source)
        self._manager.accounts.of(tenant).check_pipeline(len(spec.pipeline))
        return self._manager.one_of(stream_key(*asked))

    def refusal(self, feed: FeedSpec, tenant: str, key: StreamKey) -> FeedmuxError | None:
        """Why the tenant may no longer read `feed` from the stream `key`, if so: also if that cannot be found out."""
        if not feed.bounded and feed.pipeline and tenant not in self.trusted:
            # The pipeline is not checked here, because a check may take long: the reconnect checks it.
            return FeedmuxError(
                ErrorReason.GRANTS_CHANGED,
                "the tenant may now send bounded pipelines only (docs/pipelines.md); reconnect to check this one",
            )
        try:
            if self.key_of(feed, tenant) == key:
                return None
        except FeedmuxError as error:
            return error
        except Exception as error:  # noqa: BLE001 the error's text may quote the grants
            log.error("the grants of tenant %s cannot be applied: %s", tenant, type(error).__name__)
        return FeedmuxError(
            ErrorReason.GRANTS_CHANGED, "the tenant's grants have changed; reconnect to continue under the new grants"
        )
