"""What Explain says that a tenant's grants withhold: everything, and neither hidden fields nor conditions."""

from dataclasses import replace

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.grants.grant import Grants, make_grant
from feedmux_server.core.grants.report import judged_by_images, withheld
from tests.tables import over

ORDERS = FeedSpec(Scope("main", "shop", "orders"))
SHOP = FeedSpec(Scope("main", "shop"))
PLAIN = make_grant("main", "shop", "orders")
MATCHING = make_grant("main", "shop", "orders", {"owner": "canary"})
HIDING = make_grant("main", "shop", "orders", hide=["canary", "a.canary"])


def texts(grants: Grants, spec: FeedSpec) -> list[str]:
    return [what for what, _ in withheld(grants, spec)]


@over("grants", [None, (make_grant("*", "*", "*"),), (make_grant("main", "shop", "*"),)])
def test_nothing_is_withheld_of_what_is_granted_in_full(grants: Grants) -> None:
    assert withheld(grants, ORDERS) == []


def test_a_feed_that_is_wider_than_its_grants() -> None:
    found = texts((PLAIN, make_grant("main", "shop", "log_*")), SHOP)
    assert "everything outside shop.orders, shop.log_*" in found
    assert "dropDatabase events" in found
    assert "dropDatabase events" in texts((PLAIN, make_grant("main", "bank", "*")), FeedSpec(Scope("main")))
    whole = texts((make_grant("main", "shop", "*"),), FeedSpec(Scope("main")))
    assert "everything outside shop.*" in whole
    assert "dropDatabase events" not in whole


@over(("grants", "keeps_fields"), [((PLAIN,), True), ((MATCHING,), False), ((HIDING,), False), ((PLAIN, HIDING), True)])
def test_unknown_fields_of_changes_come_with_a_plain_grant_alone(grants: Grants, keeps_fields: bool) -> None:
    found = texts(grants, ORDERS)
    assert any(each.endswith("other than document changes") for each in found) == keeps_fields


def test_conditions_and_hidden_fields_are_counted_but_not_named() -> None:
    said = str(withheld((MATCHING,), ORDERS) + withheld((HIDING,), ORDERS))
    assert "canary" not in said
    assert "shop.orders: documents that the grant's condition does not hold for" in said
    assert "enable changeStreamPreAndPostImages on the collection" in said
    assert "shop.orders: 2 hidden field(s)" in said
    assert "shard key holds a hidden field" in said


@over(("grant", "withholds"), [(PLAIN, False), (MATCHING, True), (HIDING, True)])
def test_descriptions_are_withheld_where_documents_are_narrowed(grant: object, withholds: bool) -> None:
    grants: Grants = (grant,)  # type: ignore[assignment]
    expanded = texts(grants, replace(ORDERS, show_expanded_events=True))
    assert ("shop.orders: create, modify, index and sharding events" in expanded) == withholds
    assert not any("sharding" in each for each in texts(grants, ORDERS))


def test_it_fails_as_an_open_would() -> None:
    with pytest.raises(FeedmuxError) as caught:
        withheld((), ORDERS)
    assert caught.value.reason is ErrorReason.NAMESPACE_DENIED


@over(
    ("grants", "needed"),
    [(None, False), ((PLAIN, MATCHING), False), ((MATCHING, PLAIN), True), ((HIDING,), False), ((), None)],
)
def test_images_are_needed_where_the_first_grant_has_a_condition(grants: Grants, needed: bool | None) -> None:
    assert judged_by_images(grants, Scope("main"), "shop", "orders") is needed
