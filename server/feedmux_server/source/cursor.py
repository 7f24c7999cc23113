"""A change stream cursor that returns batches as bytes, with their postBatchResumeToken; and lists of collections.

pymongo's public raw-batch cursor exists for collections only and does not show the postBatchResumeToken
(docs/adr/0002), and it builds an object per event before it returns the bytes. This module is the one place that uses
pymongo's private names: the aggregate command for databases, the raw cursor's `_unpack_response`,
`_postbatchresumetoken` and `_max_await_time_ms`, `_retryable_read`, `_close_cursor_soon`, a session's `mark_dirty`, and
what these need. `private_names` checks that they are there, and tests/integration/test_raw_cursor.py what they do.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import bson
from bson import Int64
from bson.codec_options import CodecOptions
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.command_cursor import AsyncRawBatchCommandCursor
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.asynchronous.mongo_client import AsyncMongoClient
from pymongo.errors import OperationFailure
from pymongo.read_preferences import ReadPreference

from feedmux_server.cancellation import cancellable
from feedmux_server.core.events.bson_walk import ARRAY, DOCUMENT, find, length_at, value_end
from feedmux_server.source.answers import ANSWER, documents_in
from feedmux_server.source.private_names import (
    _array_of_documents_to_buffer,
    _CursorAddress,
    _DatabaseAggregationCommand,
    _Op,
)
from feedmux_server.source.read_watch import Address

_EMPTY = b"\x05\x00\x00\x00\x00"
_CURSOR_KILLED = 237
_PART_BYTES = 3_000_000
"""What is copied without a pause. Batches have 2.5 MB (`timed_reads`), but MongoDB may return 16 MB at once, and the
memory of a copy of more than 4 MiB is new (`app.reuse_freed_memory`): half a millisecond for each MB."""
_STEP_BYTES = 1_000_000
"""What of a single event of more than `_PART_BYTES` is copied without a pause."""
_EVENT_COST = 500
"""To find an event takes as long as to copy so many bytes."""


def find_batch(reply: bytes | bytearray, at: int = 0) -> tuple[int, int, int] | None:
    """Where `cursor`, and within it the array `nextBatch`, lie in a getMore's reply, which begins at `at`; None for a
    reply without them."""
    cursor = find(reply, at, b"cursor", DOCUMENT)
    batch = find(reply, cursor, b"nextBatch", ARRAY) if cursor is not None else None
    if cursor is None or batch is None:
        return None
    return cursor, batch, value_end(reply, ARRAY, batch)


class ReplyEvents:
    """The events of a reply that were not copied yet: an array from `begin` to `end`."""

    def __init__(self, reply: bytes | bytearray, begin: int, end: int) -> None:
        self._reply = reply
        self._begin = begin
        self._at = begin + 4
        self._last = end - 1

    @property
    def left(self) -> bool:
        return self._at < self._last

    async def copy_part(self) -> bytes:
        """The next events, one after the other: as many as may be copied without a pause, or one that is larger."""
        reply, last = self._reply, self._last
        if last - self._begin <= _PART_BYTES:
            self._at = last
            return _array_of_documents_to_buffer(memoryview(reply)[self._begin : last + 1])
        events: list[memoryview] = []
        cost = 0
        while self._at < last:
            event = reply.index(0, self._at + 1) + 1
            end = event + length_at(reply, event)[0]
            cost += end - event + _EVENT_COST
            if events and cost > _PART_BYTES:
                break
            events.append(memoryview(reply)[event:end])
            self._at = end
        is_large = len(events[0]) > _PART_BYTES
        return await _copy_slowly(events[0]) if is_large else b"".join(events)


async def _copy_slowly(event: memoryview) -> bytes:
    whole = BytesIO(bytes(len(event)))  # not touched: the system makes each page when it is written
    for at in range(0, len(event), _STEP_BYTES):
        whole.write(event[at : at + _STEP_BYTES])
        await asyncio.sleep(0)
    return whole.getvalue()


@dataclass(frozen=True, slots=True)
class RawBatch:
    """What one getMore returned."""

    data: bytes
    """Events, one after the other; empty when there were none."""
    post_batch: bytes | None
    """The postBatchResumeToken document."""
    exhausted: bool
    """The server closed the cursor: the stream was invalidated."""
    rest: tuple[bytes, ...] = ()
    """Of a large reply, the events after `data`, in parts."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The events, in parts of which each may be cut without a pause."""
        return (self.data, *self.rest) if self.data else ()

    @property
    def size(self) -> int:
        return len(self.data) + sum(map(len, self.rest))


