"""Grants: patterns, validation, and which grant applies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.grants.grant import fits, granted, make_grant
from tests.tables import over

SPEC = FeedSpec(Scope("main", "shop", "orders"))
DATABASE = FeedSpec(Scope("main", "shop"))
SHOP = make_grant("main", "shop", "*")
TEAM_A = make_grant("main", "shop", "orders", {"owner": "team-a"}, ["secret"])


@over(
    ("pattern", "yes", "no"),
    [
        ("*", ["", "a", "a.b", "a\nb"], []),
        ("orders", ["orders"], ["Orders", "orders2", "orders\n", "order"]),
        ("team-*", ["team-", "team-a", "team-a.b"], ["team", "Team-a", "xteam-a"]),
        ("log_?", ["log_1", "log_é", "log_\n"], ["log_", "log_12"]),
        ("a.b", ["a.b"], ["axb"]),
        ("[a-z]+", ["[a-z]+"], ["a", "ab"]),
        ("a|b", ["a|b"], ["a", "b"]),
        ("(?i)x\\", ["(?i)x\\"], ["X", "x"]),
        ("a*b*c", ["abc", "a.b.b.c", "abbcc", "acbc"], ["ab", "ac", "abcd", "acb", "xabc"]),
        ("*b?*b", ["b.b", "xbxxb", "bbb"], ["bb", "b", "b.bx"]),
        ("a**b", ["ab", "a.b"], ["a", "b"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [name for name in yes if not fits(pattern, name)] == []
    assert [name for name in no if fits(pattern, name)] == []


@given(st.text("ab*?", min_size=1, max_size=8), st.text("abc", max_size=8))
def test_patterns_by_their_definition(pattern: str, name: str) -> None:
    def fits_by_definition(pattern: str, name: str) -> bool:
        if not pattern:
            return not name
        if pattern[0] == "*":
            return any(fits_by_definition(pattern[1:], name[skip:]) for skip in range(len(name) + 1))
        return bool(name) and pattern[0] in ("?", name[0]) and fits_by_definition(pattern[1:], name[1:])

    assert fits(pattern, name) is fits_by_definition(pattern, name)


def test_a_pattern_with_many_wildcards_needs_no_backtracking() -> None:
    """With backtracking these would take years."""
    assert not fits("*-" * 40 + "*x", "-" * 240)
    assert not fits("*?-" * 40 + "x", "-" * 240)
    assert fits("*-" * 40 + "*", "-" * 240)


def test_the_first_grant_that_matches_judges() -> None:
    assert granted((TEAM_A, SHOP), SPEC.scope) == (TEAM_A,)
    assert granted((SHOP, TEAM_A), SPEC.scope) == (SHOP,)
    assert granted((TEAM_A, SHOP), DATABASE.scope) == (TEAM_A, SHOP)


def test_hidden_paths_within_others_and_repeated_ones_change_nothing() -> None:
    assert make_grant("*", "*", "*", None, ["b", "a.b", "a", "b", "a.b.c"]).hide == ("a", "b")


def test_id_cannot_be_hidden() -> None:
    for path in ("_id", "_id.part"):
        with pytest.raises(ValueError, match="resume token"):
            make_grant("*", "*", "*", None, [path])


@over("pattern", ["", "a\0", "a" * 256, "\ud83d\ude00"])
def test_patterns_that_cannot_be(pattern: str) -> None:
    for arguments in ((pattern, "*", "*"), ("*", pattern, "*"), ("*", "*", pattern)):
        with pytest.raises(ValueError, match=r"source|database|collection"):
            make_grant(*arguments)
