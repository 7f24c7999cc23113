"""What Explain asks of a source, and what it does not say where feedmux may not ask."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.grants.grant import Grants, make_grant
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from feedmux_server.core.positions.timeline import OplogEntry
from feedmux_server.source.deployment import Source
from feedmux_server.streams import explain
from feedmux_server.streams.explain import (
    CollectionImages,
    collection_images,
    documents_estimated,
    headroom_s,
    is_missing,
)

COLLECTIONS = {
    "shop": {"orders": True, "log": False, "system.views": False},
    "bank": {"accounts": False},
    "config": {"x": False},
}


class Asked:
    """A source with these collections, or one that fails."""

    def __init__(self, error: ErrorReason | None = None, term: int = 1) -> None:
        self._error, self._term = error, term
        self.listed: list[str] = []
        self.oplog = SimpleNamespace(oldest=self._oldest)

    def _check(self) -> None:
        if self._error is not None:
            raise FeedmuxError(self._error, "no")

    async def databases(self) -> list[str]:
        self._check()
        return list(COLLECTIONS)

    async def collections(self, database: str, collection: str = "", *, most: int) -> dict[str, bool]:
        self._check()
        self.listed.append(f"{database}.{collection}")
        found = COLLECTIONS[database]
        return {name: found[name] for name in list(found)[:most] if name == (collection or name)}

    async def names(self, database: str, collection: str = "", *, most: int) -> list[str]:
        return list(await self.collections(database, collection, most=most))

    async def estimated_count(self, database: str, collection: str) -> int:
        self._check()
        return 1

    async def _oldest(self) -> OplogEntry:
        self._check()
        return OplogEntry(100 << 32, self._term)


def source(error: ErrorReason | None = None, term: int = 1) -> Source:
    return cast(Source, Asked(error, term))


IMAGES = FeedSpec(Scope("main", "shop"), full_document_before_change="required")
PLAIN = replace(IMAGES, full_document_before_change="")


@pytest.mark.parametrize(
    ("grants", "feed", "found"),
    [
        (None, PLAIN, []),
        (None, replace(PLAIN, full_document="updateLookup"), []),
        (None, IMAGES, [("log", False, False), ("orders", True, False)]),
        (None, replace(IMAGES, scope=Scope("main", "shop", "log")), [("log", False, False)]),
        ((make_grant("*", "shop", "orders"),), IMAGES, [("orders", True, False)]),
        ((make_grant("*", "shop", "log", {"a": 1}), make_grant("*", "*", "*")), PLAIN, [("log", False, True)]),
    ],
)
async def test_collections_whose_images_are_needed(
    grants: Grants, feed: FeedSpec, found: list[tuple[str, bool, bool]]
) -> None:
    wanted = [CollectionImages("shop", *each) for each in found]
    assert await collection_images(source(), grants, feed) == wanted


async def test_all_databases_that_are_served_and_so_many_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = replace(IMAGES, scope=Scope("main"))
    found = await collection_images(source(), None, everything)
    assert [(each.database, each.collection) for each in found] == [
        ("bank", "accounts"),
        ("shop", "log"),
        ("shop", "orders"),
    ]
    monkeypatch.setattr(explain, "IMAGES_MAX", 2)
    assert await collection_images(source(), None, everything) == found[:2]


async def test_so_many_databases_are_listed_of_those_that_the_grants_reach_and_each_list_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COLLECTIONS, "aaa", {str(number): True for number in range(7)})
    everything, granted = replace(IMAGES, scope=Scope("main")), (make_grant("*", "shop", "*"),)
    for databases, collections, grants, listed, charged in (
        (2, 5, None, ["aaa.", "bank."], [5, 1]),
        (9, 9, None, ["aaa.", "bank.", "shop."], [7, 1, 3]),
        (1, 9, granted, ["shop."], [3]),
    ):
        monkeypatch.setattr(explain, "DATABASES_MAX", databases)
        monkeypatch.setattr(explain, "COLLECTIONS_MAX", collections)
        asked, charges = Asked(), list[int]()
        await collection_images(cast(Source, asked), grants, everything, charges.append)
        assert (asked.listed, charges) == (listed, charged)
    monkeypatch.setattr(explain, "COLLECTIONS_MAX", 2)
    charges = []
    hidden = (make_grant("*", "shop", "none"),)
    assert not await is_missing(source(), hidden, Scope("main", "shop"), charges.append), "not all were looked at"
    assert charges == [2]


async def test_only_the_collection_of_the_feed_is_listed() -> None:
    asked = Asked()
    await collection_images(cast(Source, asked), None, replace(IMAGES, scope=Scope("main", "shop", "log")))
    assert asked.listed == ["shop.log"]


@pytest.mark.parametrize(
    ("grants", "scope", "missing"),
    [
        (None, Scope("main"), False),
        (None, Scope("main", "shop"), False),
        (None, Scope("main", "shop", "orders"), False),
        (None, Scope("main", "shop", "oders"), True),
        ((make_grant("*", "shop", "or*"),), Scope("main", "shop"), False),
        # Whether the database has others is not the tenant's to know.
        ((make_grant("*", "shop", "private"),), Scope("main", "shop"), True),
    ],
)
async def test_a_collection_that_does_not_exist(grants: Grants, scope: Scope, missing: bool) -> None:
    assert await is_missing(source(), grants, scope) == missing


@pytest.mark.parametrize(("seconds", "headroom", "whole"), [(160, 60, 60), (100, 0, 0), (40, -60, None)])
async def test_the_headroom_of_a_start(seconds: int, headroom: int, whole: int | None) -> None:
    at = JoinPoint(ResumeToken.high_water_mark(seconds << 32 | 5))
    assert await headroom_s(source(), at) == headroom
    assert await headroom_s(source(term=-1), at) == whole


ORDERS = FeedSpec(Scope("main", "shop", "orders"))
COPYING = JoinPoint(ResumeToken.high_water_mark(1).while_copying(Copied()))
QUESTIONS: list[Any] = [
    (lambda it: collection_images(it, None, IMAGES), []),
    (lambda it: is_missing(it, None, Scope("main", "shop", "oders")), False),
    (lambda it: headroom_s(it, JoinPoint(ResumeToken.high_water_mark(1))), None),
    (lambda it: documents_estimated(it, stream_key(ORDERS), COPYING), 0),
]


@pytest.mark.parametrize(("ask", "nothing"), QUESTIONS)
async def test_what_feedmux_may_not_ask_is_left_out_and_other_errors_are_raised(ask: Any, nothing: object) -> None:
    for reason in (ErrorReason.SOURCE_UNAUTHORIZED, ErrorReason.SOURCE_UNSUITABLE):
        assert await ask(source(reason)) == nothing
    with pytest.raises(FeedmuxError) as caught:
        await ask(source(ErrorReason.SOURCE_UNAVAILABLE))
    assert caught.value.reason is ErrorReason.SOURCE_UNAVAILABLE
