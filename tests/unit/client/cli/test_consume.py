"""`feedmux consume` with scripted sessions: what is processed together, acknowledged, and left for the next run."""

import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from bson.timestamp import Timestamp

import feedmux
from feedmux.cli import main
from feedmux.cli.consume import Command, Sink, _explained, process_events
from feedmux.cli.event_output import EventOutput, Notices
from feedmux.cli.failure import CliError
from feedmux.cli.signals import Signals
from feedmux.cli.terminal import Painted, say, write
from feedmux.errors import make_error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--start", "earliest"], "--create"),
        (["--pipeline", "[]"], "--create"),
        (["--batch", "2"], "--exec"),
        (["--exec", " "], "--exec is empty"),
        (["--raw", "--json"], "cannot be used together"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "orders", *arguments]) == 2
    assert words in capsys.readouterr().err


class Document(str):
    """An event of a copy."""

    __slots__ = ()
    snapshot = True


class ScriptedSession:
    """Plays a list: an event, None where none has arrived, an error."""

    cluster_time: Timestamp | None = None
    copying: feedmux.SnapshotStatus | None = None

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.acked: list[object] = []

    def try_next(self) -> object:
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def next(self, timeout_s: float) -> object:
        return self.try_next()

    def ack(self, event: object) -> None:
        self.acked.append(event)


class Recorded(Sink):
    def __init__(self) -> None:
        self.processed: list[list[object]] = []

    def process(self, events: Sequence[object]) -> None:
        self.processed.append(list(events))


def test_events_before_an_error_are_processed_first() -> None:
    error = feedmux.FeedInvalidated("dropped")
    session, sink = ScriptedSession("a", "b", None, "c", "d", error, error), Recorded()
    with pytest.raises(feedmux.FeedInvalidated):
        process_events(cast(feedmux.Session, session), sink, Signals(), Notices(), 10, None, None, lambda: None)
    assert sink.processed == [["a", "b"], ["c", "d"]]
    assert session.acked == ["b", "d"]


def test_a_limit_is_kept_within_batches() -> None:
    session, sink = ScriptedSession(*"abcdefg"), Recorded()
    process_events(cast(feedmux.Session, session), sink, Signals(), Notices(), 2, 5, None, lambda: None)
    assert sink.processed == [["a", "b"], ["c", "d"], ["e"]]
    assert session.script == ["f", "g"]


@pytest.fixture
def signals() -> Iterator[Signals]:
    """Signals whose handlers are installed."""
    signals = Signals()
    # Where the tests run under nohup, or in the background of a script, one of them is ignored.
    before = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    signals.handle()
    yield signals
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_while_a_command_runs_waits_for_its_ack(signals: Signals) -> None:
    class Signalled(Recorded):
        def process(self, events: Sequence[object]) -> None:
            super().process(events)
            signal.raise_signal(signal.SIGTERM)

    session, sink = ScriptedSession(*"ab"), Signalled()
    with pytest.raises(SystemExit) as ended:
        process_events(cast(feedmux.Session, session), sink, signals, Notices(), 1, None, None, lambda: None)
    assert ended.value.code == 143
    assert (sink.processed, session.acked) == ([["a"]], ["a"])


