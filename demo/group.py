"""`./run demo --group`: workers share a subscription. One is killed, one event cannot be processed.

Orders change, each of them many times, and four workers process the changes. One worker is killed with kill -9, another
joins, and a change has an amount that is no number. At the end, the records of the workers are compared with what was
written: each order's changes in order and at one worker at a time, nothing lost, and only that one change set aside.
"""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pymongo import ReplaceOne

import feedmux
from demo.failed import DemoFailed
from demo.group_check import Change, GroupResult, Step, check_group, processed, read_steps
from demo.worker import NAME
from demo.world import Child, World, started
from feedmux.cli.terminal import Terminal
from feedmux_server.cancellation import cancellable
from feedmux_server.cli.sample_workload import COLLECTION, DATABASE

ATTEMPTS_MAX = 3
_ORDERS = 200
_WORKERS = 4
_POISON_AT, _KILL_AT, _JOIN_AT = 0.3, 0.45, 0.6
_TICK_S = 0.05
_CATCH_UP_S = 90.0


@dataclass(slots=True)
class Pool:
    """The workers, and what was written for them."""

    world: World
    written: Counter[int] = field(default_factory=Counter)
    """The changes by order."""
    poison: list[Change] = field(default_factory=list)
    workers: list[Child] = field(default_factory=list)
    killed_ns: dict[int, int] = field(default_factory=dict)

    def launch(self) -> None:
        number = len(self.workers)
        record = str(self._record(number))
        child = Child(self.world, f"worker {number + 1}", 0, "demo.worker", self.world.endpoint, record)
        self.workers.append(child)
        child.process.start()

    async def kill(self, number: int) -> None:
        await self.workers[number].process.kill9()
        self.killed_ns[number] = time.monotonic_ns()

    async def write(self, count: int, *, with_poison: bool) -> None:
        changes = []
        for order in random.choices(range(_ORDERS), k=count):
            self.written[order] += 1
            change = {"_id": order, "change": self.written[order], "amount": f"{random.uniform(1, 500):.2f}"}
            if with_poison:
                change["amount"], with_poison = "12 or so", False
                self.poison.append((order, self.written[order]))
            changes.append(ReplaceOne({"_id": order}, change, upsert=True))
        await cancellable(self.world.mongo[DATABASE][COLLECTION].bulk_write(changes))

    def records(self) -> list[list[Step]]:
        paths = map(self._record, range(len(self.workers)))
        return [read_steps(path.read_text().splitlines(keepends=True)) if path.exists() else [] for path in paths]

    async def set_aside(self) -> list[Change]:
        """The changes that are dead letters."""
        letters, found = self.world.client.dead_letters(NAME), []
        async for letter in letters.list():
            event = (await letters.get(letter.id)).document
            assert event is not None
            found.append((event["fullDocument"]["_id"], event["fullDocument"]["change"]))
        return found

    def check_all_run(self) -> None:
        for number, child in enumerate(self.workers):
            if number not in self.killed_ns and not child.process.running:
                raise DemoFailed(f"{child.name} ended; its output:\n{child.process.log_tail()}")

    def _record(self, number: int) -> Path:
        return self.world.folder / f"worker.{number}.record"


async def run(terminal: Terminal, length_s: float, rate: float, *, as_json: bool) -> int:
    """Run the demo. Return 0 if every promise was kept, else 1."""
    what = f"a group of {_WORKERS} workers, {length_s:g} seconds of {rate:,.0f} changes per second"
    print(f"{terminal.paint('feedmux demo', 'bold')}: {what}. Starting", file=terminal.stream, flush=True)
    async with started(terminal) as world:
        pool = Pool(world)
        subscription = world.client.subscription(NAME)
        group = feedmux.Group(attempts_max=ATTEMPTS_MAX, retry_first_s=0.2)
        await subscription.create(database=DATABASE, collection=COLLECTION, group=group)
        try:
            with terminal.step(f"{_WORKERS} workers, a process each"):
                for _ in range(_WORKERS):
                    pool.launch()
                while not all(child.told() for child in pool.workers):
                    pool.check_all_run()
                    await asyncio.sleep(0.05)
            await _write(terminal, pool, length_s, rate)
            letters = await _catch_up(terminal, pool)
            with terminal.step("the workers end when their handlers have"):
                alive = [child for number, child in enumerate(pool.workers) if number not in pool.killed_ns]
                await asyncio.gather(*(child.process.terminate() for child in alive))
                for child in alive:
                    if child.process.returncode != 0:
                        raise DemoFailed(f"{child.name} failed; its output:\n{child.process.log_tail()}")
        finally:
            for child in pool.workers:
                await child.process.kill9()
        result = check_group(pool.written, pool.records(), pool.killed_ns, letters)
    _tell(terminal, result, pool)
    kept = result.kept(pool.poison)
    if as_json:
        print(json.dumps({"kept": kept, **asdict(result)}), flush=True)
    return 0 if kept else 1


