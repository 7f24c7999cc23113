"""What the audit log says about calls."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.rpc.call_audit import CallAudit
from feedmux_server.rpc.caller import _caller, identified
from feedmux_server.rpc.status import Context
from feedmux_server.telemetry.audit import AuditEvent, AuditLog
from feedmux_server.telemetry.observer import Observer
from feedmux_server.tenants.model import Identity, Unauthenticated
from tests.tables import over

CONTEXT = cast(Context, SimpleNamespace(peer=lambda: "ipv4:10.0.0.1:5"))


class Book:
    """An audit log and an observer that keep what they get."""

    def __init__(self) -> None:
        self.lines: list[tuple[AuditEvent, dict[str, Any]]] = []
        self.rejected: list[tuple[str, str]] = []
        log = SimpleNamespace(record=lambda event, **facts: self.lines.append((event, facts)))
        observer = SimpleNamespace(refused=lambda tenant, quota: self.rejected.append((tenant, quota)))
        auth = SimpleNamespace(name_of=lambda identity: "key 1")
        self.audit = CallAudit(cast(AuditLog, log), cast(Authenticator, auth), cast(Observer, observer))


@pytest.fixture(params=[False, True])
def known(request: pytest.FixtureRequest) -> bool:
    """Whether the caller is known."""
    _caller.set(None)
    if request.param:
        identified(cast(Identity, SimpleNamespace(tenant="team")))
    return bool(request.param)


def test_an_action_names_the_caller_and_where_it_came_from(known: bool) -> None:
    book = Book()
    book.audit.did(AuditEvent.DELETE, "DeleteSubscription", CONTEXT, subscription="orders")
    ((event, facts),) = book.lines
    assert event is AuditEvent.DELETE
    assert (facts["tenant"], facts["credential"]) == (("team", "key 1") if known else ("", ""))
    assert (facts["peer"], facts["method"], facts["subscription"]) == (
        "ipv4:10.0.0.1:5",
        "DeleteSubscription",
        "orders",
    )


def test_a_credential_that_ends_during_a_call_is_revoked_and_a_wrong_one_fails(known: bool) -> None:
    book = Book()
    book.audit.refused("Subscribe", CONTEXT, Unauthenticated("expired"))
    ((event, facts),) = book.lines
    assert event is (AuditEvent.SESSION_REVOKED if known else AuditEvent.AUTHENTICATION_FAILED)
    assert facts["reason"] == "expired"


@over("reason", [ErrorReason.NAMESPACE_DENIED, ErrorReason.METHOD_DENIED])
def test_what_a_caller_may_not_do_is_recorded(reason: ErrorReason) -> None:
    book = Book()
    book.audit.refused("Watch", CONTEXT, FeedmuxError(reason, "no"))
    ((event, facts),) = book.lines
    assert (event, facts["reason"]) == (AuditEvent.REQUEST_DENIED, reason.value)


def test_quotas_are_counted_and_other_errors_are_nobodys_business(known: bool) -> None:
    book = Book()
    book.audit.refused("Watch", CONTEXT, FeedmuxError(ErrorReason.QUOTA_EXCEEDED, "slow", {"quota": "calls"}))
    book.audit.refused("Watch", CONTEXT, FeedmuxError(ErrorReason.HISTORY_LOST, "gone"))
    assert (book.lines, book.rejected) == ([], [("team" if known else "", "calls")])
