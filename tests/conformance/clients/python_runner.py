"""The runner of the Python client: `python -m tests.conformance.clients.python_runner`. See README.md beside this file.

Asynchronous sessions, because a task can be cancelled and a thread cannot; the synchronous ones are the same machine
behind a thread.
"""

import asyncio
import base64
import importlib.metadata
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import bson
from bson import json_util
from bson.timestamp import Timestamp

import feedmux

Json = dict[str, Any]
_STARTS: dict[str, Callable[[Any], feedmux.Start]] = {
    "position": lambda value: feedmux.Start.position(base64.b64decode(value)),
    "resume_after": lambda value: feedmux.Start.resume_after(bson.decode(base64.b64decode(value))),
    "start_after": lambda value: feedmux.Start.start_after(bson.decode(base64.b64decode(value))),
    "operation_time": lambda value: feedmux.Start.operation_time(Timestamp(*value)),
    "time": lambda value: feedmux.Start.at_time(datetime.fromisoformat(value)),
}
# The notices that all clients have.
_NOTICES: dict[type[feedmux.Notice], str] = {
    feedmux.Draining: "draining",
    feedmux.Rewound: "rewound",
    feedmux.Skipped: "skipped",
    feedmux.HistoryAtRisk: "history_at_risk",
    feedmux.Gap: "gap",
    feedmux.Degraded: "degraded",
    feedmux.Unacknowledged: "unacknowledged",
    feedmux.SnapshotComplete: "snapshot_complete",
    feedmux.Disconnected: "disconnected",
}

_PYTHON_ONLY = feedmux.GroupMismatch, feedmux.GroupUnsuitable, feedmux.DeadLettersUnavailable
"""Errors of groups, which no other client joins yet; to them they are errors of the base class."""


class BadCommand(Exception):
    """Cannot be done by this runner."""


@dataclass(slots=True, eq=False)
class SessionRecord:
    """A session and what it handed out."""

    session: feedmux.AsyncSession | feedmux.AsyncMember | None = None
    events: list[feedmux.Event] = field(default_factory=list)
    items: list[Json] = field(default_factory=list)
    """Events and notices since the last `take`."""
    waiting: asyncio.Task[Any] | None = None
    """An `open` or a `take`."""


