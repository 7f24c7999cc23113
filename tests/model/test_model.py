"""Seeded runs of the fan-out against the naive reference. FEEDMUX_MODEL_RUNS sets how many (by default 2,000).

A failure names its seed and the command that runs it again. FEEDMUX_MODEL_SEED moves the first seed.
"""

import os
from collections import Counter
from typing import Any

import pytest

from feedmux_server.core.chunk import Chunk
from feedmux_server.core.feed_streams import FeedStreams
from feedmux_server.core.replay_buffer import ReplayBuffer
from feedmux_server.core.shared_stream import SharedStream
from feedmux_server.core.subscriber import Subscriber
from tests.model.simulator import Settings, World, replay_command, simulate

RUNS = int(os.environ.get("FEEDMUX_MODEL_RUNS", "2000"))
FIRST_SEED = int(os.environ.get("FEEDMUX_MODEL_SEED", "0"))
BLOCKS = 10
LONG_ACTIONS = 500


def run(seed: int, actions: int) -> None:
    settings = Settings(actions)
    try:
        violations = simulate(seed, settings).violations
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise AssertionError(f"{what}\nrun it again: {replay_command(seed, settings)}") from error
    if violations:
        lines = "\n".join(map(str, violations[:10]))
        pytest.fail(f"{lines}\nrun it again: {replay_command(seed, settings)}", pytrace=False)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_short_runs(block: int) -> None:
    for seed in range(FIRST_SEED + block, FIRST_SEED + RUNS, BLOCKS):
        run(seed, Settings().actions)


def test_long_runs() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS // 40):
        run(seed, LONG_ACTIONS)


def test_a_seed_gives_the_same_run_again() -> None:
    assert simulate(7).history == simulate(7).history


def test_the_runs_reach_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulator that never lags or merges would prove nothing."""
    reached: Counter[str] = Counter()

    def watch(target: type, name: str, happened: Any) -> None:
        original = target.__dict__[name]

        def watched(self: Any, *arguments: Any) -> Any:
            before = getattr(arguments[0], "stream", None) if arguments else None
            result = original(self, *arguments)
            if happened(self, arguments, before, result):
                reached[name] += 1
            return result

        monkeypatch.setattr(target, name, watched)

    watch(FeedStreams, "hand_over", lambda _, arguments, before, __: arguments[0].stream is not before)
    watch(FeedStreams, "_approaching", lambda _, __, ___, stream: stream is not None)
    watch(FeedStreams, "_behind", lambda _, __, ___, stream: stream is not None)
    watch(FeedStreams, "_must_wait", lambda _, __, ___, waits: waits)
    watch(SharedStream, "lower_start", lambda *_: True)
    watch(Subscriber, "end_met", lambda _, __, ___, error: error is not None)
    watch(Subscriber, "rejoin", lambda *_: True)
    watch(Chunk, "drop_bytes", lambda chunk, *_: chunk.holders > 0)
    watch(ReplayBuffer, "drop_oldest", lambda *_: True)
    watch(ReplayBuffer, "grew", lambda *_: True)
    for seed in range(200):
        World(seed, Settings(inspect=False)).run()
    assert min(reached.values()) >= 2, reached
    assert len(reached) == 10, reached
