"""`feedmux consume` with scripted sessions: what is processed together, acknowledged, and left for the next run."""

import signal
from collections.abc import Sequence
from typing import cast

import pytest
from bson.timestamp import Timestamp

import feedmux
from feedmux.cli import main
from feedmux.cli.consume import Sink, process_events
from feedmux.cli.event_output import Notices
from feedmux.cli.signals import Signals


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


def test_a_signal_while_a_command_runs_waits_for_its_ack() -> None:
    class Signalled(Recorded):
        defers_signals = True

        def process(self, events: Sequence[object]) -> None:
            super().process(events)
            signal.raise_signal(signal.SIGTERM)

    signals, session, sink = Signals(), ScriptedSession(*"ab"), Signalled()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signals.handle()
    try:
        with pytest.raises(SystemExit) as ended:
            process_events(cast(feedmux.Session, session), sink, signals, Notices(), 1, None, None, lambda: None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 143
    assert (sink.processed, session.acked) == ([["a"]], ["a"])


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
    session, sink = ScriptedSession(*(events or (None, None)), None, end, end), Recorded()
    session.cluster_time = Timestamp(*reached)
    session.copying = feedmux.SnapshotStatus(True, 0) if copying else None
    arguments = cast(feedmux.Session, session), sink, Signals(), Notices(), 1, None, Timestamp(5, 2)
    if stops and not copying:  # however late their time is, documents may be left
        process_events(*arguments, lambda: None, lambda: nothing_left)
        assert sink.processed == [[each] for each in events]
    else:
        with pytest.raises(feedmux.FeedInvalidated):
            process_events(*arguments, lambda: None, lambda: nothing_left)
