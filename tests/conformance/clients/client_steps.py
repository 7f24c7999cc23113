"""Steps of the client: commands to its runner, and the expected reports."""

import asyncio
import base64
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import bson
from bson import json_util

from feedmux.options import SESSION_CODEC
from feedmux.v1 import feed_pb2
from tests.conformance.clients.compare import check_error, check_items, check_notices, differences, kind, label
from tests.conformance.clients.server_steps import ANY_DATE, ServerSteps
from tests.conformance.clients.steps import REPLY_S, Json, SessionRecord
from tests.integration.servers import until
from tests.integration.wire import feed as feed_message
from tests.unit.client import scripted_server

QUICK = {"backoff_first_s": 0.02, "backoff_most_s": 0.1, "ack_interval_s": 0.02}
"""Options that let scenarios end soon; a scenario's own win."""
PATIENT = {"open_timeout_s": 120.0, "close_timeout_s": 60.0}
"""Options by which no client gives up on a slow machine, nor …"""
SCRIPTED = {"heartbeat_s": 60.0}
"""… leaves a scripted server that has not said anything yet."""


class ClientSteps(ServerSteps):
    """The client is reached through its runner only."""

    async def new(self, **fields: Any) -> None:
        """A fresh client; `fields` of the runner's command instead of the stage's."""
        self._records.clear()
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
        meanwhile: Sequence[Any] = (),
        **more: Any,
    ) -> None:
        patient = PATIENT if self._stage.scripted is None else PATIENT | SCRIPTED
        fields: Json = {"options": QUICK | patient | (options or {}), **more}
        if feed is None:
            fields["subscription"] = self._stage.real_name(subscription or "sub")
        else:
            fields |= {"feed": self._feed(feed), "start": self._start(start)}
        await self._open("open", session, error, meanwhile, fields)

    async def join(self, *, error: Json | None = None) -> None:
        """A session as a member of a group."""
        fields = {"subscription": self._stage.real_name("sub"), "options": QUICK | PATIENT}
        await self._open("join", "s", error, (), fields)

    async def _open(self, do: str, session: str, error: Json | None, meanwhile: Sequence[Any], fields: Json) -> None:
        self._records[session] = SessionRecord()
        reply = await self._beside(meanwhile, do, session=session, **fields)
        if error is None:
            assert "error" not in reply, f"not opened: {reply['error']}"
        else:
            assert "error" in reply, "opened, and should not be"
            check_error(reply["error"], error)
            self._records[session].error = reply["error"]

    async def create(
        self,
        subscription: str = "sub",
        *,
        start: Any = None,
        on_history_lost: str | None = None,
        copied: int | None = None,
        error: Json | None = None,
    ) -> None:
        """The client creates a subscription. `copied`: the documents of its copy so far; null where it has none."""
        fields = {"feed": self._feed({}), "start": self._start(start), "on_history_lost": on_history_lost}
        reply = await self._call_of("create", error, subscription=self._stage.real_name(subscription), **fields)
        assert error or reply.get("copied") == copied, f"{reply}, not {copied}"

    async def move(
        self, subscription: str = "sub", *, to: Any, copied: int | None = None, error: Json | None = None
    ) -> None:
        """The client moves the stored position."""
        fields = {"subscription": self._stage.real_name(subscription), "start": self._start(to)}
        reply = await self._call_of("seek", error, **fields)
        assert error or reply.get("copied") == copied, f"{reply}, not {copied}"

    async def resolve(self, start: Any, *, mark: str = "", error: Json | None = None) -> None:
        """The client asks for the position of a start, which gets a name."""
        reply = await self._call_of("resolve", error, feed=self._feed({}), start=self._start(start))
        if error is None:
            self._marks[mark] = {"position": reply["position"]}

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
        timeout_s: float | None = None,
        at_least_s: float | None = None,
        report: Sequence[str] = ("document",),
        snapshot: bool | None = None,
        generation: int | None = None,
        covers: Sequence[Any] | None = None,
        window: int | None = None,
        attempts: Sequence[int] | None = None,
        meanwhile: Sequence[Any] = (),
    ) -> None:
        """`snapshot`: whether the events are documents of a copy. `generation`: that of their batches. `covers`: these
        events come in any order, once or more: what a copy brings again has its content at a later time, and is no
        repeat."""
        record = self._records[session]
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
                until_notice = kind(items[-1])
        expect = [expect] if isinstance(expect, int | str) else expect
        if count is None and expect is not None:
            # One more than there are, where something else than their number is to end it.
            count = len(expect) + (wanted != ["enough"] or until_notice is not None)
        if snapshot is not None:
            report = [*report, "snapshot"]
        if generation is not None:
            report = [*report, "generation"]
        if attempts is not None:
            report = [*report, "attempt"]
        record.asked += count or 0
        began_s = time.monotonic()
        answer = await self._beside(
            meanwhile,
            "take",
            session=session,
            count=count,
            until_notice=until_notice,
            timeout_s=self._patience_s if timeout_s is None else timeout_s,
            report=list(report),
        )
        took_s = time.monotonic() - began_s
        assert "error" not in answer, f"a take fails only in its outcome: {answer['error']}"
        reply = answer["ok"]
        events = [item["event"] for item in reply["items"] if "event" in item]
        heard = [item["notice"] for item in reply["items"] if "notice" in item]
        record.events += events
        record.notices += heard
        labels = [label(event) for event in events] if "document" in report else [None] * len(events)
        told = f"; outcome {reply['outcome']}, {reply.get('error')}, events {labels}, notices {heard}"
        assert reply["outcome"] in wanted, f"not {' or '.join(wanted)}{told}"
        if expect is not None and "document" in report:
            assert labels == list(expect), f"events are {labels}, not {list(expect)}{told}"
        elif expect is not None:
            assert len(events) == len(expect), f"{len(events)} events{told}"
        if covers is not None:
            assert set(labels) == set(covers), f"events are {labels}, not {list(covers)}{told}"
        if snapshot is not None:
            assert {event["snapshot"] for event in events} == {snapshot}, f"not all are {snapshot=}{told}"
        if generation is not None:
            assert {event["generation"] for event in events} == {generation}, f"not all are {generation=}{told}"
        if attempts is not None:
            assert [event["attempt"] for event in events] == list(attempts), f"not the attempts {attempts}{told}"
        if notices is not None:
            check_notices(heard, notices)
        if items is not None:
            check_items(reply["items"], items)
        if error is not None:
            check_error(reply["error"], error)
            record.error = reply["error"]
        if window is not None:
            self._check_window(record, window)
        assert at_least_s is None or took_s >= at_least_s, f"took only {took_s:.1f} s"

    async def take_until(self, event: Any, *, covers: Sequence[Any], session: str = "s") -> None:
        """Takes until this event comes, and checks what came as `take` does."""
        labels: list[Any] = []
        while event not in labels:
            reply = await self._ask("take", session=session, count=1, timeout_s=self._patience_s, report=["document"])
            assert reply["outcome"] == "enough", f"{reply['outcome']} after {labels}: {reply.get('error')}"
            events = [item["event"] for item in reply["items"] if "event" in item]
            self._records[session].events += events
            labels += map(label, events)
        assert set(labels) == set(covers), f"events are {labels}, not {list(covers)}"

    async def ack(self, event: int | None = None, *, session: str = "s", error: Json | None = None) -> None:
        await self._call_of("ack", error, session=session, event=event)

    async def settle(self, event: int, *, session: str = "s", how: str = "ack", **arguments: Any) -> None:
        """A member settles one of its events: `ack`, `nack`, `reject`."""
        await self._ask("settle", session=session, event=event, how=how, **arguments)

    async def close(self, *, session: str = "s") -> None:
        await self._ask("close", session=session, timeout_s=None)

    async def close_client(self) -> None:
        await self._ask("close_client")

    async def cancel(self, *, session: str = "s") -> None:
        await self._ask("cancel", session=session)

    async def state(self, *, session: str = "s", **wanted: Any) -> None:
        """Waits until what the session shows is what is `wanted`.

        `at` is an event's number (scripted), `behind` a mark's name: the place has moved on from there; `committed`:
        something is; other names are compared.
        """
        shown: Json = {}

        async def right() -> bool:
            shown.update(await self._ask("state", session=session))
            return all(self._shows(shown, name, value) for name, value in wanted.items())

        try:
            await until(right, self._patience_s)
        except TimeoutError:
            raise AssertionError(f"the session shows {shown}") from None

    async def mark(self, name: str, *, session: str = "s") -> None:
        """Remembers the session's position."""
        self._marks[name] = {"position": (await self._ask("state", session=session))["position"]}

    async def exact(self, *, session: str = "s", count: int, after: int = 0, as_json: bool = False) -> None:
        """The last `count` events are, byte by byte and value by value, what MongoDB sent after `after` others."""
        reported = self._records[session].events[-count:]
        fields = {"format": feed_pb2.FORMAT_EXTENDED_JSON_CANONICAL} if as_json else {}
        receiver = self._stage.api.watch(
            feed_message(self._stage.documents.name), self._marked("begin"), message_bytes_max=64 << 20, **fields
        )
        sent = (await receiver.take(after + count))[after:]
        receiver.cancel()
        for event, original in zip(reported, sent, strict=True):
            document = (
                json_util.loads(original.data.decode(), json_options=ANY_DATE)
                if as_json
                else bson.decode(original.data, SESSION_CODEC)
            )
            if "raw" in event:
                assert base64.b64decode(event["raw"]) == original.data, "not the bytes that MongoDB sent"
            if "token" in event:
                assert base64.b64decode(event["token"]) == bson.encode(document["_id"]), "not the resume token"
            if "document" in event:
                text = json_util.dumps(document, json_options=json_util.CANONICAL_JSON_OPTIONS)
                assert not (wrong := differences(event["document"], json.loads(text))), wrong

    async def _call_of(self, do: str, error: Json | None, **fields: Any) -> Json:
        """The reply to a command, or an empty one where it ends with this `error`."""
        reply = await self._runner.attempt(do, REPLY_S, **fields)
        if error is None:
            assert "error" not in reply, f"{do} failed: {reply['error']}"
            return dict(reply["ok"])
        assert "error" in reply, f"{do} did not fail: {reply}"
        check_error(reply["error"], error)
        return {}

    async def _ask(self, do: str, **fields: Any) -> Json:
        return await self._runner.ask(do, REPLY_S, **fields)

    async def _beside(self, meanwhile: Sequence[Any], do: str, **fields: Any) -> Json:
        """The whole reply to a command, while steps run beside it."""
        waiting = asyncio.create_task(self._runner.attempt(do, REPLY_S + self._patience_s, **fields))
        try:
            await self.all(meanwhile)
            return await waiting
        finally:
            waiting.cancel()

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

    def _start(self, start: Any) -> Any:
        match start:
            case {"mark": name}:
                return self._marks[name]
            case {"error_position": session}:
                return {"position": (self._records[session].error or {})["position"]}
            case {"error_token": session}:
                return {"start_after": (self._records[session].error or {})["resume_token"]}
            case {"resume_after_event": int(number)}:
                return {"resume_after": self._records["s"].events[number - 1]["token"]}
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

    def _check_window(self, record: SessionRecord, window: int) -> None:
        granted = sum(call.granted_events for call in self._stage.server.calls)
        assert granted <= record.asked + window, f"granted {granted} with {record.asked} taken and a window of {window}"
