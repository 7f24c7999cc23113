"""Reads slices of a range on an executor: the events of (after, until], even if the server fails meanwhile."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from bson.codec_options import CodecOptions
from pyspark.sql.datasource import InputPartition

from feedmux import requests
from feedmux.batches import BsonBatch
from feedmux.errors import FeedmuxError, HistoryLost, InvalidArgument, TimelineForked
from feedmux.feeds import Start
from feedmux.responses import Delivery, Reader
from feedmux.v1 import change_feed_pb2
from feedmux_spark.connection import Connection, Patience
from feedmux_spark.options import Options

log = logging.getLogger("feedmux_spark")

MESSAGE_BYTES_MAX: Final = 1024 * 1024
"""About two thousand events, which become one Arrow batch."""


@dataclass(frozen=True)
class Slice(InputPartition):
    """What one task reads: the events in (after, until]."""

    after: bytes = field(repr=False)
    until: bytes = field(repr=False)
    route: str = ""
    """The routing key of the replica that retains the events."""
    feed: bytes = field(default=b"", repr=False)
    """The fingerprint of the feed that planned the slice; no other feed may read it."""
    copying: bool = False
    """It is within a copy of existing documents, where the oldest change does not continue what is lost."""


def read_slice(options: Options, wanted: Slice) -> Iterator[bytes]:
    """Yields the slice's events as concatenated BSON, one message at a time, without collecting them.

    After a broken stream, continues after the last event yielded, so that no event comes twice. Raises
    FeedmuxSparkError.
    """
    connection = Connection(options, on_executor=True)
    with connection.explaining():
        patience, behind_a_gap = Patience("reading a range", connection), False
        while True:
            was_open = False
            try:
                for batch in _batches(connection, options, wanted):
                    was_open = True
                    yield bytes(batch.raw)
                    wanted = replace(wanted, after=batch.position)
                    patience.restart()
                return
            except HistoryLost as error:
                if options.fail_on_data_loss or wanted.copying:
                    raise
                oldest = connection.resolve(options, Start.earliest())
                if oldest.time <= connection.resolve(options, Start.position(wanted.after)).time:
                    raise  # the primary has the position: nothing is lost, and what was read would come again
                log.warning("changes of a planned range are lost (failOnDataLoss=false): %s", error)
                wanted, behind_a_gap = replace(wanted, after=oldest.position), True
            except TimelineForked as error:
                if options.fail_on_data_loss or wanted.copying:
                    raise
                # The next plan begins at the oldest available change.
                log.warning("the changes of a planned range have not happened (failOnDataLoss=false): %s", error)
                return
            except InvalidArgument as error:
                if behind_a_gap and error.metadata.get("field") == "until":
                    return  # the oldest available change is after the whole slice
                raise
            except FeedmuxError as error:
                # A token that expires while events come may be replaced by the next one in the file.
                patience.wait(error, has_other_credentials=was_open and options.token_file is not None)


def _batches(connection: Connection, options: Options, wanted: Slice) -> Iterator[BsonBatch]:
    """Yields the batches of one call. A large event sent in fragments is a separate batch."""
    reader = Reader(json=False, options=CodecOptions())
    request = change_feed_pb2.ReadRangeRequest(
        feed=requests.feed_message(options.feed, options.source),
        after=wanted.after,
        until=wanted.until,
        message_bytes_max=MESSAGE_BYTES_MAX,
        feed_fingerprint=wanted.feed,
    )
    for message in connection.stream("ReadRange", request, wanted.route):
        response = reader.read(message)
        if isinstance(response, Delivery) and isinstance(response.batch, BsonBatch):
            yield response.batch
