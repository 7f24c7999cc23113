"""Make a failing run smaller: find fewer faults, users, servers and writes that still break the same guarantee."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.sim.world import EVERYTHING, SIZES, Keep, World


@dataclass(frozen=True, slots=True)
class Failing:
    """A failing run."""

    seed: int
    size: str
    scenario: str
    keep: Keep
    broken: str
    """The guarantee, or the beginning of the first problem."""

    @property
    def command(self) -> str:
        """The command that repeats this run, with a trace of everything that happens."""
        return repeat_command(self.seed, self.size, self.scenario, self.keep)


def repeat_command(seed: int, size: str, scenario: str = "", keep: Keep = EVERYTHING) -> str:
    """The command that repeats a seed, with a trace of everything that happens."""
    parts = [f"./run sim {seed} --size {size}"]
    if scenario:
        parts.append(f"--scenario {scenario!r}")
    if keep != EVERYTHING:
        parts.append(f"--keep {keep}")
    return " ".join([*parts, "--trace"])


def shrink(
    seed: int, size: str, scenario: str = "", keep: Keep = EVERYTHING, say: Callable[[str], None] = print
) -> Failing | None:
    """The smallest run found that fails like this one; None if this run does not fail."""
    world = World(seed, SIZES[size], scenario=scenario, keep=keep)
    outcome = world.run()
    if not outcome.problems:
        return None
    keep = replace(
        keep,
        faults=keep.faults if keep.faults is not None else tuple(range(len(world.faults))),
        users=keep.users if keep.users is not None else tuple(range(len(world.users))),
        crews=keep.crews if keep.crews is not None else tuple(range(len(world.crews))),
        copiers=keep.copiers if keep.copiers is not None else tuple(range(len(world.copiers))),
        servers=len(world.servers),
        writes=world.writes,
    )
    found = Failing(seed, size, scenario, keep, _kind(outcome.problems[0]))
    say(f"{_size_of(found)}: {outcome.problems[0]}")
    while smaller := next((each for each in _smaller(found.keep) if _fails(found, each)), None):
        found = replace(found, keep=smaller)
        say(_size_of(found))
    return found


def _fails(failing: Failing, keep: Keep) -> bool:
    world = World(failing.seed, SIZES[failing.size], scenario=failing.scenario, keep=keep)
    return any(_kind(problem) == failing.broken for problem in world.run().problems)


def _smaller(keep: Keep) -> Iterator[Keep]:
    """The next candidates, the largest reductions first."""
    faults, users, writes = keep.faults or (), keep.users or (), keep.writes or 0
    copiers, crews = keep.copiers or (), keep.crews or ()
    if faults:
        yield replace(keep, faults=())
    for index in range(len(faults)):
        yield replace(keep, faults=faults[:index] + faults[index + 1 :])
    for index in range(len(users) if len(users) + len(keep.crews or ()) > 1 else 0):
        yield replace(keep, users=users[:index] + users[index + 1 :])
    for index in range(len(crews)):
        yield replace(keep, crews=crews[:index] + crews[index + 1 :])
    for index in range(len(copiers)):
        yield replace(keep, copiers=copiers[:index] + copiers[index + 1 :])
    if (keep.servers or 1) > 1:
        yield replace(keep, servers=1)
    for fewer in (writes // 2, writes * 3 // 4, writes - 1):
        if 0 <= fewer < writes:
            yield replace(keep, writes=fewer)


def _kind(problem: str) -> str:
    return problem.partition(":")[0]


def _size_of(failing: Failing) -> str:
    keep = failing.keep
    return (
        f"{len(keep.faults or ())} faults, {len(keep.users or ())} users, {keep.servers} servers, {keep.writes} writes"
    )
