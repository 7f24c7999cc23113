"""The caller of a call is known in its task alone."""

import asyncio

from feedmux_server.rpc.caller import _caller, caller, identified, known_caller
from feedmux_server.tenants.model import CredentialKind, Identity


async def test_calls_do_not_see_each_others_caller() -> None:
    async def call(tenant: str) -> str:
        assert known_caller() is None
        identified(Identity(tenant, CredentialKind.NONE))
        await asyncio.sleep(0)
        return caller().tenant

    _caller.set(None)
    assert [*await asyncio.gather(call("a"), call("b"))] == ["a", "b"]
    assert known_caller() is None
