"""The URL of Redis."""

import pytest

from feedmux_server.store.connection import StartupError, connect
from feedmux_server.store.redis_url import parse_redis_url
from tests.tables import over


@over(
    ("url", "words"),
    [
        ("http://localhost", "redis://HOST"),
        ("redis://a,b", "sentinels or the nodes of a cluster"),
        ("redis+sentinel://a,b", "name of the primary"),
        ("redis+cluster://a,b/3", "database 0"),
        ("redis+ring://a", "cannot begin"),
        ("redis://a:port", "hosts"),
        ("redis://a/first", "database is a number"),
        ("redis://user:secret@a/0?ssl_cert_reqs=none", "fields of their own"),
        ("redis://:secret@[bad:1/0", "hosts"),
    ],
)
def test_urls_that_cannot_be_used(url: str, words: str) -> None:
    with pytest.raises(StartupError, match=words) as caught:
        connect(url)
    assert "redis.url" in str(caught.value)
    assert "secret" not in str(caught.value)


@over(
    ("url", "hosts", "shown"),
    [
        ("redis://u:secret@a", (("a", 6379),), "redis://a:6379/0"),
        ("rediss://a:1/3", (("a", 1),), "rediss://a:1/3"),
        ("redis://[::1]:1", (("::1", 1),), "redis://[::1]:1/0"),
        ("redis://[::1]", (("::1", 6379),), "redis://[::1]:6379/0"),
        ("redis://u:p@ss@a", (("a", 6379),), "redis://a:6379/0"),
        ("redis+sentinel://a,b:1/main/2", (("a", 26379), ("b", 1)), "redis+sentinel://a:26379,b:1/main/2"),
        ("rediss+cluster://a,b:1/0", (("a", 6379), ("b", 1)), "rediss+cluster://a:6379,b:1"),
        ("unix://:secret@/run/redis%20a.sock", (), "unix:///run/redis a.sock"),
    ],
)
def test_what_a_url_says_and_how_it_is_shown(url: str, hosts: tuple[tuple[str, int], ...], shown: str) -> None:
    parsed = parse_redis_url(url)
    assert (parsed.hosts, str(parsed)) == (hosts, shown)
    assert "secret" not in repr(parsed)
