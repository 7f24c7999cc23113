"""Leads a client through a history of the simulation, step by step: a scripted server sends what was recorded, and the
runner takes and acks what the recorded program took and acked.

No step waits for time to pass. Before each message the server waits for the credit that the message needs, and for the
acks that the recorded client had sent by then. The client chooses when to send them, and in how many messages.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import bson
import grpc
from bson import json_util

from feedmux.status import error_from_status
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from tests.conformance.clients.compare import check_error, same_value
from tests.conformance.clients.python_runner import describe_error, describe_notice
from tests.conformance.clients.runners import Runner
from tests.conformance.clients.session_model import SessionModel, events_of, shown
from tests.conformance.clients.steps import REPLY_S, Json
from tests.sim.histories import Acks, Closes, Ends, Fails, History, IsTold, Opens, Receives, Sends, Step, Takes
from tests.sim.network import Status
from tests.unit.client.scripted_server import Call, ScriptedServer

PATIENCE_S: Final = 60.0
OPTIONS: Final = {
    "heartbeat_s": 60.0,
    "ack_interval_s": 0.005,
    "backoff_first_s": 0.005,
    "backoff_most_s": 0.005,
    "open_timeout_s": 120.0,
    "close_timeout_s": 120.0,
}
"""Time decides nothing."""
_STARTS: Final = {"position", "resume_after", "start_after"}


async def replay(runner: Runner, history: History, *, patience_s: float = PATIENCE_S) -> None:
    """Raises AssertionError where the client does something else than the history and docs/protocol.md say."""
    runner.spoken.clear()
    played = _Replay(runner, history, patience_s)
    async with ScriptedServer(played.serve) as server:
        await runner.ask("new", REPLY_S, target=server.address)
        await played.run()
        await runner.ask("reset", REPLY_S)


class _Replay:
    """One history and one client."""

    def __init__(self, runner: Runner, history: History, patience_s: float) -> None:
        self._runner = runner
        self._history = history
        self._patience_s = patience_s
        options = history.options
        self._model = SessionModel(options.window_events, options.window_bytes)
        self._calls: asyncio.Queue[Call] = asyncio.Queue()
        self._ends: dict[Call, asyncio.Future[Status]] = {}
        self._call: Call | None = None
        """The one that is open, or about to be."""
        self._opened: asyncio.Future[Json] | None = None
        """The reply to `open`, as long as nobody has looked at it."""
        self._closed: asyncio.Future[Json] | None = None
        """The reply to `close`."""
        self._acked = 0
        """What the recorded client had acked in this call by now."""
        self._ahead = 0
        """Events that the program has taken before the step in which the recorded one did."""
        self._instance_id = ""
        self._last_opened = wire.Opened()
        self._items: list[Any] = []
        """What the client has handed out: events as bytes, notices as the runner tells them."""
        self._expected: list[Any] = [
            each
            for step in history.steps
            for each in (
                step.events
                if isinstance(step, Takes)
                else [describe_notice(step.notice)]
                if isinstance(step, IsTold)
                else []
            )
        ]

    async def serve(self, call: Call) -> None:
        """The script of every call: it ends when the history says so."""
        end = self._ends[call] = asyncio.get_running_loop().create_future()
        self._calls.put_nowait(call)
        code, details, trailing = await end
        if code is not grpc.StatusCode.OK:
            await call.end(code, details, trailing)

    async def run(self) -> None:
        for number, step in enumerate(self._history.steps):
            try:
                await self._do(step, self._history.steps[number + 1 :][:1])
            except (AssertionError, TimeoutError) as error:
                where = f"{self._history.name}: step {number} ({describe_step(step)})"
                raise self._runner.failed(f"{where}: {error or type(error).__name__}") from error
        await self._check_end()

    async def _do(self, step: Step, following: tuple[Step, ...]) -> None:
        match step:
            case Opens(request):
                await self._opens(request)
            case Receives(message):
                await self._receives(message)
            case Sends(request):
                self._acked = max(self._acked, request.ack.delivery_sequence)
            case Ends(status):
                await self._end(status)
            case Takes(events):
                left = events[self._ahead :]
                self._ahead -= len(events) - len(left)
                await self._take_events(left)
            case IsTold(notice):
                # What follows at once hands it out too.
                if not following or not isinstance(following[0], Takes | IsTold):
                    await self._until_told(describe_notice(notice)["kind"])
            case Acks(number):
                await self._runner.ask("ack", REPLY_S, session="s", event=number)
                self._model.acks(number)
            case Closes():
                await self._knows_of_the_stream()
                self._closed = self._runner.send("close", session="s")
            case Fails(error):
                await self._fails(describe_error(error))

    # The server.

    async def _opens(self, recorded: wire.Open) -> None:
        if not self._instance_id:
            self._opened = self._runner.send("open", session="s", **self._open_command(recorded))
        call = await self._within(self._calls.get(), "a call")
        self._check_open(call, recorded)
        self._call, self._acked = call, 0
        self._instance_id = call.open.instance_id
        self._model.opens(call.open)

    def _check_open(self, call: Call, recorded: wire.Open) -> None:
        asked = call.open
        for name in ("subscription", "takeover", "format", "message_bytes_max"):
            found, wanted = getattr(asked, name), getattr(recorded, name)
            assert found == wanted, f"Open has {name} {found!r}, not {wanted!r}"
        assert asked.feed.database == recorded.feed.database, "another database"
        assert asked.feed.collection == recorded.feed.collection, "another collection"
        # No start is `latest`.
        both_latest = {asked.start.WhichOneof("at"), recorded.start.WhichOneof("at")} <= {None, "latest"}
        same = both_latest or asked.start == recorded.start
        assert same, f"Open has the start {asked.start}, not {recorded.start}"
        assert asked.instance_id, "no instance id"
        assert asked.instance_id == (self._instance_id or asked.instance_id), "another instance id"
        route = self._last_opened.routing_key
        assert not route or call.metadata.get("x-feedmux-route") == route, "another route"
        assert asked.HasField("last_acked") == recorded.HasField("last_acked"), f"last_acked is {asked.last_acked}"
        found_place, place = self._model.place(asked.last_acked), self._model.place(recorded.last_acked)
        assert found_place == place, f"last_acked is {_place(found_place)}, not {_place(place)}"
        epoch = recorded.last_acked.epoch
        assert asked.last_acked.epoch == epoch, f"last_acked has epoch {asked.last_acked.epoch}, not {epoch}"
        least, most = self._model.first_credit()
        credit = asked.credit.events, asked.credit.bytes
        assert all(map(_between, least, credit, most)), f"Open grants {credit}, not from {least} to {most}"

    async def _receives(self, message: bytes) -> None:
        call, model = self._present_call, self._model
        response = wire.SubscribeResponse.FromString(message)
        if call.closed or self._closed is not None:
            # The recorded server had sent it, or was about to, when the client closed.
            await self._is_closed(call)
            if not response.HasField("committed"):
                return
        await self._settled()
        events, size_bytes = model.stream.needs(message)
        await self._until(
            lambda call: all(map(_at_least, self._granted(call), (events, size_bytes))),
            lambda: f"the client has granted {self._granted(call)} and the next message needs {events, size_bytes}",
        )
        self._check_credit()
        if response.HasField("opened") and model.rewinds(response.opened):
            await self._take_begun()
        await call.send(message)
        model.receives(message)
        if response.HasField("opened"):
            self._last_opened = response.opened
            await self._is_opened()

    async def _is_closed(self, call: Call) -> None:
        """The client has sent Close; or, of a feed, it has ended the call without having read Opened."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(call.until_closed())]
        if not call.open.subscription:
            waits.append(asyncio.create_task(call.ended.wait()))
        try:
            done, _ = await asyncio.wait(waits, timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED)
            assert done, "Close has not come"
        finally:
            for each in waits:
                each.cancel()

    async def _settled(self) -> None:
        """The client has sent all acks that the recorded one had sent, and none of what was not processed."""
        call = self._present_call
        await self._until(lambda call: call.acked >= self._acked, lambda: f"acked {call.acks}, not up to {self._acked}")
        self._check_acks()

    def _check_acks(self) -> None:
        call = self._present_call
        assert call.acks == sorted(set(call.acks)), f"acks that are no news: {call.acks}"
        most = self._model.acked_sequence
        assert call.acked <= most, f"acked {call.acked}, and the user up to {most}"

    def _check_credit(self) -> None:
        call, most = self._present_call, self._model.most_credit
        granted = call.granted_events, call.granted_bytes
        assert all(map(_at_least, most, granted)), f"granted {granted}, not {most} at most"

    def _granted(self, call: Call) -> tuple[int, int]:
        """All credit of a call, as far as the server's limits let it count."""
        credit = call.open.credit
        events, size_bytes = self._model.stream.limited(credit.events, credit.bytes)
        return (
            events + sum(events for events, _ in call.credits),
            size_bytes + sum(size for _, size in call.credits),
        )

    async def _end(self, status: Status) -> None:
        call = self._present_call
        if self._closed is not None:
            await self._is_closed(call)
            if call.ended.is_set():
                return
        await self._settled()
        self._check_credit()
        error = error_from_status(*status) if status[0] is not grpc.StatusCode.OK else None
        if error is not None and error.reason == "FENCED" and error.metadata.get("cause") == "SEEK":
            await self._take_begun()
            self._model.forget()
        self._ends[call].set_result(status)

    # The program.

    def _open_command(self, recorded: wire.Open) -> Json:
        options = self._history.options
        fields: Json = {
            "raw": True,
            "takeover": recorded.takeover,
            "options": OPTIONS
            | {
                "window_events": options.window_events,
                "window_bytes": options.window_bytes,
                "message_bytes_max": options.message_bytes_max,
                "format": options.format,
            },
        }
        if recorded.subscription:
            return fields | {"subscription": recorded.subscription}
        return fields | {"feed": _feed(recorded.feed), "start": _start(recorded.start)}

    async def _knows_of_the_stream(self) -> None:
        """A client that closes before it has read Opened sends no Close. A feed has no epoch that would tell."""
        if not self._present_call.open.subscription:
            return
        async with asyncio.timeout(self._patience_s):
            while (await self._runner.ask("state", REPLY_S, session="s"))["epoch"] != self._last_opened.epoch:
                await asyncio.sleep(0.005)

    async def _is_opened(self) -> None:
        if self._opened is not None:
            reply = await self._within(self._opened, "the reply to open")
            assert "error" not in reply, f"not opened: {reply['error']}"
            self._opened = None

    async def _take(self, **until: Any) -> Json:
        reply = await self._runner.ask(
            "take", REPLY_S + self._patience_s, session="s", timeout_s=self._patience_s, report=["raw"], **until
        )
        items = [item for item in reply["items"] if item.get("notice", {}).get("kind") != "disconnected"]
        for item in items:
            at = len(self._items)
            self._items.append(base64.b64decode(item["event"]["raw"]) if "event" in item else item["notice"])
            found = self._items[-1]
            assert at < len(self._expected), f"handed out {_shown(found)}, and nothing was to come"
            wanted = self._expected[at]
            assert _same(found, wanted), f"handed out {_shown(found)}, not {_shown(wanted)}"
        assert "count" not in until or reply["outcome"] == "enough", f"not enough: {reply}"[:2000]
        return reply

    async def _take_events(self, events: Sequence[bytes]) -> None:
        if events:
            await self._take(count=len(events))
            self._model.takes(events)

    async def _take_begun(self) -> None:
        """Takes the rest of a message of which an event has been taken, where the recorded program was handed it.

        Where the position was moved, a client may hand that out or forget it.
        """
        expected = self._expected[len(self._items) :]
        rest = [data for data, item in zip(self._model.begun, expected, strict=False) if data == item]
        await self._take_events(rest)
        self._ahead += len(rest)

    async def _until_told(self, kind: str) -> None:
        at = len(self._items)
        # An error may follow at once, and end the command before the notice does.
        reply = await self._take(until_notice=kind)
        assert len(self._items) > at, f"not told: {reply}"[:2000]

    async def _fails(self, wanted: Json) -> None:
        named = {name: wanted[name] for name in ("type", "reason", "status")}
        named |= {"metadata": wanted["metadata"]} if wanted["metadata"] else {}
        named |= {name: wanted[name] for name in ("position", "resume_token") if name in wanted}
        if self._opened is not None:
            reply = await self._within(self._opened, "the reply to open")
            assert "error" in reply, "opened, and should not be"
            check_error(reply["error"], named)
            return
        reply = await self._take()
        assert reply["outcome"] == "error", f"not an error: {reply}"[:2000]
        check_error(reply["error"], named)

    async def _check_end(self) -> None:
        if self._closed is not None:
            reply = await self._within(self._closed, "the reply to close")
            assert "error" not in reply, f"not closed: {reply['error']}"
            reply = await self._take()
            assert reply["outcome"] == "closed", f"not closed: {reply}"[:2000]
        assert self._calls.empty(), "the client has made another call"
        missing = self._expected[len(self._items) :]
        assert not missing, f"never handed out {_shown(missing[0])}"

    # Waiting.

    @property
    def _present_call(self) -> Call:
        assert self._call is not None
        return self._call

    async def _until(self, reached: Callable[[Call], bool], saying: Callable[[], str]) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._present_call.until(reached)
        except TimeoutError:
            raise AssertionError(saying()) from None

    async def _within(self, what: Awaitable[Any], name: str) -> Any:
        try:
            async with asyncio.timeout(self._patience_s):
                return await what
        except TimeoutError:
            raise AssertionError(f"{name} has not come") from None


