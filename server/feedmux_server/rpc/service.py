"""The state that the RPCs of one server share, including the live sessions."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from feedmux.v1 import feed_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, route_of
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.grants.grant import Grants, granted
from feedmux_server.core.grants.stages import PolicyCache, apply_grants
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.ranges.cache import RangeCache
from feedmux_server.rpc import convert
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.rpc.receiving import RequestLimits
from feedmux_server.rpc.status import Context
from feedmux_server.sessions.session import Session
from feedmux_server.store.committer import Committer
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.resolve_start import StartResolver
from feedmux_server.supervision import Work
from feedmux_server.telemetry.audit import AuditEvent, AuditLog
from feedmux_server.tenants.model import Identity, Unauthenticated
from feedmux_server.workers.request_checks import RequestChecks

log = logging.getLogger(__name__)

_caller: ContextVar[Identity | None] = ContextVar("caller", default=None)
"""The caller of the call that runs in this task."""

BYTES_PER_REQUEST = 8 * 1024
"""Bytes of a request that count as one more request in the quota `requests_per_s`; …"""
CPU_S_PER_REQUEST = 0.005
"""… and the seconds of CPU for checking it that count the same."""
REQUEST_COPIES = 3
"""How many copies of its pipeline a long call keeps, about: as it was sent, as it was checked, and for MongoDB."""
_SESSIONS_AT_ONCE = 256
UNSENT_S = 10.0
"""An ending session whose client does not read is cut off after this time."""


@dataclass(slots=True)
class LiveSession:
    """A session that is being served. Listed for the operator, for a drain, and to end it with its credential."""

    session: Session
    feed: FeedSpec
    """As the user defined it."""
    key: StreamKey
    identity: Identity
    subscription: str
    instance_id: str
    peer: str
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    ending: bool = False
    cut_off: bool = False

    @property
    def tenant(self) -> str:
        return self.identity.tenant

    def end(self, error: FeedmuxError) -> None:
        """End the session with `error`, even if it waits for a client that does not read."""
        self.session.fail(error)
        if not self.ending:
            self.ending = True
            asyncio.get_running_loop().call_later(UNSENT_S, self._cut_off)

    def _cut_off(self) -> None:
        if self.task is not None and not self.task.done():
            self.cut_off = True
            self.task.cancel()


@dataclass(slots=True)
class Service:
    """The shared state that every RPC gets."""

    manager: StreamManager
    store: SubscriptionStore
    batcher: Committer
    auth: Authenticator
    operator_auth: Authenticator
    sessions_max: int
    ranges: RangeCache
    checks: RequestChecks
    audit: AuditLog
    stop: asyncio.Event
    """Set to drain, by a signal or by an operator."""
    drain_s: float
    position_keys: PositionKeys
    grants: Mapping[str, Grants] = field(default_factory=dict)
    """The grants of each tenant, by its name: a tenant missing here sees nothing. Replaced by `change_grants`."""
    trusted: Set[str] = frozenset()
    """Tenants with `pipelines: any`. All others may send bounded pipelines only. Replaced by `change_grants`."""
    connection_age_s: float = 0.0
    """A session older than this is asked to reconnect, so that new replicas get their share; 0: never."""
    unused_days: float = 0.0
    """Subscriptions that nobody has used for this time are deleted; 0: never."""
    request_limits: RequestLimits = field(default_factory=RequestLimits)
    policies: PolicyCache = field(default_factory=PolicyCache)
    live: dict[int, LiveSession] = field(default_factory=dict)
    draining: bool = False
    streams: int = 0
    """The number of running stream calls whose caller is known; `live` has those with an open session."""
    _entered: int = 0
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    async def feed_of(self, feed: feed_pb2.Feed, tenant: str) -> FeedSpec:
        """Convert a tenant's feed and check it by the rules for the tenant. Raises FeedmuxError.

        A feed that the tenant may not see is rejected before its pipeline costs anything.
        """
        bounded = tenant not in self.trusted
        spec = convert.feed_spec(feed, bounded=bounded)
        grants = self.grants_of(tenant)
        if grants is not None:
            granted(grants, spec.scope)
        self.manager.source(spec.scope.source)
        account = self.manager.accounts.of(tenant)
        parts = convert.feed_parts(feed, bounded=bounded)
        if not parts.is_json:
            account.check_pipeline(len(parts.pipeline))
        return replace(spec, pipeline=await self.checks.check(parts, tenant, self.charge_cpu(tenant)))

    def charge_cpu(self, tenant: str) -> Callable[[float], None]:
        """A function that charges a tenant for seconds of CPU used outside the event loop."""
        accounts = self.manager.accounts
        account = accounts.of(tenant)
        return lambda cpu_s: account.charge(cpu_s / CPU_S_PER_REQUEST, accounts.clock())

    def charge_bytes(self, size: int) -> None:
        """Charge the caller for a request of `size` bytes."""
        accounts = self.manager.accounts
        accounts.of(self.caller().tenant).charge(size / BYTES_PER_REQUEST, accounts.clock())

    def key_of(self, spec: FeedSpec, tenant: str) -> StreamKey:
        """The stream key of a tenant's feed, with its policy. Raises NAMESPACE_DENIED, OPTION_REFUSED, QUOTA_EXCEEDED.

        The grants are checked first, so that a tenant learns nothing about a source that it may not see.
        """
        asked = apply_grants(self.grants_of(tenant), spec, self.policies)
        self.manager.source(spec.scope.source)
        self.manager.accounts.of(tenant).check_pipeline(len(spec.pipeline))
        return self.manager.one_of(stream_key(*asked))

    def grants_of(self, tenant: str) -> Grants:
        return self.grants.get(tenant, ())

    async def change_grants(self, grants: Mapping[str, Grants], trusted: Set[str] | None = None) -> int:
        """Replace the grants (and the `trusted` tenants, unless None), and end the sessions that the new ones would not
        open, or would open on another stream. Returns how many sessions ended.

        New grants apply to calls at once, so a new tenant is never without grants. A session that is being opened
        meanwhile is checked again when it enters (`check_granted`).
        """
        before, trusted_before = self.grants, self.trusted
        self.grants = grants
        self.trusted = self.trusted if trusted is None else trusted
        await self.end_revoked()
        distrusted = trusted_before - self.trusted
        ended, same = 0, dict[str, bool]()
        async for live in self._in_turns():
            tenant = live.tenant
            if tenant not in same:
                same[tenant] = tenant not in distrusted and before.get(tenant, ()) == self.grants_of(tenant)
            if same[tenant]:
                continue
            refusal = self._refusal(live)
            if refusal is not None:
                live.end(refusal)
                ended += 1
        return ended

    def check_granted(self, live: LiveSession) -> None:
        """Raise the error with which `change_grants` would end the session, if any."""
        refusal = self._refusal(live)
        if refusal is not None:
            raise refusal

    def check_holds(self, identity: Identity, feed: FeedSpec, key: StreamKey) -> None:
        """Raise the error that would end a session whose credential or grants are gone: for calls without a session."""
        if not self.auth.holds(identity):
            raise Unauthenticated("the credential no longer holds")
        refusal = self._refusal_of(feed, identity.tenant, key)
        if refusal is not None:
            raise refusal

    def _refusal(self, live: LiveSession) -> FeedmuxError | None:
        return self._refusal_of(live.feed, live.tenant, live.key)

    def _refusal_of(self, feed: FeedSpec, tenant: str, key: StreamKey) -> FeedmuxError | None:
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
        return FeedmuxError(
            ErrorReason.GRANTS_CHANGED, "the tenant's grants have changed; reconnect to continue under the new grants"
        )

    async def identify(self, context: Context) -> Identity:
        """Identify the caller. Waits if the tenant's calls come too fast. Raises UNAUTHENTICATED, and QUOTA_EXCEEDED if
        the calls come so fast that waiting does not help."""
        identity = await self.auth.identify(context)
        _caller.set(identity)
        accounts = self.manager.accounts
        wait_s = accounts.of(identity.tenant).request(accounts.clock())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        return identity

    def caller(self) -> Identity:
        """The caller, in the task of a call that `identify` has accepted."""
        identity = _caller.get()
        assert identity is not None, "the call was not authenticated"
        return identity

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count the caller's stream, even before anything was received. Raises DRAINING, QUOTA_EXCEEDED."""
        self.admit()
        account = self.manager.accounts.of(self.caller().tenant)
        account.open_stream()
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
            account.close_stream()

    @contextmanager
    def keeping(self, feed: FeedSpec) -> Iterator[None]:
        """Count the memory of a stream's request while the stream lasts. Raises QUOTA_EXCEEDED."""
        tenant, pool = self.caller().tenant, self.manager.memory.requests
        size = REQUEST_COPIES * (len(feed.pipeline) + len(feed.collation) + len(feed.comment))
        if size > pool.room(tenant):
            raise FeedmuxError(
                ErrorReason.QUOTA_EXCEEDED,
                "the pipelines of open streams fill the memory reserved for them; send shorter pipelines, or fewer",
                {"quota": "requests_memory"},
                retry_after_s=5.0,
            )
        held = pool.hold(tenant, size)
        try:
            yield
        finally:
            held.release()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Count a call of the caller that is not a stream. Raises QUOTA_EXCEEDED."""
        account = self.manager.accounts.of(self.caller().tenant)
        account.open_call()
        try:
            yield
        finally:
            account.close_call()

    def did(
        self, event: AuditEvent, method: str, context: Context, *, subscription: str = "", reason: str = ""
    ) -> None:
        """Record in the audit log what the caller of this call did."""
        identity = _caller.get()
        self.audit.record(
            event,
            tenant=identity.tenant if identity else "",
            peer=context.peer() or "",
            method=method,
            reason=reason,
            subscription=subscription,
            credential=self.auth.name_of(identity) if identity else "",
        )

    def refused(self, method: str, context: Context, error: FeedmuxError) -> None:
        """Record in the audit log and the metrics that a call ended with `error`."""
        if error.reason is ErrorReason.QUOTA_EXCEEDED:
            identity = _caller.get()
            self.manager.observer.refused(identity.tenant if identity else "", error.metadata.get("quota", ""))
        if isinstance(error, Unauthenticated):
            known = _caller.get() is not None
            event = AuditEvent.SESSION_REVOKED if known else AuditEvent.AUTHENTICATION_FAILED
            self.did(event, method, context, reason=error.cause)
        elif error.reason in (ErrorReason.NAMESPACE_DENIED, ErrorReason.METHOD_DENIED):
            self.did(AuditEvent.REQUEST_DENIED, method, context, reason=error.reason.value)

    async def check_operator(self, context: Context) -> None:
        """Raises UNAUTHENTICATED, or METHOD_DENIED for a tenant's credentials."""
        try:
            _caller.set(await self.operator_auth.identify(context))
        except Unauthenticated:
            await self.identify(context)
            raise FeedmuxError(
                ErrorReason.METHOD_DENIED, "this method is for operators; a tenant's credentials do not permit it"
            ) from None

    def starts(self, key: StreamKey, tenant: str) -> StartResolver:
        return StartResolver(self.manager.source(key.spec.scope.source), key, tenant, self.position_keys)

    def positions(self, key: StreamKey, tenant: str) -> PositionEncoder:
        return self.starts(key, tenant).encoder()

    def routing_key(self, key: StreamKey) -> str:
        """Value of `x-feedmux-route`, by which subscribers of one scope hash to one replica."""
        return route_of(key.spec.scope)

    def admit(self) -> None:
        """Raises DRAINING or QUOTA_EXCEEDED when the server accepts no further session."""
        self.check_draining()
        if self.streams >= self.sessions_max:
            raise FeedmuxError(
                ErrorReason.QUOTA_EXCEEDED,
                f"the server already serves {self.sessions_max} sessions, which is its limit; try again",
                {"quota": "sessions"},
                retry_after_s=5.0,
            )

    def check_draining(self) -> None:
        """Raises DRAINING."""
        if self.draining:
            raise FeedmuxError(ErrorReason.DRAINING, "the server is shutting down; reconnect", retry_after_s=1.0)

    def enter(self, live: LiveSession) -> int:
        """List a session; return its number for `leave`."""
        self._entered += 1
        self.live[self._entered] = live
        return self._entered

    def leave(self, number: int) -> None:
        del self.live[number]
        self._left.set()

    def begin_drain(self, deadline_s: float) -> None:
        """Accept no more sessions, and give the open sessions `deadline_s` to acknowledge."""
        self.draining = True
        for live in self.sessions():
            live.session.drain(deadline_s)

    async def all_left(self, timeout_s: float) -> None:
        """Wait until no session is served any more, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.live:
                    self._left.clear()
                    await self._left.wait()

    def spawn(self, work: Callable[[], Work], kind: str) -> asyncio.Task[None]:
        """Run work for a session that has ended. The process does not end if Redis is unavailable then."""

        async def run() -> None:
            try:
                await work()
            except FeedmuxError as error:
                log.warning("could not finish the work of an ended session", extra={"reason": error.reason.value})

        return self.manager.tasks.run_once(kind, run)

    async def end_revoked(self) -> None:
        """End the sessions whose credentials would no longer be accepted."""
        async for live in self._in_turns():
            if not self.auth.holds(live.identity):
                live.end(Unauthenticated("credential expired or revoked while streaming"))

    def sessions(self) -> Iterator[LiveSession]:
        return iter(list(self.live.values()))

    async def _in_turns(self) -> AsyncIterator[LiveSession]:
        """All sessions that are still open when their turn comes; other tasks get turns at the loop in between."""
        for count, (number, live) in enumerate(list(self.live.items()), 1):
            if number in self.live:
                yield live
            if count % _SESSIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
