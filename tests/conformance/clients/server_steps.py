"""Steps that happen to MongoDB, the server and the network."""

import base64
from collections.abc import Sequence
from typing import Any

from bson import json_util
from bson.codec_options import DatetimeConversion
from bson.timestamp import Timestamp

from feedmux.v1 import feed_pb2, operator_pb2, subscriptions_pb2
from tests.conformance.clients.steps import Json, Steps
from tests.integration.servers import until
from tests.integration.wire import at, feed

ANY_DATE = json_util.DEFAULT_JSON_OPTIONS.with_options(datetime_conversion=DatetimeConversion.DATETIME_AUTO)


class ServerSteps(Steps):
    """The server is asked directly, past the client and the proxy."""

    async def subscription(
        self,
        name: str = "sub",
        *,
        start: str = "begin",
        pipeline: Any = None,
        batch_size: int = 0,
        group: bool = False,
        **policies: Any,
    ) -> None:
        content: Json = {key: f"{key.upper()}_{value.upper()}" for key, value in policies.items()}
        if group:
            content["group"] = subscriptions_pb2.Group()
        watched = self._feed_message(pipeline)
        watched.batch_size = batch_size
        await self._stage.api.create(self._stage.real_name(name), watched, self._marked(start), **content)

    async def insert(
        self,
        numbers: Sequence[int] | int = (),
        *,
        collection: str = "c",
        pad: int = 0,
        fill: str = "x",
        id_pad: int = 0,
        documents: Sequence[Any] | None = None,
    ) -> None:
        """`id_pad`: their `_id` is a string of so many bytes, and a resume token has it in twice its size."""
        chosen = [numbers] if isinstance(numbers, int) else numbers
        made: list[Json] = [{"n": number, "pad": fill * pad} for number in chosen]
        if id_pad:
            made = [{"_id": f"{each['n']}".rjust(id_pad, fill), **each} for each in made]
        given = [json_util.loads(json_util.dumps(each), json_options=ANY_DATE) for each in documents or ()]
        self._stage.documents[collection].insert_many([*made, *given])

    async def change(self, number: int) -> None:
        """Changes the document of this number."""
        changed = self._stage.documents.c.update_one({"n": number}, {"$set": {"changed": True}})
        assert changed.modified_count == 1

    async def remove(self, number: int) -> None:
        """Deletes the document of this number."""
        deleted = self._stage.documents.c.delete_one({"n": number})
        assert deleted.deleted_count == 1

    async def drop(self) -> None:
        self._stage.documents.c.drop()

    async def seek(self, to: str, *, subscription: str = "sub") -> None:
        await self._stage.api.seek(self._stage.real_name(subscription), self._marked(to))

    async def update(self, subscription: str = "sub", *, pipeline: Any) -> None:
        await self._stage.api.update(
            name=self._stage.real_name(subscription), feed=self._feed_message(pipeline), paths=["feed"]
        )

    async def share(self, subscription: str = "sub") -> None:
        """The subscription becomes a group."""
        name = self._stage.real_name(subscription)
        await self._stage.api.update(name=name, group=subscriptions_pb2.Group(), paths=["group"])

    async def delete(self, subscription: str = "sub") -> None:
        await self._stage.api.delete(self._stage.real_name(subscription))

    async def end_by_operator(self, subscription: str = "sub") -> None:
        found = await self._subscriber(subscription)
        assert found is not None, "nobody to end"
        await self._stage.api.operator.EndSubscriber(operator_pb2.EndSubscriberRequest(subscriber_id=found.id))

    async def sent(self, *, at_least: int, at_most: int) -> None:
        """How much the server has sent to the subscriber, once it is `at_least` so much."""
        shown: list[Any] = []

        async def enough() -> bool:
            shown[:] = [await self._subscriber("sub")]
            return shown[0] is not None and shown[0].events_sent >= at_least

        await until(enough, self._patience_s)
        assert shown[0].events_sent <= at_most, f"{shown[0].events_sent} events were sent"

    async def stored(self, event: int, *, session: str = "s", subscription: str = "sub") -> None:
        """Wait until the stored position is after the `event`th delivered event, or later with no event between.

        In a copy that the session began, documents have one time, and their number says how far it is.
        """
        reported = self._records[session].events[event - 1]
        wanted = json_util.loads(json_util.dumps(reported["document"]["clusterTime"]))
        assert isinstance(wanted, Timestamp)

        async def there() -> bool:
            found = await self._stage.api.get(self._stage.real_name(subscription))
            if found.snapshot.state == feed_pb2.SnapshotStatus.STATE_RUNNING:
                return bool(found.snapshot.documents >= event)
            stored = found.cluster_time
            return bool((stored.seconds, stored.increment) >= (wanted.time, wanted.inc))

        await until(there, self._patience_s)

    async def policy(self, subscription: str = "sub", **wanted: str) -> None:
        """The policies that the server has stored with the subscription."""
        found = await self._stage.api.get(self._stage.real_name(subscription))
        for name, value in wanted.items():
            values = found.DESCRIPTOR.fields_by_name[name].enum_type
            assert values is not None
            stored = values.values_by_number[getattr(found, name)].name
            assert stored == f"{name}_{value}".upper(), stored

    async def active(self, wanted: bool, *, subscription: str = "sub") -> None:
        """Waits until the server says that the subscription has a session, or none."""

        async def right() -> bool:
            found: subscriptions_pb2.Subscription = await self._stage.api.get(self._stage.real_name(subscription))
            return found.active is wanted

        await until(right, self._patience_s)

    async def elsewhere(self, *, take: int, ack: int, subscription: str = "sub") -> None:
        """Another client, on a connection of its own, opens the subscription, takes and acks events and closes."""
        session = await self._stage.api.open(self._stage.real_name(subscription), instance_id="elsewhere")
        await session.take(take)
        await session.ack_and_wait(ack)
        await session.close()

    async def drain(self) -> None:
        """The first server begins to drain; clients that connect from now on reach the second."""
        first, second = self._stage.sites
        self._stage.proxy.target = second.api.data_port
        self._stage.sites = [second, first]
        first.here.stop()

    async def cut(self) -> None:
        self._stage.proxy.cut()

    async def cut_after(self, size: int) -> None:
        """The connection that carries the next so many bytes to the client is cut in the middle of them."""
        self._stage.proxy.cut_after_bytes = size

    async def connections(self, count: int) -> None:
        """Waits until the client has so many."""
        try:
            await until(lambda: self._stage.proxy.connections == count, self._patience_s)
        except TimeoutError:
            raise AssertionError(f"{self._stage.proxy.connections} connections") from None

    async def refuse(self, refusing: bool) -> None:
        self._stage.proxy.refuse(refusing)

    async def freeze(self, *, only_present: bool = False) -> None:
        """Connections stay and carry nothing, with `only_present` those of now; without it new ones neither."""
        if only_present:
            self._stage.proxy.freeze_present()
        else:
            self._stage.proxy.freeze()

    async def thaw(self) -> None:
        self._stage.proxy.thaw()

    async def slow(self, *, bytes_per_s: int = 0, delay_s: float = 0.0) -> None:
        self._stage.proxy.bytes_per_s, self._stage.proxy.delay_s = bytes_per_s, delay_s

    async def _subscriber(self, name: str) -> operator_pb2.Subscriber | None:
        response = await self._stage.api.operator.ListSharedStreams(operator_pb2.ListSharedStreamsRequest())
        everyone = [
            *response.detached_subscribers,
            *(one for each in response.shared_streams for one in each.subscribers),
        ]
        found = [each for each in everyone if each.subscription == self._stage.real_name(name)]
        return found[0] if found else None

    def _feed_message(self, pipeline: Any) -> feed_pb2.Feed:
        return feed(self._stage.documents.name, "c", json_util.dumps(pipeline) if pipeline else "")

    def _marked(self, name: str) -> feed_pb2.Start:
        """A mark for the server, or `snapshot`."""
        if name == "snapshot":
            return at(snapshot=feed_pb2.Snapshot())
        match self._marks[name]:
            case {"operation_time": [seconds, increment]}:
                return at(start_at_operation_time=feed_pb2.ClusterTime(seconds=seconds, increment=increment))
            case {"position": position}:
                return at(position=base64.b64decode(position))
        raise ValueError(f"no mark {name}")
