"""The configuration of a whole server: where an API key could be read on its way."""

from typing import Any

from feedmux_server.config.load import make_config
from tests.tables import over

PLAIN = {"sources": {"main": {"uri": "mongodb://x"}}}


FILES = {"certificate_file": "c", "key_file": "k"}


@over(
    ("listen", "tls", "exposed"),
    [
        ({}, None, ()),
        ({"data": "localhost:7117", "operator": "[::1]:7118"}, None, ()),
        ({"data": "unix:/run/feedmux.sock", "health": "0.0.0.0:1", "metrics": "0.0.0.0:2"}, None, ()),
        ({"data": "0.0.0.0:7117"}, None, ("0.0.0.0:7117",)),
        ({"data": "[::]:7117", "operator": "10.1.2.3:7118"}, None, ("[::]:7117", "10.1.2.3:7118")),
        ({"data": "feeds.example.com:7117"}, None, ("feeds.example.com:7117",)),
        ({"data": "0.0.0.0:7117"}, FILES, ()),
        ({"data": "0.0.0.0:7117", "accept_plaintext": True}, None, ()),
    ],
)
def test_where_keys_cross_the_network_in_plaintext(
    listen: dict[str, Any], tls: dict[str, str] | None, exposed: tuple[str, ...]
) -> None:
    assert make_config({**PLAIN, "listen": listen, "tls": tls}).plaintext_addresses == exposed
