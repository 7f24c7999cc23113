"""Every long-lived task of a server fails while it runs: the server keeps serving, and the task recovers."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from pymongo.database import Database

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server import supervision
from feedmux_server.core.positions.position_keys import format_keys
from feedmux_server.store.signing_keys import new_key
from feedmux_server.supervision import Tasks, Work
from tests.integration.certificates import Authority
from tests.integration.issuer import AUDIENCE, ISSUER, SigningPair, jwks, web_server
from tests.integration.servers import serving, until
from tests.integration.tenancy import Tenancy, configuration, entry
from tests.integration.wire import LATEST, Api, feed
from tests.telemetry.scrape import Scrape, scrape

KEY, LATER_KEY = "key-a-canary", "later-key-canary"
KINDS = {
    "audit-suppressed", "committer", "credential-sweep", "event-loop-lag", "history", "position-keys", "readiness",
    "read-watch", "stored-history", "tenants-file", "timeline", "tls-files", "unused-subscriptions",
    "wide-plan",
}  # fmt: skip
"""Of a server whose configuration has everything; its JWKS is a file or a URL."""


class Breakable:
    """The work of a task, which fails where it stands when the test says so."""

    def __init__(self, kind: str, work: Callable[[], Work]) -> None:
        self.kind = kind
        self.runs = 0
        self._work = work
        self._breaking: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        self.runs += 1
        self._breaking = breaking = asyncio.get_running_loop().create_future()
        running = asyncio.ensure_future(self._work())
        try:
            await asyncio.wait([running, breaking], return_when=asyncio.FIRST_COMPLETED)
            if breaking.done():
                raise RuntimeError(f"{self.kind} is broken by a test")
            await running
        finally:
            running.cancel()
            await asyncio.wait([running])

    def fail(self) -> None:
        assert self._breaking is not None
        self._breaking.set_result(None)


@pytest.mark.parametrize("keys", ["file", "url"])
async def test_each_task_is_broken_in_turn(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    database: Database[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    keys: str,
) -> None:
    works: list[Breakable] = []
    keep_running = Tasks.keep_running

    def recorded(tasks: Tasks, kind: str, work: Callable[[], Work], *, of: str = "") -> asyncio.Task[None]:
        works.append(Breakable(kind, work))
        return keep_running(tasks, kind, works[-1], of=of)

    monkeypatch.setattr(Tasks, "keep_running", recorded)
    monkeypatch.setattr(supervision, "RETRY_FIRST_S", 0.001)
    pair, authority = SigningPair("first"), Authority(tmp_path)
    tls = authority.sign("localhost", x509.DNSName("localhost"))
    configured = configuration(mongo, redis_server, tmp_path, entry("a", KEY))
    configured["limits"] |= {
        "oplog_check_interval_s": 0.1,
        "position_check_interval_s": 1.0,
        "unused_subscription_days": 365.0,
    }
    configured["tls"] = {"certificate_file": str(tls.certificate), "key_file": str(tls.key)}
    (tmp_path / "positions.keys").write_text(format_keys([new_key()]))
    configured["positions"] = {"key_file": str(tmp_path / "positions.keys")}
    with web_server() as web:
        web.body = jwks(pair)
        (tmp_path / "jwks.json").write_text(web.body)
        published = {"file": str(tmp_path / "jwks.json"), "url": web.url}
        configured["jwt"] = {"issuer": ISSUER, "audience": AUDIENCE, f"jwks_{keys}": published[keys]}
        async with serving(configured, key=KEY) as here:
            ports = here.server.ports
            async with Api(
                ports.data, ports.operator, ports.health, KEY, replace(tls, certificate=None, key=None)
            ) as api:
                await api.create(name, feed(database.name, "c"), LATEST)
                session = await api.open(name)
                await until(lambda: {work.kind for work in works} >= {*KINDS, f"jwks-{keys}"})
                assert {work.kind for work in works} == {*KINDS, f"jwks-{keys}"}
                assert len(works) == len(KINDS) + 1 + 3  # two sources have a history, reads and a timeline each
                failures = failures_of(await scrape(here.server.metrics_port))
                assert failures == dict.fromkeys(failures, 0)
                assert failures.keys() >= {work.kind for work in works}
                for number, work in enumerate(works):
                    work.fail()
                    await until(partial(has_run_again, work))
                    database.c.insert_one({"n": number})
                    assert await session.numbers(1) == [number]
                    await session.ack_and_wait(number + 1)
                assert +Counter(failures_of(await scrape(here.server.metrics_port))) == Counter(
                    work.kind for work in works
                )
                site = Tenancy(replace(here, api=api), Path(configured["tenants_file"]))
                site.write(entry("a", KEY, LATER_KEY))
                await until(partial(site.accepts, LATER_KEY))
                assert await site.accepts(pair.token())
                await session.close()


def failures_of(page: Scrape) -> dict[str, float]:
    """By kind of task."""
    return {labels["feedmux_task"]: count for labels, count in page.samples("feedmux_task_failures_total")}


def has_run_again(work: Breakable) -> bool:
    return work.runs == 2
