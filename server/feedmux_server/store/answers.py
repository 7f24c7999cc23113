"""What the scripts answer: subscriptions, outcomes, and the errors that an answer stands for."""

from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.errors import RETRY_AFTER_S
from feedmux_server.store.model import TIME_MS_MAX, CommitOutcome, CommitStatus, FenceCause, StoredSubscription
from feedmux_server.store.scripts import Answer

DELETED: Final = b"DELETED"
"""In the answer for a subscription that does not exist: it was deleted not long ago."""


def digits(cluster_time: int) -> str:
    """The cluster time in a fixed width, so that the scripts compare 64 bits as text; a Lua number holds only 53."""
    return f"{cluster_time:020d}"


def status(answer: Answer) -> str:
    first: bytes = answer[0]
    return first.decode()


def check_replicated(replicated: bool) -> None:
    if not replicated:
        raise FeedmuxError(
            ErrorReason.STATE_UNAVAILABLE,
            "the change is made, but too few replicas of Redis confirmed it in time, so a failover could undo it:"
            " repeat the call (docs/redis.md)",
            {"redis_error": "NOT_REPLICATED"},
            retry_after_s=RETRY_AFTER_S,
        )


def check(name: str, answer: Answer) -> None:
    match status(answer):
        case "NOT_FOUND":
            deleted = answer[1:] == [DELETED]
            raise FeedmuxError(
                ErrorReason.SUBSCRIPTION_NOT_FOUND,
                f"subscription {name!r} was deleted" if deleted else f"there is no subscription {name!r}",
                {"cause": "DELETED"} if deleted else {},
            )
        case "ETAG_MISMATCH":
            raise FeedmuxError(
                ErrorReason.ETAG_MISMATCH,
                f"Subscription {name!r} was changed after this etag was read: get the subscription again and repeat",
            )
        case "DAMAGED":
            raise damaged(name)


def damaged(name: str) -> FeedmuxError:
    return FeedmuxError(
        ErrorReason.STATE_UNAVAILABLE,
        f"Redis has lost or changed a part of subscription {name!r}: restore its key from a backup, or delete the"
        " subscription and create it at a known position (docs/redis.md)",
        {"redis_error": "DAMAGED"},
        retry_after_s=RETRY_AFTER_S,
    )


def subscription(name: str, answer: Answer) -> StoredSubscription:
    """Parse an answer. Raises STATE_UNAVAILABLE (`redis_error` DAMAGED) if feedmux would not have written it like this.
    Fields that a session does not need may be missing."""
    now_ms, flat = int(answer[1]), answer[2]
    try:
        return _parse(name, dict(zip(flat[::2], flat[1::2], strict=True)), now_ms)
    except (KeyError, ValueError):
        raise damaged(name) from None


def _parse(name: str, fields: dict[bytes, bytes], now_ms: int) -> StoredSubscription:
    active = fields.get(b"nonce", b"") != b"" and _number(fields, b"lease_until_ms") > now_ms
    return StoredSubscription(
        name=name,
        definition=fields[b"definition"],
        etag=fields[b"etag"].decode(),
        position=fields[b"position"],
        cluster_time=_cluster_time(fields[b"cluster_time"]),
        order=fields[b"order"],
        epoch=_number(fields, b"epoch"),
        seek_epoch=_number(fields, b"seek_epoch"),
        commit_epoch=_number(fields, b"commit_epoch"),
        owner=fields.get(b"owner", b"").decode() if active else "",
        active=active,
        create_ms=_number(fields, b"create_ms"),
        update_ms=_number(fields, b"update_ms"),
        used_ms=max(_number(fields, name) for name in (b"used_ms", b"lease_until_ms", b"update_ms")),
        delivered_time=_cluster_time(fields.get(b"delivered", digits(0).encode())),
        members=_number(fields, b"members"),
    )


def _number(fields: dict[bytes, bytes], name: bytes) -> int:
    """0 if the field is missing. Raises ValueError for anything that the scripts would not have written."""
    text = fields.get(name, b"0")
    if len(text) > len(str(TIME_MS_MAX)) or not text.isdigit() or int(text) > TIME_MS_MAX:
        raise ValueError
    return int(text)


def _cluster_time(text: bytes) -> int:
    """The reverse of `digits`."""
    if len(text) != len(digits(0)) or not text.isdigit() or int(text) >= 1 << 64:
        raise ValueError
    return int(text)


def outcome(answer: Answer | Exception) -> CommitOutcome:
    if isinstance(answer, Exception):
        return CommitOutcome(CommitStatus.FAILED)
    committed = CommitStatus(status(answer))
    if committed is CommitStatus.OK:
        return CommitOutcome(committed, position=answer[1])
    if committed is CommitStatus.FENCED:
        return CommitOutcome(committed, cause=_cause(answer[1]))
    return CommitOutcome(committed)


def _cause(stored: bytes) -> FenceCause:
    """Parse a fence cause. An unknown cause of a newer version counts as LEASE: the client should open again."""
    try:
        return FenceCause(stored.decode())
    except ValueError:
        return FenceCause.LEASE
