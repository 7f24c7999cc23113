"""Takes the lease of a subscription for a call, so that no call leaves a lease that nobody holds.

A lease that is left makes other clients SUBSCRIPTION_BUSY until it expires.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from feedmux_server.cancellation import is_cancelled
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.rpc.convert import is_group
from feedmux_server.rpc.service import Service
from feedmux_server.sessions.groups import HOST_PREFIX
from feedmux_server.sessions.session_commits import Attach
from feedmux_server.store.handle import CommitHandle, CommitListener
from feedmux_server.store.lease_store import LeaseStore
from feedmux_server.store.model import Lease, StoredSubscription


async def open_lease(
    service: Service, tenant: str, name: str, *, instance_id: str, takeover: bool = False
) -> tuple[StoredSubscription, Lease]:
    """`LeaseStore.open`, for a client that may leave meanwhile.

    That does not cancel the opening, because Redis may have granted the lease already. The call, with its place in the
    quotas, lasts until Redis has answered. A client that leaves and opens again at once waits here for the release.
    """
    leases = service.store.leases
    await service.releases.done(tenant, name)
    opening = asyncio.create_task(
        leases.open(tenant, name, instance_id=instance_id, takeover=takeover), name="lease-open"
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        left = service.spawn(partial(_release_opened, leases, opening), "lease-release")
        service.releases.add(tenant, name, left)
        await asyncio.wait([left])
        raise


async def open_alone(
    service: Service, tenant: str, name: str, *, instance_id: str, takeover: bool = False
) -> tuple[StoredSubscription, Lease]:
    """`open_lease` for a call that reads the subscription alone. Raises GROUP_MISMATCH for a group, and
    POSITION_FOREIGN for a subscription of another deployment of MongoDB; the sessions of neither are disturbed."""
    # Otherwise the opening ends no session but one of the same client, whose instance id nobody else has.
    if takeover or instance_id.startswith(HOST_PREFIX):
        _check(service, tenant, await service.store.get(tenant, name))
    try:
        stored, lease = await open_lease(service, tenant, name, instance_id=instance_id, takeover=takeover)
    except FeedmuxError as error:
        if error.reason is ErrorReason.SUBSCRIPTION_BUSY:
            _check_no_group(await service.store.get(tenant, name))
        raise
    async with released_on_error(service, lease):
        _check(service, tenant, stored)
    return stored, lease


def _check(service: Service, tenant: str, stored: StoredSubscription) -> None:
    _check_no_group(stored)
    service.check_origin(stored, tenant)


def _check_no_group(stored: StoredSubscription) -> None:
    if is_group(stored.definition):
        raise FeedmuxError(
            ErrorReason.GROUP_MISMATCH,
            f"subscription {stored.name!r} is a group: join it with a client that can, or make it an ordinary"
            " subscription with UpdateSubscription",
        )


@asynccontextmanager
async def released_on_error(service: Service, lease: Lease | None) -> AsyncIterator[None]:
    """Release the lease if the block fails or is cancelled. A failure is raised when the lease is released, so that the
    client can open again at once."""
    try:
        yield
    except BaseException as error:
        if lease is not None:
            left = service.spawn(partial(service.store.leases.release, lease), "lease-release")
            service.releases.add(lease.tenant, lease.name, left)
            if isinstance(error, Exception):
                await asyncio.wait([left])
        raise


@asynccontextmanager
async def committing(
    service: Service, lease: Lease | None, stored: StoredSubscription | None
) -> AsyncIterator[Attach | None]:
    """Yield what attaches the session of a call to the committer; None without a lease. At the end, store what the
    session has acknowledged, and release the lease."""
    if lease is None or stored is None:
        yield None
        return
    release: Callable[[], Coroutine[Any, Any, None]] = partial(service.store.leases.release, lease)

    def attach(listener: CommitListener) -> CommitHandle:
        nonlocal release
        handle = service.committer.attach(lease, stored, listener)
        release = handle.detach
        return handle

    try:
        yield attach
    finally:
        left = service.spawn(release, "commit-detach")
        service.releases.add(lease.tenant, lease.name, left)
        if not is_cancelled():
            # A client that has not left may reopen at once, and must not be rejected as BUSY by its own lease.
            await asyncio.wait([left])


def received(stored: StoredSubscription) -> ResumeToken | None:
    """The position after what sessions have delivered of a subscription, if that is after the stored position. A
    high-water mark is before the events of its time."""
    if stored.delivered_time < stored.cluster_time:
        return None
    return ResumeToken.high_water_mark(min(stored.delivered_time + 1, (1 << 64) - 1))


async def _release_opened(leases: LeaseStore, opening: asyncio.Task[tuple[StoredSubscription, Lease]]) -> None:
    """Release the lease that `opening` takes, if it takes one."""
    try:
        _, lease = await opening
    except FeedmuxError:
        return
    await leases.release(lease)
