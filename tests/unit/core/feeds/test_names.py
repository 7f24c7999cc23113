import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.feeds.names import check_name, check_scope
from tests.tables import over


def refused(scope: Scope) -> ErrorReason:
    with pytest.raises(FeedmuxError) as caught:
        check_scope(scope)
    return caught.value.reason


@over("name", ["a", "0", "orders-to-search", "A.b_c-9", "x" * 120])
def test_good_names(name: str) -> None:
    check_name("subscription", name)


@over("name", ["", "-a", ".a", "_a", "a b", "a/b", "a\0", "é", "x" * 121, "\ud800", "a\n", "{a}", "٣"])
def test_bad_names(name: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check_name("subscription", name)
    assert caught.value.reason is ErrorReason.NAME_INVALID
    assert caught.value.field == "subscription"
    caught.value.message.encode()


@over(
    ("database", "collection"),
    [
        ("", ""),
        *(
            ("shop", name)
            for name in ("", "orders", "orders.2024", "a..b", "ends.", "with space", "système", "systematic")
        ),
        ("Admin", "x"),
        ("x" * 63, "y" * 191),
        ("é" * 31, ""),
    ],
)
def test_good_scopes(database: str, collection: str) -> None:
    check_scope(Scope("main", database, collection))


@over(
    ("database", "collection"),
    [
        ("", "orders"),
        ("*", "orders"),
        *(
            (name, "")
            for name in ("a.b", "a b", "a/b", "a\\b", 'a"b', "a$b", "a\0b", "\udcff", "*", "x" * 64, "é" * 32)
        ),
        *(("shop", name) for name in (".a", "$cmd", "a$b", "a\0", "\ud800", "x" * 251, "é" * 126)),
    ],
)
def test_bad_scopes(database: str, collection: str) -> None:
    assert refused(Scope("main", database, collection)) is ErrorReason.NAME_INVALID


@over("source", ["", "a b", "x" * 121])
def test_bad_sources(source: str) -> None:
    with pytest.raises(FeedmuxError) as caught:
        check_scope(Scope(source))
    assert (caught.value.reason, caught.value.field) == (ErrorReason.NAME_INVALID, "source")
    assert bool(source) != ("such as main" in caught.value.message)


@over(
    ("database", "collection"),
    [
        ("admin", ""),
        ("local", "oplog.rs"),
        ("config", "transactions"),
        ("shop", "system.views"),
        ("shop", "system.buckets.weather"),
    ],
)
def test_internal_namespaces(database: str, collection: str) -> None:
    assert refused(Scope("main", database, collection)) is ErrorReason.NAMESPACE_DENIED


@given(st.text(st.characters(codec=None), max_size=70), st.text(st.characters(codec=None), max_size=260))
def test_any_text_passes_or_is_refused(database: str, collection: str) -> None:
    try:
        check_scope(Scope("main", database, collection))
    except FeedmuxError as error:
        error.message.encode()
