"""A host that follows a lost one: what it asks members, and what they get."""

import asyncio
from dataclasses import replace
from typing import Any

import bson
import pytest

from feedmux_server.core.delivery.claims import claim_of
from feedmux_server.rpc.subscription_lease import open_lease
from feedmux_server.sessions.groups import GATHER_LEAST_S, GATHER_S
from feedmux_server.store.model import Lease
from tests.tables import over
from tests.unit.rpc.service_support import Served
from tests.unit.rpc.test_join import Member, change, group_served, joined, until
from tests.virtual_time import in_virtual_time


def marks(member: Member, *keys: object) -> list[int]:
    """The marks of the last events of these keys that the member has received."""
    events = [event for each in member.batches for event in bson.decode_all(each.bson)]
    ids = {event["fullDocument"]["_id"]: bson.encode(event["_id"]) for event in events}
    return [claim_of(ids[key]) for key in keys]


async def epoch_of(member: Member) -> int:
    return (await member.opened()).epoch


async def lease_of_next(there: Served) -> Lease:
    _, lease = await open_lease(there.service, "default", "orders", instance_id="group-host-next", takeover=True)
    await until(lambda: not len(there.service.groups))
    return lease


async def lost(there: Served) -> None:
    """Let the group lose its host, and the lease of that expire. The member of a group that is lost joins again."""
    await lease_of_next(there)
    await asyncio.sleep(there.service.store.leases.rules.lease_s)


async def with_work(there: Served) -> tuple[Member, dict[str, Any]]:
    """A member that has "a" in hand and has settled "b", which is not stored, with what it tells the next host."""
    member = await joined(there, "one")
    change(there, "a", "b")
    await member.has(2)
    member.settle((1 + member.events.index("b"),) * 2)
    await asyncio.sleep(0.05)
    return member, {"held": marks(member, "a"), "settled": marks(member, "b"), "epoch": await epoch_of(member)}


@over("what", ["no lost host", "before a seek", "too late", "nothing said"])
@in_virtual_time
async def test_what_members_say_in_vain(what: str) -> None:
    async with group_served() as there:
        begin = await there.service.store.get("default", "orders")
        one, has = await with_work(there)
        lease = await lease_of_next(there)
        await one.error()
        if what == "before a seek":
            await there.seek("orders", position=begin.position)
            await lost(there)
        elif what == "no lost host":
            await there.service.store.leases.release(replace(lease, follows_lost=False))
        else:
            await asyncio.sleep(there.service.store.leases.rules.lease_s)
        other = await joined(there, "other")
        if what == "too late":
            await other.has(2)
        one = await joined(there, "one", **({} if what == "nothing said" else has))
        await until(lambda: len(one.events + other.events) == 2)
        assert sorted(one.events + other.events) == ["a", "b"], "everything that is not stored as settled"
        for member in (one, other):
            await member.close()


@in_virtual_time
async def test_it_waits_for_a_while_if_an_older_server_has_not_said_which_members_there_were() -> None:
    async with group_served() as there:
        one, _ = await with_work(there)
        del there.redis.hash_of(b"feedmux:1:{default/orders}")[b"members"]
        await lost(there)
        await one.error()
        began_s = asyncio.get_running_loop().time()
        other = await joined(there, "other")
        assert await other.has(1) != []
        assert asyncio.get_running_loop().time() - began_s >= GATHER_S
        await other.close()


@in_virtual_time
async def test_it_waits_no_longer_when_all_have_come() -> None:
    async with group_served() as there:
        one, has = await with_work(there)
        await lost(there)
        await one.error()
        began_s = asyncio.get_running_loop().time()
        one = await joined(there, "one", **has)
        assert await one.has(1) == ["a"]
        assert GATHER_LEAST_S <= asyncio.get_running_loop().time() - began_s < GATHER_S
        await one.close()


@in_virtual_time
async def test_an_event_that_never_comes_is_waited_for_a_second_only() -> None:
    async with group_served() as there:
        one, has = await with_work(there)
        await lost(there)
        await one.error()
        one = await joined(there, "one", held=[*has["held"], 5], settled=has["settled"], epoch=has["epoch"])
        other = await joined(there, "other")
        began_s = asyncio.get_running_loop().time()
        change(there, "c")
        await until(lambda: one.events + other.events in (["a", "c"], ["c", "a"]))
        assert "a" in one.events
        assert asyncio.get_running_loop().time() - began_s >= GATHER_LEAST_S
        await one.close()
        await other.close()


@in_virtual_time
async def test_a_member_that_is_lost_while_the_host_gathers() -> None:
    async with group_served() as there:
        one, has = await with_work(there)
        await lost(there)
        await one.error()
        one, other = await joined(there, "one", **has), await joined(there, "other")
        await one.cut()
        await asyncio.sleep(GATHER_S + 1)
        assert other.events == [], "it may come again"
        assert await other.has(1) == ["a"]
        assert other.attempts == [2], "the member may have been lost by the event"
        await other.close()


HOWS = ["closed", "drained", "drained while it gathers", "drained with work", "not begun", "killed", "changed"]


@over("how", [*HOWS, "changed and killed"])
@in_virtual_time
async def test_which_hosts_count_as_lost(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with group_served() as there:
        member, has = await with_work(there)
        if "gathers" in how or how == "not begun":
            await lost(there)
            await member.error()
            if how == "not begun":

                def full(tenant: str, key: object) -> None:
                    raise RuntimeError

                monkeypatch.setattr(there.service.manager.abandoned, "make_room", full)
                with pytest.raises(RuntimeError):
                    await Member(there, subscription="orders", join=True, credit={"events": 1, "bytes": 1}).task
            else:
                member = await joined(there, "one", **has)
        if how == "drained":
            member.settle((1, 2))
            await until(lambda: member.committed == 2)
        if how == "closed":
            await member.close()
        if how.startswith("drained"):
            there.service.begin_drain(0.5)
            await member.error()
            await asyncio.sleep(1.0)
        if how.startswith("changed"):
            if how != "changed":
                await lease_of_next(there)
            await there.update("orders", on_history_lost="ON_HISTORY_LOST_EARLIEST")
            await member.error()
        assert not (await there.service.store.get("default", "orders")).active or how == "killed"
        assert (await lease_of_next(there)).follows_lost is (how not in ("closed", "drained"))
        if how == "killed":
            await member.error()
