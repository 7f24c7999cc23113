"""A check of `feedmux doctor` that fails does not stop the others, and says what it can."""

import asyncio
from pathlib import Path

import pytest

from feedmux_server import doctor
from feedmux_server.config.load import make_config
from feedmux_server.core.check_result import CheckResult, Level
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.doctor import Step, examine
from tests.virtual_time import in_virtual_time


def step(name: str, outcome: CheckResult | Exception | None, part: str = "", *, vital: bool = False) -> Step:
    async def run() -> list[CheckResult]:
        if outcome is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return [outcome]

    return Step(name, run, part or name, vital)


@in_virtual_time
async def test_each_step_has_its_finding_unless_a_vital_one_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = CheckResult("fine", Level.OK, "it is fine")
    steps = [
        step("silent", None),
        step("refused", FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "it is away."), "redis"),
        step("redis.clock", fine, "redis"),
        step("broken", ValueError("canary")),
        step("main.reachable", CheckResult("main.reachable", Level.FAILED, "no"), "main", vital=True),
        step("main.oplog", fine, "main"),
        step("last", fine),
    ]
    monkeypatch.setattr(doctor, "_steps", lambda *_: steps)
    config = make_config({"sources": {"main": {"uri": "mongodb://x"}}})
    begun: list[str] = []
    found = [each async for each in examine(config, (), 2.0, begun.append)]
    assert begun == ["silent", "refused", "redis.clock", "broken", "main.reachable", "last"]
    assert [(each.check, each.level) for each in found] == [
        ("silent", Level.FAILED),
        ("refused", Level.FAILED),
        ("fine", Level.OK),
        ("broken", Level.UNKNOWN),
        ("main.reachable", Level.FAILED),
        ("fine", Level.OK),
    ]
    assert (found[0].says, found[1].says) == ("no answer within 2 s", "it is away")
    assert "canary" not in "".join(map(str, found))


async def test_a_login_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "password")
    source = {"uri": "mongodb://feeds@127.0.0.1:1", "password_file": missing}
    config = make_config({"sources": {"main": source}, "redis": {"sentinel_password_file": missing}})
    found = {each.check: each async for each in examine(config, (), 60.0)}
    for check, option in (("main.login", "sources.main.password_file"), ("redis.url", "redis.sentinel_password_file")):
        assert found[check].level is Level.FAILED
        assert found[check].says.startswith(f"{option}: {missing} cannot be read")
    assert "main.reachable" not in found
