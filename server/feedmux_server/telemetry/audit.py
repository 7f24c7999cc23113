"""The audit log: who was rejected, and who did what, as JSON lines. Never documents, keys, tokens or passwords.

`rpc` and `credentials` call `record`; only the fields below exist, and none of them is taken from a caller's input
except names, which are cut. Invariant: one peer writes a bounded number of lines per minute, whatever it sends; further
lines are counted, and the count is written.
"""

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.feeds.names import NAME_BYTES_MAX

log = logging.getLogger(__name__)

KEYS_MAX: Final = 4096
"""Combinations of peer, tenant and event with their own allowance; all further combinations share one per event."""
STRANGERS_FACTOR: Final = 20
"""All callers without a tenant together may write this many times as much as one of them."""
FLUSHED_MAX: Final = 100


class AuditEvent(StrEnum):
    AUTHENTICATION_FAILED = "authentication_failed"
    SESSION_REVOKED = "session_revoked"
    REQUEST_DENIED = "request_denied"
    TAKEOVER = "takeover"
    SEEK = "seek"
    DELETE = "delete"
    DISCARD = "discard"
    REPLAY = "replay"
    TENANTS_CHANGED = "tenants_changed"
    TENANTS_REFUSED = "tenants_refused"
    OPERATOR = "operator"
    SUBSCRIPTION_EXPIRING = "subscription_expiring"
    SUBSCRIPTION_EXPIRED = "subscription_expired"
    SUPPRESSED = "suppressed"


@dataclass(slots=True)
class _Allowance:
    tokens: float
    at_s: float
    suppressed: int = 0


class AuditLog:
    """Writes to `file`; None: standard error. Raises OSError if the file cannot be opened."""

    def __init__(self, file: Path | None, lines_per_minute: int, *, clock: Callable[[], float] = monotonic_s) -> None:
        self._handler: logging.Handler = (
            _QuietFileHandler(file, encoding="utf-8") if file is not None else logging.StreamHandler(sys.stderr)
        )
        self._common = {} if file is not None else {"level": "info", "logger": "feedmux.audit"}
        """The fields that audit lines share with the server's log lines, if both go to standard error."""
        self._per_minute = lines_per_minute
        self._clock = clock
        self._allowances: dict[tuple[str, str, str], _Allowance] = {}
        self._strangers = _Allowance(lines_per_minute * STRANGERS_FACTOR, clock())

    def record(
        self,
        event: AuditEvent,
        *,
        tenant: str = "",
        peer: str = "",
        method: str = "",
        reason: str = "",
        subscription: str = "",
        credential: str = "",
    ) -> None:
        """Write a line, or only count it if the allowance is used up."""
        allowance = self._allowance((_host(peer), tenant, event))
        self._refill(self._strangers, self._per_minute * STRANGERS_FACTOR)
        if allowance.tokens < 1 or (not tenant and self._strangers.tokens < 1):
            allowance.suppressed += 1
            return
        allowance.tokens -= 1
        if not tenant:
            self._strangers.tokens -= 1
        suppressed, allowance.suppressed = allowance.suppressed, 0
        self._write(
            event,
            suppressed,
            tenant=tenant,
            peer=peer,
            method=method,
            reason=reason,
            subscription=subscription,
            credential=credential,
        )

    def flush_suppressed(self) -> None:
        """Write the counts of suppressed lines for callers that have been silent since. Call about once a minute."""
        now_s = self._clock()
        rest: Counter[str] = Counter()
        counted = [(key, each) for key, each in self._allowances.items() if each.suppressed]
        counted.sort(key=lambda one: one[1].suppressed, reverse=True)
        for number, ((host, tenant, event), allowance) in enumerate(counted):
            if number < FLUSHED_MAX:
                self._write(AuditEvent.SUPPRESSED, allowance.suppressed, tenant=tenant, peer=host, reason=event)
            else:
                rest[event] += allowance.suppressed
            allowance.suppressed = 0
        for event, count in rest.items():
            self._write(AuditEvent.SUPPRESSED, count, reason=event)
        for key in [key for key, each in self._allowances.items() if now_s - each.at_s >= 60]:
            del self._allowances[key]

    def close(self) -> None:
        self.flush_suppressed()
        if isinstance(self._handler, logging.FileHandler):
            with suppress(OSError):  # lines that a full disk did not accept
                self._handler.close()

    def _allowance(self, key: tuple[str, str, str]) -> _Allowance:
        known = self._allowances.get(key)
        if known is None:
            if len(self._allowances) >= KEYS_MAX:
                key = ("", "", key[2])
                known = self._allowances.get(key)
            if known is None:
                known = self._allowances[key] = _Allowance(self._per_minute, self._clock())
        self._refill(known, self._per_minute)
        return known

    def _refill(self, allowance: _Allowance, per_minute: float) -> None:
        now_s = self._clock()
        allowance.tokens = min(per_minute, allowance.tokens + (now_s - allowance.at_s) * per_minute / 60)
        allowance.at_s = now_s

    def _write(self, event: AuditEvent, suppressed: int, **facts: str) -> None:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(wall_s(), UTC).isoformat(timespec="milliseconds"),
            **self._common,
            "event": event.value,
            **{name: value[:NAME_BYTES_MAX] for name, value in facts.items() if value},
        }
        if suppressed:
            line["suppressed"] = suppressed
        self._handler.handle(logging.LogRecord("audit", logging.INFO, "", 0, json.dumps(line), None, None))


class _QuietFileHandler(WatchedFileHandler):
    """Reopens the file after a rotation. A full disk stops no call, and is logged once."""

    _complained = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 the name is logging's
        if not self._complained:
            self._complained = True
            log.error("the audit log cannot be written: %s", type(sys.exception()).__name__)


def _host(peer: str) -> str:
    """`ipv4:10.0.0.1:1234` without the port, so that new connections bring no new allowance."""
    return peer.rpartition(":")[0] or peer
