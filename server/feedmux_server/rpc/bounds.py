"""Checks how long each field of a request is, before any other code reads the field.

One table has the bounds, by the full name of the field. `unbounded` lists the fields of a message without a bound; a
test calls it for every request.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from feedmux_server.core.errors import ErrorReason, FeedmuxError, invalid
from feedmux_server.core.events.dead_letter import ID_BYTES, KEY_BYTES_MAX
from feedmux_server.core.feeds.feed_fingerprint import FINGERPRINT_BYTES_MAX
from feedmux_server.core.feeds.pipeline_policy import PIPELINE_BYTES_MAX
from feedmux_server.core.positions.position import POSITION_BYTES_MAX

TOKEN_BYTES_MAX: Final = 128 * 1024
"""The most bytes of a MongoDB resume token, which holds the document's `_id` in twice its size. Clients read it in
`Opened.limits`."""
JSON_BYTES_MAX: Final = 192 * 1024
"""The most bytes of a pipeline in Extended JSON; a request with every field at its bound, except a token, fits into
256 KiB."""
OPTION_BYTES_MAX: Final = 4 * 1024
"""The most bytes of a comment or a collation."""
_NAME_BYTES: Final = 1024
_WORD_BYTES: Final = 256
_REASON_BYTES: Final = 1024
_MARKS_MAX: Final = 2_000
"""Two lists of so many marks, of eight bytes each, fit into `SMALL_BYTES`."""
RANGES_MAX: Final = 1_000
"""The most ranges of a Settle: a millisecond of the event loop."""

LETTERS_MAX: Final = 1_000
"""The most dead letters that a call names or deletes."""


@dataclass(frozen=True, slots=True)
class Bound:
    bytes_max: int
    reason: ErrorReason = ErrorReason.MESSAGE_INVALID
    count_max: int = 1
    """The most values of a repeated field."""
    advice: str = ""


# Names have their own, narrower rules and error messages in `core.feeds.names`.
_NAME: Final = Bound(_NAME_BYTES, ErrorReason.NAME_INVALID)
_WORD: Final = Bound(_WORD_BYTES)
_POSITION: Final = Bound(POSITION_BYTES_MAX, ErrorReason.POSITION_INVALID)
_TOKEN: Final = Bound(
    TOKEN_BYTES_MAX, advice="; use the position that feedmux sent with the event: it is short, whatever the `_id`"
)

BOUNDS: Final[dict[str, Bound]] = {
    "feedmux.v1.Feed.source": _NAME,
    "feedmux.v1.Feed.database": _NAME,
    "feedmux.v1.Feed.collection": _NAME,
    "feedmux.v1.Feed.full_document": _WORD,
    "feedmux.v1.Feed.full_document_before_change": _WORD,
    "feedmux.v1.Feed.collation": Bound(OPTION_BYTES_MAX),
    "feedmux.v1.Feed.comment": Bound(OPTION_BYTES_MAX),
    "feedmux.v1.Feed.read_preference": _WORD,
    "feedmux.v1.Feed.read_concern": _WORD,
    "feedmux.v1.Feed.extra_options": Bound(_WORD_BYTES, count_max=16),
    "feedmux.v1.Pipeline.extended_json": Bound(JSON_BYTES_MAX, ErrorReason.PIPELINE_INVALID),
    "feedmux.v1.Pipeline.bson": Bound(PIPELINE_BYTES_MAX, ErrorReason.PIPELINE_INVALID),
    "feedmux.v1.Start.position": _POSITION,
    "feedmux.v1.Start.resume_after": _TOKEN,
    "feedmux.v1.Start.start_after": _TOKEN,
    "feedmux.v1.Open.subscription": _NAME,
    "feedmux.v1.Open.instance_id": _NAME,
    "feedmux.v1.Open.held": Bound(8, count_max=_MARKS_MAX),
    "feedmux.v1.Open.settled": Bound(8, count_max=_MARKS_MAX),
    "feedmux.v1.Settle.done": Bound(32, count_max=RANGES_MAX),
    "feedmux.v1.Settle.failed": Bound(2 * _REASON_BYTES, count_max=RANGES_MAX),
    "feedmux.v1.Settle.Failed.reason": Bound(_REASON_BYTES),
    "feedmux.v1.LastAcked.position": _POSITION,
    "feedmux.v1.LastAcked.resume_token": _TOKEN,
    "feedmux.v1.PlanRangeRequest.subscription": _NAME,
    "feedmux.v1.PlanRangeRequest.instance_id": _NAME,
    "feedmux.v1.PlanRangeRequest.after": _POSITION,
    "feedmux.v1.PlanRangeRequest.until": _POSITION,
    "feedmux.v1.PlanRangeRequest.processed": _POSITION,
    "feedmux.v1.PlanRangeRequest.feed_fingerprint": Bound(FINGERPRINT_BYTES_MAX),
    "feedmux.v1.ReadRangeRequest.subscription": _NAME,
    "feedmux.v1.ReadRangeRequest.after": _POSITION,
    "feedmux.v1.ReadRangeRequest.until": _POSITION,
    "feedmux.v1.ReadRangeRequest.feed_fingerprint": Bound(FINGERPRINT_BYTES_MAX),
    "feedmux.v1.Subscription.name": _NAME,
    "feedmux.v1.Subscription.position": _POSITION,
    "feedmux.v1.Subscription.etag": _WORD,
    "feedmux.v1.Subscription.owner": _NAME,
    "feedmux.v1.Subscription.routing_key": _WORD,
    "feedmux.v1.SnapshotStatus.namespace": _NAME,
    "feedmux.v1.Subscription.session_state": _WORD,
    "feedmux.v1.Group.key_field": _WORD,
    "feedmux.v1.GetSubscriptionRequest.name": _NAME,
    "feedmux.v1.ListSubscriptionsRequest.page_token": _NAME,
    "feedmux.v1.DeleteSubscriptionRequest.name": _NAME,
    "feedmux.v1.DeleteSubscriptionRequest.etag": _WORD,
    "feedmux.v1.SeekSubscriptionRequest.name": _NAME,
    "feedmux.v1.ListDeadLettersRequest.name": _NAME,
    "feedmux.v1.ListDeadLettersRequest.key": Bound(KEY_BYTES_MAX),
    "feedmux.v1.ListDeadLettersRequest.page_token": _WORD,
    "feedmux.v1.GetDeadLetterRequest.name": _NAME,
    "feedmux.v1.GetDeadLetterRequest.id": Bound(ID_BYTES),
    "feedmux.v1.DiscardDeadLettersRequest.name": _NAME,
    "feedmux.v1.DiscardDeadLettersRequest.key": Bound(KEY_BYTES_MAX),
    "feedmux.v1.DiscardDeadLettersRequest.Ids.ids": Bound(ID_BYTES, count_max=LETTERS_MAX),
    "feedmux.v1.ReplayDeadLettersRequest.name": _NAME,
    "feedmux.v1.ReplayDeadLettersRequest.key": Bound(KEY_BYTES_MAX),
    "feedmux.v1.ReplayDeadLettersRequest.Ids.ids": Bound(ID_BYTES, count_max=LETTERS_MAX),
    "google.protobuf.FieldMask.paths": Bound(_WORD_BYTES, count_max=16),
    "feedmux.v1.ListSharedStreamsRequest.source": _NAME,
    "feedmux.v1.ListTenantsRequest.tenant": _NAME,
    "feedmux.v1.EndSubscriberRequest.subscriber_id": _WORD,
}
_LONG_TYPES: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_NOTHING_TO_CHECK_BYTES: Final = 32
"""No message this short has a field over its bound."""

# A message of a quarter of a megabyte can hold a hundred thousand fields, which protobuf takes milliseconds to parse.
SMALL_BYTES: Final = 40 * 1024
"""No valid message has more bytes than this besides its long fields."""
_FIELDS_MAX: Final = 64
_LONG_BYTES: Final = 8 * 1024


def check_shape(kind: Any, data: bytes) -> None:
    """Check before parsing that most of a large message is a few long fields. Raises MESSAGE_INVALID."""
    if len(data) <= SMALL_BYTES:
        return
    rest, waiting = len(data), [(kind, 0, len(data))]
    seen: set[str] = set()
    while waiting:
        message, at, end = waiting.pop()
        for number, start, size in _fields(data, at, end):
            field = message.fields_by_number.get(number)
            # A field counts once: protobuf also accepts a message with many long values of one field.
            if size < _LONG_BYTES or field is None or field.is_repeated or field.full_name in seen:
                continue
            seen.add(field.full_name)
            if field.message_type is not None:
                waiting.append((field.message_type, start, start + size))
            else:
                rest -= size
    if rest > SMALL_BYTES:
        raise FeedmuxError(
            ErrorReason.MESSAGE_INVALID, f"the request has more than {SMALL_BYTES} bytes besides its long fields"
        )


def check_bounds(message: Message, data_size: int) -> None:
    """Raises MESSAGE_INVALID, NAME_INVALID, POSITION_INVALID or PIPELINE_INVALID for a field over its bound."""
    if data_size > _NOTHING_TO_CHECK_BYTES:
        _check(message, "")


def unbounded(kind: Any, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """The full names of the fields of a message, at any depth, that need a bound and have none."""
    for field in kind.fields:
        if field.message_type is not None:
            if field.is_repeated and field.full_name not in BOUNDS:
                yield field.full_name
            elif field.message_type.full_name not in seen:
                yield from unbounded(field.message_type, seen | {field.message_type.full_name})
        elif (field.is_repeated or field.type in _LONG_TYPES) and field.full_name not in BOUNDS:
            yield field.full_name


@cache
def _has_bounds(kind: Any) -> bool:
    """Whether a field of a message, at any depth, has a bound. A Settle may hold a thousand ranges, which have none."""
    return any(
        field.full_name in BOUNDS or (field.message_type is not None and _has_bounds(field.message_type))
        for field in kind.fields
    )


def _check(message: Message, path: str) -> None:
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if field.message_type is not None and not field.is_repeated:
            if _has_bounds(field.message_type):
                _check(value, f"{name}.")
            continue
        bound = BOUNDS.get(field.full_name)
        if bound is None:
            continue
        values: Any = value if field.is_repeated else (value,)
        if len(values) > bound.count_max:
            raise invalid(name, f"must not have more than {bound.count_max} values", bound.reason)
        if field.message_type is not None:
            if _has_bounds(field.message_type):
                for each in values:
                    _check(each, f"{name}.")
            continue
        if field.type not in _LONG_TYPES:
            continue
        for each in values:
            # A character has four bytes at most, so most texts need not be encoded for this check.
            size = len(each) if isinstance(each, bytes) or 4 * len(each) <= bound.bytes_max else len(each.encode())
            if size > bound.bytes_max:
                raise invalid(name, f"must not be longer than {bound.bytes_max} bytes{bound.advice}", bound.reason)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number, start and size of each field in protobuf's encoding of a message. Raises MESSAGE_INVALID."""
    count = 0
    while at < end:
        count += 1
        if count > _FIELDS_MAX:
            raise FeedmuxError(ErrorReason.MESSAGE_INVALID, f"a message has more than {_FIELDS_MAX} fields")
        tag, at = _varint(data, at, end)
        match tag & 7:
            case 0:
                _, after = _varint(data, at, end)
            case 1:
                after = at + 8
            case 2:
                size, at = _varint(data, at, end)
                after = at + size
            case 5:
                after = at + 4
            case _:
                raise _malformed()
        if after > end:
            raise _malformed()
        yield tag >> 3, at, after - at
        at = after


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise _malformed()


def _malformed() -> FeedmuxError:
    return FeedmuxError(ErrorReason.MESSAGE_INVALID, "the request is not a valid message")