@pytest.mark.parametrize("line_bytes", [100, 100_000])
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_signal_waits_for_a_slow_reader_and_a_second_does_not(
    line_bytes: int, as_text: bool, again: bool, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmux.cli.terminal.SIGNALS", signals)
    reader, writer = (os.fdopen(number, mode) for number, mode in zip(os.pipe(), ("rb", "w"), strict=True))
    monkeypatch.setattr("sys.stdout", writer)
    lines = (b"x" * line_bytes + b"\n") * (200_000 // line_bytes)
    main = threading.get_ident()
    ended = threading.Event()
    read = list[bytes]()

    def interrupt() -> None:
        read.append(reader.read(1))
        while select.select([], [writer], [], 0)[1]:
            pass
        for number in (signal.SIGHUP, signal.SIGTERM)[: 1 + again]:
            signal.pthread_kill(main, number)
        assert not again or ended.wait(60)
        read.append(reader.read())
        reader.close()

    reading = threading.Thread(target=interrupt)
    reading.start()
    with pytest.raises(SystemExit) as end:
        say(Painted(lines.decode()), end="") if as_text else write(lines)
    ended.set()
    writer.close()
    reading.join()
    assert end.value.code == (143 if again else 129)
    assert (b"".join(read) == lines) is not again


class Output:
    def encode(self, event: object) -> bytes:
        return bytes(100_000)  # more than a pipe holds


def run_command(command_line: str, signals: Signals) -> None:
    with signals.deferred():
        Command(command_line, cast(EventOutput, Output()), signals).process([cast(feedmux.Event, "event")])


def test_what_a_command_leaves_in_the_background_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    run_command(f"exec 3<&0; read line < {tmp_path}/pipe &", Signals())
    (tmp_path / "pipe").write_text("end\n")


@pytest.mark.parametrize(("command_line", "how"), [("exit 3", "exited with 3"), ("kill -40 $$", "killed by signal 40")])
def test_a_command_that_fails_ends_it(command_line: str, how: str) -> None:
    with pytest.raises(CliError, match=how):
        run_command(command_line, Signals())


def test_a_command_that_cannot_be_started_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no-such-folder")
    with pytest.raises(CliError, match="cannot be started: No such file"):
        run_command("true", Signals())


def test_a_second_signal_ends_a_command_with_its_children(signals: Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    left = list[str]()

    def tell() -> None:
        with (tmp_path / "pipe").open() as pipe:
            pipe.readline()  # the child has begun
            for number in (signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), number)  # this thread may be the one that receives it
            left.append(pipe.read())  # ends when no child has the pipe

    telling = threading.Thread(target=tell)
    telling.start()
    with pytest.raises(SystemExit):
        run_command(f"(trap '' TERM HUP; echo begun; sleep 60; echo left) > {tmp_path}/pipe & wait", signals)
    telling.join()
    assert left == [""]


def test_an_interrupt_is_passed_on_to_the_command(signals: Signals) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command("trap 'exit 7' INT; kill -INT $PPID; for _ in $(seq 600); do sleep 0.1; done", signals)
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("reached", "events", "nothing_left", "stops"),
    [
        ((5, 0), "a", True, False),
        ((5, 1), "a", True, False),
        ((5, 1), "", False, False),
        ((5, 1), "", True, True),
        ((5, 2), "a", False, True),
        ((6, 1), "", False, True),
    ],
)
@pytest.mark.parametrize("copying", [False, True])
def test_it_is_caught_up_after_all_events_before_the_head(
    reached: tuple[int, int], events: str, nothing_left: bool, stops: bool, copying: bool
) -> None:
    """The head is (5, 2). At (5, 1), the first event of that time may come yet, or the next one of its transaction."""
    end = feedmux.FeedInvalidated("went on")
    session, sink = ScriptedSession(*([*map(Document, events)] or (None, None)), None, end, end), Recorded()
    session.cluster_time = Timestamp(*reached)
    session.copying = feedmux.SnapshotStatus(True, 0) if copying else None
    arguments = cast(feedmux.Session, session), sink, Signals(), Notices(), 1, None, Timestamp(5, 2)
    if stops and not copying:  # however late their time is, documents may be left
        process_events(*arguments, lambda: None, lambda: nothing_left)
        assert sink.processed == [[each] for each in events]
    else:
        with pytest.raises(feedmux.FeedInvalidated):
            process_events(*arguments, lambda: None, lambda: nothing_left)


def test_a_status_that_needs_a_collection_for_dead_letters_is_explained() -> None:
    error = make_error("FAILED_PRECONDITION", "leave settle.failed.reject unset", "DEAD_LETTERS_UNAVAILABLE", {})
    found = _explained(error, "orders", joins=True)
    assert found is not None
    assert "exit status 65" in found.message
    assert "dead_letters" in found.hint


def test_the_bar_moves_with_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    session, notices = ScriptedSession(*map(Document, "abc")), Notices()
    session.copying = feedmux.SnapshotStatus(True, 100, documents_estimated=200, remaining_s=1.0)
    shown = list[feedmux.SnapshotStatus]()
    monkeypatch.setattr(notices.bar, "show", shown.append)
    clock = iter((10.0, 15.0, 20.0))
    monkeypatch.setattr("feedmux.cli.event_output.monotonic", lambda: next(clock))
    process_events(cast(feedmux.Session, session), Recorded(), Signals(), notices, 1, 3, None, lambda: None)
    assert [(each.documents, each.documents_per_s) for each in shown] == [(101, None), (102, 0.2), (103, 0.2)]
