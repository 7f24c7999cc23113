"""Whether a call may run now, and what it is charged for."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.memory import Pool
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.rpc.admission import BYTES_PER_REQUEST, CPU_S_PER_REQUEST, REQUEST_COPIES, Admission
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.rpc.caller import caller, identified, known_caller
from feedmux_server.rpc.status import Context
from feedmux_server.tenants.model import Identity, Unauthenticated

CONTEXT = cast(Context, None)


class Auth:
    """Accepts the tenant `name`, or nobody."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    async def identify(self, context: Context) -> Identity:
        if not self._name:
            raise Unauthenticated("no such key")
        return cast(Identity, SimpleNamespace(tenant=self._name))


def make_admission(
    *, sessions_max: int = 10, operator: str = "", pool_bytes: int = 1 << 20, **quotas: int
) -> Admission:
    accounts = Accounts(lambda _: Quotas(**quotas), lambda: 0.0)
    pool = Pool(pool_bytes, 0, lambda size: None)
    auth, operator_auth = cast(Authenticator, Auth("team")), cast(Authenticator, Auth(operator))
    admission = Admission(auth, operator_auth, accounts, pool, pool, sessions_max)
    identified(cast(Identity, SimpleNamespace(tenant="team")))
    return admission


def reason(call: Any) -> ErrorReason:
    with pytest.raises(FeedmuxError) as caught, call:
        pass
    return caught.value.reason


def test_a_session_counts_for_the_tenant_and_for_the_server_while_it_lasts() -> None:
    admission = make_admission(sessions_max=2)
    with admission.streaming():
        assert admission.sessions == 1
        with admission.streaming():
            assert reason(admission.streaming()) is ErrorReason.QUOTA_EXCEEDED
    assert admission.sessions == 0
    quotas = make_admission(sessions=1)
    with quotas.streaming():
        assert reason(quotas.streaming()) is ErrorReason.QUOTA_EXCEEDED
    with quotas.streaming():
        pass


def test_a_server_that_drains_accepts_no_session() -> None:
    admission = make_admission()
    admission.draining = True
    assert reason(admission.streaming()) is ErrorReason.DRAINING


def test_a_call_counts_while_it_runs() -> None:
    admission = make_admission(calls=1)
    with admission.calling():
        assert reason(admission.calling()) is ErrorReason.QUOTA_EXCEEDED
    with admission.calling():
        pass


def test_answers_fit_into_the_memory_for_what_clients_have_not_taken() -> None:
    admission = make_admission(pool_bytes=100_000)
    with ExitStack() as stack:
        stack.enter_context(admission.answering(10_000))
        # One answer of a tenant may be larger than its room.
        stack.enter_context(admission.answering(20_000))
        assert reason(admission.answering(20_000)) is ErrorReason.QUOTA_EXCEEDED
    with admission.answering(20_000):
        pass


def test_the_pipelines_of_open_streams_fit_into_their_memory() -> None:
    feed = FeedSpec(Scope("main", "shop"), pipeline=bytes(100))
    admission = make_admission(pool_bytes=400 * REQUEST_COPIES)  # a piece may take a part of it only
    with admission.keeping(feed):
        assert reason(admission.keeping(feed)) is ErrorReason.QUOTA_EXCEEDED
    with admission.keeping(feed):
        pass


async def test_large_and_costly_requests_delay_the_next_calls() -> None:
    admission = make_admission(requests_per_s=10)
    admission.charge_bytes(49 * BYTES_PER_REQUEST)
    admission.charge_cpu("team")(2 * CPU_S_PER_REQUEST)
    rates = admission._accounts.of("team").rates
    assert rates.request(0.0) == pytest.approx(0.1, abs=0.01)


async def test_the_caller_is_known_after_it_was_identified() -> None:
    admission = make_admission()
    identity = await admission.identify(CONTEXT)
    assert caller() is known_caller() is identity


async def test_a_tenant_is_not_an_operator_and_a_stranger_is_nobody() -> None:
    with pytest.raises(FeedmuxError) as caught:
        await make_admission().check_operator(CONTEXT)
    assert caught.value.reason is ErrorReason.METHOD_DENIED
    await make_admission(operator="ops").check_operator(CONTEXT)
    nobody = make_admission()
    nobody.auth = cast(Authenticator, Auth())
    with pytest.raises(Unauthenticated):
        await nobody.check_operator(CONTEXT)