class _Cursor(AsyncRawBatchCommandCursor[Any]):
    """Cuts the events out of a getMore's reply as one run of bytes, and its token, without parsing them."""

    def _unpack_response(  # type: ignore[override]
        self,
        response: Any,
        cursor_id: int | None,
        codec_options: CodecOptions[Any],
        user_fields: Mapping[str, Any] | None = None,
        legacy_response: bool = False,
    ) -> list[dict[str, Any]]:
        reply, start = _bytes_of(response.payload_document)
        found = find_batch(reply, start)
        if found is None:
            return [bson.decode(reply[start:], ANSWER)]
        cursor_at, begin, end = found
        # The token may have megabytes, as the `_id` of an event has, and stays bytes, too.
        token_at = find(reply, cursor_at, b"postBatchResumeToken", DOCUMENT)
        cuts = [(begin, end)]
        if token_at is not None:
            cuts.append((token_at, value_end(reply, DOCUMENT, token_at)))
        rest, at = bytearray(), start
        for first, stop in sorted(cuts):
            rest += reply[at:first] + _EMPTY
            at = stop
        rest += reply[at:]
        removed = sum(stop - first - len(_EMPTY) for first, stop in cuts)
        for at in (0, cursor_at - start):
            rest[at : at + 4] = (int.from_bytes(rest[at : at + 4], "little") - removed).to_bytes(4, "little")
        document = bson.decode(bytes(rest), ANSWER)
        if end - begin > len(_EMPTY):
            document["cursor"]["nextBatch"] = [ReplyEvents(reply, begin, end)]
        if token_at is not None:
            document["cursor"]["postBatchResumeToken"] = bytes(reply[slice(*cuts[1])])
        return [document]


def _bytes_of(reply: Any) -> tuple[bytes | bytearray, int]:
    """The bytes of a reply, and where it begins in them. Not a copy if it is the end of pymongo's own buffer."""
    whole: Any = memoryview(reply).obj
    start = len(whole) - len(reply)
    if isinstance(whole, bytes | bytearray) and length_at(whole, start)[0] == len(reply):
        return whole, start
    return bytes(reply), 0


class _RawAggregate(_DatabaseAggregationCommand):
    """An aggregate on a collection or a database whose cursor returns raw batches."""

    def __init__(
        self, database: AsyncDatabase[Any], collection: str, pipeline: list[Any], options: dict[str, Any]
    ) -> None:
        super().__init__(database, _Cursor, pipeline, options, user_fields={"cursor": {"firstBatch": 1}})
        self._collection = collection
        # A raw cursor takes no events from the aggregate's own reply.
        self._options["cursor"]["batchSize"] = 0

    @property
    def _aggregation_target(self) -> str | int:  # type: ignore[override]
        return self._collection or 1

    def _cursor_collection(self, cursor: Mapping[str, Any]) -> AsyncCollection[Any]:
        # The cursor asks it for its options only. The watched one itself may have a name that MongoDB has and
        # pymongo refuses (`a..b`, `a.`).
        return self._database["$cmd.aggregate"]


class _RawList:
    """A command such as listCollections whose cursor returns raw batches."""

    def __init__(self, database: AsyncDatabase[Any], command: Mapping[str, Any]) -> None:
        self._database = database
        # A raw cursor takes no documents from the command's own reply.
        self._command = {**command, "cursor": {"batchSize": 0}}

    def get_read_preference(self, _session: AsyncClientSession) -> Any:
        return ReadPreference.PRIMARY

    async def get_cursor(self, session: AsyncClientSession, _server: Any, connection: Any, preference: Any) -> _Cursor:
        reply = await connection.command(
            self._database.name,
            self._command,
            preference,
            codec_options=ANSWER,
            session=session,
            client=self._database.client,
        )
        return _Cursor(self._database["$cmd"], reply["cursor"], connection.address, session=session)


