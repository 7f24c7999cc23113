"""Feeds, starts and options as users give them."""

import time
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone

import pytest

import feedmux
from feedmux.feeds import Feed, FeedArguments, Start, as_start
from feedmux.options import SessionArguments, SessionOptions

NOON = datetime(2026, 11, 21, 12, 0, 0, 999_999)  # noqa: DTZ001 - without a zone, as pymongo gives times


@pytest.fixture
def zone_of_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's time zone is nine hours ahead of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    "moment",
    [
        NOON,
        NOON.replace(tzinfo=UTC),
        datetime(2026, 11, 21, 14, 0, 0, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_time_without_a_zone_is_utc_as_pymongo_s_are(moment: datetime, zone_of_tokyo: None) -> None:
    noon_s = 1_795_262_400
    assert Start.at_time(moment).time == (noon_s, 0)
    assert as_start(moment) == Start.at_time(moment)


def test_named_arguments_are_the_fields() -> None:
    for arguments, options in ((SessionArguments, SessionOptions), (FeedArguments, Feed)):
        assert arguments.__annotations__ == {field.name: field.type for field in fields(options)}


def test_a_wrong_type_names_what_it_is_for() -> None:
    with pytest.raises(TypeError, match="window_events is a whole number, not str"):
        feedmux.SessionOptions(window_events="5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tls is True or a feedmux\.Tls, not str"):
        feedmux.Client("localhost:1", tls="ca.pem")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout_s is a number, not str"):
        feedmux.Client("localhost:1", timeout_s="5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a start: 'yesterday'; a start is 'earliest', 'latest', 'snapshot'"):
        as_start("yesterday")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^not a start: '8{19}…'; .*\{\"_data\": "):
        as_start("8" * 200)  # type: ignore[arg-type]
