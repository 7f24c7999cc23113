"""What the definition of a group, and a session that joins one, may say.

What groups cannot do yet is rejected, so that nobody relies on it.
"""

from dataclasses import replace
from typing import Final

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.core.delivery.credit import CreditLimits, CreditWindow
from feedmux_server.core.delivery.retry import DEFAULT as RETRY
from feedmux_server.core.delivery.retry import HELD_MAX_S, Failure, RetryPolicy
from feedmux_server.core.errors import ErrorReason, FeedmuxError, invalid
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.feeds.stream_key import SPLIT, StreamKey, effective_stages
from feedmux_server.rpc import convert

RECONNECT_DEFAULT_S: Final = 5.0
RECONNECT_MAX_S: Final = 60.0
ATTEMPTS_MAX: Final = 100
WINDOW_EVENTS_MAX: Final = 10_000
"""The most events that a member has in hand: to find them when it is lost takes 4 ms of the event loop."""
RETRY_MIN_S: Final = 0.01
_NO_LETTERS: Final = "this server has no collection for dead letters; the operator can configure one (dead_letters)"


def check_group(
    content: subscriptions_pb2.Subscription, key: StreamKey, *, is_copying: bool, has_letters: bool
) -> None:
    """Check `group` of a subscription, if it is set. `is_copying`: its position is within a copy of existing documents;
    `has_letters`: the server has a collection for dead letters. Raises MESSAGE_INVALID, GROUP_UNSUITABLE,
    DEAD_LETTERS_UNAVAILABLE."""
    if not content.HasField("group"):
        return
    if is_copying:
        raise FeedmuxError(
            ErrorReason.GROUP_UNSUITABLE,
            "a group cannot share a copy of existing documents yet; make the subscription a group when the copy is"
            " complete, or begin it elsewhere",
        )
    if may_copy(content):
        raise FeedmuxError(
            ErrorReason.GROUP_UNSUITABLE,
            "a group cannot share a copy of existing documents yet; set on_history_lost to FAIL or EARLIEST",
            field="on_history_lost",
        )
    group = content.group
    if not 0 <= reconnect_s(group) <= RECONNECT_MAX_S:
        raise invalid("subscription.group.reconnect_time", f"must be 0 to {RECONNECT_MAX_S:.0f} s")
    given = {field.name for field, _ in group.ListFields()}
    retry_policy(group)
    if "key_field" in given:
        raise invalid("subscription.group.key_field", "is not supported yet; leave it unset")
    for name in ("attempts_max", "after_dead_letter"):
        if name in given and not has_letters:
            raise FeedmuxError(
                ErrorReason.DEAD_LETTERS_UNAVAILABLE,
                f"{_NO_LETTERS}. Without one, leave subscription.group.{name} unset",
                field=f"subscription.group.{name}",
            )
    if not 0 <= group.attempts_max <= ATTEMPTS_MAX:
        raise invalid("subscription.group.attempts_max", f"must be 0 to {ATTEMPTS_MAX}")
    if group.after_dead_letter not in subscriptions_pb2.AfterDeadLetter.values():
        raise invalid("subscription.group.after_dead_letter", "must be SKIP, QUARANTINE or unset")
    if any(SPLIT in stage for stage in effective_stages(key)):
        raise FeedmuxError(
            ErrorReason.GROUP_UNSUITABLE,
            f"a group cannot share events that {SPLIT} splits; remove the stage from the pipeline, or leave"
            " subscription.group unset",
        )


def may_copy(content: subscriptions_pb2.Subscription) -> bool:
    """Whether existing documents are copied when history is lost."""
    return content.on_history_lost == feed_pb2.ON_HISTORY_LOST_SNAPSHOT


def reconnect_s(group: subscriptions_pb2.Group) -> float:
    return convert.seconds(group.reconnect_time) if group.HasField("reconnect_time") else RECONNECT_DEFAULT_S


