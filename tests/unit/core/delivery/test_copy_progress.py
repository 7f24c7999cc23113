"""What a session says of its copy: the rate of the last minute, and nothing that it does not know."""

import pytest

from feedmux_server.core.delivery.copy_progress import CopyProgress, CopyStatus, status_at
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from feedmux_server.rpc import convert
from tests.sim.events import BEGIN, event_token
from tests.tables import over

MARK = ResumeToken.high_water_mark(BEGIN + 7)


def begun(documents: int = 0) -> CopyProgress:
    progress = CopyProgress(CopyStatus(True, documents, "db.c"), 100.0)
    progress.documents_estimated = 10_000
    return progress


def send(progress: CopyProgress, documents: int, now_s: float) -> bool:
    return progress.sent(MARK.while_copying(Copied(b"", documents)), 10, now_s)


def test_a_position_says_how_many_and_after_a_document_as_of_when() -> None:
    assert status_at(MARK, "db.c") is None
    assert status_at(MARK.while_copying(Copied()), "db.c") == CopyStatus(True, 0, "db.c")
    assert status_at(MARK.while_copying(Copied(b"", 5)), "db.c") == CopyStatus(True, 5, "db.c", read_time=BEGIN + 6)
    assert status_at(event_token(BEGIN + 9).while_copying(Copied(b"", 5)), "db.c") == CopyStatus(True, 5, "db.c")


def test_what_is_left_at_the_present_rate() -> None:
    progress = begun()
    for second in range(1, 11):
        send(progress, second * 100, 100.0 + second)
    assert progress.remaining_s(110.0) == pytest.approx(90)
    status = progress.status("db.c", 110.0, running=True)
    assert status == CopyStatus(True, 1000, "db.c", 100, 10_000, 90.0, BEGIN + 6)
    assert progress.status("db.c", 110.0, running=False).remaining_s is None


def test_only_the_last_minute_counts() -> None:
    progress = begun()
    for second in range(1, 201):
        send(progress, second * (10 if second <= 100 else 20), 100.0 + second)
    assert progress.remaining_s(300.0) == pytest.approx((10_000 - 4000) / 20)


def test_after_a_pause_the_rate_begins_again() -> None:
    progress = begun()
    for second in range(1, 11):
        send(progress, second * 100, 100.0 + second)
    assert progress.remaining_s(300.0) is None, "no document comes"
    for second in range(1, 11):
        send(progress, 1000 + second * 100, 500.0 + second)
    assert progress.remaining_s(510.0) == pytest.approx(80)


@over("estimated", [0, 50, 99])
def test_what_is_not_known_is_not_said(estimated: int) -> None:
    """The number of documents is not known, or more than the estimate were copied."""
    progress = begun()
    progress.documents_estimated = estimated
    for second in range(1, 11):
        send(progress, second * 10, 100.0 + second)
    assert progress.remaining_s(110.0) is None


def test_what_takes_longer_than_a_message_can_say_takes_a_year() -> None:
    progress = begun()
    progress.documents_estimated = 10**14
    send(progress, 1, 159.0)
    status = convert.snapshot_status(progress.status("db.c", 159.0, running=True))
    assert status is not None
    assert status.remaining.seconds == 365 * 86_400


def test_it_stalls_without_a_document_for_a_minute_that_its_client_could_take() -> None:
    progress = begun()
    send(progress, 1, 110.0)
    states = [progress.state(110.0 + later_s, client_can_take=True).value for later_s in (0, 59, 60)]
    assert states == ["running", "running", "stalled"]
    assert progress.state(500.0, client_can_take=False).value == "waiting"
    send(progress, 2, 501.0)
    assert progress.state(502.0, client_can_take=True).value == "running"


def test_a_first_batch_is_no_rate() -> None:
    progress = begun()
    send(progress, 4000, 100.1)
    assert progress.remaining_s(100.1) is None
