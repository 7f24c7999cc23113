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
