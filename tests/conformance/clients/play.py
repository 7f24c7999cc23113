"""Plays scenarios. README.md lists the steps for those who write them."""

from feedmux.v1 import feed_pb2
from tests.conformance.clients.client_steps import ClientSteps
from tests.conformance.clients.runners import Runner
from tests.conformance.clients.scenario import Case, Scenario
from tests.conformance.clients.script_steps import ScriptSteps
from tests.conformance.clients.steps import REPLY_S
from tests.conformance.clients.worlds import World, staged
from tests.integration.wire import at, feed

PATIENCE_S = 60.0
"""How long the client has for anything: much more than it takes, because machines are slow."""


class Play(ClientSteps, ScriptSteps):
    """One run."""

    async def run(self, case: Case) -> None:
        """Raises AssertionError where the client deviates from the scenario."""
        stage = self._stage
        self._runner.spoken.clear()
        if stage.sites:
            now = await stage.api.resolve(feed(stage.documents.name), at(latest=feed_pb2.Latest()))
            self._marks["begin"] = {"operation_time": [now.cluster_time.seconds, now.cluster_time.increment]}
        await self.new()
        await self.all(case.steps)


async def play(world: World, runner: Runner, scenario: Scenario, *, patience_s: float = PATIENCE_S) -> None:
    """All cases of a scenario. Raises AssertionError at the first that does not go as it says."""
    for case in scenario.cases:
        try:
            async with staged(world, scenario.stage, case) as stage:
                await Play(stage, runner, patience_s).run(case)
                await runner.ask("reset", REPLY_S)
        except BaseException as error:
            error.add_note(f"{scenario.id}, case {case.name!r}: {scenario.shows}")
            raise
