"""The URL of Redis."""

import pytest

from feedmux_server.store.connection import StartupError, connect


@pytest.mark.parametrize(
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