class Commands:
    """One method for each command."""

    def __init__(self) -> None:
        self._client: feedmux.AsyncClient | None = None
        self._records: dict[str, SessionRecord] = {}

    async def hello(self) -> Json:
        return {"client": "python", "version": importlib.metadata.version("feedmux"), "runner": 1}

    async def new(
        self,
        target: str,
        api_key: str | None = None,
        tokens: list[str | None] | None = None,
        tls: Json | None = None,
        source: str = "main",
        timeout_s: float = 30.0,
    ) -> Json:
        await self.reset()
        left = list(tokens or ())

        def next_token() -> str:
            token = left.pop(0) if len(left) > 1 else left[0]
            if token is None:
                raise RuntimeError("no token now")
            return token

        self._client = feedmux.AsyncClient(
            target,
            api_key=api_key,
            token=next_token if tokens else None,
            tls=feedmux.Tls(**tls) if tls else False,
            source=source,
            timeout_s=timeout_s,
        )
        return {}

    async def open(
        self,
        session: str,
        subscription: str | None = None,
        feed: Json | None = None,
        start: Any = None,
        takeover: bool = False,
        raw: bool = False,
        options: Json | None = None,
    ) -> Json:
        client = self._connected()
        record = self._records[session] = SessionRecord()

        def on_notice(notice: feedmux.Notice) -> None:
            if type(notice) in _NOTICES:
                record.items.append({"notice": describe_notice(notice)})

        chosen = options or {}
        if subscription is not None:
            opened = client.subscription(subscription).open(takeover=takeover, on_notice=on_notice, **chosen)
        else:
            opened = client.feed(**_feed(feed or {})).open(_start(start), on_notice=on_notice, **chosen)
        record.waiting = asyncio.current_task()
        record.session = await opened
        return {}

    async def join(self, session: str, subscription: str, options: Json | None = None) -> Json:
        record = self._records[session] = SessionRecord()
        record.waiting = asyncio.current_task()
        record.session = await self._connected().subscription(subscription).join(**(options or {}))
        return {}

    async def create(self, subscription: str, feed: Json, start: Any = None, on_history_lost: Any = None) -> Json:
        asked = self._connected().subscription(subscription)
        chosen = _feed(feed) if on_history_lost is None else {**_feed(feed), "on_history_lost": on_history_lost}
        return _copied(await asked.create(start=_start(start), **chosen))

    async def seek(self, subscription: str, start: Any) -> Json:
        return _copied(await self._connected().subscription(subscription).seek(_start(start)))

    async def resolve(self, feed: Json, start: Any) -> Json:
        return {"position": _base64((await self._connected().feed(**_feed(feed)).resolve(_start(start))).position)}

    async def take(
        self,
        session: str,
        count: int | None = None,
        until_notice: str | None = None,
        timeout_s: float | None = None,
        report: tuple[str, ...] = ("document",),
    ) -> Json:
        record, opened = self._records[session], self._any_session(session)
        record.waiting = asyncio.current_task()
        end_s = float("inf") if timeout_s is None else _now_s() + timeout_s
        taken, result = 0, Json(outcome="enough")
        try:
            while (count is None or taken < count) and not _told(record.items, until_notice):
                # A notice does not end `next`, so who waits for one looks up now and then.
                most_s = end_s - _now_s() if until_notice is None else min(0.02, end_s - _now_s())
                try:
                    event = await opened.next(None if most_s == float("inf") else max(0.0, most_s))
                except TimeoutError:
                    if _now_s() < end_s:
                        continue
                    result["outcome"] = "timeout"
                    break
                record.events.append(event)
                record.items.append({"event": _event(event, report)})
                taken += 1
        except StopAsyncIteration:
            result["outcome"] = "closed"
        except asyncio.CancelledError:
            result["outcome"] = "cancelled"
        except feedmux.FeedmuxError as error:
            result |= {"outcome": "error", "error": describe_error(error)}
        result["items"], record.items = record.items, []
        return result

    async def ack(self, session: str, event: int | None = None) -> Json:
        opened = self._session(session)
        opened.ack(*([] if event is None else [self._records[session].events[event - 1]]))
        return {}

    async def settle(self, session: str, event: int, how: str = "ack", **arguments: Any) -> Json:
        getattr(self._records[session].events[event - 1], how)(**arguments)
        return {}

    async def state(self, session: str) -> Json:
        opened = self._session(session)
        token, time = opened.resume_token, opened.cluster_time
        return {
            "position": _base64(opened.position),
            "resume_token": None if token is None else _base64(bson.encode(token)),
            "cluster_time": None if time is None else [time.time, time.inc],
            "committed": _base64(opened.committed),
            "epoch": opened.epoch,
            "closed": opened.closed,
            "copying": opened.copying is not None,
            "generation": opened.copying.generation if opened.copying else None,
        }

    async def close(self, session: str, timeout_s: float | None = None) -> Json:
        await self._any_session(session).close(timeout_s)
        return {}

    async def cancel(self, session: str) -> Json:
        await self._abandon(self._records[session])
        return {}

    async def close_client(self) -> Json:
        if self._client is not None:
            await self._client.close()
        return {}

    async def reset(self) -> Json:
        for record in self._records.values():
            await self._abandon(record)
        self._records.clear()
        if self._client is not None:
            await self._client.close()
            self._client = None
        return {}

    async def _abandon(self, record: SessionRecord) -> None:
        if record.waiting is not None:
            record.waiting.cancel()
        if record.session is not None:
            await record.session.close(0)

    def _connected(self) -> feedmux.AsyncClient:
        if self._client is None:
            raise BadCommand("no client")
        return self._client

    def _session(self, name: str) -> feedmux.AsyncSession:
        session = self._any_session(name)
        if isinstance(session, feedmux.AsyncMember):
            raise BadCommand(f"{name} is a member of a group")
        return session

    def _any_session(self, name: str) -> feedmux.AsyncSession | feedmux.AsyncMember:
        record = self._records.get(name)
        if record is None or record.session is None:
            raise BadCommand(f"no session {name}")
        return record.session


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _told(items: list[Json], kind: str | None) -> bool:
    return kind is not None and any(item.get("notice", {}).get("kind") == kind for item in items)


