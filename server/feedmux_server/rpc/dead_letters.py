"""The dead letters of groups: list, show, discard, replay.

A letter's content was shown to the tenant once, by the feed and the grants of that time. It is shown again only while
the subscription has the same feed and grants, because these may have been narrowed since: `DeadLetter.stream_key` is
compared with the present one.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from feedmux.v1 import subscriptions_pb2 as wire
from feedmux_server.core.errors import ErrorReason, FeedmuxError, invalid
from feedmux_server.core.events.bson_check import walk
from feedmux_server.core.events.dead_letter import ID_BYTES, DeadLetter
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.limits.quota import exceeded
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.rpc import convert
from feedmux_server.rpc.bounds import LETTERS_MAX
from feedmux_server.rpc.caller import caller
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context
from feedmux_server.source.letters import PAGE_BYTES_MAX, Letters, OfKey
from feedmux_server.telemetry.audit import AuditEvent

PAGE_DEFAULT = 100
PAGE_MAX = 1_000
MESSAGES_AT_ONCE = 100
LETTER_BYTES_MAX = 8 * 1024
"""The most bytes of a letter without its event, about."""
DELIVERY_WAIT_MAX_S = 1.0
KEY_FIELDS_MAX = 200


class DeadLetters:
    """One method for each RPC: request bytes in, response bytes out."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list_(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(wire.ListDeadLettersRequest, data)
        check_name("name", request.name)
        if request.page_size < 0:
            raise invalid("page_size", "must not be negative")
        if request.key:
            _check_key(request.key)
        after = _after(request.page_token) if request.page_token else None
        letters, stream_key, *_ = await self._readable(tenant, request.name)
        most, of = min(request.page_size or PAGE_DEFAULT, PAGE_MAX), None
        if request.key:
            of = OfKey(request.key, stream_key)  # what a key finds among withheld letters would show their keys
        with self._service.admission.answering(min(most * LETTER_BYTES_MAX, PAGE_BYTES_MAX)):
            page, more = await letters.page(tenant, request.name, of=of, after=after, most=most)
            self._service.admission.charge_items(max(1, len(page)))
            response = wire.ListDeadLettersResponse()
            for number, each in enumerate(page, 1):
                response.dead_letters.append(_message(each, stream_key))
                if not number % MESSAGES_AT_ONCE:
                    await asyncio.sleep(0)
            if more:
                response.next_page_token = f"{page[-1].failed_ms}-{page[-1].id.hex()}"
            return response.SerializeToString()

    async def get(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(wire.GetDeadLetterRequest, data)
        check_name("name", request.name)
        _check_id("id", request.id)
        letters, stream_key, *_ = await self._readable(tenant, request.name)
        letter = await letters.get(tenant, request.name, request.id, with_event=False)
        if letter is not None and letter.stream_key == stream_key:
            await self._charge(tenant, letter.event_bytes)
            with self._service.admission.answering(letter.event_bytes):
                letter = await letters.get(tenant, request.name, request.id, with_event=True)
        if letter is None:
            raise FeedmuxError(
                ErrorReason.DEAD_LETTER_NOT_FOUND,
                f"subscription {request.name!r} has no dead letter of this id; it was discarded, or has expired",
            )
        return _message(letter, stream_key).SerializeToString()

    async def discard(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(wire.DiscardDeadLettersRequest, data)
        check_name("name", request.name)
        letters, more = self._letters(), False
        match request.WhichOneof("which"):
            case "ids":
                for each in request.ids.ids:
                    _check_id("ids.ids", each)
                ids = list(dict.fromkeys(request.ids.ids))
            case "key":
                _check_key(request.key)
                _, stream_key, *_ = await self._readable(tenant, request.name)
                of = OfKey(request.key, stream_key)
                ids, more = await letters.ids(tenant, request.name, of=of, most=LETTERS_MAX)
            case "all":
                ids, more = await letters.ids(tenant, request.name, of=None, most=LETTERS_MAX)
            case _:
                raise invalid("which", "is required: ids, key, or all")
        self._service.admission.charge_items(max(1, len(ids)))
        complete = request.WhichOneof("which") != "ids" and not more
        count = await letters.discard(tenant, request.name, ids, complete=complete) if ids else 0
        if count:
            self._service.audit.did(AuditEvent.DISCARD, "DiscardDeadLetters", context, subscription=request.name)
        return wire.DiscardDeadLettersResponse(discarded=count, more=more).SerializeToString()

    async def replay(self, data: bytes, context: Context) -> bytes:
        """Mark letters. The host of the group, which may be another server, finds them."""
        tenant = caller().tenant
        request = convert.parse(wire.ReplayDeadLettersRequest, data)
        check_name("name", request.name)
        which, ids = request.WhichOneof("which"), None
        match which:
            case "ids":
                for each in request.ids.ids:
                    _check_id("ids.ids", each)
                ids = list(dict.fromkeys(request.ids.ids))
            case "key":
                _check_key(request.key)
            case None:
                raise invalid("which", "is required: ids, key, or all")
        letters, stream_key, forks, epoch = await self._readable(tenant, request.name)
        of = tenant, request.name, stream_key, forks
        chosen, more = await letters.mark(*of, epoch=epoch, ids=ids, key=request.key, most=LETTERS_MAX)
        self._service.admission.charge_items(max(1, chosen, len(ids or ())))
        withheld = 0
        if which != "key":  # what a key finds among withheld letters would show their keys
            withheld = await letters.withheld(*of, ids=ids, most=LETTERS_MAX)
        if chosen:
            self._service.audit.did(AuditEvent.REPLAY, "ReplayDeadLetters", context, subscription=request.name)
        return wire.ReplayDeadLettersResponse(chosen=chosen, more=more, withheld=withheld).SerializeToString()

    def _letters(self) -> Letters:
        """Raises DEAD_LETTERS_UNAVAILABLE, SOURCE_UNAVAILABLE."""
        if self._service.letters is None:
            raise FeedmuxError(
                ErrorReason.DEAD_LETTERS_UNAVAILABLE,
                "this server has no collection for dead letters; the operator can configure one (dead_letters)",
            )
        return self._service.letters.letters

    async def _readable(self, tenant: str, name: str) -> tuple[Letters, bytes, Sequence[Fork], int]:
        """The letters, the stream key of those whose content may be shown, empty for none, the forks of their source,
        and the epoch of the subscription. Raises SUBSCRIPTION_NOT_FOUND."""
        letters, access = self._letters(), self._service.access
        stored = await self._service.store.get(tenant, name)
        content = convert.stored_content(stored.definition)
        try:
            key = access.key_of(await access.feed_of(content.feed, tenant), tenant)
        except FeedmuxError as error:
            if error.status in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"):
                raise
            return letters, b"", (), stored.epoch  # the tenant may no longer read the feed
        forks = self._service.manager.source(key.spec.scope.source).timeline.forks
        return letters, key.digest, forks, stored.epoch

    async def _charge(self, tenant: str, size: int) -> None:
        """Charge a delivery of `size` bytes. Waits if deliveries come too fast. Raises QUOTA_EXCEEDED if waiting a
        second does not help."""
        accounts = self._service.manager.accounts
        account = accounts.of(tenant)
        wait_s = account.rates.delivery_wait_s(accounts.clock())
        if wait_s > DELIVERY_WAIT_MAX_S:
            raise exceeded("bytes_per_s", account.quotas.bytes_per_s, retry_after_s=wait_s)
        account.sent(1, size, accounts.clock())
        if wait_s > 0:
            await asyncio.sleep(wait_s)


def _message(letter: DeadLetter, stream_key: bytes) -> wire.DeadLetter:
    withheld = letter.stream_key != stream_key
    return wire.DeadLetter(
        id=letter.id,
        key=b"" if withheld else letter.key,
        event=b"" if withheld else letter.event,
        event_bytes=letter.event_bytes,
        attempts=letter.attempts,
        # They may quote the event.
        reasons=() if withheld else letter.reasons,
        member=letter.member,
        cluster_time=convert.cluster_time(letter.cluster_time),
        fail_time=convert.timestamp(letter.failed_ms / 1000),
        expire_time=convert.timestamp(letter.expires_ms / 1000),
        withheld=withheld,
    )


def _check_key(key: bytes) -> None:
    """Raises BSON_INVALID, MESSAGE_INVALID."""
    for count, _ in enumerate(walk(key, "key"), 1):
        if count > KEY_FIELDS_MAX:
            raise invalid("key", f"must not have more than {KEY_FIELDS_MAX} fields")


def _check_id(field: str, value: bytes) -> None:
    if len(value) != ID_BYTES:
        raise invalid(field, f"must have {ID_BYTES} bytes, as DeadLetter.id")


def _after(token: str) -> tuple[int, bytes]:
    milliseconds, _, id_ = token.partition("-")
    with suppress(ValueError):
        after = int(milliseconds), bytes.fromhex(id_)
        if len(milliseconds) <= len(str(1 << 53)) and after[0] >= 0 and len(after[1]) == ID_BYTES:
            return after
    raise invalid("page_token", "must be the next_page_token of a page")
