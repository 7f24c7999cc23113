"""What the calls of a server share: grants that change while sessions are gone through."""

from types import SimpleNamespace
from typing import Any, cast

from feedmux_server.core.grant import Grants
from feedmux_server.rpc.service import Service


async def test_new_grants_hold_before_any_session_is_looked_at() -> None:
    """Or a tenant that is new would be rejected by the server that has just accepted its key."""
    seen: list[Any] = []
    service = SimpleNamespace(grants={}, trusted=frozenset({"old"}), live={})

    async def end_revoked() -> None:
        seen.append((dict(service.grants), service.trusted))

    service.end_revoked = end_revoked
    service._in_turns = lambda: Service._in_turns(cast(Service, service))
    grants: dict[str, Grants] = {"new": None}
    assert await Service.change_grants(cast(Service, service), grants, frozenset({"new"})) == 0
    assert seen == [(grants, {"new"})]
