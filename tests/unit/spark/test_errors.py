"""What a Spark user reads for each error of the client: the option to look at, and no more of it than is known."""

import pytest

from feedmux.errors import make_error
from feedmux_spark.errors import explained


@pytest.mark.parametrize(
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


def test_any_other_error_is_told_as_it_is() -> None:
    assert str(explained(make_error("INTERNAL", "said"), endpoint="here:1")) == "INTERNAL: said"
