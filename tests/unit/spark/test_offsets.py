"""Offsets as Spark stores and compares them, and starts as users write them."""

import json

import pytest

from feedmux_spark.errors import OptionError
from feedmux_spark.offsets import Offset, parse_start
from tests.tables import over


def test_an_offset_is_canonical() -> None:
    offset = Offset(b"\x01\x02", (1763740800, 7), 2)
    text = json.dumps(offset.as_json())
    assert text == '{"clusterTime": "2025-11-21T16:00:00Z/7", "gaps": 2, "position": "AQI=", "version": 1}'
    assert Offset.from_json(json.loads(text)) == offset
    assert Offset.from_json({"position": "AQI="}).position == b"\x01\x02"


@over(
    "text",
    [
        "newest",
        "2026-11-21T15:00:00",
        "{",
        '{"a": ' * 100_000,
        "{}",
        '{"position": 1}',
        '{"position": "?"}',
        '{"version": 2, "position": ""}',
        '{"position": "AQI=", "gaps": Infinity}',
        '{"position": "AQI=", "clusterTime": "0001-01-01T00:00:00"}',
        '{"position": "AQI=", "clusterTime": null}',
    ],
)
def test_not_a_start(text: str) -> None:
    with pytest.raises(OptionError, match="option startingOffsets"):
        parse_start(text, "startingOffsets")


def test_starts() -> None:
    assert parse_start("latest", "x").kind == "latest"
    assert parse_start("2026-11-21T15:00:00Z", "x").time == (1795273200, 0)
    assert parse_start('{"position": "AQI="}', "x").token == b"\x01\x02"


def test_an_offset_from_elsewhere_is_an_error_of_the_option() -> None:
    with pytest.raises(OptionError, match=r"supports only version 1"):
        Offset.from_json({"version": 2, "position": "AQI="})
    for content in ({}, {"position": "AQI=", "gaps": "x"}, {"position": "AQI=", "clusterTime": "noon/1"}):
        with pytest.raises(OptionError, match="not an offset of feedmux"):
            Offset.from_json(content)


@over("option", ["startingOffsets", "endingOffsets"])
def test_a_start_with_existing_documents_says_what_to_do(option: str) -> None:
    with pytest.raises(OptionError, match=rf"{option}: Spark does not read .*latest_offsets"):
        parse_start("snapshot", option)


@over("text", ["2026-11-21T15:00:00", "2026-11-21"])
def test_a_time_without_a_zone_is_told_what_to_write(text: str) -> None:
    with pytest.raises(OptionError, match=r"without a time zone: write .* for UTC") as caught:
        parse_start(text, "startingOffsets")
    advised = str(caught.value).partition("write ")[2].partition(" for")[0]
    assert parse_start(advised, "startingOffsets").kind == "time"