async def listed(
    database: AsyncDatabase[Any], command: Mapping[str, Any], at_once: int = 0
) -> AsyncGenerator[list[bytes], None]:
    """The documents that a command such as listCollections lists, in parts of at most `at_once`, if it is not 0. Raises
    pymongo's errors."""
    cursor = await RawChangeStreamCursor.list(database, command)
    try:
        cursor.ask_for(at_once)
        exhausted = False
        while not exhausted:
            batch = await cursor.next_batch()
            exhausted = batch.exhausted
            for part in batch.parts:
                yield list(documents_in(part))
    finally:
        await cursor.close()


async def database_names(client: AsyncMongoClient[Any]) -> list[str]:
    """Raises pymongo's errors."""
    # pymongo's own method decodes them with its default codec, which rejects all for one that is not UTF-8.
    reply, _ = await _run_on(client, None, {"listDatabases": 1, "nameOnly": True}, retryable=True)
    return [each["name"] for each in reply["databases"]]


def _use_no_more(session: AsyncClientSession) -> None:
    """Prevent reuse of the session, because an operation may continue in MongoDB under the session's id."""
    if session._server_session is not None:
        session._server_session.mark_dirty()


async def run_on(
    client: AsyncMongoClient[Any], address: Address | None, command: Any, database: str = "admin"
) -> Mapping[str, Any]:
    """Runs a command on the server with this address; None: the primary. Raises pymongo's errors."""
    reply, _ = await _run_on(client, address, command, database)
    return reply


async def aggregate_on(
    client: AsyncMongoClient[Any], address: Address | None, pipeline: list[Any]
) -> list[Mapping[str, Any]]:
    """All results of an aggregate of `admin` on one server, as `run_on`."""
    reply, server = await _run_on(client, address, {"aggregate": 1, "pipeline": pipeline, "cursor": {}})
    cursor = reply["cursor"]
    found: list[Mapping[str, Any]] = list(cursor["firstBatch"])
    cursor_id, namespace = cursor["id"], cursor["ns"]
    try:
        while cursor_id:
            more = {"getMore": Int64(cursor_id), "collection": namespace.partition(".")[2]}
            cursor = (await run_on(client, server, more))["cursor"]
            found += cursor["nextBatch"]
            cursor_id = cursor["id"]
    finally:
        if cursor_id:
            client._close_cursor_soon(cursor_id, _CursorAddress(server, namespace))
    return found


async def _run_on(
    client: AsyncMongoClient[Any],
    address: Address | None,
    command: Any,
    database: str = "admin",
    *,
    retryable: bool = False,
) -> tuple[Mapping[str, Any], Address]:
    """Return the reply, and the address of the server that sent it."""

    async def run(_session: Any, _server: Any, connection: Any, preference: Any) -> tuple[Mapping[str, Any], Address]:
        reply = await connection.command(database, command, preference, codec_options=ANSWER, client=client)
        return reply, connection.address

    return await cancellable(
        client._retryable_read(run, ReadPreference.PRIMARY, None, "command", address=address, retryable=retryable)
    )


class Interrupted(Exception):
    """A read was ended by `RawChangeStreamCursor.interrupt`. The cursor is gone."""


