"""Grants: patterns, validation, and which grant applies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.grants.grant import fits, granted, make_grant

SPEC = FeedSpec(Scope("main", "shop", "orders"))
DATABASE = FeedSpec(Scope("main", "shop"))
SHOP = make_grant("main", "shop", "*")
TEAM_A = make_grant("main", "shop", "orders", {"owner": "team-a"}, ["secret"])


@pytest.mark.parametrize(
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
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [name for name in yes if not fits(pattern, name)] == []
    assert [name for name in no if fits(pattern, name)] == []


@given(st.text(min_size=1))
def test_a_name_without_wildcards_fits_only_itself(name: str) -> None:
    if not set(name) & {"*", "?"}:
        assert fits(name, name)
        assert not fits(name, name + "x")


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


@pytest.mark.parametrize("pattern", ["", "a\0", "a" * 256])
def test_patterns_that_cannot_be(pattern: str) -> None:
    for arguments in ((pattern, "*", "*"), ("*", pattern, "*"), ("*", "*", pattern)):
        with pytest.raises(ValueError, match=r"source|database|collection"):
            make_grant(*arguments)
