"""The stages of grants: what is rejected, when feeds share a stream, and what is compiled once.

tests/integration/test_grants*.py tests what the stages do to events, on real servers.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any

import bson
import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.feeds.stream_key import stream_key
from feedmux_server.core.grants import stages as grant_stages
from feedmux_server.core.grants.grant import Grants, make_grant
from feedmux_server.core.grants.stages import Asked, PolicyCache, apply_grants, without_database
from tests.tables import over

SPEC = FeedSpec(Scope("main", "shop", "orders"))
DATABASE = FeedSpec(Scope("main", "shop"))
CLUSTER = FeedSpec(Scope("main"))
ALL = make_grant("*", "*", "*")
SHOP = make_grant("main", "shop", "*")
ORDERS = make_grant("main", "shop", "orders")
TEAM_A = make_grant("main", "shop", "orders", {"owner": "team-a"}, ["secret"])


def key_of(grants: Grants, spec: FeedSpec) -> Any:
    return stream_key(*apply_grants(grants, spec))


def refused(grants: Grants, spec: FeedSpec) -> FeedmuxError:
    with pytest.raises(FeedmuxError) as caught:
        apply_grants(grants, spec)
    return caught.value


def test_no_grants_is_all_and_an_empty_list_is_nothing() -> None:
    assert apply_grants(None, SPEC) == Asked(SPEC)
    for spec in (SPEC, DATABASE, CLUSTER):
        assert refused((), spec).reason is ErrorReason.NAMESPACE_DENIED


def test_a_scope_that_no_grant_reaches_is_denied_in_the_same_words() -> None:
    other = replace(SPEC, scope=Scope("main", "shop", "nowhere"))
    first, second = refused((TEAM_A,), other), refused((make_grant("else", "*", "*"),), other)
    assert (first.message, first.metadata) == (second.message, second.metadata)
    assert first.status == "PERMISSION_DENIED"
    assert refused((TEAM_A,), replace(SPEC, scope=Scope("main", "bank"))).reason is ErrorReason.NAMESPACE_DENIED


@over("spec", [SPEC, DATABASE, CLUSTER])
def test_a_grant_of_everything_shares_with_those_who_have_no_grants(spec: FeedSpec) -> None:
    assert key_of((ALL,), spec) == key_of(None, spec)
    assert key_of((ORDERS, ALL), SPEC) == key_of(None, SPEC)


@over(
    ("grants", "spec"),
    [
        ((ORDERS,), SPEC),
        ((SHOP,), CLUSTER),
        ((ORDERS, SHOP), DATABASE),
        ((TEAM_A, ALL), SPEC),
        ((TEAM_A, ALL), CLUSTER),
    ],
)
def test_a_narrower_grant_does_not(grants: Grants, spec: FeedSpec) -> None:
    assert key_of(grants, spec) != key_of(None, spec)


def test_equal_policies_share_and_different_ones_do_not() -> None:
    again = make_grant("main", "shop", "orders", {"owner": "team-a"}, ["secret"])
    assert key_of((TEAM_A,), SPEC) == key_of((again,), SPEC)
    unrelated = make_grant("main", "bank", "*")
    assert key_of((TEAM_A,), SPEC) != key_of((make_grant("main", "shop", "orders", {"owner": "team-b"}),), SPEC)
    assert key_of((TEAM_A,), SPEC) != key_of((make_grant("main", "shop", "orders", {"owner": "team-a"}),), SPEC)
    assert key_of((TEAM_A, unrelated), DATABASE) == key_of((TEAM_A,), DATABASE)


GRANTS = (
    ALL,
    SHOP,
    ORDERS,
    TEAM_A,
    make_grant("main", "shop", "orders", {"owner": "team-b"}),
    make_grant("main", "shop", "orders", None, ["secret"]),
    make_grant("main", "shop", "orders", None, ["secret", "vat"]),
    make_grant("main", "sh?p", "orders", None, ["secret"]),
    make_grant("*", "shop", "*", {"owner": "team-a"}),
    make_grant("main", "shop", "items"),
)


def test_digests_differ_exactly_where_the_stages_do() -> None:
    """The digest says whose dead letters a tenant may read, and has no stages."""
    specs = [
        replace(spec, full_document=after, full_document_before_change=before)
        for spec in (SPEC, DATABASE, CLUSTER)
        for after in ("", "whenAvailable")
        for before in ("", "whenAvailable")
    ]
    found = set()
    for spec, number in product(specs, (1, 2)):
        for grants in permutations(GRANTS, number):
            with suppress(FeedmuxError):
                asked = apply_grants(grants, spec)
                for each in (asked, without_database(asked, "letters"), without_database(asked, "other")):
                    key = stream_key(*each)
                    found.add((key.digest, (key.spec, key.policy)))
    assert len(found) == len({digest for digest, _ in found}) == len({stages for _, stages in found}) > 500


def test_a_digest_stays_where_the_same_grants_are_compiled_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters, and positions within a copy, are kept over upgrades by it."""
    before = key_of((TEAM_A,), SPEC)
    assert str(before) == "117f006a6527938e8a265a6aa9405dfd"
    monkeypatch.setattr(grant_stages, "_FIELDS", grant_stages._FIELDS[1:])
    after = key_of((TEAM_A,), SPEC)
    assert (before.digest, hash(before)) == (after.digest, hash(after))
    assert before != after  # they share no stream


