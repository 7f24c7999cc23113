"""Record the messages between Python clients in this process and their servers, for `tests.sim.checkers`."""

from typing import Any

import bson
import pytest
from pymongo.collection import Collection

from feedmux import responses
from feedmux.connection import Connection
from feedmux_server.core.positions.position import inspect_position
from tests.sim import records
from tests.sim.checkers import check

GUARANTEES = (
    "Ordered", "Complete", "Unique", "At least once", "Resumable or loud", "Bookmarkable", "Monotone commit", "Fenced",
    "Convergent",
)  # fmt: skip


class ClientHistory:
    """Watches every durable session that is opened while the monkeypatch lasts. Events are named by `n`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[records.Record] = []
        self._session: dict[str, str] = {}
        self._delivered: dict[str, list[str]] = {}
        receive, outgoing = Connection._receive, Connection._outgoing

        def received(connection: Connection, response: responses.Response) -> None:
            self._note(connection._opening.subscription, response)
            receive(connection, response)

        def sent(connection: Connection) -> list[bytes]:
            before = connection._sent_sequence
            messages = outgoing(connection)
            if connection._sent_sequence > before:
                session = self._session[connection._opening.subscription]
                self.records.append(records.Acked(session, connection._sent_sequence))
            return messages

        monkeypatch.setattr(Connection, "_receive", received)
        monkeypatch.setattr(Connection, "_outgoing", sent)

    def _note(self, name: str, response: responses.Response) -> None:
        match response:
            case responses.Opened(epoch, place):
                if name in self._session:
                    self.records.append(records.Ended(self._session[name]))
                session = self._session[name] = f"{name}-{epoch}"
                self.records.append(records.Opened(name, session, _data(place.token), epoch=epoch))
            case responses.Delivery(first, batch):
                events = tuple(str(document["fullDocument"]["n"]) for document in batch.documents)
                self._delivered.setdefault(self._session[name], []).extend(events)
                behind = _data(batch.feed_position.token)
                self.records.append(records.Delivered(self._session[name], first, events, place=behind))
            case responses.Progress(place):
                self.records.append(records.Progress(self._session[name], _data(place.token)))
            case responses.Committed(_, position):
                raw = inspect_position(position).token.raw
                epoch = int(self._session[name].rpartition("-")[2])
                self.records.append(records.Committed(name, epoch, _data(raw)))
            case _:
                pass

    @property
    def sessions(self) -> int:
        return sum(isinstance(record, records.Opened) for record in self.records)

    def judge(self, written: list[records.Written]) -> None:
        """After all have caught up: every guarantee holds, and nothing that was acked came again."""
        whole = [*written, *self.records, records.Settled()]
        assert [str(violation) for violation in check(whole, GUARANTEES)] == []
        assert self.repeated_after_ack() == []

    def repeated_after_ack(self) -> list[tuple[str, str]]:
        """Session and event, where an event came that an earlier session of the subscription had acked."""
        acked: dict[str, set[str]] = {}
        done: dict[str, frozenset[str]] = {}
        found = []
        subscription_of: dict[str, str] = {}
        sent: dict[str, list[str]] = {}
        for record in self.records:
            match record:
                case records.Opened(subscription, session):
                    subscription_of[session], sent[session] = subscription, []
                    done[session] = frozenset(acked.get(subscription, ()))
                case records.Delivered(session, _, events):
                    sent[session].extend(events)
                    found += [(session, event) for event in events if event in done[session]]
                case records.Acked(session, sequence):
                    acked.setdefault(subscription_of[session], set()).update(sent[session][:sequence])
                case _:
                    pass
        return found


def _data(token: bytes) -> str:
    return str(bson.decode(token)["_data"]) if token else ""


def written_since(collection: Collection[dict[str, Any]], start: Any, count: int) -> list[records.Written]:
    """What MongoDB itself says was written, in its order."""
    found: list[records.Written] = []
    with collection.watch(start_at_operation_time=start, batch_size=4_000) as stream:
        while len(found) < count:
            event = stream.next()
            found.append(records.Written(str(event["fullDocument"]["n"]), event["_id"]["_data"]))
    return found
