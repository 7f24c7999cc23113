"""`./run sim`: run seeds of the simulation, or repeat one seed."""

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass

from tests.sim.executed import GROUPS, executed_by, of_group, ranges
from tests.sim.faults import SCENARIOS
from tests.sim.mutants import MUTANTS, Mutant, built_with
from tests.sim.shrinking import repeat_command, shrink
from tests.sim.world import EVERYTHING, SIZES, Keep, Outcome, simulate

_BLOCK = 20
"""Seeds that a worker process takes at a time."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What is reported of an outcome."""

    seed: int
    size: str
    steps: int
    virtual_s: float
    problems: tuple[str, ...]
    scenario: str

    @classmethod
    def of(cls, outcome: Outcome, scenario: str) -> "Summary":
        return cls(
            outcome.seed,
            outcome.size,
            outcome.steps,
            outcome.virtual_s,
            tuple(outcome.problems),
            scenario,
        )


def run_block(first: int, count: int, size: str, scenario: str = "") -> list[Summary]:
    """Run `count` seeds, one after the other."""
    seeds = range(first, first + count)
    return [Summary.of(simulate(seed, SIZES[size], scenario=scenario), scenario) for seed in seeds]


def digests(first: int, count: int, size: str) -> list[str]:
    """Run `count` seeds; returns what each run's history is known by."""
    return [simulate(seed, SIZES[size]).digest() for seed in range(first, first + count)]


def told(summary: Summary) -> str:
    """Describe a failure, with the command that repeats it."""
    lines = [f"seed {summary.seed} ({summary.size}) failed:", *(f"  {problem}" for problem in summary.problems[:10])]
    if len(summary.problems) > 10:
        lines.append(f"  and {len(summary.problems) - 10} more")
    again = repeat_command(summary.seed, summary.size, summary.scenario)
    lines += [f"  run it again:    {again}", f"  make it smaller: {again.removesuffix('--trace')}--shrink"]
    return "\n".join(lines)


def digests_elsewhere(first: int, count: int, size: str) -> list[str]:
    """Compute the digests of these seeds in another process, in which strings hash differently."""
    command = [sys.executable, "-m", "tests.sim", "--digests", "--start", str(first), "--seeds", str(count)]
    other = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    done = subprocess.run([*command, "--size", size], env=other, check=True, capture_output=True, text=True)
    return done.stdout.split()


def _blocks(first: int, count: int) -> Iterator[tuple[int, int]]:
    for begin in range(first, first + count, _BLOCK):
        yield begin, min(_BLOCK, first + count - begin)


def _run_many(first: int, count: int, size: str, scenario: str, jobs: int) -> int:
    """Run seeds; returns how many failed."""
    began_s = told_s = time.monotonic()
    ran = failed = steps = 0
    virtual_s = 0.0
    # What is loaded is no garbage, and would cost as much to look at as a run's own objects.
    with ProcessPoolExecutor(jobs, initializer=gc.freeze) as pool:
        running = [pool.submit(run_block, begin, each, size, scenario) for begin, each in _blocks(first, count)]
        try:
            for done in as_completed(running):
                for summary in done.result():
                    ran, steps, virtual_s = ran + 1, steps + summary.steps, virtual_s + summary.virtual_s
                    if summary.problems:
                        failed += 1
                        print(told(summary), flush=True)
                now_s = time.monotonic()
                if now_s - told_s > 5:
                    told_s = now_s
                    print(f"{ran} of {count} seeds, {failed} failed", file=sys.stderr)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("interrupted", file=sys.stderr)
    took_s = time.monotonic() - began_s
    print(
        f"{ran} {size} seeds from {first} in {took_s:.1f} s ({ran / took_s / jobs:.1f} a second and process),"
        f" {steps} callbacks, {virtual_s / 3600:.1f} virtual hours: {failed} failed"
    )
    return failed


def _run_twice(first: int, count: int, size: str) -> int:
    """Run each seed in two processes; returns how many seeds differ."""
    here = digests(first, count, size)
    differing = [
        seed
        for seed, mine, theirs in zip(
            range(first, first + count), here, digests_elsewhere(first, count, size), strict=True
        )
        if mine != theirs
    ]
    for seed in differing:
        print(f"seed {seed} ({size}) differs between two processes")
    print(f"{count} {size} seeds from {first}, each in two processes: {len(differing)} differ")
    return len(differing)