class RawChangeStreamCursor:
    """An open cursor. `session` must be the one it was opened in, for its whole life."""

    def __init__(self, cursor: AsyncRawBatchCommandCursor[Any], session: AsyncClientSession) -> None:
        self._cursor = cursor
        self._session = session
        self._reading = False
        """A read was sent, and its answer has not come, or will never be seen."""
        self._killed = False
        """By `interrupt`."""

    @classmethod
    async def open(
        cls,
        database: AsyncDatabase[Any],
        collection: str,
        pipeline: list[Any],
        options: dict[str, Any],
        opening: Callable[[bytes], None] | None = None,
    ) -> "RawChangeStreamCursor":
        """Run the aggregate. `collection` is empty for a database or (on `admin`) the cluster. `opening` is called
        before that, with the session's id.

        Raises pymongo's errors. `options` are the aggregate's, with `batchSize` and `maxAwaitTimeMS` for the getMores.
        """
        return await cls._run(database, _RawAggregate(database, collection, pipeline, options), _Op.AGGREGATE, opening)

    @classmethod
    async def list(cls, database: AsyncDatabase[Any], command: Mapping[str, Any]) -> "RawChangeStreamCursor":
        """Run a command of `database` that lists collections or indexes. Raises pymongo's errors."""
        return await cls._run(database, _RawList(database, command), next(iter(command)))

    @classmethod
    async def _run(
        cls,
        database: AsyncDatabase[Any],
        command: _RawAggregate | _RawList,
        operation: str,
        opening: Callable[[bytes], None] | None = None,
    ) -> "RawChangeStreamCursor":
        session = database.client.start_session(causal_consistency=False)
        if opening is not None:
            opening(bytes(session.session_id["id"]))
        try:
            cursor: Any = await cancellable(
                database.client._retryable_read(
                    command.get_cursor,  # type: ignore[arg-type]
                    command.get_read_preference(session),  # type: ignore[arg-type]
                    session,
                    retryable=True,
                    operation=operation,
                )
            )
        except OperationFailure:
            # MongoDB has answered, so the session is free for the next cursor. It keeps an unused one for half an hour.
            await session.end_session()
            raise
        except BaseException:
            _use_no_more(session)
            await session.end_session()
            raise
        return cls(cursor, session)

    @property
    def address(self) -> Address | None:
        """The server that holds the cursor."""
        return self._cursor.address

    @property
    def id(self) -> int:
        """MongoDB's, 0 once it is closed."""
        return self._cursor.cursor_id or 0

    def ask_for(self, events: int) -> None:
        """At most so many events per getMore from now on."""
        self._cursor.batch_size(events)

    def await_up_to(self, max_await_ms: int) -> None:
        """The maxAwaitTimeMS of the getMores from now on."""
        self._cursor._max_await_time_ms = max_await_ms

    async def next_batch(self) -> RawBatch:
        """One getMore: waits up to maxAwaitTimeMS for events. Raises pymongo's errors, and `Interrupted`."""
        self._reading = True
        try:
            events: ReplyEvents | None = await cancellable(self._cursor.try_next())
        except OperationFailure as error:
            if not self._killed or error.code != _CURSOR_KILLED:
                raise
            self._reading = False
            raise Interrupted from None
        self._reading = False
        token, exhausted = self._cursor._postbatchresumetoken, not self._cursor.alive
        data = await events.copy_part() if events is not None else b""
        rest: list[bytes] = []
        while events is not None and events.left:
            await asyncio.sleep(0)
            rest.append(await events.copy_part())
        # The aggregate's own token is parsed: pymongo keeps it if the cursor was closed before the first read.
        raw_token = bson.encode(token) if isinstance(token, Mapping) else token
        return RawBatch(data, raw_token, exhausted, tuple(rest))

    async def interrupt(self) -> None:
        """End the read that is under way by killing the cursor: MongoDB offers no other way. The read raises
        `Interrupted` at MongoDB's next write, unless its answer was already on its way. Raises pymongo's errors."""
        self._killed = True
        database, _, collection = self._cursor._ns.partition(".")
        command = {"killCursors": collection, "cursors": [Int64(self.id)]}
        await run_on(self._session.client, self.address, command, database)

    async def close(self) -> None:
        """Kill the cursor on its server; after an error in the background, as that server may be unavailable."""
        if self._reading:
            _use_no_more(self._session)
        cursor, left = self._cursor, self._cursor._killed and self._cursor._id
        try:
            await cancellable(cursor.close())
        finally:
            await self._session.end_session()
            if left and not self._killed and cursor.address is not None:
                # pymongo takes the cursor for dead, and MongoDB would keep it for another ten minutes.
                address = _CursorAddress(cursor.address, cursor._ns)
                self._session.client._close_cursor_soon(left, address)
