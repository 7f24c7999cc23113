"""The sessions that are being served: for the operator, for a drain, and to end those that lost their credential or
grants."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.grants.grant import Grants
from feedmux_server.rpc.access import Access, Rights
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.sessions.session import Session
from feedmux_server.tenants.model import Identity, Unauthenticated

log = logging.getLogger(__name__)

_SESSIONS_AT_ONCE = 256
UNSENT_S = 10.0
"""An ending session whose client does not read is cut off after this time."""


@dataclass(slots=True)
class LiveSession:
    """A session that is being served."""

    session: Session
    feed: FeedSpec
    """As the user defined it."""
    key: StreamKey
    identity: Identity
    subscription: str
    instance_id: str
    peer: str
    rights: Rights | None = None
    """The tenant's rights under which the session was last found to be allowed."""
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


class LiveSessions:
    """The running sessions of one process."""

    def __init__(self, access: Access, auth: Authenticator) -> None:
        self._access = access
        self._auth = auth
        self._live: dict[int, LiveSession] = {}
        self._readers: dict[tuple[str, str], LiveSession] = {}
        """The newest session of each subscription, by tenant and name."""
        self._entered = 0
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._live.values()))

    def enter(self, live: LiveSession) -> int:
        """List a session that was checked (`check_granted`); return its number for `leave`."""
        self._entered += 1
        live.rights = self._access.rights_of(live.tenant)
        self._live[self._entered] = live
        if live.subscription:
            self._readers[live.tenant, live.subscription] = live
        return self._entered

    def leave(self, number: int) -> None:
        live = self._live.pop(number)
        name = live.tenant, live.subscription
        if self._readers.get(name) is live:
            del self._readers[name]
        self._left.set()

    def reader_of(self, tenant: str, subscription: str) -> LiveSession | None:
        """The session of this process that reads a subscription; of a group, the newest member."""
        return self._readers.get((tenant, subscription))

    def drain(self, deadline_s: float) -> None:
        """Give the sessions `deadline_s` to acknowledge."""
        for live in self:
            live.session.drain(deadline_s)

    async def all_left(self, timeout_s: float) -> None:
        """Wait until no session is served any more, or the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._live:
                    self._left.clear()
                    await self._left.wait()

    async def change_grants(self, grants: Mapping[str, Grants], trusted: Set[str] | None = None) -> int:
        """Replace the grants (and the `trusted` tenants, unless None), and end the sessions that the new ones would not
        open, or would open on another stream. Returns how many sessions ended.

        New grants apply to calls at once, so a new tenant is never without grants. A session that is being opened
        meanwhile is checked again when it enters (`check_granted`). What counts is what a session was checked under,
        not what this change changes: the change before it may have failed.
        """
        access = self._access
        before = access.grants
        # Equal grants stay the same object, so that to compare those of thousands of sessions takes no time.
        access.grants = {
            name: before[name] if name in before and before[name] == each else each for name, each in grants.items()
        }
        access.trusted = access.trusted if trusted is None else trusted
        await self.end_revoked()
        ended = 0
        async for live in self.in_turns():
            rights = access.rights_of(live.tenant)
            if live.rights == rights:
                continue
            refusal = access.refusal(live.feed, live.tenant, live.key)
            if refusal is None:
                live.rights = rights
            else:
                live.end(refusal)
                ended += 1
        return ended

    def check_granted(self, tenant: str, feed: FeedSpec, key: StreamKey) -> None:
        """Raise the error with which `change_grants` would end a session of the feed, if any."""
        refusal = self._access.refusal(feed, tenant, key)
        if refusal is not None:
            raise refusal

    def check_holds(self, identity: Identity, feed: FeedSpec, key: StreamKey) -> None:
        """Raise the error that would end a session whose credential or grants are gone: for calls without a session."""
        if not self._holds(identity):
            raise Unauthenticated("the credential no longer holds")
        self.check_granted(identity.tenant, feed, key)

    async def end_revoked(self) -> None:
        """End the sessions whose credentials would no longer be accepted."""
        async for live in self.in_turns():
            if not self._holds(live.identity):
                live.end(Unauthenticated("credential expired or revoked while streaming"))

    def _holds(self, identity: Identity) -> bool:
        try:
            return self._auth.holds(identity)
        except Exception as error:  # noqa: BLE001 it may quote the credential; the other sessions are checked too
            log.error("a credential of tenant %s cannot be checked: %s", identity.tenant, type(error).__name__)
            return False

    async def in_turns(self) -> AsyncIterator[LiveSession]:
        """All sessions that are still open when their turn comes; other tasks get turns at the loop in between."""
        for count, (number, live) in enumerate(list(self._live.items()), 1):
            if number in self._live:
                yield live
            if count % _SESSIONS_AT_ONCE == 0:
                await asyncio.sleep(0)
