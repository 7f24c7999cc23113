"""Runs the demo: set-up, workload, the kill and the late join, catching up, check, summary."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence

from bson import Timestamp

from demo import group, summary
from demo.cast import ROLES, Actor
from demo.check import ReplicaResult, Result, check, compare, read_collection, read_record, read_replica, read_truth
from demo.failed import DemoFailed
from demo.observer import Observer
from demo.replica import state_path
from demo.view import View, make_view
from demo.world import Child, World, started
from feedmux.cli.terminal import Terminal
from feedmux.feeds import Feed, Start
from feedmux_embedded import EmbeddedError
from feedmux_server.cancellation import cancellable
from feedmux_server.cli.sample_workload import COLLECTION, DATABASE

_FRAME_S = 0.2
_DOWN_S = 1.5
_STARTING_S = 30.0
_CATCH_UP_S = 90.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Return 0 if every promise was kept, 1 if one was broken or the demo failed, 130 if interrupted."""
    args = _arguments(argv)
    stream = sys.stderr if args.json else sys.stdout
    terminal = Terminal(stream)
    try:
        return asyncio.run(_demo(args, terminal))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\nStopped; nothing is left running.", file=sys.stderr)
        return 130
    except (EmbeddedError, DemoFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="MongoDB, Redis, the server and seven subscribers, live, with a check at the end.",
    )
    parser.add_argument(
        "--seconds", metavar="N", type=float, default=20.0, help="duration of the workload in seconds (20)"
    )
    parser.add_argument("--rate", metavar="N", type=float, help="changes per second (2500; 500 with --group)")
    parser.add_argument(
        "--group",
        action="store_true",
        help="workers that share one subscription instead: one is killed, and one event cannot be processed",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of standard output")
    args = parser.parse_args(argv)
    if not 3 <= args.seconds <= 600:
        parser.error("--seconds is 3 to 600")
    if args.rate is None:
        args.rate = 500.0 if args.group else 2_500.0
    if not 10 <= args.rate <= 20_000:
        parser.error("--rate is 10 to 20000")
    return args


async def _demo(args: argparse.Namespace, terminal: Terminal) -> int:
    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    if args.group:
        return await group.run(terminal, args.seconds, args.rate, as_json=args.json)
    what = f"{args.seconds:g} seconds of {args.rate:,.0f} changes per second"
    print(f"{terminal.paint('feedmux demo', 'bold')}: {what}. Starting", file=terminal.stream, flush=True)
    async with started(terminal) as world:
        _tell_metrics(terminal, world.metrics_url)
        play = Play(world, args.seconds, args.rate)
        try:
            with terminal.step(f"{sum(role.joins_at is None for role in ROLES)} subscribers, a process each"):
                start = await play.open()
            with make_view(args.json) as view:
                written = await play.run(view)
            with terminal.step("checking against what MongoDB says was written"):
                truth = await asyncio.to_thread(read_truth, world.mongodb_uri, start)
                results = [
                    check(
                        actor.role.name,
                        truth,
                        truth.count_until(actor.start),
                        [truth.count_until(position) for position in actor.stored],
                        [read_record(path) for path in actor.records(world)],
                    )
                    for actor in play.actors
                    if not actor.role.copies
                ]
                collection = await asyncio.to_thread(read_collection, world.mongodb_uri)
                replicas = [
                    compare(
                        actor.role.name,
                        (actor.child.told().get("copied") or 0) if actor.child is not None else 0,
                        collection,
                        read_replica(state_path(actor.records(world)[-1])),
                    )
                    for actor in play.actors
                    if actor.role.copies
                ]
        finally:
            await play.stop()
    return _finish(args, terminal, play, written, len(truth), results, replicas)


def _tell_metrics(terminal: Terminal, url: str) -> None:
    """Print how to read the server's metrics while the demo runs."""
    wanted = "feedmux_(delivered_events|subscriber_active|subscriber_lag|stream_active|oplog_headroom)"
    lines = (
        f"  metrics, while this runs: {terminal.paint(url, 'bold')}",
        f"  in another terminal:      curl -s {url} | grep -E '^{wanted}'",
        "  what they mean: docs/metrics.md; a dashboard for Grafana: helm/feedmux/dashboards/feedmux.json",
    )
    print("\n".join(lines), file=terminal.stream, flush=True)


def _finish(
    args: argparse.Namespace,
    terminal: Terminal,
    play: "Play",
    written: int,
    in_mongodb: int,
    results: list[Result],
    replicas: list[ReplicaResult],
) -> int:
    now = play.observer.snapshot
    summary.tell(terminal, written, in_mongodb, results, replicas, now)
    report = summary.as_json(written, in_mongodb, results, replicas, now)
    if args.json:
        print(json.dumps(report), flush=True)
    return 0 if report["kept"] else 1


class Play:
    """One run of the demo."""

    def __init__(self, world: World, length_s: float, rate: float) -> None:
        self._world = world
        self._length_s = length_s
        self._rate = rate
        self.actors = [Actor(role) for role in ROLES]
        self.observer = Observer(world, self.actors, length_s)
        self._workload = Child(world, "workload", 0, "demo.workload", world.mongodb_uri, str(rate))
        self._earlier = b""

    async def open(self) -> Timestamp:
        """Start the subscribers of the beginning, until they are ready.

        Return the operation time before the first write.
        """
        hello = await cancellable(self._world.mongo.admin.command("ping"))
        start: Timestamp = hello["operationTime"]
        for actor in self.actors:
            if actor.role.joins_at is None:
                await self._subscribe(actor, Start.latest())
                actor.launch(self._world, self._rate)
        async with asyncio.timeout(_STARTING_S):
            while not all(actor.child.told() for actor in self.actors if actor.child is not None):
                self._check_all_run()
                await asyncio.sleep(0.05)
        return Timestamp(start.time, start.inc + 1)

    async def run(self, view: View) -> int:
        """Run to the end. Return the number of acknowledged writes."""
        self.observer.workload = self._workload
        self._workload.process.start()
        while not self._workload.told():
            self._workload.process.check_running()
            await asyncio.sleep(0.02)
        self.observer.started_s = asyncio.get_running_loop().time()
        watching = asyncio.create_task(self.observer.run(), name="observer")
        drawing = asyncio.create_task(self._draw(view), name="view")
        script = asyncio.create_task(self._script(), name="script")
        try:
            done, _ = await asyncio.wait({watching, drawing, script}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            view(self.observer.update())
            return int(self._workload.told()["written"])
        finally:
            for task in (watching, drawing, script):
                task.cancel()
            await asyncio.gather(watching, drawing, script, return_exceptions=True)

    async def stop(self) -> None:
        """Stop every process of the run."""
        for child in (self._workload, *(child for actor in self.actors for child in actor.children)):
            await child.process.kill9()

    async def _script(self) -> None:
        now = self.observer.snapshot
        now.phase = "writing"
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._remember_place())
                for actor in self.actors:
                    if actor.role.killed_at is not None:
                        parts.create_task(self._kill_and_restart(actor))
                    if actor.role.copies:
                        parts.create_task(self._copy(actor))
                    elif actor.role.joins_at is not None:
                        parts.create_task(self._join_late(actor))
                await self._at(1.0)
        except* DemoFailed as failures:
            raise failures.exceptions[0] from None
        self._workload.signal(signal.SIGTERM)
        now.phase = "catching up"
        while not self._workload.told().get("done"):
            self._check_all_run()
            await asyncio.sleep(0.02)
        self.observer.say("the last change is written; the slow subscriber now reads at full speed")
        for actor in self.actors:
            actor.hurry()
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                while not all(actor.done for actor in self.actors):
                    self._check_all_run()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            late = ", ".join(actor.role.name for actor in self.actors if not actor.done)
            self.observer.say(f"not done after {_CATCH_UP_S:.0f} s: {late}")
        now.phase = "done"

    async def _remember_place(self) -> None:
        place = next(role.joins_from for role in ROLES if role.joins_from is not None)
        await self._at(place)
        resolved = await self._world.client.resolve(Start.latest(), self._feed())
        self._earlier = resolved.position

    async def _kill_and_restart(self, actor: Actor) -> None:
        assert actor.role.killed_at is not None
        await self._at(actor.role.killed_at)
        await actor.kill9()
        self.observer.say(f"{actor.role.name}: kill -9")
        await asyncio.sleep(min(_DOWN_S, self._length_s / 8))
        info = await self._world.client.get_subscription(actor.role.name)
        actor.stored.append(info.position)
        actor.launch(self._world, self._rate)
        self.observer.say(f"{actor.role.name}: started again, continues after its stored position")

    async def _join_late(self, actor: Actor) -> None:
        assert actor.role.joins_at is not None
        assert actor.role.joins_from is not None
        await self._at(actor.role.joins_at)
        await self._subscribe(actor, Start.position(self._earlier))
        actor.launch(self._world, self._rate)
        ago_s = (actor.role.joins_at - actor.role.joins_from) * self._length_s
        self.observer.say(f"{actor.role.name}: joins, from a position of {ago_s:.0f} s ago")

    async def _copy(self, actor: Actor) -> None:
        assert actor.role.joins_at is not None
        await self._at(actor.role.joins_at)
        await self._subscribe(actor, Start.snapshot())
        actor.launch(self._world, self._rate)
        self.observer.say(f"{actor.role.name}: begins with the documents that exist")
        assert actor.child is not None
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                while (copied := actor.child.told().get("copied")) is None:
                    self._check_all_run()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise DemoFailed(f"{actor.role.name} has not copied all documents after {_CATCH_UP_S:.0f} s") from None
        self.observer.say(f"{actor.role.name}: has copied {copied:,} documents, and follows their changes")

    async def _subscribe(self, actor: Actor, start: Start) -> None:
        info = await self._world.client.create_subscription(actor.role.name, self._feed(), start=start)
        actor.start = info.position

    async def _draw(self, view: View) -> None:
        while True:
            view(self.observer.update())
            await asyncio.sleep(_FRAME_S)

    async def _at(self, share: float) -> None:
        due_s = self.observer.started_s + share * self._length_s
        while (left_s := due_s - asyncio.get_running_loop().time()) > 0:
            self._check_all_run()
            await asyncio.sleep(min(left_s, 0.25))

    def _check_all_run(self) -> None:
        for actor in self.actors:
            if actor.failed and actor.child is not None:
                raise DemoFailed(f"{actor.role.name} failed; its output:\n{actor.child.process.log_tail()}")
        if self._workload.process.returncode not in (None, 0):
            raise DemoFailed(f"the workload failed; its output:\n{self._workload.process.log_tail()}")

    @staticmethod
    def _feed() -> Feed:
        return Feed(DATABASE, COLLECTION)
