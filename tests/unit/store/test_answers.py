"""What the scripts' answers stand for."""

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.answers import check, digits, outcome, subscription
from feedmux_server.store.model import CommitOutcome, CommitStatus, FenceCause
from feedmux_server.store.scripts import Answer
from tests.tables import over

FIELDS = {
    b"definition": b"feed", b"etag": b"e1", b"position": b"p", b"cluster_time": b"00000000000000000007", b"order": b"o",
    b"epoch": b"3", b"nonce": b"n", b"owner": b"me", b"lease_until_ms": b"2000",
}  # fmt: skip


def answer(now_ms: int = 1000, without: str = "", **changed: bytes) -> Answer:
    fields = {**FIELDS, **{name.encode(): value for name, value in changed.items()}}
    flat = [part for name, value in fields.items() if name.decode() != without for part in (name, value)]
    return [b"OK", str(now_ms).encode(), flat]


def test_a_subscription_is_read_from_its_fields() -> None:
    stored = subscription("s", answer())
    assert (stored.name, stored.definition, stored.etag, stored.position) == ("s", b"feed", "e1", b"p")
    assert (stored.cluster_time, stored.epoch, stored.owner, stored.active) == (7, 3, "me", True)


def test_a_lease_that_is_over_has_no_owner() -> None:
    for late in (answer(now_ms=3000), answer(nonce=b"")):
        stored = subscription("s", late)
        assert (stored.owner, stored.active) == ("", False)


@over("field", ["definition", "position", "cluster_time", "order", "etag"])
def test_a_missing_field_that_a_session_needs_is_damage(field: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        subscription("s", answer(without=field))
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE
    assert caught.value.metadata == {"redis_error": "DAMAGED"}


@over(
    ("field", "value"),
    [
        ("epoch", b"1180591620717411303424"),  # 2^70
        ("epoch", b"9007199254740992"),
        ("epoch", b"-1"),
        ("seek_epoch", b"1_0"),
        ("commit_epoch", b"9" * 5000),
        ("cluster_time", b"7"),
        ("cluster_time", b"18446744073709551616"),
        ("create_ms", b"253402300800000"),
        ("lease_until_ms", b"9007199254740991"),
        ("etag", b"\xff"),
        ("owner", b"\xff"),
    ],
)
def test_what_feedmux_would_not_have_written_is_damage(field: str, value: bytes) -> None:
    with pytest.raises(FeedmuxError) as caught:
        subscription("s", answer(1000, "", **{field: value}))
    assert caught.value.metadata == {"redis_error": "DAMAGED"}


@over(
    ("status", "reason"),
    [
        (b"NOT_FOUND", ErrorReason.SUBSCRIPTION_NOT_FOUND),
        (b"ETAG_MISMATCH", ErrorReason.ETAG_MISMATCH),
        (b"DAMAGED", ErrorReason.STATE_UNAVAILABLE),
    ],
)
def test_an_answer_that_is_an_error_is_raised(status: bytes, reason: ErrorReason) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check("s", [status])
    assert caught.value.reason is reason


@over(
    ("answered", "wanted"),
    [
        ([b"OK", b"position"], CommitOutcome(CommitStatus.OK, position=b"position")),
        ([b"FENCED", b"SEEK"], CommitOutcome(CommitStatus.FENCED, cause=FenceCause.SEEK)),
        ([b"FENCED", b"A_CAUSE_TO_COME"], CommitOutcome(CommitStatus.FENCED, cause=FenceCause.LEASE)),
        ([b"MISSING"], CommitOutcome(CommitStatus.MISSING)),
        (ValueError(), CommitOutcome(CommitStatus.FAILED)),
    ],
)
def test_the_outcome_of_a_commit(answered: Answer | Exception, wanted: CommitOutcome) -> None:
    assert outcome(answered) == wanted


def test_cluster_times_compare_as_text() -> None:
    times = [0, 9, 10, 1 << 32, (1 << 63) - 1]
    assert sorted(digits(each) for each in times) == [digits(each) for each in times]
