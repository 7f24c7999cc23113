"""The committer's answers on their way to the client."""

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feedmux_server.core.delivery.ack_tracker import AckTracker
from feedmux_server.core.delivery.session_state import SessionState
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.resume_token import Copied
from feedmux_server.sessions.outputs import CommittedMark, DegradedMark, Output
from feedmux_server.sessions.session_commits import Commits, SessionCommits
from tests.unit.core.delivery.streams_support import mark
from tests.unit.sessions.test_quota_gate import Recorded


class Site:
    def __init__(self, handle: Any = None) -> None:
        self.state = SessionState()
        self.marks: deque[Output] = deque()
        self.woken = list[str]()
        encoder = SimpleNamespace(encode=lambda _: b"going on", encode_completed=lambda *_: b"complete")
        attach = None if handle is None else lambda _: cast(Commits, handle)
        self.commits = SessionCommits(
            attach, cast(PositionEncoder, encoder), self.state, self.marks, Recorded(self.woken)
        )


def test_a_client_that_does_not_read_gets_the_last_commit_only() -> None:
    site = Site()
    for number in range(1, 4):
        site.commits.committed(number, b"position")
    site.commits.state_available(False)
    site.commits.committed(4, b"last")
    assert list(site.marks) == [CommittedMark(3, b"position"), DegradedMark("state", True), CommittedMark(4, b"last")]
    assert len(site.woken) == 3


@pytest.mark.parametrize("closing", [False, True])
async def test_a_flush_that_the_client_has_asked_for_does_not_fail_silently(*, closing: bool) -> None:
    async def flush(timeout_s: float) -> None:
        raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "Redis is unavailable")

    await Site().commits.flush()  # nothing is stored for this session
    site = Site(SimpleNamespace(flush=flush))
    if not closing:
        await site.commits.flush()
        return
    site.state.close()
    with pytest.raises(FeedmuxError, match="Redis"):
        await site.commits.flush()


def test_that_a_copy_is_complete_is_stored_until_a_later_event_is_acknowledged() -> None:
    stored = list[tuple[bytes, int]]()

    def submit(position: bytes, _: int, __: bytes, sequence: int, **___: bool) -> None:
        stored.append((position, sequence))

    site = Site(SimpleNamespace(submit=submit))
    site.commits.copy_completed(cast(Copied, object()), 5)
    for acked in (5, 6):
        site.commits.submit(cast(AckTracker, SimpleNamespace(place=mark(7), acked=acked)))
    assert stored == [(b"complete", 5), (b"going on", 6)]


@pytest.mark.parametrize("cause", ["the client knows a newer position", "the history was lost"])
def test_that_a_copy_is_complete_is_also_stored_with_a_position_that_is_no_ack(cause: str) -> None:
    stored = list[bytes]()
    site = Site(SimpleNamespace(submit=lambda position, *_, **__: stored.append(position)))
    site.commits.copy_completed(cast(Copied, object()), 0)
    if cause == "the history was lost":
        lost = cast(AckTracker, SimpleNamespace(place=mark(7), acked=5))
        site.commits.submit(lost, moves_back=True)
    else:
        site.commits.begin_at(mark(7))
    site.commits.submit(cast(AckTracker, SimpleNamespace(place=mark(8), acked=6)))
    assert stored == [b"complete", b"going on"]


def test_a_client_that_does_not_read_gets_no_outage_that_is_over() -> None:
    site = Site()
    for number in range(1, 100):
        site.commits.state_available(False)
        site.commits.state_available(True)
        site.commits.committed(number, b"position")
    assert list(site.marks) == [CommittedMark(99, b"position")]
    site.commits.state_available(False)
    site.marks.clear()  # sent
    site.commits.state_available(True)
    site.commits.state_available(False)
    assert not site.marks, "the client knows that Redis is unavailable"
