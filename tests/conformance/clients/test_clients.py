"""Every scenario, with every client whose runner is here."""

import pytest

from tests.conformance.clients.conftest import Runners
from tests.conformance.clients.play import play
from tests.conformance.clients.runners import LANGUAGES
from tests.conformance.clients.scenario import Scenario, scenarios
from tests.conformance.clients.worlds import World

# The first scenario of a language waits until its runner is built.
pytestmark = pytest.mark.timeout(480)

PRESENT = [each.name for each in LANGUAGES.values() if each.present]


@pytest.mark.parametrize(
    ("language", "scenario"),
    [
        pytest.param(language, scenario, id=f"{language}-{scenario.id}")
        for language in PRESENT
        for scenario in scenarios()
        if scenario.is_of(language)
    ],
)
async def test_scenario(world: World, runners: Runners, language: str, scenario: Scenario) -> None:
    runner = await runners.get(language)
    try:
        await play(world, runner, scenario)
    except BaseException:
        await runners.discard(language)
        raise
