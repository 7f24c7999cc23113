"""What a Spark user reads for each error of the client: the option to look at, and no more of it than is known."""

from feedmux.errors import make_error
from feedmux_spark.errors import explained
from tests.tables import over


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
        ("FAILED_PRECONDITION", "SNAPSHOT_UNSUITABLE", {}, "consumerName 'q' is within a copy of existing"),
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
    text = str(explained(error, endpoint="here:1", offset_time="2026-11-28T10:00:00Z/3"))
    assert "new consumerName and startingOffsets 2026-11-28T10:00:00Z, the time of the checkpoint" in text
    assert "startingOffsets" not in str(explained(error, endpoint="here:1"))


def test_any_other_error_is_told_as_it_is() -> None:
    assert str(explained(make_error("INTERNAL", "said"), endpoint="here:1")) == "INTERNAL: said"
