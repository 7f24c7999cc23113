"""Every scenario, with every client whose runner is here."""

import pytest

from tests.conformance.clients.conftest import Runners
from tests.conformance.clients.play import Play
from tests.conformance.clients.runners import LANGUAGES
from tests.conformance.clients.scenario import Scenario, scenarios
from tests.conformance.clients.worlds import World, staged

PRESENT = [each.name for each in LANGUAGES.values() if each.present]


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda each: each.id)
@pytest.mark.parametrize("language", PRESENT)
async def test_scenario(world: World, runners: Runners, language: str, scenario: Scenario) -> None:
    runner = await runners.get(language)
    for case in scenario.cases:
        try:
            async with staged(world, scenario.stage, case) as stage:
                await Play(stage, runner, case).run()
                await runner.ask("reset", 30.0)
        except BaseException as error:
            await runners.discard(language)
            error.add_note(f"{scenario.id}, case {case.name!r}: {scenario.shows}")
            raise
