"""Plays one run of a scenario: each step is a method here. README.md lists them for those who write scenarios.

The client is reached through its runner only, MongoDB and the server directly, the network between them by the proxy.
"""

import asyncio
import base64
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
from bson import json_util
from bson.timestamp import Timestamp

from feedmux.v1 import feed_pb2, operator_pb2, subscriptions_pb2
from tests.client import scripted_server
from tests.client.scripted_server import Call
from tests.conformance.clients.compare import differences, label, same_value
from tests.conformance.clients.runners import Runner
from tests.conformance.clients.scenario import Case, one_step
from tests.conformance.clients.worlds import Stage
from tests.integration.servers import until
from tests.integration.wire import at, feed

PATIENCE_S = 20.0
"""How long the client has for anything: much more than it takes, because machines are slow."""
REPLY_S = 30.0
QUICK = {"backoff_first_s": 0.02, "backoff_most_s": 0.1, "ack_interval_s": 0.02, "open_timeout_s": 15.0}
"""Options that let scenarios end soon; a scenario's own win."""
NOTICES = {"draining", "rewound", "history_at_risk", "gap", "degraded", "disconnected"}
Json = dict[str, Any]


@dataclass(slots=True)
class Seat:
    """A session of the client: what it was asked for and what it handed out."""

    asked: int = 0
    events: list[Json] = field(default_factory=list)
    notices: list[Json] = field(default_factory=list)
    error: Json | None = None


