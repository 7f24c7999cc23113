"""Which feeds become views: depends on their number and their share of the traffic, with hysteresis."""

import bson

from feedmux_server.core.delivery.wide_plan import WideLimits, WidePlan, WideState, group_of, view_of
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.grants.grant import Grant, make_grant
from feedmux_server.core.grants.stages import apply_grants
from tests.tables import over

LIMITS = WideLimits(feeds_min=4, events_per_s_max=1_000.0, share_min=0.5, retry_s=60.0)


def feed(database: str, collection: str = "", **options: object) -> StreamKey:
    return stream_key(FeedSpec(Scope("main", database, collection), **options))  # type: ignore[arg-type]


GROUP = group_of(feed("d"))
INSERTS = bson.encode({"pipeline": [{"$match": {"operationType": "insert"}}]})


def planned(count: int) -> WidePlan:
    plan = WidePlan(LIMITS)
    for number in range(count):
        plan.enter(feed("d", f"c{number}"), 0.0)
    return plan


def test_a_group_is_shared_from_a_number_on_and_given_up_below_half_of_it() -> None:
    plan = planned(3)
    assert plan.wanted(GROUP, 0.0) is None
    plan.enter(feed("d", "c3"), 0.0)
    assert plan.wanted(GROUP, 0.0) == Scope("main", "d")
    for number in (3, 2):
        plan.leave(feed("d", f"c{number}"), 0.0)
    assert plan.wanted(GROUP, 0.0) == Scope("main", "d")
    plan.leave(feed("d", "c1"), 0.0)
    assert plan.wanted(GROUP, 0.0) is None
    assert plan.state(GROUP) is WideState.TOO_FEW


def test_the_same_feed_read_twice_counts_once() -> None:
    plan = planned(3)
    plan.enter(feed("d", "c0"), 0.0)
    assert plan.wanted(GROUP, 0.0) is None


def test_feeds_of_two_databases_share_the_stream_of_the_deployment_and_keep_it() -> None:
    plan = planned(4)
    plan.enter(feed("e", "c"), 0.0)
    assert plan.wanted(GROUP, 0.0) == Scope("main")
    plan.leave(feed("e", "c"), 0.0)
    assert plan.wanted(GROUP, 0.0) == Scope("main")


def test_options_that_change_what_comes_out_make_groups_of_their_own() -> None:
    plan = planned(3)
    plan.enter(feed("d", "c3", full_document="updateLookup"), 0.0)
    assert plan.wanted(GROUP, 0.0) is None


def test_options_with_any_number_of_values_make_no_groups() -> None:
    """Otherwise each further comment would have the deployment read once more."""
    assert view_of(feed("d", "c")) is not None
    assert view_of(feed("d", "c", comment=bson.encode({"comment": "mine"}))) is None
    assert view_of(feed("d", "c", collation=bson.encode({"locale": "fr"}))) is None
    assert view_of(feed("d", "c", extra_options=("showCommitTimestamp",))) is None


def test_all_wide_streams_share_one_rate() -> None:
    plan = planned(4)
    options: list[dict[str, object]] = [
        {"full_document": "updateLookup"},
        {"show_expanded_events": True},
        {"read_preference": "nearest"},
    ]
    for each in options:
        for number in range(4):
            plan.enter(feed("d", f"c{number}", **each), 0.0)
    plan.measured(GROUP, 10.0, events_per_s=249.0, share=0.4)
    assert plan.wanted(GROUP, 10.0)
    # Each is within the rate, and all together are not.
    plan.measured(GROUP, 10.0, events_per_s=900.0, share=0.4)
    assert plan.wanted(GROUP, 10.0) is None


def test_a_wide_stream_with_too_many_events_of_others_is_given_up_for_a_while() -> None:
    plan = planned(4)
    plan.measured(GROUP, 10.0, events_per_s=2_000.0, share=0.6)
    plan.measured(GROUP, 10.0, events_per_s=900.0, share=0.0)
    assert plan.wanted(GROUP, 10.0)
    plan.measured(GROUP, 10.0, events_per_s=2_000.0, share=0.4)
    assert plan.wanted(GROUP, 69.0) is None
    assert plan.state(GROUP) is WideState.TOO_BUSY
    assert plan.wanted(GROUP, 70.0)


def test_many_feeds_are_worth_many_events_of_others() -> None:
    """The cost of a separate cursor for each feed."""
    plan = planned(40)
    plan.measured(GROUP, 10.0, events_per_s=2_700.0, share=0.0)
    plan.measured(GROUP, 10.0, events_per_s=5_000.0, share=0.49)
    assert plan.wanted(GROUP, 10.0)
    plan.measured(GROUP, 10.0, events_per_s=2_900.0, share=0.0)
    assert plan.state(GROUP) is WideState.TOO_BUSY


