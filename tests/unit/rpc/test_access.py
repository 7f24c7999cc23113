"""What the calls of a server share: grants that change while the server iterates over its sessions."""

from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any, cast

import bson
from bson.raw_bson import RawBSONDocument

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.grants.grant import Grant, Grants
from feedmux_server.core.grants.stages import PolicyCache
from feedmux_server.rpc.service import Service


async def test_new_grants_hold_before_any_session_is_looked_at() -> None:
    """Otherwise the server would reject a new tenant whose key it has just accepted."""
    seen: list[Any] = []
    service = SimpleNamespace(grants={}, trusted=frozenset({"old"}), live={})

    async def end_revoked() -> None:
        seen.append((dict(service.grants), service.trusted))

    service.end_revoked = end_revoked
    service._in_turns = lambda: Service._in_turns(cast(Service, service))
    grants: dict[str, Grants] = {"new": None}
    assert await Service.change_grants(cast(Service, service), grants, frozenset({"new"})) == 0
    assert seen == [(grants, {"new"})]


def test_the_grants_of_a_tenant_are_compiled_once_for_all_its_opens() -> None:
    """A hundred grants take up to a second to compile, and the server does nothing else during that time."""
    compiled: list[Hashable] = []

    class Counting(PolicyCache):
        def get(self, key: Hashable, make: Callable[[], list[Any]]) -> list[RawBSONDocument]:
            def compile_() -> list[Any]:
                compiled.append(key)
                return make()

            return super().get(key, compile_)

    manager = SimpleNamespace(
        source=lambda name: name,
        accounts=SimpleNamespace(of=lambda tenant: SimpleNamespace(check_pipeline=lambda size: None)),
        one_of=lambda key: key,
    )
    grants = tuple(Grant("main", "shop", f"orders{i}") for i in range(3))
    service = SimpleNamespace(grants_of=lambda tenant: grants, policies=Counting(), manager=manager)
    feeds = [
        FeedSpec(Scope("main", "shop"), pipeline=bson.encode({"pipeline": [{"$match": {"a": i}}]})) for i in (1, 2)
    ]
    keys = [Service.key_of(cast(Service, service), feed, "team") for feed in feeds]
    assert keys[0] != keys[1]
    assert len(compiled) == len(set(compiled)) > 0
