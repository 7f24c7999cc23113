"""The harness itself: it catches clients that do wrong, and nothing is left out of the scenarios and the table."""

from typing import Any

import pytest

from feedmux.v1 import errors_pb2
from tests.conformance.clients.conftest import Runners
from tests.conformance.clients.mutants import MUTANTS, Mutant
from tests.conformance.clients.play import PATIENCE_S, play
from tests.conformance.clients.runners import LANGUAGES, Language, RunnerFailed, started
from tests.conformance.clients.scenario import Scenario, scenarios
from tests.conformance.clients.scripts import script
from tests.conformance.clients.test_clients import PRESENT
from tests.conformance.clients.worlds import World
from tests.unit.client.scripted_server import ScriptedServer


def scenario(wanted: str) -> Scenario:
    (found,) = [each for each in scenarios() if each.id == wanted]
    return found


def test_every_reason_is_in_the_error_scenarios() -> None:
    covered = {
        reason
        for name in ("errors-final-while-open", "errors-retried-while-open")
        for case in scenario(name).cases
        for reason in _reasons(case.scripts)
    }
    known = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name}
    assert known - covered == {"UNSPECIFIED"}


def _reasons(node: Any) -> set[str]:
    match node:
        case dict():
            return {str(node.get("reason"))}.union(*map(_reasons, node.values()))
        case list():
            return set[str]().union(*map(_reasons, node))
    return set()


EVERY_TIME = ("hands out again after a reconnect", "counts characters instead of bytes")
"""The other mutants show the same of the harness."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERY_TIME else pytest.mark.full) for name in MUTANTS]
)
async def test_a_client_that_does_wrong_is_caught(world: World, name: str) -> None:
    mutant = MUTANTS[name]
    wanted = scenario(mutant.caught_by)
    async with started(_broken(name)) as runner:
        with pytest.raises(AssertionError, match=mutant.saying):
            await play(world, runner, wanted, patience_s=_patience_s(mutant))


def _patience_s(mutant: Mutant) -> float:
    """Where the mutant lets the harness wait in vain, not for long."""
    return 4.0 if "not enough" in mutant.saying else PATIENCE_S


def _broken(name: str) -> Language:
    """The mutant of that name."""
    python = LANGUAGES["python"]
    return Language(python.name, name, (python.command[0], "-m", "tests.conformance.clients.mutants", name))


@pytest.mark.parametrize("language", PRESENT)
async def test_a_runner_ends_with_its_standard_input(runners: Runners, language: str) -> None:
    # Else it would outlive a test run that was killed.
    await runners.get(language)
    async with started(LANGUAGES[language]) as runner, ScriptedServer(script(["opened", "mute"])) as server:
        await runner.ask("new", 30.0, target=server.address)
        await runner.ask("open", 30.0, session="s", subscription="s", options={})
        waiting = runner.send("take", session="s", count=1)
        assert await runner.end()
        waiting.cancel()


@pytest.mark.parametrize(
    ("program", "saying"),
    [
        ("exit 3", "exit code 3"),
        ("echo nonsense", "no reply"),
        ("""read -r line; echo '{"id": 1, "ok": {"client": "other", "runner": 1}}'; read -r line""", "is no runner"),
        ("""read -r line; echo '{"id": 1, "error": {"type": "BadCommand", "message": "what?"}}'""", "what?"),
    ],
)
async def test_a_runner_that_does_not_start_fails(program: str, saying: str) -> None:
    with pytest.raises(RunnerFailed, match=saying):
        async with started(Language("python", "broken", ("/bin/sh", "-c", program))):
            pass
