"""What the RPCs of one server share, and the live sessions among them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from feedmux.v1 import feed_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feed import FeedSpec, route_of
from feedmux_server.core.grant import Grants, granted
from feedmux_server.core.grant_stages import PolicyCache, apply_grants
from feedmux_server.core.position import PositionEncoder
from feedmux_server.core.position_keys import PositionKeys
from feedmux_server.core.stream_key import StreamKey, stream_key
from feedmux_server.fanout.hub import Hub
from feedmux_server.fanout.ranges import Ranges
from feedmux_server.fanout.request_checks import RequestChecks
from feedmux_server.fanout.session import Session
from feedmux_server.fanout.starting import Starts
from feedmux_server.rpc import convert
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.rpc.receiving import RequestLimits
from feedmux_server.rpc.status import Context
from feedmux_server.state.batcher import CommitBatcher
from feedmux_server.state.store import SubscriptionStore
from feedmux_server.supervision import Work
from feedmux_server.telemetry.audit import AuditEvent, AuditLog
from feedmux_server.tenants.model import Identity, Unauthenticated

log = logging.getLogger(__name__)

_caller: ContextVar[Identity | None] = ContextVar("caller", default=None)
"""Of the call whose task this is."""

BYTES_PER_REQUEST = 8 * 1024
"""Of a request count as one more of the quota `requests_per_s`; …"""
CPU_S_PER_REQUEST = 0.005
"""… and so do as many seconds of checking it."""
REQUEST_COPIES = 3
"""A call that lasts keeps its pipeline about so often: as it was sent, as it was checked, and for MongoDB."""
_SESSIONS_AT_ONCE = 256
UNSENT_S = 10.0
"""A session that is to end and whose client does not read is cut off after this long."""


@dataclass(slots=True)
class LiveSession:
    """A session that is being served, for the operator, for draining, and for ending it with its credential."""

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
        """Ends it with `error`, also where it waits for a client that does not read."""
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
    """Handed to every RPC."""

    hub: Hub
    store: SubscriptionStore
    batcher: CommitBatcher
    auth: Authenticator
    operator_auth: Authenticator
    sessions_max: int
    ranges: Ranges
    checks: RequestChecks
    audit: AuditLog
    stop: asyncio.Event
    """Set to drain, by a signal or by an operator."""
    drain_s: float
    position_keys: PositionKeys
    grants: Mapping[str, Grants] = field(default_factory=dict)
    """By tenant, for every tenant there is: one that is missing here sees nothing. Replaced by `change_grants`."""
    trusted: Set[str] = frozenset()
    """Tenants with `pipelines: any`. All others may send bounded pipelines only. Replaced by `change_grants`."""
    connection_age_s: float = 0.0
    """A session older than this is told to reconnect, so that new replicas get their share; 0: never."""
    unused_days: float = 0.0
    """Subscriptions that nobody has used for so long are deleted; 0: never."""
    request_limits: RequestLimits = field(default_factory=RequestLimits)
    policies: PolicyCache = field(default_factory=PolicyCache)
    live: dict[int, LiveSession] = field(default_factory=dict)
    draining: bool = False
    streams: int = 0
    """Calls of streams under way, from when their caller is known; `live` has those that are open."""
    _entered: int = 0
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    async def feed_of(self, feed: feed_pb2.Feed, tenant: str) -> FeedSpec:
        """Converts a tenant's feed and checks it by the rules for the tenant. Raises FeedmuxError.

        What the tenant may not see is rejected before the feed's pipeline costs anything.
        """
        bounded = tenant not in self.trusted
        spec = convert.feed_spec(feed, bounded=bounded)
        grants = self.grants_of(tenant)
        if grants is not None:
            granted(grants, spec.scope)
        self.hub.source(spec.scope.source)
        account = self.hub.accounts.of(tenant)
        parts = convert.feed_parts(feed, bounded=bounded)
        if not parts.is_json:
            account.check_pipeline(len(parts.pipeline))
        return replace(spec, pipeline=await self.checks.check(parts, tenant, self.charge_cpu(tenant)))

    def charge_cpu(self, tenant: str) -> Callable[[float], None]:
        """Charges a tenant for CPU beside the event loop, in seconds."""
        accounts = self.hub.accounts
        account = accounts.of(tenant)
        return lambda cpu_s: account.charge(cpu_s / CPU_S_PER_REQUEST, accounts.clock())

    def charge_bytes(self, size: int) -> None:
        """Charges the caller for a request of so many bytes."""
        accounts = self.hub.accounts
        accounts.of(self.caller().tenant).charge(size / BYTES_PER_REQUEST, accounts.clock())

    def key_of(self, spec: FeedSpec, tenant: str) -> StreamKey:
        """The stream key of a tenant's feed, with its policy. Raises NAMESPACE_DENIED, OPTION_REFUSED, QUOTA_EXCEEDED.

        The grants come first, so that a source is not known to who may not see it.
        """
        asked = apply_grants(self.grants_of(tenant), spec, self.policies)
        self.hub.source(spec.scope.source)
        self.hub.accounts.of(tenant).check_pipeline(len(spec.pipeline))
        return self.hub.one_of(stream_key(*asked))

    def grants_of(self, tenant: str) -> Grants:
        return self.grants.get(tenant, ())

    async def change_grants(self, grants: Mapping[str, Grants], trusted: Set[str] | None = None) -> int:
        """Takes other grants (and other `trusted` tenants, unless None), and ends the sessions that these would not
        open, or on another stream; how many.

        They hold for calls from the first moment on: a tenant that is new is never without grants. A session that is
        being opened meanwhile is checked again when it enters (`check_granted`).
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
        """Raises what `change_grants` would end the session with."""
        refusal = self._refusal(live)
        if refusal is not None:
            raise refusal

    def check_holds(self, identity: Identity, feed: FeedSpec, key: StreamKey) -> None:
        """For calls that are no sessions: raises what would end a session whose credential or grants are gone."""
        if not self.auth.holds(identity):
            raise Unauthenticated("the credential no longer holds")
        refusal = self._refusal_of(feed, identity.tenant, key)
        if refusal is not None:
            raise refusal

    def _refusal(self, live: LiveSession) -> FeedmuxError | None:
        return self._refusal_of(live.feed, live.tenant, live.key)

    def _refusal_of(self, feed: FeedSpec, tenant: str, key: StreamKey) -> FeedmuxError | None:
        if not feed.bounded and feed.pipeline and tenant not in self.trusted:
            # Not checked here, because a check may take long: the reconnect does it.
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
        """Who calls. Waits when the tenant's calls come too fast. Raises UNAUTHENTICATED, and QUOTA_EXCEEDED when they
        come faster than waiting helps."""
        identity = await self.auth.identify(context)
        _caller.set(identity)
        accounts = self.hub.accounts
        wait_s = accounts.of(identity.tenant).request(accounts.clock())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        return identity

    def caller(self) -> Identity:
        """Who calls, in the task of a call that `identify` has accepted."""
        identity = _caller.get()
        assert identity is not None, "the call was not authenticated"
        return identity

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Counts the caller's stream, also while nothing was received yet. Raises DRAINING, QUOTA_EXCEEDED."""
        self.admit()
        account = self.hub.accounts.of(self.caller().tenant)
        account.open_stream()
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
            account.close_stream()

    @contextmanager
    def keeping(self, feed: FeedSpec) -> Iterator[None]:
        """Counts what a stream's request holds while it lasts. Raises QUOTA_EXCEEDED."""
        tenant, pool = self.caller().tenant, self.hub.memory.requests
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
        """Counts the caller's call that is no stream. Raises QUOTA_EXCEEDED."""
        account = self.hub.accounts.of(self.caller().tenant)
        account.open_call()
        try:
            yield
        finally:
            account.close_call()

    def did(
        self, event: AuditEvent, method: str, context: Context, *, subscription: str = "", reason: str = ""
    ) -> None:
        """For the audit log: the caller of this call did something that others may ask about."""
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
        """For the audit log and the metrics: a call ended with `error`."""
        if error.reason is ErrorReason.QUOTA_EXCEEDED:
            identity = _caller.get()
            self.hub.observer.refused(identity.tenant if identity else "", error.metadata.get("quota", ""))
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

    def starts(self, key: StreamKey, tenant: str) -> Starts:
        return Starts(self.hub.source(key.spec.scope.source), key, tenant, self.position_keys)

    def positions(self, key: StreamKey, tenant: str) -> PositionEncoder:
        return self.starts(key, tenant).encoder()

    def routing_key(self, key: StreamKey) -> str:
        """Value of `x-feedmux-route`: subscribers of one scope hash to one replica."""
        return route_of(key.spec.scope)

    def admit(self) -> None:
        """Raises DRAINING or QUOTA_EXCEEDED when no further session is taken."""
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
        """The number under which it is listed, to be given to `leave`."""
        self._entered += 1
        self.live[self._entered] = live
        return self._entered

    def leave(self, number: int) -> None:
        del self.live[number]
        self._left.set()

    def begin_drain(self, deadline_s: float) -> None:
        """No session is taken any more, and those that are open have so long to acknowledge."""
        self.draining = True
        for live in self.sessions():
            live.session.drain(deadline_s)

    async def all_left(self, timeout_s: float) -> None:
        """Waits until no session is served any more, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.live:
                    self._left.clear()
                    await self._left.wait()

    def spawn(self, work: Callable[[], Work], kind: str) -> asyncio.Task[None]:
        """Finishes something for a session that is gone. Redis being away then is no reason for the process to end."""

        async def run() -> None:
            try:
                await work()
            except FeedmuxError as error:
                log.warning("could not finish the work of an ended session", extra={"reason": error.reason.value})

        return self.hub.tasks.run_once(kind, run)

    async def end_revoked(self) -> None:
        """Ends the sessions whose credentials would no longer be accepted."""
        async for live in self._in_turns():
            if not self.auth.holds(live.identity):
                live.end(Unauthenticated("credential expired or revoked while streaming"))

    def sessions(self) -> Iterator[LiveSession]:
        return iter(list(self.live.values()))

    async def _in_turns(self) -> AsyncIterator[LiveSession]:
        """All sessions that are still open when it comes to them; others get turns at the event loop in between."""
        for count, (number, live) in enumerate(list(self.live.items()), 1):
            if number in self.live:
                yield live
            if count % _SESSIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
