"""docs/protocol.md lists the bounds of requests."""

from pathlib import Path

from feedmux_server.rpc.bounds import BOUNDS
from feedmux_server.rpc.subscriptions import DEFINITION_BYTES_MAX

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
ROWS = {
    "a pipeline in BSON": "feedmux.v1.Pipeline.bson",
    "a pipeline in Extended JSON": "feedmux.v1.Pipeline.extended_json",
    "`comment`, `collation`": "feedmux.v1.Feed.comment",
    "a position": "feedmux.v1.Start.position",
    "a resume token of MongoDB": "feedmux.v1.Start.resume_after",
    "names, `instance_id`, `page_token`": "feedmux.v1.Open.instance_id",
    "any other text": "feedmux.v1.Feed.read_concern",
}


def test_the_page_says_the_bounds() -> None:
    for text, field in ROWS.items():
        [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {text} |")]
        assert f"| {BOUNDS[field].bytes_max:,}" in row
        assert row.endswith(f"| `{BOUNDS[field].reason.value}` |")
    assert f"as it is stored | {DEFINITION_BYTES_MAX:,} |" in PAGE
