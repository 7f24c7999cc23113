"""What clients and MongoDB compute from a feed."""

from typing import Any

from feedmux_server.core.feeds.feed import FeedSpec, Scope, change_stream_options, route_of
from tests.tables import over


@over(
    ("scope", "namespace", "route"),
    [
        (Scope("main"), "*", "584b1f1dae61d1eb"),
        (Scope("main", "shop"), "shop", "cd08adccf693158e"),
        (Scope("main", "shop", "orders"), "shop.orders", "065d928ac4fe67c0"),
        (Scope("main", "shop", "törtchen.2"), "shop.törtchen.2", "1b8fc01da6efc893"),
    ],
)
def test_clients_compute_the_same_route(scope: Scope, namespace: str, route: str) -> None:
    """docs/replicas.md says how; another value would send readers of one scope to several replicas."""
    assert scope.namespace == namespace
    assert route_of(scope) == route


@over(
    ("spec", "options"),
    [
        (FeedSpec(Scope("main", "shop", "orders")), {}),
        (FeedSpec(Scope("main")), {"allChangesForCluster": True}),
        (
            FeedSpec(Scope("main", "shop"), full_document="soon", full_document_before_change="required"),
            {"fullDocument": "soon", "fullDocumentBeforeChange": "required"},
        ),
        (
            FeedSpec(Scope("main", "shop"), show_expanded_events=True, match_collection_uuid_for_update_lookup=True),
            {"showExpandedEvents": True, "matchCollectionUUIDForUpdateLookup": True},
        ),
        (
            FeedSpec(Scope("main", "shop"), extra_options=("ignoreRemovedShards", "showCommitTimestamp")),
            {"ignoreRemovedShards": True, "showCommitTimestamp": True},
        ),
        (FeedSpec(Scope("main", "shop"), comment=b"c", collation=b"c", batch_size=5, read_concern="majority"), {}),
    ],
)
def test_mongodb_is_sent_what_was_set_and_nothing_else(spec: FeedSpec, options: dict[str, Any]) -> None:
    """An older MongoDB rejects an option that it does not know, even with the default value."""
    assert change_stream_options(spec) == options
