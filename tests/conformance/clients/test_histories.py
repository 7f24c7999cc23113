"""Every client is led through sessions that the simulation has recorded."""

import pytest

from tests.conformance.clients.conftest import Runners
from tests.conformance.clients.histories import WANTED
from tests.conformance.clients.replay import replay
from tests.conformance.clients.runners import LANGUAGES
from tests.conformance.clients.test_clients import PRESENT
from tests.sim.histories import History

# The first test of a language waits until its runner is built.
pytestmark = pytest.mark.timeout(480)


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("language", PRESENT)
async def test_history(histories: dict[str, History], runners: Runners, language: str, name: str) -> None:
    runner = await runners.get(language)
    try:
        await replay(runner, histories[name])
    except BaseException:
        await runners.discard(language)
        raise


def test_no_history_is_named_like_a_client() -> None:
    assert not [name for name in WANTED if any(language in name for language in LANGUAGES)]
