"""Clients, databases and collections as pymongo's: names, options, and the errors of their misuse."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson.codec_options import CodecOptions
from pymongo import ReadPreference
from pymongo.errors import ConfigurationError, InvalidName
from pymongo.read_concern import ReadConcern

import feedmux
from tests.tables import over


@pytest.fixture
def client() -> Iterator[Any]:
    """One that never connects."""
    with feedmux.Client("127.0.0.1:1") as made:
        yield made


def test_ways_to_a_collection(client: Any) -> None:
    orders = client.shop.orders
    assert orders == client["shop"]["orders"] == client.get_database("shop").get_collection("orders")
    assert hash(orders) == hash(client["shop"]["orders"])
    assert client.shop.orders.eu.full_name == client.shop["orders"]["eu"].full_name == "shop.orders.eu"
    assert orders != client.store.orders
    assert orders.database.client is client
    with pytest.raises(ConfigurationError, match="No default database"):
        client.get_database()


def test_options_are_passed_on_and_changed_one_by_one(client: Any) -> None:
    options: CodecOptions[Any] = CodecOptions(tz_aware=True)
    shop = client.get_database("shop", codec_options=options)
    assert shop.orders.codec_options is options
    changed = shop.orders.with_options(read_concern=ReadConcern("majority"))
    assert (changed.codec_options, changed.read_concern.level) == (options, "majority")
    assert shop.orders.read_concern.level is None
    assert changed.read_preference is ReadPreference.PRIMARY
    with pytest.raises(TypeError, match="codec_options"):
        shop.with_options(codec_options="utf-8")


@over(
    ("misuse", "error", "words"),
    [
        (lambda client: client[5], TypeError, "name must be an instance of str"),
        (lambda client: client.shop[5], TypeError, "name must be an instance of str"),
        (lambda client: client[""], InvalidName, "empty"),
        (lambda client: client.shop[""], InvalidName, "empty"),
        (lambda client: client._private, AttributeError, "use brackets"),
        (lambda client: client.shop.a._b, AttributeError, "use brackets"),
        (lambda client: iter(client.shop), TypeError, "not iterable"),
        (lambda client: iter(client.shop.a), TypeError, "not iterable"),
        (lambda client: client.shop.command("ping"), TypeError, "not callable"),
        (lambda client: client.shop.a.find({}), TypeError, "not callable"),
    ],
)
def test_misuse(client: Any, misuse: Callable[[Any], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        misuse(client)