def _shrink(seed: int, size: str, scenario: str, keep: Keep) -> int:
    found = shrink(seed, size, scenario, keep)
    if found is None:
        print(f"seed {seed} does not fail")
        return 0
    print(f"run it again: {found.command}")
    return 1


def seeds_to_find(mutant: Mutant) -> int | None:
    """How many runs of the broken build it takes to find the mutation; None if no seed shows it."""
    with built_with(mutant):
        for seed in range(mutant.seeds):
            problems = simulate(seed, SIZES[mutant.size], scenario=mutant.scenario).problems
            if any(problem.startswith(f"{mutant.guarantee}:") for problem in problems):
                return seed + 1
    return None


def _run_mutants(jobs: int) -> int:
    """Run all mutants; returns how many are not found."""
    missed = 0
    with ProcessPoolExecutor(jobs) as pool:
        for mutant, seeds in zip(MUTANTS, pool.map(seeds_to_find, MUTANTS), strict=True):
            missed += seeds is None
            print(f"{mutant.guarantee:20} {seeds or 'NOT FOUND':>9} of {mutant.seeds:3}  {mutant}", flush=True)
    print(f"{len(MUTANTS)} broken builds, {missed} not found")
    return missed


def _run_covered(first: int, count: int) -> int:
    """Measure the executed lines; returns how many groups are below their required share."""

    def work() -> None:
        run_block(first, count, "small")
        run_block(first, count // 5, "large")
        for scenario in SCENARIOS:
            run_block(first, count // 20, "small", scenario)

    found = executed_by(work)
    for each in sorted(found.values(), key=lambda each: -each.missing_count):
        if each.missing:
            print(f"{each}: without {ranges(each.missing)}")
    groups = [(group, of_group(group, found)) for group in GROUPS]
    for group, executed in groups:
        print(f"{executed}, {group.least:.0%} asked for")
    return sum(executed.share < group.least for group, executed in groups)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./run sim",
        description="The server and the Python client under a seeded loop in virtual time, against models of MongoDB,"
        " Redis and the network. See docs/testing.md.",
    )
    parser.add_argument("seed", nargs="?", type=int, help="run this seed alone")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run (default: 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--size", choices=sorted(SIZES), default="small", help="how much happens in a run")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="", help="with certain faults; see faults.py")
    parser.add_argument("--trace", action="store_true", help="with a seed: print everything that happens")
    parser.add_argument("--shrink", action="store_true", help="with a seed that fails: find a smaller run that fails")
    parser.add_argument(
        "--keep",
        type=Keep.of,
        default=EVERYTHING,
        metavar="PARTS",
        help="with a seed: these parts alone, as --shrink says",
    )
    parser.add_argument("--twice", action="store_true", help="compare the runs of two processes")
    parser.add_argument("--mutants", action="store_true", help="how soon each broken build of the code is found")
    parser.add_argument("--coverage", action="store_true", help="which lines of the code the runs execute")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--digests", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> int:
    options = _parser().parse_args()
    if options.digests:
        print("\n".join(digests(options.start, options.seeds, options.size)))
        return 0
    if options.coverage:
        return int(_run_covered(options.start, options.seeds) > 0)
    if options.mutants:
        return int(_run_mutants(options.jobs) > 0)
    if options.seed is None:
        if options.twice:
            return int(_run_twice(options.start, options.seeds, options.size) > 0)
        return int(_run_many(options.start, options.seeds, options.size, options.scenario, options.jobs) > 0)
    if options.twice:
        return int(_run_twice(options.seed, 1, options.size) > 0)
    if options.shrink:
        return _shrink(options.seed, options.size, options.scenario, options.keep)
    say = print if options.trace else None
    outcome = simulate(options.seed, SIZES[options.size], say, options.scenario, options.keep)
    summary = Summary.of(outcome, options.scenario)
    faults = ", ".join(outcome.faults) or "none"
    print(f"seed {options.seed} ({options.size}): {outcome.virtual_s:.1f} virtual s, {outcome.steps} callbacks")
    print(f"faults: {faults}; digest {outcome.digest()}")
    if outcome.problems:
        print(told(summary))
    return int(bool(outcome.problems))


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