def test_policies_always_compare_by_the_simple_collation() -> None:
    asked, policy, *_ = apply_grants((TEAM_A,), SPEC)
    assert policy
    assert bson.decode(asked.collation) == {"locale": "simple"}
    given_one = replace(SPEC, collation=bson.encode({"locale": "en", "strength": 1}))
    assert refused((TEAM_A,), given_one).field == "feed.collation"
    assert apply_grants((ALL,), given_one)[0] == given_one


def test_options_that_show_what_no_grant_describes_need_a_tenant_that_sees_all() -> None:
    for name in ("showMigrationEvents", "showRawUpdateDescription", "showSystemEvents"):
        given_one = replace(SPEC, extra_options=(name,))
        error = refused((TEAM_A,), given_one)
        assert (error.reason, error.field) == (ErrorReason.OPTION_REFUSED, "feed.extra_options")
        assert name in error.message
        assert apply_grants(None, given_one)[0] == given_one
        if name == "showSystemEvents":
            assert refused((ALL,), given_one).field == "feed.extra_options"
        else:
            assert apply_grants((ALL,), given_one)[0] == given_one
    harmless = ("ignoreRemovedShards", "showCommitTimestamp")
    assert apply_grants((TEAM_A,), replace(SPEC, extra_options=harmless))[0].extra_options == harmless


def test_only_a_condition_withholds_documents() -> None:
    """So only with one may the `_id` up to which a copy was read be a secret."""
    hiding = make_grant("main", "shop", "orders", hide=["secret"])
    judging = [apply_grants(grants, SPEC).judges_documents for grants in (None, (hiding,), (TEAM_A,))]
    assert judging == [False, False, True]


def test_a_forced_match_asks_for_both_images_and_refuses_what_shows_other_times() -> None:
    asked, *_ = apply_grants((TEAM_A,), SPEC)
    assert (asked.full_document, asked.full_document_before_change) == ("whenAvailable", "whenAvailable")
    for mode in ("updateLookup", "required", "somethingNew"):
        error = refused((TEAM_A,), replace(SPEC, full_document=mode))
        assert (error.reason, error.field) == (ErrorReason.OPTION_REFUSED, "feed.full_document")
        # Also if the grant matches only a part of the scope.
        assert refused((TEAM_A, SHOP), replace(DATABASE, full_document=mode)).field == "feed.full_document"
    for mode in ("required", "somethingNew"):
        error = refused((TEAM_A,), replace(SPEC, full_document_before_change=mode))
        assert error.field == "feed.full_document_before_change"
    hiding = make_grant("*", "shop", "*", None, ["secret"])
    assert apply_grants((hiding,), replace(SPEC, full_document="updateLookup"))[0].full_document == "updateLookup"


@over("name", ["full_document", "full_document_before_change"])
def test_an_image_that_is_required_would_tell_of_changes_that_are_hidden(name: str) -> None:
    hiding, plain = make_grant("*", "shop", "*", None, ["secret"]), make_grant("*", "shop", "orders")
    required: dict[str, Any] = {name: "required"}
    error = refused((hiding,), replace(SPEC, **required))
    assert (error.reason, error.field) == (ErrorReason.OPTION_REFUSED, f"feed.{name}")
    assert refused((plain, hiding), replace(DATABASE, **required)).field == f"feed.{name}"
    assert getattr(apply_grants((plain,), replace(DATABASE, **required))[0], name) == "required"


def test_grants_are_compiled_once_whatever_a_caller_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred grants take up to a second to compile, and each open needs them more than once."""
    made = []
    stages_of_cases = grant_stages._stages_of_cases

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return stages_of_cases(*arguments)

    monkeypatch.setattr(grant_stages, "_stages_of_cases", counted)
    cache = PolicyCache(1 << 20)
    grants = tuple(make_grant("main", f"db{number}", "*", {"team": number}) for number in range(50))
    policies = {
        apply_grants(grants, replace(CLUSTER, pipeline=bson.encode({"pipeline": [{"$match": {"n": number}}]})), cache)[
            1
        ]
        for number in range(20)
    }
    assert (len(policies), len(made)) == (1, 1)
    other = apply_grants(grants, replace(CLUSTER, full_document="whenAvailable"), cache)[1]
    assert other not in policies
    assert apply_grants(grants[1:], CLUSTER, cache)[1] not in policies
    assert len(made) == 3
    made.clear()
    wide = tuple(make_grant("main", "db*", f"c{number}", {"team": number}) for number in range(50))
    plain = tuple(make_grant("main", "db*", f"c{number}", hide=["secret"]) for number in range(50))
    for number in range(20):
        apply_grants(wide, FeedSpec(Scope("main", f"db{number}")), cache)
        apply_grants(plain, FeedSpec(Scope("main", f"db{number}"), full_document=f"word {number}"), cache)
        with pytest.raises(FeedmuxError):
            apply_grants(wide, FeedSpec(Scope("main", f"db{number}"), full_document=f"word {number}"), cache)
    assert len(made) == 2


def test_what_is_kept_of_policies_is_bounded_by_bytes() -> None:
    cache = PolicyCache(10_000)
    made: list[int] = []

    def make(number: int, size: int) -> list[Any]:
        made.append(number)
        return [{"text": "x" * size}]

    for number in range(20):
        cache.get(number, partial(make, number, 1_000))
        assert cache.bytes <= 10_000
    for number in range(19, 11, -1):
        cache.get(number, partial(make, number, 1_000))
    assert made == list(range(20)), "the most recently used entries are still cached"
    [large] = cache.get("large", partial(make, 20, 20_000))
    assert len(large.raw) > 20_000
    assert cache.bytes == 0, "an entry that is larger than the whole cache is not retained"
