"""Which sessions are committed next, and what an answer of Redis means for a session: the decisions of the committer.

Pure: `now_s` is an argument. Invariant: each subscription has one newest session, and older ones are fenced.
"""

from collections.abc import Iterator
from typing import Final

from feedmux_server.core.limits.lease import LeaseRules
from feedmux_server.store.handle import CommitHandle, Waiting
from feedmux_server.store.model import CommitOutcome, CommitStatus, FenceCause

REJECTED_KEY_S: Final = 2.0
"""How long a session waits whose key Redis rejects, or whose cluster node is unavailable. Others continue."""


class CommitQueue:
    """The sessions of one process that hold a lease."""

    def __init__(self, rules: LeaseRules, now_s: float) -> None:
        self._rules = rules
        self._handles: dict[CommitHandle, None] = {}
        self._newest: dict[tuple[str, str], CommitHandle] = {}
        self._due: dict[CommitHandle, None] = {}
        self._renewals_checked_s = now_s

    def __iter__(self) -> Iterator[CommitHandle]:
        return iter(tuple(self._handles))

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def add(self, handle: CommitHandle) -> bool:
        """Add a session right after its subscription was opened. Fences an older session of the subscription in this
        process; returns False if this session is not the newest, so that Redis has to say who owns it."""
        lease = handle.lease
        self._handles[handle] = None
        known = self.newest(lease.tenant, lease.name)
        if known is not None and known.lease.epoch >= lease.epoch:
            return False
        self._newest[lease.tenant, lease.name] = handle
        if known is not None:
            same = lease.instance_id != "" and known.lease.instance_id == lease.instance_id
            self._fence(known, FenceCause.LEASE if same else FenceCause.TAKEOVER)
        return True

    def newest(self, tenant: str, name: str) -> CommitHandle | None:
        return self._newest.get((tenant, name))

    def make_due(self, handle: CommitHandle) -> None:
        self._due[handle] = None

    def is_due(self, handle: CommitHandle) -> bool:
        return handle in self._due

    def with_acks(self) -> list[CommitHandle]:
        return [handle for handle in self._handles if handle.waiting is not None]

    def ready(self, now_s: float) -> list[CommitHandle]:
        """The sessions to commit or renew now."""
        if now_s - self._renewals_checked_s >= self._rules.check_every_s / 2:
            self._renewals_checked_s = now_s
            self._due.update((h, None) for h in self._handles if self._rules.renew_due(h.confirmed_s, now_s))
        return [handle for handle in self._due if handle.not_before_s <= now_s]

    def answered(
        self, handle: CommitHandle, sent: Waiting | None, outcome: CommitOutcome, sent_s: float, now_s: float
    ) -> bool:
        """Apply Redis's answer to the request made from `sent` at `sent_s`. Returns whether Redis has lost the
        subscription and the session may restore it."""
        match outcome.status:
            case CommitStatus.OK:
                handle.confirm(sent, outcome.position, sent_s)
                if handle.waiting is None:
                    self._due.pop(handle, None)
            case CommitStatus.FENCED:
                self._fence(handle, outcome.cause)
            case CommitStatus.MISSING:
                if self._rules.may_restore(handle.confirmed_s, sent_s):
                    return True
                self._fence(handle, FenceCause.LEASE)
            case CommitStatus.FAILED:
                self.put_off(handle, now_s)
        return False

    def put_off(self, handle: CommitHandle, now_s: float) -> None:
        """Delay the next commit of one session: Redis rejects its key, or the key's cluster node is unavailable."""
        handle.not_before_s = now_s + REJECTED_KEY_S
        self._due[handle] = None
        handle.tell_available(False)

    def forget(self, handle: CommitHandle) -> None:
        self._due.pop(handle, None)
        self._handles.pop(handle, None)
        key = (handle.lease.tenant, handle.lease.name)
        if self._newest.get(key) is handle:
            del self._newest[key]

    def _fence(self, handle: CommitHandle, cause: FenceCause) -> None:
        self.forget(handle)
        handle.fence(cause)