def retry_policy(group: subscriptions_pb2.Group) -> RetryPolicy:
    """When failed events are delivered again. Raises MESSAGE_INVALID."""
    given = dict[str, float]()
    for name in ("retry_first", "retry_most"):
        if group.HasField(name):
            given[name] = convert.seconds(getattr(group, name))
            if not RETRY_MIN_S <= given[name] <= HELD_MAX_S:
                raise invalid(f"subscription.group.{name}", f"must be {RETRY_MIN_S} to {HELD_MAX_S:.0f} s")
    if len(given) == 2 and given["retry_first"] > given["retry_most"]:
        raise invalid("subscription.group.retry_most", "must not be below retry_first")
    # If only one is given, the other one follows it.
    first_s = given.get("retry_first", min(RETRY.first_s, given.get("retry_most", RETRY.first_s)))
    return RetryPolicy(first_s, given.get("retry_most", max(RETRY.most_s, first_s)), group.attempts_max)


def check_member(request: wire.Open) -> None:
    """Check Open of a session that joins a group. Raises MESSAGE_INVALID, START_CONFLICT, NAME_INVALID."""
    if request.WhichOneof("target") != "subscription":
        raise invalid("open.join", "needs the name of a subscription")
    check_name("subscription", request.subscription)
    if request.HasField("start"):
        raise FeedmuxError(
            ErrorReason.START_CONFLICT,
            "a group begins at its stored position; use SeekSubscription to move that position",
            field="open.start",
        )
    if request.HasField("last_acked"):
        raise invalid("open.last_acked", "is not for members of a group; the group has one position for all")
    if request.takeover:
        raise invalid("open.takeover", "is not for members of a group; others keep theirs")
    if (request.held or request.settled) and request.epoch <= 0:
        raise invalid("open.epoch", "is required with held or settled: Opened.epoch of this member's last session")
    if request.format not in (feed_pb2.FORMAT_UNSPECIFIED, feed_pb2.FORMAT_BSON):
        raise invalid("open.format", "must be BSON in a group; Extended JSON is not supported yet")


def window_of(credit: wire.Credit, limits: CreditLimits) -> CreditWindow:
    """The window of a member. Raises CREDIT_INVALID."""
    window = CreditWindow(replace(limits, events_max=min(limits.events_max, WINDOW_EVENTS_MAX)))
    window.grant(credit.events, credit.bytes)
    return window


def check_not_member(request: wire.Open) -> None:
    """Raises MESSAGE_INVALID for fields that only members of a group may set."""
    for name in ("held", "settled", "epoch"):
        if getattr(request, name):
            raise invalid(f"open.{name}", "is for members of a group; set join")


def reported(settle: wire.Settle, *, has_letters: bool) -> tuple[list[tuple[int, int]], list[Failure]]:
    """The ranges and failures of a Settle. Raises MESSAGE_INVALID, DEAD_LETTERS_UNAVAILABLE."""
    ranges = [(each.first, each.last) for each in settle.done]
    for first, last in ranges:
        if not 1 <= first <= last:
            raise invalid("settle.done", f"has the range {first} to {last}; ranges begin at 1 and go forward")
    return ranges, [_failure(each, has_letters=has_letters) for each in settle.failed]


def _failure(failed: wire.Settle.Failed, *, has_letters: bool) -> Failure:
    if failed.reject and not has_letters:
        raise FeedmuxError(
            ErrorReason.DEAD_LETTERS_UNAVAILABLE,
            f"{_NO_LETTERS}. Without one, an event cannot be rejected (settle.failed.reject), only be delivered again",
        )
    if failed.delivery_sequence < 1:
        raise invalid("settle.failed", f"has the delivery {failed.delivery_sequence}; deliveries begin at 1")
    after_s = None
    if failed.HasField("retry_after"):
        after_s = convert.seconds(failed.retry_after)
        if after_s < 0:
            raise invalid("settle.failed", "has a negative retry_after")
    return Failure(failed.delivery_sequence, after_s, failed.reason, failed.reject)
