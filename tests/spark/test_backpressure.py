"""A slow sink throttles reads from MongoDB, and no memory grows with the backlog."""

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.documents import Documents, insert
from tests.spark.processes import Driver, readers, rss_bytes
from tests.spark.support import Sink, Site

Options = Callable[..., dict[str, str]]
EVENTS, PAD, BATCH = 200_000, 1_000, 20_000
MIB = 1 << 20
READ_AHEAD_BYTES = 24 * MIB
"""The server's default: how far a stream runs ahead of those who read it."""


@pytest.mark.full
def test_a_slow_sink(site: Site, database: Documents, options: Options, tmp_path: Path) -> None:
    for first in range(0, EVENTS, 5_000):
        insert(database, range(first, first + 5_000), pad=PAD)
    sink, begin = Sink(tmp_path / "out"), returned(site)
    server_mib = rss_bytes(site.server.process.pid) / MIB
    job = {
        "options": options(maxEventsPerTrigger=BATCH),
        "sink": str(sink.folder),
        "checkpoint": str(tmp_path / "check"),
    }
    ahead, most_server_mib, most_worker_mib = list[int](), 0.0, 0.0
    with Driver(tmp_path / "one", **job, ms_per_row=0.05) as driver:
        while not driver.done:
            driver.check()
            taken, read = rows(sink), returned(site) - begin
            if taken < EVENTS - 3 * BATCH:
                ahead.append(read - taken)
            most_server_mib = max(most_server_mib, rss_bytes(site.server.process.pid) / MIB)
            if driver.started:
                workers = readers(driver.jvm, site.server.ports[0])
                most_worker_mib = max([most_worker_mib, *(rss_bytes(pid) / MIB for pid in workers)])
            time.sleep(0.2)
    assert sink.numbers() == list(range(EVENTS))
    # At most the server has read the batch being written, the next batch, and what a stream reads ahead of its readers.
    event_bytes = PAD + 400
    assert 0 < max(ahead) <= 2 * BATCH + READ_AHEAD_BYTES / event_bytes + 10_000
    assert EVENTS * event_bytes > 250 * MIB
    assert most_server_mib - server_mib < 160
    assert 0 < most_worker_mib < 350


def returned(site: Site) -> int:
    """Documents that MongoDB has returned so far."""
    return int(site.client.admin.command("serverStatus")["metrics"]["document"]["returned"])


def rows(sink: Sink) -> int:
    """In files that are finished."""
    found = list(sink.folder.glob("batch=*/_SUCCESS"))
    return sum(pq.read_metadata(path).num_rows for done in found for path in done.parent.glob("*.parquet"))
