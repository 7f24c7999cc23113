"""`feedmux consume --join` with scripted members: what is printed, run and settled."""

import errno
import io
import os
import signal
import sys
import threading
from typing import Any, cast

import bson
import pytest
from bson.codec_options import CodecOptions

import feedmux
from feedmux.batches import BsonBatch
from feedmux.cli import main
from feedmux.cli.event_output import EventOutput, Notices
from feedmux.cli.join import Commands, print_events
from feedmux.member_event import Run
from feedmux.outcomes import DONE, Failed, Outcome
from feedmux.positions import NO_POSITION


class Output:
    def encode(self, event: feedmux.Event) -> bytes:
        return event.raw


class Owner:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def settle(self, event: feedmux.MemberEvent, outcome: Outcome) -> None:
        if event.outcome is None:
            event.outcome = outcome
            self.outcomes.append(outcome)


def event(owner: Owner, size: int = 0, attempt: int = 1) -> feedmux.MemberEvent:
    raw = bson.encode({"_id": {"_data": "82"}, "pad": "x" * size})
    options: CodecOptions[Any] = CodecOptions()
    return feedmux.MemberEvent(BsonBatch(memoryview(raw), 1, NO_POSITION, 0, options), 0, attempt, owner, Run())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "2", "--exec", "true"], "--jobs requires --join"),
        (["--join", "--jobs", "2"], "--jobs requires --exec"),
        (["--join", "--takeover"], "--takeover cannot be used with --join"),
        (["--join", "--until-caught-up"], "--until-caught-up cannot be used with --join"),
        (["--join", "--exec", "true", "--batch", "2"], "--batch cannot be used with --join"),
        (["--join", "--exec", "true", "--limit", "2"], "--limit cannot be used with --join and --exec"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "orders", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("true", None),
        ("cat > /dev/null; echo first >&2; echo; exit 0", None),
        ("echo one >&2; echo '  two ' >&2; echo >&2; exit 1", Failed(reason="two")),
        ("exit 3", Failed(reason="the command exited with 3")),
        ("kill -9 $$", Failed(reason="the command was killed by SIGKILL")),
        ("echo bad data >&2; exit 65", Failed(reason="bad data", reject=True)),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", Failed(reason="x" * 1024)),
        ("printf 'a\\033[31m\\377' >&2; exit 1", Failed(reason="a?[31m\ufffd")),
    ],
)
def test_the_exit_status_settles_the_event(
    command: str, outcome: Outcome | None, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO()))
    owner = Owner()
    Commands(command, cast(EventOutput, Output()), lambda: None).handle(event(owner))
    assert owner.outcomes == ([] if outcome is None else [outcome])


def test_a_command_that_was_ended_with_its_member_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Closed(Owner):
        def settle(self, event: feedmux.MemberEvent, outcome: Outcome) -> None:
            raise feedmux.SessionClosed("the member is closed: others get the event")

    Commands("kill $$", cast(EventOutput, Output()), lambda: None).handle(event(Closed()))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("command", ["no-such-command", "/dev/null", "exec no-such-command", "exit 3"])
def test_a_command_that_does_not_run_ends_the_worker(command: str) -> None:
    owner, stops = Owner(), list[bool]()
    commands = Commands(command, cast(EventOutput, Output()), lambda: stops.append(True))
    commands.handle(event(owner))
    assert len(owner.outcomes) == 1, "whoever fixes it gets the event again"
    assert bool(stops) is (commands.cannot_run is not None) is (command != "exit 3")


def test_a_command_that_cannot_be_started_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", no_process)
    stops = list[bool]()
    commands = Commands("true", cast(EventOutput, Output()), lambda: stops.append(True))
    with pytest.raises(BlockingIOError):  # so `run` lets the event fail
        commands.handle(event(Owner()))
    assert stops
    assert "Resource temporarily unavailable" in str(commands.cannot_run)


def test_a_command_need_not_read_its_input(tmp_path: Any) -> None:
    owner = Owner()
    big = event(owner, 10_000_000)
    Commands("exit 0", cast(EventOutput, Output()), lambda: None).handle(big)
    Commands(f"cat > {tmp_path}/got", cast(EventOutput, Output()), lambda: None).handle(big)
    assert (tmp_path / "got").read_bytes() == big.raw
    assert owner.outcomes == []


def test_what_a_command_leaves_in_the_background_is_not_waited_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmux.cli.join.LEFT_S", 0.0)
    owner = Owner()
    Commands(f"sleep 1000 & echo $! > {tmp_path}/child; exit 65", cast(EventOutput, Output()), lambda: None).handle(
        event(owner)
    )
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    (outcome,) = owner.outcomes
    assert isinstance(outcome, Failed)
    assert outcome.reject


def test_commands_are_ended_with_their_children(tmp_path: Any) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    command = f"(trap '' TERM; echo begun; sleep 60; echo left) > {path} & wait"
    commands = Commands(command, cast(EventOutput, Output()), lambda: None)
    handling = threading.Thread(target=commands.handle, args=(event(Owner()),))
    handling.start()
    with path.open() as pipe:
        assert pipe.readline() == "begun\n"
        commands.end()
        assert pipe.read() == ""
    handling.join()


def test_commands_have_a_process_group_of_their_own(tmp_path: Any) -> None:
    Commands(f"ps -o pgid= -p $$ > {tmp_path}/group", cast(EventOutput, Output()), lambda: None).handle(event(Owner()))
    assert int((tmp_path / "group").read_text()) != os.getpgrp()


def test_each_event_is_printed_and_then_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed))

    class PrintedFirst(Owner):
        def settle(self, event: feedmux.MemberEvent, outcome: Outcome) -> None:
            assert printed.getvalue().endswith(event.raw)
            super().settle(event, outcome)

    class Member:
        def __init__(self) -> None:
            self.events: list[feedmux.MemberEvent | None] = [event(owner), None, event(owner), event(owner)]

        def next(self, _timeout_s: float) -> feedmux.MemberEvent:
            if (found := self.events.pop(0)) is None:
                raise TimeoutError
            return found

    owner = PrintedFirst()
    member = Member()
    monkeypatch.setattr("feedmux.cli.join.reader_has_gone", lambda: False)
    print_events(cast(feedmux.Member, member), cast(EventOutput, Output()), Notices(), 2)
    assert owner.outcomes == [DONE, DONE]
    assert len(member.events) == 1
