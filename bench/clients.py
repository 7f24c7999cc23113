"""`clients`: one subscriber in each language reads a backlog event by event, beside the Python client.

A language's reader is a program (programs.py) with the arguments `--endpoint HOST:PORT --subscription NAME --count N`,
which opens the subscription, decodes and acks one event after the other until it has read N, and says which
`documentKey._id` the last event had (`last_id`). Its times are compared with those of `readers.events_by_feedmux`,
which does the same.
"""

from collections.abc import Sequence
from typing import Final

from bench.backlog import FIRST_ID, load
from bench.programs import Program, ReaderFailed
from bench.readers import CheckFailed, Contest
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

EVENTS = 200_000

LANGUAGES: Final = {
    "go": Program(
        ("go", "build", "-C", "clients/go/feedmux", "-o", ".bin/bench", "./bench"),
        ("clients/go/feedmux/.bin/bench",),
        ("go",),
    ),
    "node": Program(("clients/node/compile",), ("node", "clients/node/build/bench/read.js"), ("node", "npm")),
    "java": Program(
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


async def run(settings: Settings) -> Result:
    chosen = {name: language for name, language in LANGUAGES.items() if not language.missing}
    notes = [f"{name} is left out: {', '.join(LANGUAGES[name].missing)} missing" for name in LANGUAGES.keys() - chosen]
    if not chosen:
        raise ReaderFailed("; ".join(notes))
    for name, language in chosen.items():
        progress(f"building the reader in {name}")
        await language.make()
    count = settings.backlog(EVENTS, 50_000, 2_000)
    python: list[Figures] = []
    others: dict[str, list[Figures]] = {name: [] for name in chosen}
    async with Stage() as stage:
        backlog = load(stage.mongo_client(), count)
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


async def _read(language: Program, endpoint: str, subscription: str, count: int) -> Figures:
    read = await language.read("--endpoint", endpoint, "--subscription", subscription, "--count", str(count))
    if read["count"] != count or read["last_id"] != FIRST_ID + count - 1:
        raise CheckFailed(f"read {read['count']} events up to {read['last_id']}, not {count}")
    return {
        "events_per_s": count / read["elapsed_s"],
        "elapsed_s": read["elapsed_s"],
        "client_cpu_us_per_event": read["cpu_s"] * 1e6 / count,
    }
