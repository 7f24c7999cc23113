"""Options and offsets, without Spark and without a server."""

import json
import pickle
from dataclasses import fields
from pathlib import Path

import pytest

from feedmux_spark.errors import OptionError
from feedmux_spark.offsets import Offset, parse_start
from feedmux_spark.options import TABLE, Options, markdown_table, parse_options
from feedmux_spark.ranges import Slice
from feedmux_spark.source import FeedmuxSource

README = Path(__file__).parents[2] / "spark_connector" / "README.md"


def test_a_field_for_each_option() -> None:
    assert [option.field for option in TABLE] == [field.name for field in fields(Options)]


def test_the_readme_has_the_table() -> None:
    assert markdown_table() in README.read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option endpoint is missing"),
        ({"endpoint": ""}, "option endpoint must not be empty"),
        ({"maxEventPerTrigger": "3"}, "unknown option 'maxEventPerTrigger'; did you mean maxEventsPerTrigger?"),
        ({"path": "/x"}, "takes no path"),
        ({"maxEventsPerTrigger": "many"}, "option maxEventsPerTrigger must be a whole number, not 'many'"),
        ({"maxEventsPerTrigger": "0"}, "option maxEventsPerTrigger must be 1 to 2,147,483,647, not '0'"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss must be true or false"),
        ({"schemaMode": "avro"}, "option schemaMode must be one of envelope, json, typed"),
        ({"pipeline": '{"$match": {}}'}, "option pipeline must be a JSON array of stages"),
        ({"pipeline": "[{"}, "option pipeline must be a JSON array of stages: Expecting"),
        ({"collation": "[]"}, "option collation must be a JSON object"),
        ({"token": "a", "tokenFile": "b"}, "token or tokenFile, not both"),
        ({"token": "two words"}, "option token cannot be sent: it has characters"),
        ({"collection": "c"}, "option collection needs option database"),
        ({"tlsRootFile": "x"}, "option tlsRootFile needs option tls=true"),
        ({"tls": "true", "tlsKeyFile": "x"}, "go together"),
    ],
)
def test_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=r".") as caught:
        parse_options(given if not given or "endpoint" in given else {"endpoint": "x:1", **given})
    assert message in str(caught.value)


def test_names_in_any_case() -> None:
    """As Spark hands them over."""
    options = parse_options({"endpoint": "x:1", "maxeventspertrigger": "5", "FAILONDATALOSS": "False"})
    assert (options.max_events_per_trigger, options.fail_on_data_loss) == (5, False)


@pytest.mark.parametrize("more", [{}, {"consumerName": "q", "endingOffsets": "earliest"}])
def test_a_stream_needs_a_name_and_no_end(more: dict[str, str]) -> None:
    source = FeedmuxSource({"endpoint": "x:1", **more})
    with pytest.raises(OptionError, match=r"consumerName|endingOffsets"):
        source.streamReader(source.schema())


def test_secrets_are_in_no_repr_and_no_refusal() -> None:
    secret = "fmx-secret-canary"
    options = parse_options({"endpoint": "x:1", "token": secret})
    assert options.token == secret
    assert secret not in repr(options)
    for wrong in ({"token": secret, "tokenFile": "f"}, {"token": secret, "tls": "x"}, {"tokken": secret}):
        with pytest.raises(OptionError) as caught:
            parse_options({"endpoint": "x:1", **wrong})
        assert secret not in str(caught.value)
        assert caught.value.__cause__ is None
    assert "position" not in repr(Slice(b"position", b"position"))


def test_an_offset_is_canonical() -> None:
    offset = Offset(b"\x01\x02", (1763740800, 7), 2)
    text = json.dumps(offset.as_json())
    assert text == '{"clusterTime": "2025-11-21T16:00:00Z/7", "gaps": 2, "position": "AQI=", "version": 1}'
    assert Offset.from_json(json.loads(text)) == offset
    assert Offset.from_json({"position": "AQI="}).position == b"\x01\x02"


@pytest.mark.parametrize(
    "text",
    ["newest", "2026-11-21T15:00:00", '{"position": 1}', '{"position": "?"}', '{"version": 2, "position": ""}', "{"],
)
def test_not_a_start(text: str) -> None:
    with pytest.raises(OptionError):
        parse_start(text, "startingOffsets")


def test_starts() -> None:
    assert parse_start("latest", "x").kind == "latest"
    assert parse_start("2026-11-21T15:00:00Z", "x").time == (1795273200, 0)
    assert parse_start('{"position": "AQI="}', "x").token == b"\x01\x02"


def test_readers_are_pickled_before_anything_is_opened() -> None:
    source = FeedmuxSource({"endpoint": "x:1", "consumerName": "q"})
    for reader in (source.streamReader(source.schema()), source.reader(source.schema())):
        assert type(pickle.loads(pickle.dumps(reader))) is type(reader)
