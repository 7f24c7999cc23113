"""`clients`: one subscriber in each language reads a backlog event by event, beside the Python client.

A language's reader is a program `COMMAND --endpoint HOST:PORT --subscription NAME --count N` that connects, writes the
line `ready`, waits for a line on standard input, opens the subscription, decodes and acks one event after the other
until it has read N, and writes one JSON object in a line: `elapsed_s` from the start to the last event, `cpu_s` used in
between, `count`, and `last_id`, the `documentKey._id` of the last event. It ends at once when standard input ends,
because then the benchmark has ended. Its times are compared with those of `readers.events_by_feedmux`, which does the
same.
"""

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.backlog import FIRST_ID, load
from bench.readers import CheckFailed, Contest
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

EVENTS = 200_000
_ROOT: Final = Path(__file__).parents[1]
_READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Language:
    """How to build and start a language's reader from the repository's root, and the tools this needs on PATH."""

    build: Sequence[str]
    command: Sequence[str]
    tools: Sequence[str]

    @property
    def missing(self) -> list[str]:
        return [tool for tool in self.tools if shutil.which(tool) is None]


LANGUAGES: Final = {
    "go": Language(
        ("go", "build", "-C", "clients/go/feedmux", "-o", ".bin/bench", "./bench"),
        ("clients/go/feedmux/.bin/bench",),
        ("go",),
    ),
    "node": Language(("clients/node/compile",), ("node", "clients/node/build/bench/read.js"), ("node", "npm")),
    "java": Language(
        ("clients/java/conformance/run", "--build"),
        (
            "java",
            "-cp",
            "clients/java/target/test-classes:clients/java/target/classes:clients/java/target/lib/*",
            "dev.feedmux.bench.ReadBacklog",
            "--warm",
        ),
        ("java", "mvn"),
    ),
}


class ReaderFailed(RuntimeError):
    """A reader could not be built, or failed."""


async def run(settings: Settings) -> Result:
    chosen = {name: language for name, language in LANGUAGES.items() if not language.missing}
    notes = [f"{name} is left out: {', '.join(LANGUAGES[name].missing)} missing" for name in LANGUAGES.keys() - chosen]
    if not chosen:
        raise ReaderFailed("; ".join(notes))
    for name, language in chosen.items():
        progress(f"building the reader in {name}")
        await _build(language)
    count = settings.backlog(EVENTS, 50_000, 2_000)
    python: list[Figures] = []
    others: dict[str, list[Figures]] = {name: [] for name in chosen}
    async with Stage() as stage:
        with stage.mongo_client() as client:
            backlog = load(client, count)
        contest = Contest(stage, backlog)
        for number in range(settings.runs):
            python.append(_kept((await contest.by_feedmux("events", 1)).figures))
            for name, language in chosen.items():
                subscription = await contest.subscription()
                others[name].append(await _read(language, stage.endpoint, subscription, count))
            shown = {"python": python, **others}
            rates = [f"{name} {readings[-1]['events_per_s']:,.0f}" for name, readings in shown.items()]
            progress(f"run {number + 1}: {', '.join(rates)} events/s")
    ratios = {name: median_ratio(_rates(readings), _rates(python)) for name, readings in others.items()}
    slowest = min(ratios.values())
    return Result(
        "clients",
        f"clients: one loop over a backlog of {count:,} events of {backlog.event_bytes:.0f} bytes, decoded and acked",
        "the client named",
        "the Python client",
        {f"{name}_{key}": value for name, readings in others.items() for key, value in medians(readings).items()},
        {f"{name}_{key}": value for name in others for key, value in medians(python).items()},
        slowest,
        "events/s of the slowest of these clients ÷ events/s of the Python client, median of the runs' ratios",
        [Target(f"{name}_ratio", "at_least", 1.0, ratio) for name, ratio in ratios.items()],
        notes,
    )


def _rates(readings: Sequence[Figures]) -> list[float]:
    return [reading["events_per_s"] for reading in readings]


def _kept(figures: Figures) -> Figures:
    return {key: figures[key] for key in ("events_per_s", "elapsed_s", "client_cpu_us_per_event")}


async def _build(language: Language) -> None:
    process = await asyncio.create_subprocess_exec(
        *language.build, cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise ReaderFailed(f"{' '.join(language.build)}:\n{said.decode()}")


async def _read(language: Language, endpoint: str, subscription: str, count: int) -> Figures:
    arguments = ("--endpoint", endpoint, "--subscription", subscription, "--count", str(count))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*language.command, *arguments, cwd=_ROOT, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            ready = await process.stdout.readline()
        if ready.strip() != b"ready":
            raise ReaderFailed(f"{' '.join(language.command)} is not ready; its output above says why")
        process.stdin.write(b"go\n")
        said = await process.stdout.readline()
        process.stdin.close()
        if await process.wait() or not said:
            raise ReaderFailed(f"{' '.join(language.command)} exited with {process.returncode}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    read = json.loads(said)
    if read["count"] != count or read["last_id"] != FIRST_ID + count - 1:
        raise CheckFailed(f"read {read['count']} events up to {read['last_id']}, not {count}")
    return {
        "events_per_s": count / read["elapsed_s"],
        "elapsed_s": read["elapsed_s"],
        "client_cpu_us_per_event": read["cpu_s"] * 1e6 / count,
    }