class Play:
    """One run."""

    def __init__(self, stage: Stage, runner: Runner, case: Case) -> None:
        self._stage, self._runner, self._case = stage, runner, case
        self._seats: dict[str, Seat] = {}
        self._marks: dict[str, Json] = {}
        """Starts with a name, as the runner takes them; `begin` is where the scenario began."""

    async def run(self) -> None:
        """Raises AssertionError where the client did something else than the scenario says."""
        stage = self._stage
        self._runner.spoken.clear()
        if stage.sites:
            now = await stage.api.resolve(feed(stage.documents.name), at(latest=feed_pb2.Latest()))
            self._marks["begin"] = {"operation_time": [now.cluster_time.seconds, now.cluster_time.increment]}
        await self.new()
        await self.all(self._case.steps)

    async def all(self, steps: Sequence[Any]) -> None:
        """Steps one after another."""
        for step in steps:
            verb, argument = one_step(step)
            act: Callable[..., Awaitable[None]] = getattr(self, verb)
            try:
                await self._call(act, argument)
            except (AssertionError, TimeoutError) as error:
                raise self._runner.failed(f"step {step!r}: {error or type(error).__name__}") from error

    async def _call(self, act: Callable[..., Awaitable[None]], argument: Any) -> None:
        if isinstance(argument, Mapping):
            inspect.signature(act).bind(**argument)
            await act(**argument)
        else:
            await (act() if argument is None else act(argument))

    # --- The client.

    async def new(self, **fields: Any) -> None:
        """A fresh client; `fields` of the runner's command instead of the stage's."""
        self._seats.clear()
        await self._ask("new", **self._worded({**self._stage.client, **fields}))

    async def open(
        self,
        subscription: str | None = None,
        *,
        session: str = "s",
        feed: Json | None = None,
        start: Any = None,
        options: Json | None = None,
        error: Json | None = None,
        within_s: float | None = None,
        at_least_s: float | None = None,
        meanwhile: Sequence[Any] = (),
        **more: Any,
    ) -> None:
        fields: Json = {"options": QUICK | (options or {}), **more}
        if feed is None:
            fields["subscription"] = self._stage.real_name(subscription or "sub")
        else:
            fields |= {"feed": self._feed(feed), "start": self._start(start)}
        self._seats[session] = Seat()
        began_s = time.monotonic()
        reply = await self._beside(meanwhile, "open", session=session, **fields)
        took_s = time.monotonic() - began_s
        if error is None:
            assert "error" not in reply, f"not opened: {reply['error']}"
        else:
            assert "error" in reply, "opened, and should not be"
            self._check_error(reply["error"], error)
            self._seats[session].error = reply["error"]
        assert within_s is None or took_s <= within_s, f"took {took_s:.1f} s"
        assert at_least_s is None or took_s >= at_least_s, f"took only {took_s:.1f} s"

    async def take(
        self,
        expect: Sequence[Any] | None = None,
        *,
        session: str = "s",
        count: int | None = None,
        items: Sequence[Any] | None = None,
        notices: Sequence[Any] | None = None,
        until_notice: str | None = None,
        outcome: str | Sequence[str] | None = None,
        error: Json | None = None,
        timeout_s: float = PATIENCE_S,
        at_least_s: float | None = None,
        report: Sequence[str] = ("document",),
        window: int | None = None,
        meanwhile: Sequence[Any] = (),
    ) -> None:
        seat = self._seats[session]
        wanted = (
            ["error"]
            if error
            else ["enough"]
            if outcome is None
            else [outcome]
            if isinstance(outcome, str)
            else list(outcome)
        )
        if items is not None:
            expect = [each for each in items if not isinstance(each, Mapping)]
            if isinstance(items[-1], Mapping):
                until_notice = _kind(items[-1])
        expect = [expect] if isinstance(expect, int | str) else expect
        if count is None and expect is not None:
            # One more than there are, where something else than their number is to end it.
            count = len(expect) + (wanted != ["enough"] or until_notice is not None)
        seat.asked += count or 0
        began_s = time.monotonic()
        answer = await self._beside(
            meanwhile,
            "take",
            session=session,
            count=count,
            until_notice=until_notice,
            timeout_s=timeout_s,
            report=list(report),
        )
        took_s = time.monotonic() - began_s
        assert "error" not in answer, f"a take fails only in its outcome: {answer['error']}"
        reply = answer["ok"]
        events = [item["event"] for item in reply["items"] if "event" in item]
        heard = [item["notice"] for item in reply["items"] if "notice" in item]
        seat.events += events
        seat.notices += heard
        labels = [label(event) for event in events] if "document" in report else [None] * len(events)
        told = f"; outcome {reply['outcome']}, {reply.get('error')}, events {labels}, notices {heard}"
        assert reply["outcome"] in wanted, f"not {' or '.join(wanted)}{told}"
        if expect is not None and "document" in report:
            assert labels == list(expect), f"events are {labels}, not {list(expect)}{told}"
        elif expect is not None:
            assert len(events) == len(expect), f"{len(events)} events{told}"
        if notices is not None:
            _check_notices(heard, notices)
        if items is not None:
            self._check_items(reply["items"], items)
        if error is not None:
            self._check_error(reply["error"], error)
            seat.error = reply["error"]
        if window is not None:
            self._check_window(seat, window)
        assert at_least_s is None or took_s >= at_least_s, f"took only {took_s:.1f} s"

    async def ack(self, event: int | None = None, *, session: str = "s") -> None:
        await self._ask("ack", session=session, event=event)

    async def close(self, *, session: str = "s", timeout_s: float | None = None, within_s: float | None = None) -> None:
        began_s = time.monotonic()
        await self._ask("close", session=session, timeout_s=timeout_s)
        took_s = time.monotonic() - began_s
        assert within_s is None or took_s <= within_s, f"took {took_s:.1f} s"

    async def cancel(self, *, session: str = "s") -> None:
        await self._ask("cancel", session=session)

    async def state(self, *, session: str = "s", within_s: float = PATIENCE_S, **wanted: Any) -> None:
        """Waits until what the session shows is what is `wanted`.

        `at` is an event's number (scripted), `behind` a mark's name: the place has moved on from there; `committed`:
        something is; other names are compared.
        """
        shown: Json = {}

        async def right() -> bool:
            shown.update(await self._ask("state", session=session))
            return all(self._shows(shown, name, value) for name, value in wanted.items())

        try:
            await until(right, within_s)
        except TimeoutError:
            raise AssertionError(f"the session shows {shown}") from None

    async def mark(self, name: str, *, session: str = "s") -> None:
        """Remembers the session's position."""
        self._marks[name] = {"position": (await self._ask("state", session=session))["position"]}

    async def exact(self, *, session: str = "s", count: int, as_json: bool = False) -> None:
        """The last `count` events reported are, byte by byte and value by value, what MongoDB sent."""
        reported = self._seats[session].events[-count:]
        fields = {"format": feed_pb2.FORMAT_EXTENDED_JSON_CANONICAL} if as_json else {}
        receiver = self._stage.api.watch(
            feed(self._stage.documents.name), self._marked("begin"), message_bytes_max=64 << 20, **fields
        )
        sent = await receiver.take(count)
        receiver.cancel()
        for event, original in zip(reported, sent, strict=True):
            document = json_util.loads(original.data.decode()) if as_json else original.document
            if "raw" in event:
                assert base64.b64decode(event["raw"]) == original.data, "not the bytes that MongoDB sent"
            if "token" in event:
                assert bson.decode(base64.b64decode(event["token"])) == document["_id"], "not the resume token"
            if "document" in event:
                text = json_util.dumps(document, json_options=json_util.CANONICAL_JSON_OPTIONS)
                assert not (wrong := differences(event["document"], json.loads(text))), wrong

    # --- The server and MongoDB.

    async def subscription(
        self,
        name: str = "sub",
        *,
        start: str = "begin",
        pipeline: Any = None,
        batch_size: int = 0,
        **policies: Any,
    ) -> None:
        content = {key: f"{key.upper()}_{value.upper()}" for key, value in policies.items()}
        watched = self._feed_message(pipeline)
        watched.batch_size = batch_size
        await self._stage.api.create(self._stage.real_name(name), watched, self._marked(start), **content)

    async def insert(
        self,
        numbers: Sequence[int] | int = (),
        *,
        collection: str = "c",
        pad: int = 0,
        documents: Sequence[Any] | None = None,
    ) -> None:
        chosen = [numbers] if isinstance(numbers, int) else numbers
        made = [{"n": number, "pad": "x" * pad} for number in chosen]
        given = [json_util.loads(json_util.dumps(each)) for each in documents or ()]
        self._stage.documents[collection].insert_many([*made, *given])

    async def drop(self, collection: str = "c") -> None:
        self._stage.documents.drop_collection(collection)

    async def seek(self, to: str, *, subscription: str = "sub") -> None:
        await self._stage.api.seek(self._stage.real_name(subscription), self._marked(to))

    async def update(self, subscription: str = "sub", *, pipeline: Any) -> None:
        await self._stage.api.update(
            name=self._stage.real_name(subscription), feed=self._feed_message(pipeline), paths=["feed"]
        )

    async def delete(self, subscription: str = "sub") -> None:
        await self._stage.api.delete(self._stage.real_name(subscription))

    async def end_by_operator(self, subscription: str = "sub") -> None:
        found = await self._subscriber(subscription)
        assert found is not None, "nobody to end"
        await self._stage.api.operator.EndSubscriber(operator_pb2.EndSubscriberRequest(subscriber_id=found.id))

    async def sent(
        self, subscription: str = "sub", *, at_least: int = 0, at_most: int | None = None, unacked: int | None = None
    ) -> None:
        """How much the server has sent to the subscriber, once it is `at_least` so much."""
        shown: list[Any] = []

        async def enough() -> bool:
            shown[:] = [await self._subscriber(subscription)]
            return shown[0] is not None and shown[0].events_sent >= at_least

        await until(enough, PATIENCE_S)
        assert at_most is None or shown[0].events_sent <= at_most, f"{shown[0].events_sent} events were sent"
        assert unacked is None or shown[0].events_unacked == unacked, f"{shown[0].events_unacked} are not acked"

    async def stored(self, event: int, *, session: str = "s", subscription: str = "sub") -> None:
        """Waits until the stored position is that behind the `event`th event handed out, or later with none between."""
        reported = self._seats[session].events[event - 1]
        wanted = json_util.loads(json_util.dumps(reported["document"]["clusterTime"]))
        assert isinstance(wanted, Timestamp)

        async def there() -> bool:
            stored = (await self._stage.api.get(self._stage.real_name(subscription))).cluster_time
            return bool((stored.seconds, stored.increment) >= (wanted.time, wanted.inc))

        await until(there, PATIENCE_S)

    async def active(self, wanted: bool, *, subscription: str = "sub") -> None:
        """Waits until the server says that the subscription has a session, or none."""

        async def right() -> bool:
            found: subscriptions_pb2.Subscription = await self._stage.api.get(self._stage.real_name(subscription))
            return found.active is wanted

        await until(right, PATIENCE_S)

    async def drain(self) -> None:
        """The first server begins to drain; whoever connects from now on meets the second."""
        first, second = self._stage.sites
        self._stage.proxy.target = second.api.data_port
        self._stage.sites = [second, first]
        first.here.stop()

    # --- The scripted server.

    async def call(
        self,
        number: int,
        *,
        ended: bool | None = None,
        granted_at_least: int | None = None,
        same_instance: int | None = None,
        **asked: Any,
    ) -> None:
        """Waits for the call of that number (from 1) and looks at its Open: what is named must be as said.

        `same_instance`: the number of a call with the same instance id.
        """
        call = await self._stage.server.call(number - 1)
        if same_instance is not None:
            earlier = await self._stage.server.call(same_instance - 1)
            assert call.open.instance_id == earlier.open.instance_id != "", "another instance id"
        for name, wanted in asked.items():
            found = _ASKED[name](call)
            assert same_value(found, wanted), f"call {number}: {name} is {found!r}, not {wanted!r}"
        async with asyncio.timeout(PATIENCE_S):
            if granted_at_least is not None:
                await call.until(lambda call: call.granted_events >= granted_at_least)
            if ended:
                await call.ended.wait()

    async def calls(self, count: int) -> None:
        """There were so many calls, and no more."""
        assert len(self._stage.server.calls) == count, f"{len(self._stage.server.calls)} calls"

    async def acked(self, sequence: int, *, call: int = 1, exactly: bool = True) -> None:
        """Waits until the server of that call has got this ack; never a higher one."""
        there = await self._stage.server.call(call - 1)
        async with asyncio.timeout(PATIENCE_S):
            await there.until_acked(sequence)
        assert not exactly or there.acked == sequence, f"acked {there.acked}"
        assert there.acks == sorted(set(there.acks)), f"acks that are no news: {there.acks}"

    # --- The network.

    async def cut(self) -> None:
        self._stage.proxy.cut()

    async def cut_after(self, size: int) -> None:
        """The connection that carries the next so many bytes to the client is cut in the middle of them."""
        self._stage.proxy.cut_after_bytes = size

    async def refuse(self, refusing: bool) -> None:
        self._stage.proxy.refuse(refusing)

    async def freeze(self) -> None:
        self._stage.proxy.freeze()

    async def thaw(self) -> None:
        self._stage.proxy.thaw()

    async def slow(self, *, bytes_per_s: int = 0, delay_s: float = 0.0) -> None:
        self._stage.proxy.bytes_per_s, self._stage.proxy.delay_s = bytes_per_s, delay_s

    async def pause_s(self, seconds: float) -> None:
        """Only to let the client do what it should not, or try something that cannot work yet."""
        await asyncio.sleep(seconds)

    # --- Helpers.

    async def _ask(self, do: str, **fields: Any) -> Json:
        return await self._runner.ask(do, REPLY_S, **fields)

    async def _beside(self, meanwhile: Sequence[Any], do: str, **fields: Any) -> Json:
        """The whole reply to a command, while steps run beside it."""
        waiting = asyncio.create_task(self._runner.attempt(do, REPLY_S + PATIENCE_S, **fields))
        try:
            await self.all(meanwhile)
            return await waiting
        finally:
            waiting.cancel()

    async def _subscriber(self, name: str) -> operator_pb2.Subscriber | None:
        response = await self._stage.api.operator.ListSharedStreams(operator_pb2.ListSharedStreamsRequest())
        everyone = [
            *response.detached_subscribers,
            *(one for each in response.shared_streams for one in each.subscribers),
        ]
        found = [each for each in everyone if each.subscription == self._stage.real_name(name)]
        return found[0] if found else None

    def _worded(self, node: Any) -> Any:
        match node:
            case dict():
                return {key: self._worded(value) for key, value in node.items()}
            case list():
                return [self._worded(each) for each in node]
            case str() if node.startswith("@"):
                return self._stage.world.words[node[1:]]()
        return node

    def _feed(self, given: Json) -> Json:
        if self._stage.database is None:
            return {"database": "d", "collection": "c", **given}
        return {"database": self._stage.database.name, "collection": "c", **given}

    def _feed_message(self, pipeline: Any) -> feed_pb2.Feed:
        return feed(self._stage.documents.name, "c", json_util.dumps(pipeline) if pipeline else "")

    def _marked(self, name: str) -> feed_pb2.Start:
        """A mark for the server."""
        match self._marks[name]:
            case {"operation_time": [seconds, increment]}:
                return at(start_at_operation_time=feed_pb2.ClusterTime(seconds=seconds, increment=increment))
            case {"position": position}:
                return at(position=base64.b64decode(position))
        raise ValueError(f"no mark {name}")

    def _start(self, start: Any) -> Any:
        match start:
            case {"mark": name}:
                return self._marks[name]
            case {"error_position": session}:
                return {"position": (self._seats[session].error or {})["position"]}
            case {"error_token": session}:
                return {"start_after": (self._seats[session].error or {})["resume_token"]}
            case {"resume_after_event": int(number)}:
                return {"resume_after": self._seats["s"].events[number - 1]["token"]}
        return start

    def _shows(self, shown: Json, name: str, wanted: Any) -> bool:
        match name:
            case "at":
                return bool(shown["position"] == base64.b64encode(b"P%d" % wanted).decode())
            case "token_at":
                return shown["resume_token"] is not None and bson.decode(
                    base64.b64decode(shown["resume_token"])
                ) == scripted_server.token(wanted)
            case "moved_from":
                return shown["position"] not in ("", self._marks[wanted]["position"])
            case "committed":
                return bool(shown["committed"]) is wanted
        return bool(shown[name] == wanted)

    def _check_error(self, error: Json, wanted: Json) -> None:
        for name, value in wanted.items():
            found = error.get(name)
            if value is None:
                continue
            if name in ("position", "resume_token") and value is True:
                assert found, f"the error has no {name}: {error}"
            elif isinstance(value, Mapping):
                assert isinstance(found, Mapping), f"{name} is {found!r}"
                assert value.items() <= found.items(), f"{name} is {found!r}, not {value!r}"
            else:
                assert same_value(found, value), f"{name} is {found!r}, not {value!r}: {error}"

    def _check_items(self, found: Sequence[Json], wanted: Sequence[Any]) -> None:
        expected = [_kind(each) if isinstance(each, Mapping) else each for each in wanted]
        shown = [_kind(item) if "notice" in item else label(item["event"]) for item in found]
        shown = [each for each in shown if each in expected or each not in NOTICES]
        assert shown == expected, f"{shown}, not {expected}"

    def _check_window(self, seat: Seat, window: int) -> None:
        granted = sum(call.granted_events for call in self._stage.server.calls)
        assert granted <= seat.asked + window, f"granted {granted} with {seat.asked} taken and a window of {window}"


