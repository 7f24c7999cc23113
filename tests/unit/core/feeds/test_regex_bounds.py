"""Which regular expressions a tenant with `pipelines: bounded` may use."""

import pytest

from feedmux_server.core.feeds.regex_bounds import check_regex
from tests.tables import over


@over(
    "pattern",
    ["^a.*b$", "a{1,3}", "[^a-z]+x", "(a|b)c", "(?i)foo", "(?:ab)+", "\\d+\\.\\d*?", "[]a]+", "a{", "(a|b)?", "\\p{L}"],
)
def test_plain_patterns_pass(pattern: str) -> None:
    check_regex(pattern, "i")


@over(
    "pattern",
    [
        "(a+)+", "((a|b))*", "(a{1,9}){2}", "(?<n>a)", "(?P<n>a)", "(?!a)", "(?>a)", "(?R)", "(*UTF)a", "a\\1",
        "\\Qa\\E", "\\k<n>", "\\g1", "a{1001}", "(a|b){2,}", "(?x)a", "a*" * 9, "a" * 1025, "\\c((a+)+", "[\\c](a+)+",
        "(\\c)a+)+", "a)", "[[:alpha:]]", "(?#c)", "(a*b)?+*",
    ],
)  # fmt: skip
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|without"):
        check_regex(pattern, "")
