"""The driver's side and the executor's, called as Spark calls them: what a whole session is too slow for."""

import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import bson
import pytest
from cryptography import x509
from pymongo import MongoClient

import feedmux
from feedmux.feeds import Start
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_spark import stream
from feedmux_spark.connection import Connection
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.options import parse_options
from feedmux_spark.ranges import Slice, read_slice
from feedmux_spark.stream import Progress
from tests.conformance.faults import overrun
from tests.documents import Documents, insert
from tests.integration.certificates import Authority
from tests.integration.servers import server_process, settings
from tests.spark.support import Site

Options = Callable[..., dict[str, str]]
MANY = 1_000_000


def read(options: dict[str, str], slices: Any) -> list[int]:
    """What executors read."""
    return [
        int(event["fullDocument"]["n"])
        for each in slices
        for events in read_slice(parse_options(options), each)
        for event in bson.decode_all(events)
    ]


def test_the_start_is_the_same_until_something_was_processed(database: Documents, options: Options, site: Site) -> None:
    chosen = options(startingOffsets="latest", pollTimeoutMs=5000)
    progress = Progress(parse_options(chosen))
    start = progress.begin()
    insert(database, range(10))
    assert progress.begin() == start
    end = progress.advance(start, MANY)
    assert Progress(parse_options(chosen)).begin() == start
    assert read(chosen, progress.slices(start, end)) == list(range(10))
    # That Spark asks for more says that it has these.
    insert(database, range(10, 20))
    progress.advance(end, MANY)
    with feedmux.Client(site.endpoint) as client:
        assert client.get_subscription(chosen["consumerName"]).position == end.position
    assert Progress(parse_options(chosen)).begin().position == end.position


def test_a_subscription_that_is_gone_is_created_again(database: Documents, options: Options, site: Site) -> None:
    """Where the checkpoint stands, whether Spark repeats a batch or asks for the next."""
    chosen = options()
    insert(database, range(10))
    progress = Progress(parse_options(chosen))
    start = progress.begin()
    end = progress.advance(start, 5)
    with feedmux.Client(site.endpoint) as client:
        client.delete_subscription(chosen["consumerName"])
        again = Progress(parse_options(chosen))
        assert read(chosen, again.slices(start, end)) == list(range(5))
        assert client.get_subscription(chosen["consumerName"]).position == start.position
        client.delete_subscription(chosen["consumerName"])
        assert read(chosen, again.slices(end, again.advance(end, MANY))) == list(range(5, 10))


def test_a_subscription_within_a_copy_that_spark_cannot_read_is_rejected(
    database: Documents, options: Options, site: Site
) -> None:
    """Nothing is read as if the copy were complete, and the position stays for a client that reads copies."""
    insert(database, range(3))
    chosen = options(pipeline='[{"$match": {"operationType": "insert"}}]')
    Progress(parse_options(chosen)).begin()
    with feedmux.Client(site.endpoint) as client:
        client.seek_subscription(chosen["consumerName"], "snapshot")
        stored = client.get_subscription(chosen["consumerName"]).position
        progress = Progress(parse_options(chosen))
        with pytest.raises(FeedmuxSparkError, match=r"existing documents cannot be read .* without \$match"):
            progress.advance(progress.begin(), MANY)
        assert client.get_subscription(chosen["consumerName"]).position == stored


def test_large_events_come_whole(database: Documents, options: Options) -> None:
    progress = Progress(parse_options(options()))
    insert(database, range(3), pad=3_000_000)
    start = progress.begin()
    assert read(options(), progress.slices(start, progress.advance(start, MANY))) == [0, 1, 2]


def test_another_application_under_the_same_name(
    database: Documents, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Progress(parse_options(options()))
    first.advance(first.begin(), MANY)
    monkeypatch.setattr(stream, "instance_id", lambda _: "spark/elsewhere/1")
    second = Progress(parse_options(options(retryTimeoutMs=200)))
    with pytest.raises(FeedmuxSparkError, match=r"Another client reads under consumerName .*owner 'spark/"):
        second.advance(second.begin(), MANY)
    # Its lease ends, as it does when the other has died.
    patient = Progress(parse_options(options()))
    patient.advance(patient.begin(), MANY)


async def test_history_lost_in_a_planned_range(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An executor finds less than was planned: what is left comes, or nothing, and the gap is logged."""
    async with (
        ReplicaSet(oplog_mb=8, arguments=["--syncdelay", "1"]) as mongo,
        RedisServer() as redis,
        server_process(settings(mongo.uri, redis.url, unused_stream_s=0.05), tmp_path) as server,
    ):
        with MongoClient[dict[str, Any]](mongo.uri) as client:
            database = client["lost"]
            chosen = {"endpoint": f"127.0.0.1:{server.ports[0]}", "database": "lost", "collection": "c"}
            connection = Connection(parse_options(chosen))
            places = [connection.resolve(parse_options(chosen), Start.latest()).position]
            for numbers in (range(10), range(10, 20)):
                insert(database, numbers)
                places.append(connection.resolve(parse_options(chosen), Start.latest()).position)
                if numbers == range(10):
                    await overrun(client)
            first, second = (Slice(*each) for each in pairwise(places))
            with pytest.raises(FeedmuxSparkError, match="Changes are lost"):
                read(chosen, [first])
            lenient = {**chosen, "failOnDataLoss": "false"}
            caplog.set_level(logging.WARNING)
            assert read(lenient, [first]) == []
            assert "changes of a planned range are lost" in caplog.text
            assert read(lenient, [Slice(first.after, second.until)]) == list(range(10, 20))


async def test_tls(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.sign("server", x509.DNSName("localhost"))
    configuration = settings(mongo.uri, redis_server.url)
    configuration["tls"] = {
        "certificate_file": str(tmp_path / "server.pem"),
        "key_file": str(tmp_path / "server.key"),
    }
    # The health port has no TLS, and says when it listens.
    async with server_process(configuration, tmp_path) as server:
        chosen = {
            "endpoint": f"127.0.0.1:{server.ports[0]}",
            "tls": "true",
            "tlsRootFile": str(authority.path),
            "tlsServerName": "localhost",
            "retryTimeoutMs": "10000",
        }
        options = parse_options(chosen)
        assert Connection(options).resolve(options, Start.latest()).position
        wrong = parse_options({**chosen, "tlsServerName": "elsewhere", "retryTimeoutMs": "300"})
        connection = Connection(wrong)
        with pytest.raises(FeedmuxSparkError, match="the TLS options"), connection.explaining():
            connection.resolve(wrong, Start.latest())
        missing = parse_options({**chosen, "tlsRootFile": "/none"})
        with pytest.raises(FeedmuxSparkError, match="a TLS file cannot be read on this host"):
            Connection(missing).resolve(missing, Start.latest())
