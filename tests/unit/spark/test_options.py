"""Options, and what their errors advise."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from feedmux.errors import Unauthenticated, make_error
from feedmux_spark.errors import FeedmuxSparkError, OptionError, explained
from feedmux_spark.offsets import parse_start
from feedmux_spark.options import TABLE, Options, markdown_table, parse_options
from feedmux_spark.positions import latest_offsets
from feedmux_spark.ranges import Slice
from tests.tables import over
from tests.unit.spark.answers import Answers, resolved

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


@over(
    ("status", "reason", "metadata", "says"),
    [
        ("OUT_OF_RANGE", "HISTORY_LOST", {}, "has left MongoDB's oplog. Either set failOnDataLoss=false"),
        ("OUT_OF_RANGE", "HISTORY_LOST", {"oldest_time": "noon"}, "oplog, which now begins at noon. Either set"),
        ("UNAVAILABLE", "", {}, "feedmux at 'here:1', or a service that it depends on, is unavailable"),
        ("UNAUTHENTICATED", "", {}, "check the option token or tokenFile"),
        ("PERMISSION_DENIED", "NAMESPACE_DENIED", {}, "check the options source, database and collection"),
        ("ALREADY_EXISTS", "SUBSCRIPTION_EXISTS", {}, "consumerName 'q' is taken by a subscription of another feed"),
        ("FAILED_PRECONDITION", "SUBSCRIPTION_BUSY", {"owner": "spark/x/1"}, "consumerName 'q' (owner 'spark/x/1'"),
        ("FAILED_PRECONDITION", "SUBSCRIPTION_BUSY", {}, "(owner 'unknown')"),
        ("FAILED_PRECONDITION", "SNAPSHOT_UNSUITABLE", {"kind": "view"}, "existing documents cannot be read"),
        ("FAILED_PRECONDITION", "SNAPSHOT_UNSUITABLE", {"kind": "_id"}, "raise the options maxEventsPerTrigger"),
        ("FAILED_PRECONDITION", "SNAPSHOT_UNSUITABLE", {"kind": "mode"}, "or upgrade all replicas of feedmux"),
        ("FAILED_PRECONDITION", "FEED_CHANGED", {}, "nothing of the batch was read. Restart the query"),
        ("INVALID_ARGUMENT", "POSITION_FOREIGN", {}, "The offset is not a position in this feed"),
        ("INVALID_ARGUMENT", "OPTION_REFUSED", {}, "MongoDB rejected the pipeline or an option"),
        ("NOT_FOUND", "SOURCE_NOT_FOUND", {}, "check the options source and consumerName"),
    ],
)  # fmt: skip
def test_advice(status: str, reason: str, metadata: dict[str, str], says: str) -> None:
    text = str(explained(make_error(status, "said", reason, metadata), endpoint="here:1", consumer_name="q"))
    assert says in text
    assert text.endswith(f"({reason or status}: said)")


def test_an_executor_says_that_it_is_one() -> None:
    error = make_error("UNAVAILABLE", "said")
    text = str(explained(error, endpoint="localhost:1", executor="worker-7"))
    assert "A Spark executor on host 'worker-7' cannot use feedmux at 'localhost:1'" in text
    assert "reachable from every executor (localhost is the executor's own host)" in text


def test_a_checkpoint_that_the_server_does_not_know_any_more() -> None:
    """As after Redis lost its data and the servers restarted: the key of the positions is lost."""
    error = make_error("INVALID_ARGUMENT", "said", "POSITION_INVALID", {})
    text = str(explained(error, endpoint="here:1", restart_at="2026-11-28T10:00:00Z"))
    assert "new consumerName and startingOffsets 2026-11-28T10:00:00Z, the time of the checkpoint" in text
    assert "startingOffsets" not in str(explained(error, endpoint="here:1"))


def test_any_other_error_is_told_as_it_is() -> None:
    assert str(explained(make_error("INTERNAL", "said"), endpoint="here:1")) == "INTERNAL: said"


def test_it_is_a_value_of_starting_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Answers(monkeypatch, ResolvePosition=[resolved(b"now", 1763740800)])
    offset = latest_offsets({"ENDPOINT": "localhost:1", "database": "shop"})
    assert parse_start(offset, "startingOffsets").token == b"now"
    assert json.loads(offset)["clusterTime"] == "2025-11-21T16:00:00Z/1"
    ((_, request),) = server.asked
    assert (request.feed.database, request.start.WhichOneof("at")) == ("shop", "latest")


def test_its_errors_have_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, ResolvePosition=[Unauthenticated("no", status="UNAUTHENTICATED")])
    with pytest.raises(FeedmuxSparkError, match="check the option token"):
        latest_offsets({"endpoint": "localhost:1"})
