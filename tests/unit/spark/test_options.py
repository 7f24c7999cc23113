"""Options and offsets, without Spark and without a server."""

from dataclasses import fields
from pathlib import Path

import pytest

from feedmux_spark.errors import OptionError
from feedmux_spark.options import TABLE, Options, markdown_table, parse_options
from feedmux_spark.ranges import Slice
from tests.tables import over

README = Path(__file__).parents[3] / "spark_connector" / "README.md"


def test_a_field_for_each_option() -> None:
    assert [option.field for option in TABLE] == [field.name for field in fields(Options)]


def test_the_readme_has_the_table() -> None:
    assert markdown_table() in README.read_text()


@over(
    ("given", "message"),
    [
        ({}, "option endpoint is missing"),
        ({"endpoint": ""}, "option endpoint must not be empty"),
        ({"endpoint": "http://host:1"}, "option endpoint must be host:port, without http://, not 'http://host:1'"),
        ({"endpoint": "grpcs://host"}, "option endpoint must be host:port, without http://"),
        ({"endpoint": "host"}, "option endpoint must be host:port, with its port, such as localhost:7117, not 'host'"),
        ({"endpoint": "host:port"}, "option endpoint must be host:port"),
        ({"endpoint": "host:70000"}, "option endpoint must be host:port"),
        ({"endpoint": "::1:7117"}, "option endpoint must be host:port"),
        ({"maxEventPerTrigger": "3"}, "unknown option 'maxEventPerTrigger'; did you mean maxEventsPerTrigger?"),
        ({"path": "/x"}, "takes no path"),
        ({"maxEventsPerTrigger": "many"}, "option maxEventsPerTrigger must be a whole number, not 'many'"),
        ({"maxEventsPerTrigger": "0"}, "option maxEventsPerTrigger must be 1 to 2,147,483,647, not '0'"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss must be true or false"),
        ({"schemaMode": "avro"}, "option schemaMode must be one of envelope, json, typed"),
        ({"pipeline": '{"$match": {}}'}, "option pipeline must be a JSON array of stages"),
        ({"pipeline": "[{"}, "option pipeline must be a JSON array of stages: Expecting"),
        ({"pipeline": "[" * 100_000}, "option pipeline must be a JSON array of stages: "),
        ({"collation": "[]"}, "option collation must be a JSON object"),
        ({"collation": '{"locale": "de", "a": [{"b": 1, "b": 2}]}'}, "a name appears twice in one object"),
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


def test_endpoints() -> None:
    for text in ("host:1", "[::1]:7117", "dns:///host:1"):
        assert parse_options({"endpoint": f" {text}\n"}).endpoint == text


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


def test_options_of_reading_are_no_part_of_the_feed() -> None:
    reading = {"schemaMode": "json", "maxEventsPerTrigger": "7", "startingOffsets": "latest", "readPartitions": "3"}
    assert parse_options({"endpoint": "x:1", **reading}).feed == parse_options({"endpoint": "x:1"}).feed
