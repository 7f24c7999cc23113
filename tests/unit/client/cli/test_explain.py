"""`feedmux explain`: what it prints for people."""

import io

from feedmux.cli.explain import _text
from feedmux.cli.terminal import Terminal
from feedmux.feeds import CollectionImages, Explanation, Refusal, Withheld


def text(found: Explanation) -> list[str]:
    return _text(Terminal(io.StringIO()), found).splitlines()


def explained(**more: object) -> Explanation:
    unset = {"refusal": None, "pipeline": "[]", "stream_key": "k", "stream_open": False, "images": ()}
    return Explanation(**unset | {"oplog_headroom_s": None, "withheld": (), "may_be_view": False} | more)  # type: ignore[arg-type]


def test_a_feed_that_would_be_opened() -> None:
    assert text(explained()) == ["pipeline   []", "stream     k (not read now)"]
    shared = explained(stream_open=True, oplog_headroom_s=7290.0, scope_missing=True, may_be_view=True)
    assert text(shared)[1:] == [
        "stream     k (read now; shared)",
        "           may be a view: read together with other feeds of its database or deployment",
        "           no events yet: the collection or database does not exist",
        "oplog      reaches back 2 h 1 min before the start",
    ]


def test_what_a_copy_would_read() -> None:
    assert text(explained(documents_estimated=1_234_567))[2] == (
        "copy       about 1,234,567 documents, read once for this feed"
    )


def test_a_feed_that_would_be_rejected_says_no_more() -> None:
    refused = explained(
        refusal=Refusal("PERMISSION_DENIED", "NAMESPACE_DENIED", "no grant"), stream_key="", pipeline=""
    )
    assert text(refused) == ["rejected   PERMISSION_DENIED NAMESPACE_DENIED: no grant"]


def test_no_control_character_is_printed() -> None:
    found = explained(refusal=Refusal("INVALID_ARGUMENT", "PIPELINE_INVALID", "no field \x1b[2Jx"), pipeline="[\x07]")
    assert text(found)[:2] == [
        "rejected   INVALID_ARGUMENT PIPELINE_INVALID: no field ?[2Jx",
        "pipeline   [?]",
    ]


def test_what_grants_withhold_and_which_images_are_stored() -> None:
    images = (CollectionImages("shop", "orders", True, False), CollectionImages("shop", "carts", False, True))
    found = text(explained(withheld=(Withheld("inserts", "no grant"),), images=images))
    assert found[2:] == [
        "",
        "WITHHELD  WHY",
        "inserts   no grant",
        "",
        "IMAGES OF    STORED       NEEDED BY",
        "shop.orders  enabled      the feed",
        "shop.carts   not enabled  the grants",
    ]
