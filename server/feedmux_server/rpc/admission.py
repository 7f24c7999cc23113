"""Whether a call may run now: who makes it, and what the caller's quotas and the server's limits leave free."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.memory import Pool
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.rpc.caller import caller, identified
from feedmux_server.rpc.status import Context
from feedmux_server.sessions.outbox import MESSAGE_COPIES
from feedmux_server.tenants.model import Identity, Unauthenticated

BYTES_PER_REQUEST = 8 * 1024
"""Bytes of a request that count as one more request in the quota `requests_per_s`; …"""
CPU_S_PER_REQUEST = 0.005
"""… and the seconds of CPU for checking it that count the same."""
ITEMS_PER_REQUEST = 50
"""Slices of a plan, or subscriptions of a page, that count as one more request: each takes 25 to 40 µs of the event
loop, a call about 1 ms."""
REQUEST_COPIES = 3
"""How many copies of its pipeline a long call keeps, about: as it was sent, as it was checked, and for MongoDB."""


class Admission:
    """Admits or rejects calls, and counts those that run."""

    def __init__(
        self,
        auth: Authenticator,
        operator_auth: Authenticator,
        accounts: Accounts,
        requests: Pool,
        unsent: Pool,
        sessions_max: int,
    ) -> None:
        """`requests` is the memory for the pipelines of open streams, `unsent` that for what clients have not taken."""
        self.auth = auth
        self.draining = False
        self.sessions = 0
        """The number of running stream calls whose caller is known; `LiveSessions` has those with an open session."""
        self._operator_auth = operator_auth
        self._accounts = accounts
        self._requests = requests
        self._unsent = unsent
        self._sessions_max = sessions_max

    async def identify(self, context: Context) -> Identity:
        """Identify the caller. Waits if the tenant's calls come too fast. Raises UNAUTHENTICATED, and QUOTA_EXCEEDED if
        the calls come so fast that waiting does not help."""
        identity = await self.auth.identify(context)
        identified(identity)
        wait_s = self._accounts.of(identity.tenant).rates.request(self._accounts.clock())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        return identity

    async def check_operator(self, context: Context) -> None:
        """Raises UNAUTHENTICATED, or METHOD_DENIED for a tenant's credentials."""
        try:
            identified(await self._operator_auth.identify(context))
        except Unauthenticated:
            await self.identify(context)
            raise FeedmuxError(
                ErrorReason.METHOD_DENIED, "this method is for operators; a tenant's credentials do not permit it"
            ) from None

    def admit(self) -> None:
        """Raises DRAINING or QUOTA_EXCEEDED when the server accepts no further session."""
        self.check_draining()
        if self.sessions >= self._sessions_max:
            raise FeedmuxError(
                ErrorReason.QUOTA_EXCEEDED,
                f"the server already serves {self._sessions_max} sessions, which is its limit; try again",
                {"quota": "limits.sessions"},
                retry_after_s=5.0,
            )

    def check_draining(self) -> None:
        """Raises DRAINING."""
        if self.draining:
            raise FeedmuxError(ErrorReason.DRAINING, "the server is shutting down; reconnect", retry_after_s=1.0)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count the caller's stream, even before anything was received. Raises DRAINING, QUOTA_EXCEEDED."""
        self.admit()
        account = self._accounts.of(caller().tenant)
        account.open_session()
        self.sessions += 1
        try:
            yield
        finally:
            self.sessions -= 1
            account.close_session()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Count a call of the caller that is not a stream. Raises QUOTA_EXCEEDED."""
        account = self._accounts.of(caller().tenant)
        account.open_call()
        try:
            yield
        finally:
            account.close_call()

    @contextmanager
    def keeping(self, feed: FeedSpec) -> Iterator[None]:
        """Count the memory of a stream's request while the stream lasts. Raises QUOTA_EXCEEDED."""
        size = REQUEST_COPIES * (len(feed.pipeline) + len(feed.collation) + len(feed.comment))
        what = "the pipelines of open streams fill the memory reserved for them; send shorter pipelines, or fewer"
        with _holding(self._requests, size, "requests_memory", what):
            yield

    @contextmanager
    def answering(self, size: int) -> Iterator[None]:
        """Count the memory of an answer while it is written. Raises QUOTA_EXCEEDED."""
        what = "answers and events that the tenant's clients do not read fill the memory reserved for them; read them"
        with _holding(self._unsent, MESSAGE_COPIES * size, "unsent_memory", what, may_overdraw=True):
            yield

    def charge_bytes(self, size: int) -> None:
        """Charge the caller for a request of `size` bytes."""
        self._accounts.of(caller().tenant).rates.charge(size / BYTES_PER_REQUEST, self._accounts.clock())

    def charge_items(self, count: int) -> None:
        """Charge the caller for what a call returns or reads by the item, after the first item."""
        self._accounts.of(caller().tenant).rates.charge((count - 1) / ITEMS_PER_REQUEST, self._accounts.clock())

    def charge_list(self, count: int) -> None:
        """Charge the caller for a list of `count` names that MongoDB was asked for: a request, and its items."""
        self.charge_items(ITEMS_PER_REQUEST + max(1, count))

    def charge_cpu(self, tenant: str) -> Callable[[float], None]:
        """A function that charges a tenant for seconds of CPU used outside the event loop."""
        account = self._accounts.of(tenant)
        return lambda cpu_s: account.rates.charge(cpu_s / CPU_S_PER_REQUEST, self._accounts.clock())


@contextmanager
def _holding(pool: Pool, size: int, quota: str, what: str, *, may_overdraw: bool = False) -> Iterator[None]:
    """Count memory of the caller's tenant. Raises QUOTA_EXCEEDED, which says `what` is full."""
    tenant = caller().tenant
    if size > pool.room(tenant) and not (may_overdraw and pool.may_overdraw(tenant)):
        raise FeedmuxError(ErrorReason.QUOTA_EXCEEDED, what, {"quota": quota}, retry_after_s=5.0)
    held = pool.hold(tenant, size)
    try:
        yield
    finally:
        held.release()
