"""No range is planned by one feed and read by another: what PlanRange and ReadRange do with a feed's fingerprint."""

from typing import Any

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.grants.grant import make_grant
from tests.documents import Documents, insert
from tests.integration.servers import Here
from tests.integration.wire import EARLIEST, Api, feed, refused

FEW = '[{"$match": {"fullDocument.n": {"$lt": 5}}}]'
MANY = '[{"$match": {"fullDocument.n": {"$gte": 5}}}]'
CHANGED = ("FAILED_PRECONDITION", "FEED_CHANGED")


async def numbers(api: Api, plan: wire.PlanRangeResponse, **fields: Any) -> list[int]:
    found = [await api.read_range(after=each.after, until=each.until, **fields).rest() for each in plan.slices]
    return [event.n for part in found for event in part]


async def test_a_plan_of_another_feed_is_rejected_before_anything_is_stored(
    api: Api, database: Documents, name: str
) -> None:
    few, many = feed(database.name, "c", FEW), feed(database.name, "c", MANY)
    wrong = {"feed_fingerprint": (await api.resolve(many, EARLIEST)).feed_fingerprint}
    created = await api.create(name, few, EARLIEST)
    insert(database, range(10))
    plan = await api.plan(subscription=name, instance_id="one")
    carried = {"feed_fingerprint": plan.feed_fingerprint}
    refusal = await refused(api.plan(subscription=name, instance_id="one", after=plan.end, processed=plan.end, **wrong))
    assert (refusal.code, refusal.reason) == CHANGED
    assert "the feed changed" in refusal.message
    stored = await api.get(name)
    assert (stored.position, stored.active) == (created.position, False)
    # An update is noticed by the next plan and the next read.
    await api.update(name=name, feed=many)
    for refusal in (
        await refused(api.plan(feed=few, after=plan.after, **wrong)),
        await refused(api.plan(subscription=name, instance_id="one", **carried)),
        await api.read_range(subscription=name, after=plan.after, until=plan.end, **carried).end(),
        await api.read_range(feed=many, after=plan.after, until=plan.end, **carried).end(),
    ):
        assert (refusal.code, refusal.reason) == CHANGED
    # What was planned is still read by the feed that planned it.
    assert await numbers(api, plan, feed=few, **carried) == list(range(5))
    again = await api.plan(subscription=name, instance_id="one")
    assert await numbers(api, again, subscription=name, feed_fingerprint=again.feed_fingerprint) == list(range(5, 10))


async def test_a_changed_grant_takes_effect_and_is_no_changed_feed(
    here: Here, api: Api, database: Documents, name: str
) -> None:
    wanted = feed(database.name, "c", FEW)
    await api.create(name, wanted, EARLIEST)
    insert(database, range(10))
    plan = await api.plan(subscription=name, instance_id="one")
    carried = {"feed_fingerprint": plan.feed_fingerprint}
    assert await numbers(api, plan, feed=wanted, **carried) == list(range(5))
    before = here.server.service.access.grants
    hidden = make_grant("*", database.name, "*", hide=["n"])
    try:
        await here.server.service.sessions.change_grants({**before, "default": (hidden,)})
        again = await api.plan(subscription=name, instance_id="one", **carried)
        assert again.feed_fingerprint == plan.feed_fingerprint
        events = await api.read_range(feed=wanted, after=again.after, until=again.end, **carried).rest()
        assert events == []  # the pipeline sees no `n`
    finally:
        await here.server.service.sessions.change_grants(before)
