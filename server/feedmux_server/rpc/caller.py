"""Who makes the call that runs in this task."""

from contextvars import ContextVar

from feedmux_server.tenants.model import Identity

_caller: ContextVar[Identity | None] = ContextVar("caller", default=None)


def identified(identity: Identity) -> None:
    """Note the caller of the call that runs in this task."""
    _caller.set(identity)


def known_caller() -> Identity | None:
    """The caller; None while the call is not authenticated."""
    return _caller.get()


def caller() -> Identity:
    """The caller, in the task of a call that `Admission.identify` has accepted."""
    identity = _caller.get()
    assert identity is not None, "the call was not authenticated"
    return identity
