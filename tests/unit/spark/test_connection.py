"""A dead connection, tested against a server that accepts calls and never answers, and a credential from a file."""

import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from feedmux.errors import FeedmuxError, Unavailable, make_error
from feedmux.silence_detector import SilenceDetector
from feedmux.v1 import change_feed_pb2
from feedmux_spark import connection
from feedmux_spark.batch import FeedmuxBatchReader
from feedmux_spark.connection import FIRST_CONTACT_S, Connection, Patience, TokenFile
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.offsets import Offset
from feedmux_spark.options import parse_options
from feedmux_spark.rows import default_schema
from feedmux_spark.stream import Progress
from tests.unit.spark.answers import Answers

REQUEST = change_feed_pb2.ReadRangeRequest()


class Server:
    """Sends `messages` to every ReadRange, and then nothing."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = messages
        self._over = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        unary: Any = grpc.unary_unary_rpc_method_handler(self._silent)
        stream: Any = grpc.unary_stream_rpc_method_handler(self._read)
        handlers = {"ReadRange": stream, "ResolvePosition": unary}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("feedmux.v1.ChangeFeed", handlers),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def stop(self) -> None:
        self._over.set()
        self._server.stop(None)

    def _read(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        yield from self._messages
        self._over.wait()

    def _silent(self, _request: bytes, _context: Any) -> bytes:
        self._over.wait()
        return b""


@pytest.fixture
def silent() -> Iterator[Server]:
    server = Server(b"first")
    yield server
    server.stop()


def to(server: Server, **options: str) -> Connection:
    return Connection(parse_options({"endpoint": f"127.0.0.1:{server.port}", **options}))


def test_a_read_that_hears_nothing_ends_and_leaves_its_connection(
    silent: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = threading.Event()

    class AfterTheFirst(SilenceDetector):
        """The silence counts as too long once a message has come."""

        def tick(self, now_s: float) -> bool:
            return heard.is_set()

    monkeypatch.setattr(connection, "SilenceDetector", AfterTheFirst)
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.01)
    made = to(silent)
    messages = made.stream("ReadRange", REQUEST, "")
    assert next(messages) == b"first"
    before = made._channel()
    heard.set()
    with pytest.raises(Unavailable, match="sent nothing"):
        next(messages)
    assert made._channel() is not before


def test_time_between_two_messages_of_a_slow_reader_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARTBEAT_S", 0.01)
    seen: list[bool] = []
    enough = threading.Event()

    class Counted(SilenceDetector):
        def tick(self, now_s: float) -> bool:
            seen.append(super().tick(now_s))
            if len(seen) == 100 or seen[-1]:
                enough.set()
            return seen[-1]

    monkeypatch.setattr(connection, "SilenceDetector", Counted)
    listening = connection.Listening(lambda: None)
    with listening:
        pass
    enough.wait()
    listening.stop()
    assert not listening.gave_up


def test_a_call_that_had_no_answer_leaves_its_connection(silent: Server) -> None:
    made = to(silent, callTimeoutMs="1000")
    before = made._channel()
    with pytest.raises(Unavailable):
        made.unary("ChangeFeed", "ResolvePosition", REQUEST, change_feed_pb2.ResolvePositionResponse)
    assert made._channel() is not before


def test_changed_tls_files_are_read_for_new_connections(silent: Server, tmp_path: Path) -> None:
    root = tmp_path / "ca.pem"
    root.write_text("one authority")
    made = to(silent, tls="true", tlsRootFile=str(root))
    before = made._channel()
    assert made._channel() is before
    root.unlink()
    assert made._channel() is before  # while the file is being replaced
    root.write_text("another one")
    assert made._channel() is not before


class Clock:
    """In place of the module `time`: a sleep takes no time, and the clock shows that it did."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += max(duration_s, 0.01)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(connection, "time", made)
    return made


NOBODY = make_error("UNAVAILABLE", "failed to connect to all addresses")
MONGODB_DOWN = make_error("UNAVAILABLE", "MongoDB is unavailable", "SOURCE_UNAVAILABLE")
RETRY_S = 300.0


@pytest.mark.parametrize(
    ("on_executor", "resolves", "answered", "error", "expected_s"),
    [
        (False, True, False, NOBODY, FIRST_CONTACT_S),
        (False, True, False, MONGODB_DOWN, RETRY_S),
        (False, False, True, NOBODY, RETRY_S),
        (True, True, False, NOBODY, RETRY_S),
        (True, False, False, NOBODY, FIRST_CONTACT_S),
    ],
)
def test_an_endpoint_that_may_be_mistyped_is_reported_soon(
    on_executor: bool,
    resolves: bool,
    answered: bool,
    error: FeedmuxError,
    expected_s: float,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def addresses(*_: object) -> list[object]:
        if not resolves:
            raise socket.gaierror
        return [object()]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    made = Connection(parse_options({"endpoint": "host:1"}), on_executor=on_executor)
    patience = Patience("reading", made)
    if answered:
        patience.restart()
    with pytest.raises(Unavailable):  # noqa: PT012
        while True:
            patience.wait(error)
    assert clock.now_s == pytest.approx(expected_s, abs=0.1)


def test_a_mistyped_endpoint_is_reported_soon_with_and_without_a_checkpoint(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_options({"endpoint": "host:1", "consumerName": "q", "retryTimeoutMs": "3600000"})
    nobody = [NOBODY] * 10_000
    offset = {"position": "AAAA", "clusterTime": "2026-11-21T14:00:00Z/1"}
    for ask in (
        lambda: FeedmuxBatchReader(options, default_schema("envelope")).partitions(),
        lambda: Progress(options).begin(),
        lambda: Progress(options).advance(Offset.from_json(offset), 1000),
        lambda: Progress(options).slices(Offset.from_json(offset), Offset.from_json({**offset, "position": "BBBB"})),
    ):
        Answers(monkeypatch, ResolvePosition=list(nobody), CreateSubscription=list(nobody))
        began_s = clock.now_s
        with pytest.raises(FeedmuxSparkError, match=r"feedmux at 'host:1'.* check the option endpoint"):
            ask()
        assert clock.now_s - began_s < FIRST_CONTACT_S + 1


def test_a_token_file_without_a_token_is_no_network_that_is_away(tmp_path: Path) -> None:
    file = tmp_path / "token"
    connection = Connection(parse_options({"endpoint": "localhost:1", "tokenFile": str(file)}))
    for content in (None, b"", b" \n", b"\xff"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(FeedmuxSparkError, match="option tokenFile"):
            connection.unary("ChangeFeed", "Explain", change_feed_pb2.ExplainRequest(), change_feed_pb2.ExplainResponse)
    file.write_text("a.b.c\n", "utf-8-sig")
    assert TokenFile(str(file))() == "a.b.c"