def describe_step(step: Step) -> str:
    """In a few words."""
    match step:
        case Receives(message):
            response = wire.SubscribeResponse.FromString(message)
            kind = response.WhichOneof("message")
            return f"Receives {kind} of {len(events_of(response))} events" if kind == "batch" else f"Receives {kind}"
        case Takes(events):
            return f"Takes {len(events)} events"
        case Ends((code, details, _)):
            return f"Ends {code.name} {details}"
        case Opens():
            return "Opens"
        case _:
            return repr(step)


def _between(least: int, found: int, most: int) -> bool:
    return least <= found <= most


def _at_least(found: int, least: int) -> bool:
    return found >= least


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, bytes) or isinstance(wanted, bytes):
        return bool(found == wanted)
    return found.keys() == wanted.keys() and all(same_value(found[name], wanted[name]) for name in wanted)


def _shown(item: Any) -> str:
    return shown(item) if isinstance(item, bytes) else str(item)


def _place(token: bytes) -> str:
    return str(bson.decode(token)["_data"]) if token[4:5] == b"\x02" else token.hex()


def _feed(feed: feed_pb2.Feed) -> Json:
    fields: Json = {"database": feed.database}
    if feed.collection:
        fields["collection"] = feed.collection
    if feed.pipeline.bson:
        stages = bson.decode(feed.pipeline.bson)["pipeline"]
        fields["pipeline"] = json.loads(json_util.dumps(stages, json_options=json_util.CANONICAL_JSON_OPTIONS))
    return fields


def _start(start: feed_pb2.Start) -> Json | None:
    kind = start.WhichOneof("at")
    if kind is None:
        return None
    assert kind in _STARTS, f"the simulation has begun to start feeds at {kind}"
    return {kind: base64.b64encode(getattr(start, kind)).decode()}
