"""ChangeFeed.Subscribe of a member of a group: joins the group that this server hosts, or hosts it from now on."""

import asyncio
from dataclasses import replace
from functools import partial

from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position import copied_of
from feedmux_server.rpc.convert import served_content, stored_scope
from feedmux_server.rpc.group_checks import check_group, reconnect_s, retry_policy
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.subscription_lease import open_lease, received, released_on_error
from feedmux_server.sessions.groups import Group, GroupDefinition, elsewhere
from feedmux_server.sessions.session import SessionPolicy
from feedmux_server.store.handle import CommitHandle
from feedmux_server.store.model import StoredSubscription


async def joined_group(service: Service, name: str, tenant: str) -> Group:
    """The group that hosts a subscription here. The caller holds the lock of the group, and joins it before it awaits
    anything. Raises GROUP_MISMATCH, GROUP_ELSEWHERE and what opening a subscription raises."""
    group = service.groups.get(tenant, name)
    if group is not None:
        refusal = service.access.refusal(group.definition.feed, tenant, group.definition.key)
        if refusal is None:
            return group
        group.end(refusal)
    return await _hosted(service, name, tenant)


async def _hosted(service: Service, name: str, tenant: str) -> Group:
    stored = await service.store.get(tenant, name)
    content = _group_definition(stored)
    service.check_origin(stored, tenant)
    try:
        stored, lease = await open_lease(service, tenant, name, instance_id=service.groups.host)
    except FeedmuxError as error:
        if error.reason is ErrorReason.SUBSCRIPTION_BUSY:
            raise elsewhere(stored_scope(content.feed), error.metadata["owner"]) from None
        raise
    async with released_on_error(service, lease):
        service.admission.check_draining()
        content = _group_definition(stored)
        feed = await service.access.feed_of(content.feed, tenant)
        key = service.access.key_of(feed, tenant)
        check_group(
            content, key, is_copying=copied_of(stored.position) is not None, has_letters=service.letters is not None
        )
        at, ahead = await service.starts(key, tenant).position_of_group(stored.position)
        await service.manager.abandoned.make_room(tenant, key)
        policy = SessionPolicy(
            continue_on_invalidate=content.on_invalidate == feed_pb2.ON_INVALIDATE_CONTINUE,
            earliest_on_history_lost=content.on_history_lost == feed_pb2.ON_HISTORY_LOST_EARLIEST,
            batch_events_max=feed.batch_size,
        )
        definition = GroupDefinition(
            tenant,
            name,
            feed,
            key,
            lease.epoch,
            policy,
            reconnect_s(content.group),
            retry_policy(content.group),
            quarantine=content.group.after_dead_letter == subscriptions_pb2.AFTER_DEAD_LETTER_QUARANTINE,
            follows_lost=lease.follows_lost,
            seek_epoch=stored.seek_epoch,
            members=stored.members,
        )
        quarantined = list[bytes]()
        if definition.quarantine and service.letters is not None:
            quarantined = await service.letters.letters.take_over(tenant, name, lease.epoch)
            service.admission.charge_items(max(1, len(quarantined)))
        group = Group(
            service.manager, definition, at, service.positions(key, tenant), ahead, service.letters, quarantined
        )
        group.reader.subscriber.received = received(stored)
        commits = service.committer.attach(lease, stored, group)
        group.store_with(commits)
        service.groups.add(group, partial(_release, service, commits, tenant, name))
        return group


def _group_definition(stored: StoredSubscription) -> subscriptions_pb2.Subscription:
    content = served_content(stored)
    if not content.HasField("group"):
        raise FeedmuxError(
            ErrorReason.GROUP_MISMATCH,
            "the subscription is not a group: open it without join, or make it a group with UpdateSubscription",
            field="open.join",
        )
    return content


def _release(
    service: Service,
    commits: CommitHandle,
    tenant: str,
    name: str,
    recovers: bool,
) -> asyncio.Task[None]:
    commits.lease = replace(commits.lease, follows_lost=recovers)
    left = service.spawn(commits.detach, "commit-detach")
    service.releases.add(tenant, name, left)
    return left
