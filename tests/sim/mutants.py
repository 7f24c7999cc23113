"""Broken builds of the production code, which the simulation must find.

A mutant replaces one piece of text in one function, or in one of Redis's scripts. `Gone` says that the text is not
there once any more: the mutant has to follow the code.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from feedmux_server.state import scripts

LUA: Final = "lua:"


class Gone(Exception):
    """The text to be replaced is not in the code once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`target` is `module:Class.method`, `module:function` or `lua:script`."""

    name: str
    guarantee: str
    """What it breaks."""
    target: str
    old: str
    new: str
    size: str = "small"
    """Of the runs that find it."""
    seeds: int = 200
    """So many are enough."""

    def __str__(self) -> str:
        return self.name


MUTANTS: Final = (
    Mutant(
        "an event of each message is left out",
        "Complete",
        "feedmux_server.core.subscriber:Subscriber._cut",
        "            self.index = stop\n",
        "            self.index = stop + (stop + 1 < chunk.count)\n",
    ),
    Mutant(
        "events before the place come again",
        "Resumable or loud",
        "feedmux_server.core.subscriber:Subscriber._skip_passed",
        "self.index = chunk.first_after(self.at.place)",
        "pass",
    ),
    Mutant(
        "a stream is resumed at an old place",
        "Resumable or loud",
        "feedmux_server.source.reader:ChangeStreamReader.read",
        "self._at = JoinPoint(newest, exact=True, native=None if chunks else self._at.native)",
        "pass",
        size="large",
    ),
    Mutant(
        "a heartbeat names the ring's newest place",
        "Bookmarkable",
        "feedmux_server.core.subscriber:Subscriber.progress",
        "self.stream is not None and self.at_head",
        "self.stream is not None",
    ),
    Mutant(
        "what was sent is stored as if it were acked",
        "At least once",
        "feedmux_server.core.ack_tracker:AckTracker.ack",
        "done = sequence - first_sequence + 1",
        "done = self.sent - first_sequence + 1",
    ),
    Mutant(
        "the limit of unacknowledged events is not kept",
        "Bounded",
        "feedmux_server.core.subscriber:Subscriber._cut",
        "self.credit.events if self.acks is None else min(self.credit.events, self.acks.room)",
        "self.credit.events",
    ),
    Mutant(
        "credit in bytes is not spent",
        "Bounded",
        "feedmux_server.core.credit:CreditWindow.spend",
        "self.bytes -= size",
        "self.bytes -= size // 2",
    ),
    Mutant(
        "a commit may move the position back",
        "Monotone commit",
        "lua:commit",
        "if before(stored[5] .. stored[6], ARGV[5] .. ARGV[6]) then",
        "if stored[5] .. stored[6] ~= ARGV[5] .. ARGV[6] then",
        size="large",
    ),
    Mutant(
        "an older session commits too",
        "Fenced",
        "lua:commit",
        "if epoch ~= mine or stored[2] ~= ARGV[2] then",
        "if false then",
        size="large",
    ),
    Mutant(
        "two sessions hold a subscription",
        "Fenced",
        "lua:open",
        "'epoch', int(next_epoch(stored[1], now)), 'nonce', ARGV[2]",
        "'epoch', stored[1], 'nonce', ARGV[2]",
    ),
    Mutant(
        "those who wait for events are not woken",
        "Latency at rest",
        "feedmux_server.core.shared_stream:SharedStream.wake_takers",
        "            subscriber.wake()\n",
        "            subscriber.wake() if self.batches_read % 2 else None\n",
    ),
    Mutant(
        "an ack waits for the next look at the leases",
        "Durability at rest",
        "feedmux_server.state.batcher:CommitBatcher.wake",
        "        self._wake.set()\n",
        "",
    ),
    Mutant(
        "a session keeps its lease at its end",
        "Nothing left",
        "feedmux_server.state.batcher:CommitBatcher.detach",
        "await self._store.release(handle.lease)",
        "pass",
    ),
    Mutant(
        "the client hands out what it has handed out before",
        "Unique",
        "feedmux.ledger:Ledger.begin",
        "                    self._repeats[key] = kept.first_sequence + index\n",
        "                    pass\n",
    ),
    Mutant(
        "the client takes what was handed out for acked when it reconnects",
        "At least once",
        "feedmux.runner:Runner._open_request",
        "place = self._ledger.acked_place(self._open_acked)",
        "place = self._ledger.latest",
    ),
)


@contextmanager
def built_with(mutant: Mutant) -> Iterator[None]:
    """The code is broken meanwhile. Raises `Gone`."""
    if mutant.target.startswith(LUA):
        with _script(mutant):
            yield
        return
    module_name, _, path = mutant.target.partition(":")
    module = import_module(module_name)
    *owners, name = path.split(".")
    owner: Any = module
    for each in owners:
        owner = getattr(owner, each)
    original = owner.__dict__[name]
    source = _replaced(mutant, inspect.getsource(original))
    made: dict[str, Any] = {}
    # In the module's own globals, so that it goes by what the module goes by. A method is indented.
    exec(compile(f"if True:\n{source}" if owners else source, f"<{mutant}>", "exec"), module.__dict__, made)  # noqa: S102
    setattr(owner, name, made[name])
    try:
        yield
    finally:
        setattr(owner, name, original)


def _replaced(mutant: Mutant, source: str) -> str:
    if (count := source.count(mutant.old)) != 1:
        raise Gone(f"{mutant}: the text {mutant.old!r} is {count} times in {mutant.target}")
    return source.replace(mutant.old, mutant.new)


@contextmanager
def _script(mutant: Mutant) -> Iterator[None]:
    script = mutant.target.removeprefix(LUA)
    original = scripts.source_of

    def source_of(name: str) -> str:
        source = original(name)
        return _replaced(mutant, source) if name == script else source

    _replaced(mutant, original(script))
    scripts.source_of = source_of  # type: ignore[assignment]
    scripts._sha_of.cache_clear()
    try:
        yield
    finally:
        scripts.source_of = original
        scripts._sha_of.cache_clear()