def _kind(item: Mapping[str, Any]) -> str:
    """The kind of a notice, as reported or as a scenario names it."""
    notice = item["notice"]
    return notice if isinstance(notice, str) else str(notice["kind"])


def _check_notices(found: Sequence[Json], wanted: Sequence[Any]) -> None:
    expected = [{"kind": each} if isinstance(each, str) else each for each in wanted]
    kinds = {each["kind"] for each in expected}
    shown = [each for each in found if each["kind"] in kinds]
    assert len(shown) == len(expected), f"notices are {found}, not {expected}"
    for notice, named in zip(shown, expected, strict=True):
        for name, value in named.items():
            if value is None:
                continue
            assert same_value(notice.get(name), value), f"{name} of {notice} is not {value!r}"


_ASKED: dict[str, Callable[[Call], Any]] = {
    "subscription": lambda call: call.open.subscription,
    "collection": lambda call: call.open.feed.collection,
    "pipeline": lambda call: bool(call.open.feed.pipeline.WhichOneof("notation")),
    "start": lambda call: call.open.start.WhichOneof("at"),
    "start_position": lambda call: call.open.start.position.decode(),
    "format": lambda call: feed_pb2.Format.Name(call.open.format),
    "last_acked": lambda call: _last_acked(call),
    "last_acked_epoch": lambda call: call.open.last_acked.epoch,
    "takeover": lambda call: call.open.takeover,
    "credit_events": lambda call: call.open.credit.events,
    "credit_bytes": lambda call: call.open.credit.bytes,
    "message_bytes_max": lambda call: call.open.message_bytes_max,
    "heartbeat_s": lambda call: call.open.heartbeat_interval.ToMilliseconds() / 1000,
    "authorization": lambda call: call.metadata.get("authorization"),
    "route": lambda call: call.metadata.get("x-feedmux-route"),
    "closed": lambda call: call.closed,
}


def _last_acked(call: Call) -> int | None:
    """The number of the event whose place it is."""
    if not call.open.HasField("last_acked"):
        return None
    place = call.open.last_acked
    if place.WhichOneof("place") == "position":
        return int(place.position[1:])
    return int(str(bson.decode(place.resume_token)["_data"])[2:10], 16) - 1000
