"""Sends commands to Redis, many in one round trip, within a time limit.

A cluster gets one round trip for each node concerned, all at the same time: an unavailable node fails only its own
keys. A call that met an unavailable node has the cluster's layout read again.
Invariant: every command has its key where `_key_of` expects it. Neighbours: `scripts` above, redis-py below.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio.cluster import ClusterNode, ClusterPipeline
from redis.exceptions import AskError, MovedError, SlotNotCoveredError, TryAgainError

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.store.connection import COMMANDS_MAX, REPLICATED_MAX, Client, WatchedCluster, leave_demoted
from feedmux_server.store.errors import FAILURES, code_of, is_of_one_key, state_unavailable
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.observer import NOBODY, Observer

_log = logging.getLogger(__name__)

Argument = str | bytes | int
Command = tuple[Argument, ...]

_WITHOUT_KEY: Final = frozenset({"INFO", "WAIT", "ASKING"})
_ASKING: Final[Command] = ("ASKING",)
_REDIRECTIONS_MAX: Final = 5
"""A slot that moves on while it is being asked for takes two or three."""
_TRY_AGAIN_S: Final = 0.05
_LAYOUT_MOVED: Final = frozenset({"CONNECTION", "TIMEOUT", "CLUSTERDOWN", "MOVED", "READONLY", "MASTERDOWN", "LOADING"})


def replicated_s(timeout_s: float, replicas: int | None) -> float:
    """The time limit of a command that waits for replicas, by that of a round trip: if any replica will do, it is first
    asked whether there is one."""
    return timeout_s * (2 if replicas is None else 1)


class Commands:
    def __init__(
        self, client: Client, *, timeout_s: float, observer: Observer = NOBODY, trips_max: int = COMMANDS_MAX
    ) -> None:
        """`trips_max`: round trips at a time."""
        self._client = client
        self._observer = observer
        self._timeout_s = timeout_s
        self._trips = asyncio.Semaphore(trips_max)
        self._replicated_trips = asyncio.Semaphore(REPLICATED_MAX)

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands and return the answers in order. An exception among them concerns that key alone. Raises
        STATE_UNAVAILABLE."""
        attributes: dict[str, str | int] = {"db.system.name": "redis", "db.operation.batch.size": len(commands)}
        with self._observer.span("redis pipeline", attributes, client=True):
            try:
                return await self._run(commands)
            except FeedmuxError as error:
                self._observer.count(metrics.REDIS_ERRORS, 1, error.metadata["redis_error"])
                raise

    async def run_replicated(self, command: Command, mark: Command, replicas: int | None) -> tuple[Any, bool]:
        """Run `command`, and wait until `replicas` replicas have its change. None: wait for one if any is connected.

        Returns the answer, and whether the replicas have the change. `mark` is a write without meaning to the same
        slot. It follows `command` on the same connection, because WAIT waits only for the writes of its own connection,
        and a repeated command may have nothing to write although its first try has not reached a replica yet. Raises
        STATE_UNAVAILABLE, after `replicated_s` at the latest.
        """
        attributes: dict[str, str | int] = {"db.system.name": "redis", "db.operation.batch.size": 3}
        with self._observer.span("redis pipeline", attributes, client=True):
            try:
                async with asyncio.timeout(replicated_s(self._timeout_s, replicas)), self._replicated_trips:
                    return await self._run_replicated(command, mark, replicas)
            except FAILURES as error:
                await self._note_failure(error)
                self._observer.count(metrics.REDIS_ERRORS, 1, code_of(error))
                raise state_unavailable(error) from error

    async def _run_replicated(self, command: Command, mark: Command, replicas: int | None) -> tuple[Any, bool]:
        node, asking = await self._node_of(command), False
        for _ in range(_REDIRECTIONS_MAX):
            answer, confirmed = await self._replicated_on(node, command, mark, replicas, asking=asking)
            if not isinstance(answer, AskError) or not isinstance(self._client, WatchedCluster):
                break
            if isinstance(answer, MovedError):
                await _note_move(self._client, answer)
                node, asking = await self._node_of(command), False
            else:
                node, asking = _node_named(self._client, answer), True
        if isinstance(answer, Exception) and not is_of_one_key(answer):
            raise answer
        return answer, confirmed

    async def _replicated_on(
        self, node: Any, command: Command, mark: Command, replicas: int | None, *, asking: bool = False
    ) -> tuple[Any, bool]:
        """The answer of a node, which may be its failure, and whether enough of its replicas have the change."""
        if replicas is None:
            async with asyncio.timeout(self._timeout_s):
                [info] = await self._pipeline([("INFO", "replication")], node)
            if isinstance(info, Exception):
                raise info
            replicas = min(1, int(info.get("connected_slaves", 0)))
        if not replicas:
            [answer] = await self._pipeline([command], node, asking=asking)
            return answer, True
        # Half of a round trip's limit, so that an unconfirmed change is answered while the caller still waits.
        wait = ("WAIT", replicas, int(self._timeout_s * 500))
        answer, marked, confirmed = await self._pipeline([command, mark, wait], node, asking=asking)
        if isinstance(answer, AskError) or isinstance(marked, MovedError):
            return answer, False  # the slot has moved, and WAIT asked its former node
        for failure in (answer, marked, confirmed):
            # If the slot is being moved and the key is still here, the mark is not: then WAIT waited for the change
            # itself, if there was one.
            if isinstance(failure, Exception) and not (failure is marked and isinstance(marked, AskError)):
                raise failure
        return answer, confirmed >= replicas and (not isinstance(marked, AskError) or _has_written(answer))

    async def _node_of(self, command: Command) -> Any:
        """The primary of the command's slot; None without a cluster."""
        if not isinstance(self._client, WatchedCluster):
            return None
        await self._client.initialize()
        return self._client.get_node_from_key(_key_of(command))

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        try:
            # The only time limit of the call, for its turn, a new connection and all reads together; see `connect`.
            async with asyncio.timeout(self._timeout_s), self._trips:
                if isinstance(self._client, WatchedCluster):
                    return await self._by_node(self._client, commands)
                answers = await self._pipeline(commands)
        except FAILURES as error:
            await self._note_failure(error)
            raise state_unavailable(error) from error
        for answer in answers:
            if isinstance(answer, Exception) and not is_of_one_key(answer):
                await self._note_failure(answer)
                raise state_unavailable(answer) from answer
        return answers

    async def _pipeline(self, commands: Sequence[Command], node: Any = None, *, asking: bool = False) -> list[Any]:
        """Run commands on one connection, except those for other nodes of a cluster. `node` gets the commands without a
        key. If `asking`, it gets all commands, also those for a slot that is still being moved to it."""
        client = self._client
        there = {} if node is None else {"target_nodes": [node]}
        sent = [part for each in commands for part in ((_ASKING, each) if asking and _has_key(each) else (each,))]
        async with client.pipeline(transaction=False) as pipeline:
            for command in sent:
                pipeline.execute_command(*command, **(there if asking or not _has_key(command) else {}))
            if not isinstance(client, WatchedCluster):
                return list(await pipeline.execute(raise_on_error=False))
            assert isinstance(pipeline, ClusterPipeline)
            received = await pipeline.execute(raise_on_error=False, allow_redirections=False)
        for answer in received:
            if isinstance(answer, AskError):
                answer.host = answer.host or client.default_host
        return [answer for command, answer in zip(sent, received, strict=True) if command is not _ASKING]

    async def _follow(self, cluster: WatchedCluster, commands: Sequence[Command], answers: list[Any]) -> None:
        """Replace the answers of nodes that say which other node has the slot. redis-py follows redirections too, but
        sends ASKING on another connection than the command, and now and then closes the connections of all calls."""
        for _ in range(_REDIRECTIONS_MAX):
            moved = [i for i, answer in enumerate(answers) if isinstance(answer, MovedError | TryAgainError)]
            asked = [i for i, answer in enumerate(answers) if type(answer) is AskError]
            if not moved and not asked:
                return
            if any(isinstance(answers[i], TryAgainError) for i in moved):
                await asyncio.sleep(_TRY_AGAIN_S)
            for index in moved:
                if isinstance(answers[index], MovedError):
                    await _note_move(cluster, answers[index])
            await self._again(commands, answers, moved)
            for index in asked:
                await self._again(commands, answers, [index], _node_named(cluster, answers[index]))

    async def _again(
        self, commands: Sequence[Command], answers: list[Any], indexes: Sequence[int], asking: ClusterNode | None = None
    ) -> None:
        """Run some of the commands once more, and replace their answers. `asking`: the node that is to run them while
        their slot is being moved there."""
        if not indexes:
            return
        try:
            again = await self._pipeline([commands[i] for i in indexes], asking, asking=asking is not None)
        except FAILURES as failure:
            again = [failure] * len(indexes)
        for index, answer in zip(indexes, again, strict=True):
            answers[index] = answer

    async def _by_node(self, cluster: WatchedCluster, commands: Sequence[Command]) -> list[Any]:
        await cluster.initialize()
        answers: list[Any] = [None] * len(commands)
        places: dict[str, list[int]] = {}
        for index, command in enumerate(commands):
            try:
                node = cluster.get_node_from_key(_key_of(command))
            except SlotNotCoveredError as error:
                answers[index] = error
                continue
            places.setdefault(node.name if node else "", []).append(index)
        groups = await asyncio.gather(
            *(self._on_node(cluster, [commands[i] for i in place]) for place in places.values())
        )
        for place, group in zip(places.values(), groups, strict=True):
            for index, answer in zip(place, group, strict=True):
                answers[index] = answer
        away = {code_of(answer) for answer in answers if isinstance(answer, Exception)} & _LAYOUT_MOVED
        for code in away:
            self._observer.count(metrics.REDIS_ERRORS, 1, code)
        if away:
            cluster.read_layout_soon(self._timeout_s)
        return answers

    async def _on_node(self, cluster: WatchedCluster, commands: Sequence[Command]) -> list[Any]:
        """The answers, or the node's failure for each command, before the time limit of the whole call."""
        try:
            async with asyncio.timeout(self._timeout_s * 0.8):
                answers = await self._pipeline(commands)
                await self._follow(cluster, commands, answers)
                return answers
        except FAILURES as error:
            return [error] * len(commands)

    async def _note_failure(self, error: Exception) -> None:
        """Prepare the next call to find the primary, which may be another server now."""
        if isinstance(self._client, WatchedCluster):
            self._client.read_layout_soon(self._timeout_s)
        else:
            await leave_demoted(self._client, error)


async def _note_move(cluster: WatchedCluster, error: MovedError) -> None:
    cluster.nodes_manager.slots_cache.setdefault(error.slot_id, [])  # redis-py expects that the layout names the slot
    await cluster.nodes_manager.move_slot(error)


def _node_named(cluster: WatchedCluster, error: AskError) -> ClusterNode:
    """The node that a slot is being moved to."""
    node = cluster.get_node(host=error.host, port=error.port)
    if node is None:
        # It has no slots yet, so the layout does not name it. The client closes the nodes that it knows.
        node = ClusterNode(error.host, error.port, **cluster.connection_kwargs)
        cluster.nodes_manager.nodes_cache[node.name] = node
    return node


def _has_written(answer: Any) -> bool:
    return isinstance(answer, list) and answer[:1] in ([b"OK"], [b"CREATED"])


def _has_key(command: Command) -> bool:
    return command[0] not in _WITHOUT_KEY


def _key_of(command: Command) -> str:
    key = command[3 if command[0] in ("EVAL", "EVALSHA") else 1]
    assert isinstance(key, str)
    return key