def _feed(feed: Json) -> Json:
    pipeline = feed.get("pipeline")
    return feed if pipeline is None else {**feed, "pipeline": json.dumps(pipeline)}


def _copied(info: feedmux.SubscriptionInfo) -> Json:
    return {"copied": info.snapshot.documents if info.snapshot else None}


def _start(start: Any) -> Any:
    if isinstance(start, dict):
        ((kind, value),) = start.items()
        return _STARTS[kind](value)
    return start


def _event(event: feedmux.Event, report: tuple[str, ...]) -> Json:
    reported: Json = {}
    if "document" in report:
        text = json_util.dumps(event.document, json_options=json_util.CANONICAL_JSON_OPTIONS)
        reported["document"] = json.loads(text)
    if "raw" in report:
        reported["raw"] = _base64(event.raw)
    if "snapshot" in report:
        reported["snapshot"] = event.snapshot
    if "generation" in report:
        reported["generation"] = event.batch.generation
    if "attempt" in report and isinstance(event, feedmux.MemberEvent):
        reported["attempt"] = event.attempt
    if "token" in report:
        token = event.resume_token
        reported["token"] = None if token is None else _base64(bson.encode(token))
    return reported


def describe_notice(notice: feedmux.Notice) -> Json:
    """As README.md lists them."""
    kind = _NOTICES[type(notice)]
    match notice:
        case feedmux.Rewound():
            return {"kind": kind, "from": list(notice.begins_at), "to": list(notice.had_reached)}
        case feedmux.Skipped():
            return {
                "kind": kind,
                "from": list(notice.had_reached),
                "to": list(notice.begins_at),
                "from_position": _base64(notice.had_reached_position),
                "to_position": _base64(notice.begins_at_position),
            }
        case feedmux.Gap():
            return {"kind": kind, "from": list(notice.after), "to": list(notice.before), "reason": notice.reason}
        case feedmux.Draining():
            return {"kind": kind, "deadline_s": notice.deadline_s, "position": _base64(notice.position)}
        case feedmux.Disconnected():
            error = notice.error
            return {"kind": kind, "reason": error.reason, "status": error.status, "retry_in_s": notice.retry_in_s}
    return {"kind": kind, **asdict(notice)}


def describe_error(error: feedmux.FeedmuxError) -> Json:
    """Its type as README.md calls it, and what it says."""
    kind = type(error).__base__ if isinstance(error, _PYTHON_ONLY) else type(error)
    assert kind is not None
    reported: Json = {
        "type": "Cancelled" if kind is feedmux.SessionClosed else kind.__name__,
        "reason": error.reason,
        "status": error.status,
        "message": error.message,
        "metadata": error.metadata,
        "retry_after_s": error.retry_after_s,
    }
    if isinstance(error, feedmux.FeedInvalidated):
        token = error.resume_token
        reported["position"] = _base64(error.position)
        reported["resume_token"] = None if token is None else _base64(bson.encode(token))
    return reported


async def _reply(work: Awaitable[Json]) -> Json:
    try:
        return {"ok": await work}
    except feedmux.FeedmuxError as error:
        return {"error": describe_error(error)}
    except asyncio.CancelledError:
        return {"error": {"type": "Cancelled", "message": "cancelled"}}
    except Exception as error:  # noqa: BLE001 - whatever it is, the harness shows it
        return {"error": {"type": "BadCommand", "message": repr(error)}}


async def run() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=256 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    commands = Commands()

    async def serve(message: Json) -> None:
        number, do = message.pop("id"), message.pop("do")
        method = getattr(commands, do, None)
        if method is None or do.startswith("_"):
            reply: Json = {"error": {"type": "BadCommand", "message": f"no command {do}"}}
        else:
            try:
                reply = await _reply(method(**message))
            except TypeError as error:
                reply = {"error": {"type": "BadCommand", "message": repr(error)}}
        sys.stdout.write(json.dumps({"id": number, **reply}) + "\n")
        sys.stdout.flush()

    running: set[asyncio.Task[None]] = set()
    while line := await lines.readline():
        task = asyncio.create_task(serve(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    await commands.reset()


if __name__ == "__main__":
    asyncio.run(run())
