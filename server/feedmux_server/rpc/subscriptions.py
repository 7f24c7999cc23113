"""The Subscriptions service: durable, named readers, stored in Redis."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from google.protobuf import empty_pb2
from google.protobuf.message import Message

from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.copy_progress import status_at
from feedmux_server.core.errors import ErrorReason, FeedmuxError, invalid
from feedmux_server.core.feeds.feed import route_of
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.feeds.snapshot_stages import check_feed
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.position import as_shown, copied_of, inspect_position
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from feedmux_server.core.positions.start import Start, StartKind
from feedmux_server.core.positions.stored_order import order_bytes
from feedmux_server.rpc import convert
from feedmux_server.rpc.caller import caller
from feedmux_server.rpc.group_checks import check_group, may_copy
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context
from feedmux_server.sessions.session import Session
from feedmux_server.source.namespaces import check_copy
from feedmux_server.store.model import StoredSubscription
from feedmux_server.telemetry.audit import AuditEvent

PAGE_DEFAULT = 100
PAGE_MAX = 1_000
PAGE_BYTES_MAX = 1 << 20
"""The most bytes of a page in a response."""
MESSAGES_AT_ONCE = 20
DEFINITION_BYTES_MAX = 64 * 1024
"""The most bytes of a stored definition."""
QUOTED_MAX = 200
"""The most characters of a value quoted in an error text."""
T = TypeVar("T")
_UPDATABLE = frozenset({"feed", "on_invalidate", "on_history_lost", "group"})


class Subscriptions:
    """One method for each RPC: request bytes in, response bytes out."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(subscriptions_pb2.CreateSubscriptionRequest, data)
        wanted = request.subscription
        check_name("subscription.name", wanted.name)
        _check_policies(wanted)
        key = self._service.access.key_of(await self._service.access.feed_of(wanted.feed, tenant), tenant)
        place = await self._resolve(convert.start(request.start), tenant, key)
        await self._check_copies(wanted, key)
        check_group(wanted, key, is_copying=place.copied is not None, has_letters=self._service.letters is not None)
        definition = _checked(convert.definition(wanted))
        await self._check_room(tenant, wanted.name)
        position = self._service.positions(key, tenant).encode(place)
        await self._service.committer.restore(tenant, wanted.name)

        async def change() -> StoredSubscription:
            async with self._room_for(tenant, wanted.name, definition):
                try:
                    return await self._service.store.create(
                        tenant,
                        wanted.name,
                        definition=definition,
                        etag=_etag(definition),
                        position=position,
                        cluster_time=place.cluster_time,
                        order=order_bytes(place),
                    )
                except FeedmuxError as error:
                    if error.reason is not ErrorReason.SUBSCRIPTION_EXISTS:
                        raise
                    raise await self._exists(tenant, wanted.name, definition) or error from None

        stored = await self._to_its_end(change)
        try:
            self._service.check_origin(stored, tenant)
        except FeedmuxError as error:
            raise FeedmuxError(
                ErrorReason.SUBSCRIPTION_EXISTS, f"subscription {wanted.name!r} exists: {error.message}", error.metadata
            ) from None
        message = self._message(stored)
        if request.start.HasField("snapshot") and not message.HasField("snapshot"):
            message.snapshot.state = feed_pb2.SnapshotStatus.STATE_DONE
        return message.SerializeToString()

    async def get(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(subscriptions_pb2.GetSubscriptionRequest, data)
        check_name("name", request.name)
        return self._message(await self._service.store.get(tenant, request.name)).SerializeToString()

    async def list_(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(subscriptions_pb2.ListSubscriptionsRequest, data)
        if request.page_size < 0:
            raise FeedmuxError(ErrorReason.MESSAGE_INVALID, "page_size must not be negative", field="page_size")
        if request.page_token:
            check_name("page_token", request.page_token)
        page_size = min(request.page_size or PAGE_DEFAULT, PAGE_MAX)
        page, after = await self._service.store.list(
            tenant, page_size=page_size, after=request.page_token, bytes_max=PAGE_BYTES_MAX
        )
        self._service.admission.charge_items(max(1, len(page)))
        response = subscriptions_pb2.ListSubscriptionsResponse(next_page_token=after)
        for number, stored in enumerate(page, 1):
            response.subscriptions.append(self._message(stored))
            if number % MESSAGES_AT_ONCE == 0:
                await asyncio.sleep(0)  # deliveries do not wait for a whole page
        return response.SerializeToString()

    async def update(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(subscriptions_pb2.UpdateSubscriptionRequest, data)
        wanted = request.subscription
        check_name("subscription.name", wanted.name)
        stored = await self._service.store.get(tenant, wanted.name)
        content = convert.stored_content(stored.definition)
        before = content.feed.source, content.feed.database, content.feed.collection
        for name in _masked(request):
            content.ClearField(name)
            if name == "feed":
                content.feed.CopyFrom(wanted.feed)
            elif name == "group":
                if wanted.HasField("group"):
                    content.group.CopyFrom(wanted.group)
            else:
                setattr(content, name, getattr(wanted, name))
        _check_policies(content)
        spec = await self._service.access.feed_of(content.feed, tenant)
        if (spec.scope.source, spec.scope.database, spec.scope.collection) != before:
            raise FeedmuxError(
                ErrorReason.MESSAGE_INVALID,
                "the source, database and collection of a subscription cannot change; create another subscription",
                {"field": "subscription.feed"},
                field="subscription.feed",
            )
        key = self._service.access.key_of(spec, tenant)
        is_copying = copied_of(stored.position) is not None
        if is_copying:
            check_feed(key)
        await self._check_copies(content, key)
        check_group(content, key, is_copying=is_copying, has_letters=self._service.letters is not None)
        # With fields that a newer server beside this one may have stored.
        definition = _checked(content.SerializeToString(deterministic=True))

        async def change() -> StoredSubscription:
            # If the caller gives no etag, the etag just read guards the read-modify-write.
            async with self._room_for(tenant, wanted.name, definition):
                with self._rechecking(tenant, wanted.name):
                    return await self._service.store.update(
                        tenant,
                        wanted.name,
                        definition=definition,
                        etag=_etag(definition),
                        expected_etag=wanted.etag or stored.etag,
                    )

        return self._message(await self._to_its_end(change)).SerializeToString()

    async def delete(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(subscriptions_pb2.DeleteSubscriptionRequest, data)
        check_name("name", request.name)
        await self._service.committer.restore(tenant, request.name)

        async def change() -> None:
            with self._rechecking(tenant, request.name):
                await self._service.store.delete(tenant, request.name, expected_etag=request.etag)

        try:
            await self._to_its_end(change)
        except FeedmuxError as error:
            if not (request.allow_missing and error.reason is ErrorReason.SUBSCRIPTION_NOT_FOUND):
                raise
        self._service.audit.did(AuditEvent.DELETE, "DeleteSubscription", context, subscription=request.name)
        return empty_pb2.Empty().SerializeToString()

    async def seek(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(subscriptions_pb2.SeekSubscriptionRequest, data)
        check_name("name", request.name)
        if request.to.WhichOneof("at") is None:
            raise invalid("to", "is required")
        stored = await self._service.store.get(tenant, request.name)
        content = convert.served_content(stored)
        key = self._service.access.key_of(await self._service.access.feed_of(content.feed, tenant), tenant)
        place = await self._resolve(convert.start(request.to), tenant, key, stored.position)
        check_group(content, key, is_copying=place.copied is not None, has_letters=self._service.letters is not None)
        positions, completed = self._service.positions(key, tenant), _unnoticed_end(stored.position)
        if completed is None or place.copied is not None or content.HasField("group"):
            position = positions.encode(place)
        else:
            position = positions.encode_completed(place, completed)
        with self._rechecking(tenant, request.name):
            sought = await self._service.store.seek(
                tenant,
                request.name,
                position=position,
                cluster_time=place.cluster_time,
                order=order_bytes(place),
            )
        self._service.audit.did(AuditEvent.SEEK, "SeekSubscription", context, subscription=request.name)
        return self._message(sought).SerializeToString()

    async def _to_its_end(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a change that takes several commands. If the client leaves in between, the other commands still follow:
        otherwise a subscription could be in no list, or take room for a definition that it does not have."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        result.add_done_callback(lambda done: done.cancelled() or done.exception())  # the client may be gone

        async def run() -> None:
            try:
                changed = await change()
            except Exception as error:  # noqa: BLE001 the call raises it
                if not result.done():
                    result.set_exception(error)
            else:
                if not result.done():
                    result.set_result(changed)
            finally:
                result.cancel()  # no effect on a finished result

        self._service.manager.tasks.run_once("subscription-change", run)
        return await result

    @contextmanager
    def _rechecking(self, tenant: str, name: str) -> Iterator[None]:
        """Have an open session fenced soon, even if the change is made but not yet on a replica."""
        try:
            yield
        finally:
            self._service.committer.recheck(tenant, name)

    async def _exists(self, tenant: str, name: str, wanted: bytes) -> FeedmuxError | None:
        """The error SUBSCRIPTION_EXISTS with the differences; None if the subscription was deleted meanwhile."""
        try:
            existing = (await self._service.store.get(tenant, name)).definition
        except FeedmuxError as error:
            if error.reason is ErrorReason.SUBSCRIPTION_NOT_FOUND:
                return None
            raise
        parse = subscriptions_pb2.Subscription.FromString
        differences = "; ".join(_differences(parse(existing), parse(wanted))) or "it was changed a moment ago"
        return FeedmuxError(
            ErrorReason.SUBSCRIPTION_EXISTS, f"subscription {name!r} exists with another definition: {differences}"
        )

    def _message(self, stored: StoredSubscription) -> subscriptions_pb2.Subscription:
        message = _message(stored, self._service.limits.unused_days)
        message.position = as_shown(stored.position, self._service.position_keys)
        live = self._service.sessions.reader_of(caller().tenant, stored.name)
        if live is not None and not message.HasField("group"):
            _add_session(message, live.session)
        return message

    def _room_for(self, tenant: str, name: str, definition: bytes) -> AbstractAsyncContextManager[None]:
        """Reserve room while the definition is written. Raises QUOTA_EXCEEDED if the tenant's definitions would be too
        large in total."""
        store, most = self._service.store, self._service.manager.accounts.of(tenant).quotas.subscription_bytes

        async def stored_size() -> int:
            try:
                return len((await store.get(tenant, name)).definition)
            except FeedmuxError as error:
                if error.reason is ErrorReason.SUBSCRIPTION_NOT_FOUND:
                    return 0
                raise

        return store.sizes.reserved(tenant, name, len(definition), most, stored_size)

    async def _check_room(self, tenant: str, name: str) -> None:
        """Raises QUOTA_EXCEEDED if the tenant already has as many subscriptions as allowed. Calls that create at the
        same moment may exceed the quota by their number."""
        account, store = self._service.manager.accounts.of(tenant), self._service.store
        existing = (await store.names.count([tenant]))[tenant]
        if existing >= account.quotas.subscriptions and not await store.names.has(tenant, name):
            account.check_subscriptions(existing)

    async def _check_copies(self, content: subscriptions_pb2.Subscription, key: StreamKey) -> None:
        """Raises SNAPSHOT_UNSUITABLE if existing documents are to be copied when history is lost, and cannot be."""
        if may_copy(content):
            source = self._service.manager.source(key.spec.scope.source)
            await check_copy(source, key, self._service.admission.charge_list)

    async def _resolve(self, start: Start, tenant: str, key: StreamKey, stored: bytes = b"") -> ResumeToken:
        """The position to store. A native token is stored as its position; MongoDB checks it at the first read."""
        if start.kind is StartKind.RESUME_AFTER:
            start = Start(StartKind.START_AFTER, data=start.data)
        return (await self._service.starts(key, tenant).resolve(start, stored)).place.before_event()


def _unnoticed_end(stored: bytes) -> Copied | None:
    """The copy whose end the client may not have noticed at a stored position. It is announced wherever the position is
    moved: what it did not bring is gone, before and after."""
    try:
        return inspect_position(stored).completed
    except FeedmuxError:
        return None  # a seek is the way out of a position that cannot be read


def _masked(request: subscriptions_pb2.UpdateSubscriptionRequest) -> frozenset[str]:
    """The fields to change. Raises MESSAGE_INVALID for a path that cannot be updated."""
    paths = frozenset(request.update_mask.paths)
    if "*" in paths:
        return _UPDATABLE
    if not paths:
        present = {field.name for field, _ in request.subscription.ListFields()}
        return _UPDATABLE & present
    unknown = paths - _UPDATABLE
    if unknown:
        raise FeedmuxError(
            ErrorReason.MESSAGE_INVALID,
            f"update_mask: {', '.join(sorted(unknown))} cannot be updated; feed, on_invalidate,"
            " on_history_lost, group can",
            {"field": "update_mask"},
            field="update_mask",
        )
    return paths


def _check_policies(subscription: subscriptions_pb2.Subscription) -> None:
    for name, known in convert.POLICIES.items():
        if getattr(subscription, name) not in known.values():
            raise invalid(name, "has an unknown value")


def _checked(definition: bytes) -> bytes:
    """Raises MESSAGE_INVALID for a definition that is too large to be stored."""
    if len(definition) > DEFINITION_BYTES_MAX:
        raise FeedmuxError(
            ErrorReason.MESSAGE_INVALID,
            f"the subscription's definition takes {len(definition)} bytes; at most {DEFINITION_BYTES_MAX} are allowed."
            " A pipeline takes fewer bytes in BSON than in Extended JSON",
            {"field": "subscription"},
            field="subscription",
        )
    return definition


def _differences(existing: Message, wanted: Message, prefix: str = "") -> Iterator[str]:
    """A text for each field that differs."""
    for field in existing.DESCRIPTOR.fields:
        one, other = getattr(existing, field.name), getattr(wanted, field.name)
        name = prefix + field.name
        is_group = field.message_type is subscriptions_pb2.Group.DESCRIPTOR
        if is_group and existing.HasField(field.name) != wanted.HasField(field.name):
            yield f"{name} is {'set' if existing.HasField(field.name) else 'unset'}"
            continue
        if one == other:
            continue
        if field.message_type is feed_pb2.Feed.DESCRIPTOR:
            yield from _differences(one, other, f"{name}.")
        elif field.enum_type is not None:
            values = field.enum_type.values_by_number
            yield f"{name} is {values[one].name}, not {values[other].name}"
        elif isinstance(one, (str, bool, int)):
            yield f"{name} is {_short(one)}, not {_short(other)}"
        else:
            yield f"{name} differs"


def _short(value: str | bool | int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= QUOTED_MAX else text[: QUOTED_MAX - 1] + "…"


def _etag(definition: bytes) -> str:
    return hashlib.blake2b(definition, digest_size=8).hexdigest()


def _add_session(message: subscriptions_pb2.Subscription, session: Session) -> None:
    """Add what only the server with the session knows."""
    message.session_state = session.state.value
    message.unacked_events = session.subscriber.unacked
    stored, copy, status = message.snapshot, session.copy, session.copy_status
    if message.HasField("snapshot") and copy is not None and status is not None:
        stored.documents_estimated = status.documents_estimated
        # After what is acknowledged, as `documents`: the session is ahead of that.
        left_s = copy.remaining_s(monotonic_s(), stored.documents)
        if left_s is not None and stored.generation == status.generation:
            stored.remaining.CopyFrom(convert.duration(left_s))


def _message(stored: StoredSubscription, unused_days: float) -> subscriptions_pb2.Subscription:
    message = convert.stored_content(stored.definition)
    message.name = stored.name
    message.cluster_time.CopyFrom(convert.cluster_time(stored.cluster_time))
    message.create_time.FromMilliseconds(stored.create_ms)
    message.update_time.FromMilliseconds(stored.update_ms)
    message.etag = stored.etag
    message.active = stored.active
    message.owner = stored.owner
    message.epoch = stored.epoch
    scope = convert.stored_scope(message.feed)
    place = copied_of(stored.position)
    status = convert.snapshot_status(status_at(place, scope.namespace)) if place is not None else None
    if status is not None:
        message.snapshot.CopyFrom(status)
    message.routing_key = route_of(scope)
    expires = stored.expires_ms(unused_days)
    if expires is not None:
        message.expire_time.FromMilliseconds(expires)
    return message
