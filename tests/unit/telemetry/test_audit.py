"""The audit log is bounded, whoever writes to it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedmux_server.telemetry import audit as audit_module
from feedmux_server.telemetry.audit import AuditEvent, AuditLog

FAILED = AuditEvent.AUTHENTICATION_FAILED


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Book:
    """An audit log with its own clock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit.jsonl"
        self.clock = Clock()
        self.log = AuditLog(self.path, 10, clock=self.clock)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    made = Book(tmp_path)
    yield made
    made.log.close()


def test_a_peer_is_held_to_its_allowance_and_counted(book: Book) -> None:
    for port in range(1000):
        book.log.record(FAILED, peer=f"ipv4:10.0.0.1:{port}")
    book.log.record(FAILED, peer="ipv4:10.0.0.2:1")
    book.log.record(AuditEvent.SEEK, peer="ipv4:10.0.0.1:1", tenant="a")
    assert len(book.lines()) == 12
    book.clock.now_s = 6
    book.log.record(FAILED, peer="ipv4:10.0.0.1:7")
    assert book.lines()[-1]["suppressed"] == 990


def test_what_was_counted_is_written_when_the_peer_has_gone(book: Book) -> None:
    for _ in range(25):
        book.log.record(FAILED, peer="ipv6:[::1]:7")
    book.log.flush_suppressed()
    book.log.flush_suppressed()
    assert len(book.lines()) == 11
    last = book.lines()[-1]
    assert (last["event"], last["suppressed"], last["peer"]) == ("suppressed", 15, "ipv6:[::1]")


def test_many_peers_together_are_bounded(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "KEYS_MAX", 500)
    for number in range(3000):
        book.log.record(FAILED, peer=f"ipv4:{number}:1")
    assert len(book.lines()) == 10 * audit_module.STRANGERS_FACTOR
    book.log.record(AuditEvent.SEEK, peer="ipv4:1:1", tenant="a")
    assert book.lines()[-1]["event"] == "seek"
    book.log.flush_suppressed()
    flushed = [line for line in book.lines() if line["event"] == "suppressed"]
    assert len(flushed) <= audit_module.FLUSHED_MAX + 1
    assert sum(line["suppressed"] for line in flushed) == 3000 - 10 * audit_module.STRANGERS_FACTOR
    book.clock.now_s = 61
    book.log.flush_suppressed()
    assert not book.log._allowances


def test_it_goes_on_in_a_new_file_after_rotation(book: Book) -> None:
    book.log.record(FAILED)
    book.path.rename(book.path.with_suffix(".1"))
    book.log.record(FAILED)
    assert len(book.lines()) == 1


def test_a_full_disk_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(Path("/dev/full"), 10)
    log.record(FAILED)
    log.record(FAILED)
    assert [each.getMessage() for each in caplog.records] == ["the audit log cannot be written: OSError"]
    log.close()
