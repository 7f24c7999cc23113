"""What all steps of a scenario share: the stage, the runner, what sessions handed out, places with a name."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.clients.runners import Runner
from tests.conformance.clients.scenario import one_step
from tests.conformance.clients.worlds import Stage

REPLY_S = 60.0
Json = dict[str, Any]


@dataclass(slots=True)
class SessionRecord:
    """A session of the client: what it was asked for and what it handed out."""

    opening_s: float = field(default_factory=time.monotonic)
    """When the client got the command to open it; it started opening later."""
    asked: int = 0
    events: list[Json] = field(default_factory=list)
    notices: list[Json] = field(default_factory=list)
    error: Json | None = None


class Steps:
    """The verbs of scenarios are methods; these are the ones that need nobody."""

    def __init__(self, stage: Stage, runner: Runner, patience_s: float) -> None:
        self._stage, self._runner = stage, runner
        self._patience_s = patience_s
        self._records: dict[str, SessionRecord] = {}
        self._marks: dict[str, Json] = {}
        """Starts with a name, as the runner takes them; `begin` is where the scenario began."""

    async def all(self, steps: Sequence[Any]) -> None:
        """Steps one after another."""
        for step in steps:
            verb, argument = one_step(step)
            act: Callable[..., Awaitable[None]] = getattr(self, verb)
            try:
                await self._call(act, argument)
            except (AssertionError, TimeoutError) as error:
                raise self._runner.failed(f"step {step!r}: {error or type(error).__name__}") from error

    async def _call(self, act: Callable[..., Awaitable[None]], argument: Any) -> None:
        if isinstance(argument, Mapping):
            inspect.signature(act).bind(**argument)
            await act(**argument)
        else:
            await (act() if argument is None else act(argument))

    async def pause_s(self, seconds: float) -> None:
        """Only to let the client do what it should not, or try something that cannot work yet."""
        await asyncio.sleep(seconds)