@over(("feeds", "writes_per_s", "shared"), [(8, 130.0, True), (8, 150.0, False), (35, 400.0, False), (45, 400.0, True)])
def test_few_feeds_are_not_worth_a_read_for_each_write_of_others(feeds: int, writes_per_s: float, shared: bool) -> None:
    plan = planned(feeds)
    plan.measured(GROUP, 10.0, writes_per_s, 0.0, reads_per_s=writes_per_s)
    assert (plan.wanted(GROUP, 10.0) is not None) is shared
    # Events that are read many at a time cost little, and the feeds' own events would cost a separate cursor as much.
    plan = planned(feeds)
    plan.measured(GROUP, 10.0, writes_per_s, 0.0, reads_per_s=1.0)
    plan.measured(GROUP, 10.0, writes_per_s, 0.5, reads_per_s=writes_per_s)
    assert plan.wanted(GROUP, 10.0) is not None


def test_a_refusal_is_tried_again_later() -> None:
    plan = planned(4)
    plan.refused(GROUP, 0.0)
    assert plan.wanted(GROUP, 59.0) is None
    assert plan.state(GROUP) is WideState.REJECTED
    assert plan.wanted(GROUP, 60.0)


def test_it_is_tried_less_and_less_often_until_it_was_worth_its_costs() -> None:
    plan, now_s, pauses = planned(4), 0.0, list[float]()
    for _ in range(7):
        assert plan.wanted(GROUP, now_s)
        plan.measured(GROUP, now_s, events_per_s=2_000.0, share=0.1)
        pauses.append(next(s for s in range(2_000) if plan.wanted(GROUP, now_s + s)))
        now_s += pauses[-1]
    assert pauses == [60, 120, 240, 480, 960, 960, 960]
    plan.measured(GROUP, now_s, events_per_s=2_000.0, share=0.9)
    plan.measured(GROUP, now_s, events_per_s=2_000.0, share=0.1)
    assert plan.wanted(GROUP, now_s + 60)


def test_it_can_be_switched_off() -> None:
    plan = WidePlan(WideLimits(enabled=False, feeds_min=1))
    plan.enter(feed("d", "c"), 0.0)
    assert plan.wanted(GROUP, 0.0) is None
    assert plan.state(GROUP) is WideState.DISABLED


@over(
    ("key", "may"),
    [
        (feed("d", "c"), True),
        (feed("d"), True),
        (feed("d", "c", full_document="whenAvailable", show_expanded_events=True), True),
        (feed("d", "c", pipeline=bson.encode({"pipeline": []})), True),
        (feed("d", pipeline=INSERTS), True),
        (feed(""), False),
        (feed("d", "c", pipeline=bson.encode({"pipeline": [{"$match": {"a": 1}}]})), False),
        (feed("d", "c", full_document="required"), False),
        (feed("d", "c", full_document_before_change="required"), False),
        (stream_key(FeedSpec(Scope("main", "d", "c")), bson.encode({"pipeline": [{"$match": {}}]})), False),
    ],
)
def test_which_feeds_may_be_views(key: StreamKey, may: bool) -> None:
    assert (view_of(key) is not None) is may


@over(
    ("grant", "spec", "may"),
    [
        (make_grant("main", "d", "c"), FeedSpec(Scope("main", "d", "c")), True),
        (make_grant("main", "d", "c*"), FeedSpec(Scope("main", "d", "c"), pipeline=INSERTS), True),
        (make_grant("main", "d", "*"), FeedSpec(Scope("main", "d", "c")), True),
        (make_grant("main", "d", "c", {"owner": "a"}), FeedSpec(Scope("main", "d", "c")), False),
        (make_grant("main", "d", "c", hide=["secret"]), FeedSpec(Scope("main", "d", "c")), False),
        # The policy decides which collections are shown.
        (make_grant("main", "d", "c"), FeedSpec(Scope("main", "d")), False),
    ],
)
def test_feeds_of_tenants_whose_grants_show_all_changes_may_be_views(grant: Grant, spec: FeedSpec, may: bool) -> None:
    key = stream_key(*apply_grants((grant,), spec))
    assert (view_of(key) is not None) is may
    if may:
        assert view_of(key) == view_of(stream_key(spec))
        assert group_of(key) == group_of(stream_key(spec)), "one wide stream for tenants with grants and without"
