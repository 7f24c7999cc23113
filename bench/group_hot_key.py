"""`group-hot-key`: all events of a group are of one document, beside an ordinary subscription."""

from bench.group import MEMBERS
from bench.members import Works, load
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

EVENTS = 100_000
WINDOW_EVENTS = 512


async def run(settings: Settings) -> Result:
    members = settings.size(MEMBERS, MEMBERS, 2)
    group: list[Figures] = []
    ordinary: list[Figures] = []
    async with Stage() as stage:
        works = Works(stage, load(stage.mongo_client(), settings.backlog(EVENTS, 20_000, 400), keys=1))
        for number in range(settings.runs):
            group.append(await works.in_group(members, window_events=WINDOW_EVENTS))
            ordinary.append(await works.alone())
            shown = [f"{each[-1]['events_per_s']:,.0f}" for each in (group, ordinary)]
            progress(f"run {number + 1}: group {shown[0]}, without a group {shown[1]} events/s")
    figures, alternative = medians(group), medians(ordinary)
    return Result(
        f"group-hot-key: {members} members, every event of one document",
        f"{members} members",
        "an ordinary subscription",
        figures,
        alternative,
        median_ratio([each["events_per_s"] for each in group], [each["events_per_s"] for each in ordinary]),
        "events/s in a group ÷ events/s without one, median of the runs' ratios",
        [Target("events_per_s", "at_least", 20_000, figures["events_per_s"])],
    )
