"""`feedmux watch` with a scripted session: its limit, its pauses, and its end."""

from typing import Any, cast

import pytest

import feedmux
from feedmux.cli.event_output import EventOutput, Notices
from feedmux.cli.watch import _follow


class Session:
    """Plays a list: an event, or None where none has arrived."""

    def __init__(self, *script: bytes | None) -> None:
        self.script = list(script)

    def try_next(self) -> bytes | None:
        return self.script.pop(0)

    def next(self, _timeout_s: float) -> bytes:
        raise TimeoutError


class Output:
    def encode(self, event: Any) -> Any:
        return event


def test_it_stops_at_its_limit_and_asks_about_the_feed_at_each_pause(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedmux.cli.event_output.reader_has_gone", lambda: False)
    session, pauses = Session(None, b"a", b"b", None, b"c", b"d"), list[bytes]()
    arguments = cast(feedmux.Session, session), cast(EventOutput, Output()), Notices(), 3
    _follow(*arguments, lambda: pauses.append(capsysbinary.readouterr().out))
    # At a pause everything before it has been written.
    assert pauses == [b"", b"ab"]
    assert capsysbinary.readouterr().out == b"c"
    assert session.script == [b"d"]
