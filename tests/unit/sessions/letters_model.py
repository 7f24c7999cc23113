"""The collection for dead letters in memory, for tests: the real `Letters` over that of the simulation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import bson

from feedmux_server.core.events.dead_letter import DeadLetter
from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.letters import Letters, _letter
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.letters import PLACE, WAIT_S, SimLetters
from tests.unit.rpc.service_support import NoLetters
from tests.unit.simulated import sim_mongo


class Collection(NoLetters, Letters):
    """The letters of the group `orders`, in a collection that fails as a test says."""

    def __init__(self, keys_max: int = 100) -> None:
        self.stored = SimLetters(sim_mongo())
        commands: Any = SourceCommands("letters", self.stored, WAIT_S, NOBODY)  # type: ignore[arg-type]
        super().__init__(commands, replace(PLACE, keys_max=keys_max))
        self.before: Callable[[DeadLetter], None] = lambda letter: None
        """Called before a letter is written. May raise."""

    @property
    def letters(self) -> Self:
        return self

    @property
    def written(self) -> dict[bytes, DeadLetter]:
        return {each.id: each for each in map(_letter, self._documents())}

    @property
    def pins(self) -> dict[bytes, bool]:
        """The quarantined keys, each with whether its host has yet to see that letters of it were discarded."""
        return {bytes(each["_id"]["key"]): "check" in each for each in self.stored.pins("default", "orders")}

    @property
    def marked(self) -> set[bytes]:
        """The letters that callers have marked, to be delivered again."""
        return {_letter(each).id for each in self._documents() if each["state"] == "replay"}

    @property
    def keys(self) -> list[Any]:
        """The keys of the letters, in the order of their events."""
        return [bson.decode(each.key)["_id"] for each in sorted(self.written.values(), key=lambda each: each.place)]

    def in_order(self) -> list[DeadLetter]:
        return sorted(self.written.values(), key=lambda each: (each.group_key, each.place, each.id))

    def mark(self, *keys: object) -> None:  # type: ignore[override]
        """As ReplayDeadLetters does, for the letters of some `_id`s, or all."""
        for each in self._documents():
            if not keys or bson.decode(_letter(each).key)["_id"] in keys:
                each["state"] = "replay"

    async def pin(self, *keys: bytes) -> None:
        for key in keys:
            await self.quarantine("default", "orders", 0, [key], 1, 0.0)

    async def withhold(self, letter: DeadLetter) -> None:
        """A letter is of other grants."""
        await self.stored.updated({"_id.event": letter.id}, {"$set": {"stream_key": b"other grants"}})

    async def _insert(self, letters: Sequence[DeadLetter]) -> set[int]:
        for each in letters:
            self.before(each)
        return await super()._insert(letters)

    def _documents(self) -> list[dict[str, Any]]:
        return self.stored.of("default", "orders")
