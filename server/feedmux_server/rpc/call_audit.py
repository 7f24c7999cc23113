"""What the audit log and the metrics record about calls."""

from dataclasses import dataclass

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.rpc.caller import known_caller
from feedmux_server.rpc.status import Context
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.audit import AuditEvent, AuditLog
from feedmux_server.telemetry.observer import Observer
from feedmux_server.tenants.model import Unauthenticated


@dataclass(frozen=True, slots=True)
class CallAudit:
    log: AuditLog
    auth: Authenticator
    observer: Observer

    def did(
        self, event: AuditEvent, method: str, context: Context, *, subscription: str = "", reason: str = ""
    ) -> None:
        """Record what the caller of this call did."""
        identity = known_caller()
        self.log.record(
            event,
            tenant=identity.tenant if identity else "",
            peer=context.peer() or "",
            method=method,
            reason=reason,
            subscription=subscription,
            credential=self.auth.name_of(identity) if identity else "",
        )

    def refused(self, method: str, context: Context, error: FeedmuxError) -> None:
        """Record that a call ended with `error`."""
        identity = known_caller()
        if error.reason is ErrorReason.QUOTA_EXCEEDED:
            quota = error.metadata.get("quota", "")
            self.observer.count(metrics.REJECTIONS, 1, identity.tenant if identity else "", quota)
        if isinstance(error, Unauthenticated):
            event = AuditEvent.SESSION_REVOKED if identity else AuditEvent.AUTHENTICATION_FAILED
            self.did(event, method, context, reason=error.cause)
        elif error.reason in (ErrorReason.NAMESPACE_DENIED, ErrorReason.METHOD_DENIED):
            self.did(AuditEvent.REQUEST_DENIED, method, context, reason=error.reason.value)
