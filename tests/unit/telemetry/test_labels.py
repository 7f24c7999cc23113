"""Names as attributes of metrics are bounded, and keep the value that they once had."""

from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.metrics import OTHER


def test_the_first_names_keep_their_value_and_all_others_share_one() -> None:
    labels = Labels(2)
    assert [labels.of(name) for name in "abcab"] == ["a", "b", OTHER, "a", "b"]
    assert Labels(0).of("a") == OTHER
