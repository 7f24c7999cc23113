"""Explain says what an open would be rejected with, and opens nothing."""

import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_server.core.errors import ErrorReason
from feedmux_server.core.limits.rates import Rates
from feedmux_server.rpc.explain import Explain
from tests.unit.rpc.service_support import FEED, call, refused, served
from tests.virtual_time import in_virtual_time


@pytest.mark.parametrize(
    ("feed", "reason"),
    [
        ({"source": "absent"}, "SOURCE_NOT_FOUND"),
        ({"source": "main", "database": "d b"}, "NAME_INVALID"),
        ({"source": "main", "database": "db", "pipeline": {"extended_json": "[{"}}, "PIPELINE_INVALID"),
        ({"source": "main", "database": "db", "pipeline": {"extended_json": '[{"$out": "x"}]'}}, "STAGE_NOT_ALLOWED"),
    ],
)
@in_virtual_time
async def test_a_rejection_is_part_of_the_answer(feed: dict[str, object], reason: str) -> None:
    async with served() as there:
        request = wire.ExplainRequest(feed=feed)
        response = wire.ExplainResponse.FromString(await call(Explain(there.service), request))
        assert (response.refusal.reason, response.refusal.status) != ("", "")
        assert response.refusal.reason == reason
        assert there.service.manager.cursors == 0


@in_virtual_time
async def test_each_list_of_collections_counts_as_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    charged = list[float]()
    monkeypatch.setattr(Rates, "charge", lambda _, requests, now_s: charged.append(requests))
    async with served() as there:
        for name in "ab":
            there.mongo.insert(FEED.database, name, 0)
        charged.clear()
        feed = feed_pb2.Feed(source=FEED.source, database=FEED.database)
        await call(Explain(there.service), wire.ExplainRequest(feed=feed))
        assert charged == [pytest.approx(1.02)], "of two names"


@in_virtual_time
async def test_a_mongodb_that_does_not_answer_rejects_nothing() -> None:
    async with served() as there:
        there.mongo.away = True
        error = await refused(Explain(there.service), wire.ExplainRequest(feed=FEED))
        assert error.reason is ErrorReason.SOURCE_UNAVAILABLE
