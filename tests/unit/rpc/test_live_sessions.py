"""Sessions that end with their credential or their grants."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.grants.grant import Grants, granted, make_grant
from feedmux_server.rpc.access import Access
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.rpc.live_sessions import LiveSession, LiveSessions

FEED = FeedSpec(Scope("main", "shop", "orders"))
KEY = stream_key(FEED)
SHOP: Grants = (make_grant("*", "shop", "*"),)
BROKEN: Grants = (make_grant("*", "shop", "orders"),)
NOTHING = SimpleNamespace(rights_of=lambda tenant: ((), False))


def make_sessions(access: Any = NOTHING, *, holds: bool = True) -> LiveSessions:
    auth = SimpleNamespace(holds=lambda identity: holds)
    return LiveSessions(cast(Access, access), cast(Authenticator, auth))


async def test_new_grants_hold_before_any_session_is_checked() -> None:
    """Otherwise the server would reject a new tenant whose key it has just accepted."""
    access, seen = SimpleNamespace(grants={}, trusted=frozenset({"old"})), []

    class Watched(LiveSessions):
        async def end_revoked(self) -> None:
            seen.append((dict(access.grants), access.trusted))

    grants: dict[str, Grants] = {"new": None}
    sessions = Watched(cast(Access, access), cast(Authenticator, None))
    assert await sessions.change_grants(grants, frozenset({"new"})) == 0
    assert seen == [(grants, {"new"})]


class BrokenAccess(Access):
    """Grants of one collection that no stream can be asked with."""

    def __init__(self, grants: Mapping[str, Grants]) -> None:
        self.grants, self.trusted = grants, frozenset()

    def key_of(self, spec: FeedSpec, tenant: str) -> StreamKey:
        if self.grants[tenant] == BROKEN:
            raise UnicodeEncodeError("utf-8", "canary", 0, 1, "surrogates not allowed")
        granted(self.grants_of(tenant) or (), spec.scope)
        return KEY


async def test_each_session_ends_that_its_grants_do_not_allow_or_that_cannot_be_checked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    access = BrokenAccess(dict.fromkeys("abc", SHOP))
    sessions, ended = make_sessions(access), list[tuple[str, ErrorReason]]()

    def enter(tenant: str) -> int:
        def end(error: FeedmuxError) -> None:
            ended.append((tenant, error.reason))

        live = SimpleNamespace(identity=None, end=end, tenant=tenant, subscription="", feed=FEED, key=KEY)
        return sessions.enter(cast(LiveSession, live))

    numbers = [enter(tenant) for tenant in "abc"]
    assert await sessions.change_grants({"a": BROKEN, "b": (), "c": SHOP}) == 2
    assert ended == [("a", ErrorReason.GRANTS_CHANGED), ("b", ErrorReason.NAMESPACE_DENIED)]
    assert "canary" not in caplog.text
    for number in numbers[:2]:
        sessions.leave(number)
    # A change that failed before it came to the session, and is made again.
    access.grants = {"c": ()}
    assert await sessions.change_grants({"c": ()}) == 1
    assert ended[2:] == [("c", ErrorReason.NAMESPACE_DENIED)]


async def test_sessions_are_checked_in_turns() -> None:
    """A session that ends meanwhile is skipped; a concurrent task gets its turns."""
    ended: list[int] = []
    sessions = make_sessions(holds=False)

    def live(number: int) -> LiveSession:
        def end(_: object) -> None:
            ended.append(number)
            if number == 0:
                sessions.leave(2_000)

        return cast(LiveSession, SimpleNamespace(identity=number, end=end, tenant="a", subscription=""))

    for number in range(2_000):
        sessions.enter(live(number))
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(beside())
    await sessions.end_revoked()
    task.cancel()
    assert ended == list(range(1_999))
    assert turns >= 2_000 // 256


async def test_a_drain_reaches_every_session_and_waits_until_all_have_left() -> None:
    sessions, drained = make_sessions(), list[float]()
    one = {"session": SimpleNamespace(drain=drained.append), "tenant": "a", "subscription": ""}
    numbers = [sessions.enter(cast(LiveSession, SimpleNamespace(**one))) for _ in range(3)]
    sessions.drain(5.0)
    assert drained == [5.0] * 3
    waiting = asyncio.create_task(sessions.all_left(60.0))
    for number in numbers:
        await asyncio.sleep(0)
        assert not waiting.done()
        sessions.leave(number)
    await waiting
    assert len(sessions) == 0


async def test_the_reader_of_a_subscription_is_its_newest_session() -> None:
    def live(tenant: str, name: str) -> LiveSession:
        session = SimpleNamespace()
        return cast(LiveSession, SimpleNamespace(session=session, tenant=tenant, subscription=name))

    sessions = make_sessions()
    sessions.enter(live("b", "s"))
    sessions.enter(live("a", ""))
    old, new = live("a", "s"), live("a", "s")
    first, second = sessions.enter(old), sessions.enter(new)
    assert sessions.reader_of("a", "s") is new
    assert sessions.reader_of("a", "") is sessions.reader_of("a", "other") is None
    sessions.leave(first)  # after a takeover, the older one ends last
    assert sessions.reader_of("a", "s") is new
    sessions.leave(second)
    assert sessions.reader_of("a", "s") is None
