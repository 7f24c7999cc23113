"""The data source as Spark creates it, before it connects."""

import pickle

import pytest

from feedmux_spark.errors import OptionError
from feedmux_spark.source import FeedmuxSource


@pytest.mark.parametrize("more", [{}, {"consumerName": "q", "endingOffsets": "earliest"}])
def test_a_stream_needs_a_name_and_no_end(more: dict[str, str]) -> None:
    source = FeedmuxSource({"endpoint": "x:1", **more})
    with pytest.raises(OptionError, match=r"consumerName|endingOffsets"):
        source.streamReader(source.schema())


def test_readers_are_pickled_before_anything_is_opened() -> None:
    source = FeedmuxSource({"endpoint": "x:1", "consumerName": "q"})
    for reader in (source.streamReader(source.schema()), source.reader(source.schema())):
        assert type(pickle.loads(pickle.dumps(reader))) is type(reader)