async def _write(terminal: Terminal, pool: Pool, length_s: float, rate: float) -> None:
    loop = asyncio.get_running_loop()
    began_s, told = loop.time(), 0
    while (passed_s := loop.time() - began_s) < length_s:
        pool.check_all_run()
        share = passed_s / length_s
        if share >= _KILL_AT and not pool.killed_ns:
            await pool.kill(1)
            _say(terminal, passed_s, f"{pool.workers[1].name}: kill -9; what it had in hand waits for 5 s")
        if share >= _JOIN_AT and len(pool.workers) == _WORKERS:
            pool.launch()
            _say(terminal, passed_s, f"{pool.workers[-1].name}: joins")
        due = int(passed_s * rate) - pool.written.total()
        if due > 0:
            poison = share >= _POISON_AT and not pool.poison
            await pool.write(min(due, 1_000), with_poison=poison)
            if poison:
                _say(terminal, passed_s, f"order {pool.poison[0][0]}: a change whose amount is no number")
        if passed_s >= told + 2:
            told = int(passed_s)
            _say(terminal, passed_s, _progress(pool))
        await asyncio.sleep(_TICK_S)
    _say(terminal, length_s, "the last change is written")


async def _catch_up(terminal: Terminal, pool: Pool) -> list[Change]:
    """Wait until all that was written is processed or set aside, and return what is set aside."""
    letters: list[Change] = []
    try:
        async with asyncio.timeout(_CATCH_UP_S):
            while len(processed(pool.records())) + len(letters) < pool.written.total():
                pool.check_all_run()
                letters = await pool.set_aside()
                await asyncio.sleep(0.2)
    except TimeoutError:
        print(f"not done after {_CATCH_UP_S:.0f} s: {_progress(pool)}", file=terminal.stream, flush=True)
    return letters


def _progress(pool: Pool) -> str:
    return f"{pool.written.total():,} changes written, {len(processed(pool.records())):,} processed"


def _say(terminal: Terminal, passed_s: float, text: str) -> None:
    print(f"  {passed_s:5.1f} s  {text}", file=terminal.stream, flush=True)


def _tell(terminal: Terminal, result: GroupResult, pool: Pool) -> None:
    """Print one sentence for each promise."""

    def line(broken: int, kept: str, not_kept: str) -> None:
        mark = terminal.paint("✗", "red", "bold") if broken else terminal.paint("✓", "green", "bold")
        print(f" {mark} {not_kept if broken else kept}", file=terminal.stream)

    workers, killed = len(pool.workers), pool.workers[1].name
    print(
        f"\n{terminal.paint('What happened', 'bold')}: {result.written:,} changes of {len(pool.written):,} orders were"
        f" written, and {workers} workers processed {result.processed:,} of them.",
        file=terminal.stream,
    )
    line(result.lost, "Nothing was lost.", f"{result.lost:,} changes were neither processed nor set aside.")
    line(
        result.out_of_order,
        "The changes of each order came in order.",
        f"{result.out_of_order:,} changes came before an earlier one of their order.",
    )
    line(
        result.shared,
        "While a worker had a change of an order, no other worker had one of it.",
        f"{result.shared:,} times, two workers had changes of one order.",
    )
    line(
        result.repeated,
        f"{killed} was killed (kill -9): {result.redelivered:,} changes that it had processed came again, because that"
        " was not stored yet. No other change was processed twice.",
        f"{result.repeated:,} changes were processed again without a reason.",
    )
    aside = ", ".join(f"change {change} of order {order}" for order, change in result.letters) or "nothing"
    line(
        result.letters != pool.poison,
        f"After {ATTEMPTS_MAX} attempts, the change that cannot be processed became a dead letter, and nothing else"
        f" did: {aside}.",
        f"These are the dead letters, and should not be: {aside}.",
    )
