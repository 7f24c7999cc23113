"""The grants of a tenant are compiled into the key of its feeds."""

from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any, cast

import bson
from bson.raw_bson import RawBSONDocument

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.grants.grant import Grant
from feedmux_server.core.grants.stages import PolicyCache
from feedmux_server.rpc.access import Access
from feedmux_server.streams.manager import StreamManager


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
    nothing = cast(Any, None)
    grants = tuple(Grant("main", "shop", f"orders{i}") for i in range(3))
    access = Access(cast(StreamManager, manager), nothing, nothing, {"team": grants}, frozenset())
    access.policies = Counting()
    feeds = [
        FeedSpec(Scope("main", "shop"), pipeline=bson.encode({"pipeline": [{"$match": {"a": i}}]})) for i in (1, 2)
    ]
    keys = [access.key_of(feed, "team") for feed in feeds]
    assert keys[0] != keys[1]
    assert len(compiled) == len(set(compiled)) > 0
