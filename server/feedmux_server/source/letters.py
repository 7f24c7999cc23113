"""The collection for dead letters: the only one to which feedmux writes.

An event is stored as the bytes that MongoDB sent, as binary data: so it comes back bit for bit, whatever its fields are
called and however deep it is, which a document within a document would not. What exceeds `PART_BYTES` is in further
documents. Every query names one tenant.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeVar

import bson
from bson import Binary, Int64
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.collation import Collation
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.dead_letter import DeadLetter
from feedmux_server.core.limits.quota import exceeded
from feedmux_server.core.positions.timeline import Fork
from feedmux_server.source.answers import RAW_ANSWER, info_of
from feedmux_server.source.commands import RETRY_AFTER_S, SourceCommands
from feedmux_server.source.cursor import listed

log = logging.getLogger(__name__)

T = TypeVar("T")

PART_BYTES: Final = 1 << 20
"""The most bytes of an event in one document: to write one takes 2 ms of the event loop, and 16 MiB take 40 ms."""
OVERHEAD_BYTES: Final = 1024
"""What a letter counts in addition to its event, its key and its reasons."""
WRITES_AT_ONCE: Final = 8
"""Each has up to three copies of its event in memory, which has 16 MiB at most."""
_DELETED_AT_ONCE: Final = 1_000
_USAGE_S: Final = 30.0
"""For how long a replica does not see what others have written."""
_FULL_S: Final = 5.0
"""The same while a bound is reached."""
_LOG_EVERY_S: Final = 60.0
_KEYS_AT_ONCE: Final = 1_000
_LETTERS_AT_ONCE: Final = 100
"""So many take 3 ms of the event loop, if they have long reasons."""
PAGE_BYTES_MAX: Final = 1 << 20
CHECK_AT_ONCE: Final = 100
_DUPLICATE: Final = 11_000
_NAME_CHARS: Final = 200
"""What a message quotes of names of indexes and fields, which may have megabytes."""
# A collection with a collation may take the place of the one that was found fit: there, this finds no other letter.
_BY_BYTES: Final = Collation("simple")
_SET_ASIDE: Final = "set_aside"
_REPLAY: Final = "replay"
_UNANSWERED_BITS: Final = 20
_WITHOUT_EVENT: Final = {"event": False}
_OF_DELIVERIES: Final = ("attempts", "failures", "losses", "reasons", "member")
_AS_FAILED: Final = [("failed_at", ASCENDING), ("_id", ASCENDING)]
_IN_ORDER: Final = [("group_key", ASCENDING), ("place", ASCENDING), ("_id", ASCENDING)]
# A value that Python has no type for is nobody's mistake here: keys stay as they are.
_RAW: Final = RAW_ANSWER.with_options(datetime_conversion=DatetimeConversion.DATETIME_MS)


@dataclass(frozen=True, slots=True)
class LettersPlace:
    """Which collection, and its bounds."""

    database: str
    collection: str
    keep_s: float
    bytes_max: int
    letters_max: int
    keys_max: int
    """The most quarantined keys of a tenant."""

    def share(self, usage: "Usage") -> float:
        """How much of its bounds a tenant uses, 1 for all."""
        return max(usage.letters / self.letters_max, usage.bytes / self.bytes_max, usage.keys / self.keys_max)

    def no_room(self, letters: int, size: int, more: int) -> FeedmuxError | None:
        """Why a tenant with so many letters and bytes has no room for another letter of `more` bytes, if so."""
        if letters >= self.letters_max:
            return exceeded("dead_letters.letters_max", self.letters_max)
        if size + more > self.bytes_max:
            return exceeded("dead_letters.bytes_max", self.bytes_max)
        return None


class OfKey(NamedTuple):
    """The letters of one `documentKey`, as far as a stream key shows it."""

    key: bytes
    stream_key: bytes


class Page(NamedTuple):
    letters: list[DeadLetter]
    """Without their events."""
    more: bool


class Check(NamedTuple):
    """A quarantined key of which letters were discarded."""

    key: bytes
    id: bytes | None
    """Of the last time; None if a server of an earlier version has done it."""
    newest: tuple[str, bytes] | None = None
    """The place and the `documentKey` of the last letter, if all were discarded."""

    def came_later(self, first: DeadLetter) -> bool:
        """Whether all letters of the key came after all were discarded, by the first that there is: they were set aside
        only because the key was still quarantined."""
        # Another `documentKey` of the same key, with another shard key, may have letters of before. And an earlier
        # version may have stored a place without its end.
        return (
            self.newest is not None
            and not first.attempts
            and first.place[: len(self.newest[0])] > self.newest[0]
            and first.key == self.newest[1]
        )


@dataclass(slots=True)
class Usage:
    """What a tenant has in the collection, as far as this process knows."""

    letters: int
    bytes: int
    keys: int
    """Quarantined keys."""
    at_s: float


class Letters:
    """Raises SOURCE_UNAVAILABLE whenever MongoDB does not do what it is asked, with the cause in the log."""

    def __init__(self, commands: SourceCommands, place: LettersPlace) -> None:
        self.place = place
        self._commands = commands
        self._usage: dict[str, Usage] = {}
        self._turns = asyncio.Semaphore(WRITES_AT_ONCE)
        self._turn_of: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._next_line_s = 0.0
        self._unanswered = 0
        """How many releases of keys were not answered: MongoDB may carry them out later."""

    async def prepare(self) -> None:
        """Create the indexes, and with them the collection. Raises SOURCE_UNSUITABLE if there is an unfit one."""
        if unfit := await self._answer("listCollections", self.unfit):
            raise FeedmuxError(ErrorReason.SOURCE_UNSUITABLE, ". ".join(unfit))
        await self._answer("createIndexes", lambda: self._collection.create_indexes(list(_INDEXES)))

    async def unfit(self) -> tuple[str, str] | None:
        """Why the collection that is there would not keep letters as they are written, and what to do about it; None if
        it would, or if there is none. Raises pymongo's errors."""
        database, name = self._commands.client[self.place.database], self.place.collection
        command = {"listCollections": 1, "filter": {"name": name}}
        found = [info_of(each) async for part in listed(database, command) for each in part]
        if not found:
            return None
        where, info, why = f"{self.place.database}.{name}", found[0], ""
        if info.kind != "collection":
            why = f"is a {info.kind}, which does not store letters as they are"
        elif info.capped:
            why = "is capped: MongoDB would delete letters to make room"
        elif info.collation:
            why = "has a collation, by which letters of two subscriptions or tenants may be one"
        if why:
            advice = "Drop or rename it, and feedmux creates it again; or set dead_letters.collection to another name"
            return f"the collection for dead letters, {where}, {why}", advice
        indexes = [each async for part in listed(database, {"listIndexes": name}) for each in part]
        for index in (RawBSONDocument(each, RAW_ANSWER) for each in indexes):
            if why := _why_unfit(index):
                advice = f"Drop the index {index['name'][:_NAME_CHARS]!r}"
                return f"an index of the collection for dead letters, {where}, {why}", advice
        return None

    async def probe(self) -> None:
        """Do once what is done with letters, and leave nothing but the collection. Raises pymongo's errors, with the
        text of MongoDB."""
        own = {"probe": secrets.token_hex(8)}
        # There is one by `_id` already, so this only shows that feedmux may create indexes.
        await self._collection.create_indexes([IndexModel([("_id", ASCENDING)], name="_id_")])
        await self._collection.update_one({"_id": own}, {"$set": {"state": _SET_ASIDE}})
        await self._collection.insert_one({"_id": own, "expires_at": DatetimeMS(int(wall_s() * 1000))})
        await self._collection.find_one({"_id": own})
        await self._collection.delete_one({"_id": own})

    @asynccontextmanager
    async def writing(self, tenant: str) -> AsyncIterator[None]:
        """Wait until `tenant` may write: tenants take turns, so that few events are in memory for this at a time, and
        one tenant's groups delay no other tenant."""
        async with self._turn_of[tenant], self._turns:
            yield

    async def insert(self, letters: Sequence[DeadLetter]) -> int:
        """Store letters of a tenant on a majority of the members; those that are there say what is known now, and are
        kept as long as new ones. Returns how many of the first were stored: those for which the tenant has room. Raises
        QUOTA_EXCEEDED if it has none for the first."""
        usage = await self.usage(letters[0].tenant)
        count, size = 0, usage.bytes
        full: FeedmuxError | None = None
        for each in letters:
            full = self.place.no_room(usage.letters + count, size, _size(each))
            if full is not None:
                break
            count, size = count + 1, size + _size(each)
        if full is not None and not count:
            if not await self._renew([self._document(letters[0])]):
                raise full
            count = 1
        for number in await self._insert(letters[:count]):
            usage.letters += 1
            usage.bytes += _size(letters[number])
        return count

    async def _insert(self, letters: Sequence[DeadLetter]) -> set[int]:
        """Return the indexes of those that are new."""
        for each in letters:
            for number, part in enumerate(_parts(_id(each), each.event_bytes), 1):
                event = Binary(each.event[number * PART_BYTES : (number + 1) * PART_BYTES])
                await self._insert_many([{"_id": part, "expires_at": self._expires(each), "event": event}])
        return await self._insert_many([self._document(each) for each in letters])

    def _expires(self, letter: DeadLetter) -> DatetimeMS:
        return DatetimeMS(letter.failed_ms + int(self.place.keep_s * 1000))

    def _document(self, letter: DeadLetter) -> dict[str, Any]:
        return {
            "_id": _id(letter),
            "tenant": letter.tenant,
            "subscription": letter.subscription,
            "stream_key": Binary(letter.stream_key),
            **({"key": RawBSONDocument(letter.key)} if letter.key else {}),
            "group_key": Binary(letter.group_key),
            "place": letter.place,
            "event": Binary(letter.event[:PART_BYTES]),
            "event_bytes": letter.event_bytes,
            "bytes": Int64(_size(letter)),
            "attempts": letter.attempts,
            "failures": letter.failures,
            "losses": letter.losses,
            "reasons": list(letter.reasons),
            "member": letter.member,
            "cluster_time": _timestamp(letter.cluster_time),
            "failed_at": DatetimeMS(letter.failed_ms),
            "expires_at": self._expires(letter),
            "state": _SET_ASIDE,
        }

    async def _insert_many(self, documents: Sequence[dict[str, Any]]) -> set[int]:
        async def insert() -> set[int]:
            try:
                await self._collection.insert_many(documents, ordered=False)
            except BulkWriteError as error:
                failures = error.details["writeErrors"]
                if error.details["writeConcernErrors"] or not all(map(_is_there, failures)):
                    raise
                return {each["index"] for each in failures}
            return set()

        there = await self._answer("insert", insert)
        if there and not await self._renew([documents[index] for index in there]):
            raise self._unavailable(
                "a letter that was there has expired or was discarded, or the collection has a collation now"
            )
        return set(range(len(documents))) - there

    async def _renew(self, documents: Sequence[dict[str, Any]]) -> bool:
        """Whether documents are there. A majority of the members has them then, with what is known now. What was set
        aside because an earlier event of its key was, without a delivery, says no more of its own."""
        updates = list[UpdateOne]()
        for each in documents:
            change: dict[str, Any] = {
                "$max": {name: each[name] for name in ("expires_at", "failed_at") if name in each}
            }
            if each.get("attempts"):
                change["$set"] = {name: each[name] for name in _OF_DELIVERIES}
            updates.append(UpdateOne({"_id": each["_id"]}, change, collation=_BY_BYTES))
        done = await self._answer("update", lambda: self._collection.bulk_write(updates, ordered=False))
        return done.matched_count == len(documents)

    async def page(
        self, tenant: str, subscription: str, *, of: OfKey | None, after: tuple[int, bytes] | None, most: int
    ) -> Page:
        """The letters of a subscription, or those of one key, after `after`, a time in milliseconds and an id, in the
        order in which the events failed: at most `most`, and PAGE_BYTES_MAX give or take one letter."""
        wanted = _of(tenant, subscription, of)
        if after is not None:
            failed, own = DatetimeMS(after[0]), _key(tenant, subscription, after[1])
            wanted["failed_at"] = {"$gte": failed}  # where the scan of the index begins
            wanted["$or"] = [{"failed_at": {"$gt": failed}}, {"failed_at": failed, "_id": {"$gt": own}}]

        async def find() -> Page:
            letters, size = list[DeadLetter](), 0
            found = self._collection.find(
                wanted,
                _WITHOUT_EVENT,
                sort=_AS_FAILED,
                limit=most + 1,
                batch_size=_LETTERS_AT_ONCE,
                max_time_ms=self._max_ms,
            )
            async with found:
                async for each in found:
                    if len(letters) == most or size >= PAGE_BYTES_MAX:
                        return Page(letters, more=True)
                    letters.append(_letter(each))
                    size += len(each.raw)
                    if not len(letters) % _LETTERS_AT_ONCE:
                        await asyncio.sleep(0)
            return Page(letters, more=False)

        return await self._answer("find", find)

    async def ids(self, tenant: str, subscription: str, *, of: OfKey | None, most: int) -> tuple[list[bytes], bool]:
        """The ids of the first letters of `page`, at most `most`, and whether there are more."""
        found = await self._ids(_of(tenant, subscription, of), most + 1)
        return [bytes(each["event"]) for each in found[:most]], len(found) > most

    async def _ids(self, wanted: dict[str, Any], most: int) -> list[Any]:
        """The `_id`s of letters in the order in which the events failed."""

        async def find() -> list[Any]:
            cursor = self._collection.find(wanted, {"_id": 1}, sort=_AS_FAILED, limit=most, max_time_ms=self._max_ms)
            return await cursor.to_list()

        return [each["_id"] for each in await self._answer("find", find)]

    async def get(self, tenant: str, subscription: str, id_: bytes, *, with_event: bool) -> DeadLetter | None:
        """A letter; None if there is none, or no longer."""
        own = _key(tenant, subscription, id_)
        left_out = None if with_event else _WITHOUT_EVENT

        async def find() -> tuple[Any, list[bytes]] | None:
            letter = await self._collection.find_one({"_id": own}, left_out, max_time_ms=self._max_ms)
            if letter is None:
                return None
            parts = [letter["event"]] if with_event else []
            for each in _parts(own, letter["event_bytes"]) if with_event else ():
                if sum(map(len, parts)) == letter["event_bytes"]:
                    break  # a letter of an earlier version: its parts were larger
                part = await self._collection.find_one({"_id": each}, max_time_ms=self._max_ms)
                if part is None:
                    return None  # it expires, or was discarded meanwhile
                parts.append(part["event"])
            return letter, parts

        found = await self._answer("find", find)
        return None if found is None else _letter(found[0], b"".join(found[1]))

    async def discard(
        self, tenant: str, subscription: str, ids: Sequence[bytes], *, complete: bool | None = None
    ) -> int:
        """Delete letters on a majority of the members, and return how many there were. The host of the group will find
        out which keys have no letters any more. `complete`: whether there were no others of their keys; if False, that
        is found out for each key. None: the group has delivered them."""
        own = [_key(tenant, subscription, each) for each in ids]
        shown = dict.fromkeys(("event_bytes", "group_key", "bytes", "place", "key"), True)
        found = await self._answer("find", lambda: self._collection.find({"_id": {"$in": own}}, shown).to_list())
        keys = {bytes(each["group_key"]): each for each in sorted(found, key=lambda each: str(each["place"]))}
        last = {key: (each["place"], _document_key(each)) for key, each in keys.items()}
        newest = last if complete else {}
        # Before, because a caller who gets no answer, and tries again, finds no letter any more. And after, because the
        # host may have looked in between.
        await self.check(tenant, subscription, keys, newest)
        deleted = await self._answer("delete", lambda: self._collection.delete_many({"_id": {"$in": own}}))
        if complete is False:
            gone = await self.without_letters(tenant, subscription, keys)
            newest = {key: each for key, each in last.items() if key in gone}
        await self.check(tenant, subscription, [key for key in keys if key not in newest])
        await self.check(tenant, subscription, newest, newest)
        parts = chain.from_iterable(_parts(dict(each["_id"]), each["event_bytes"]) for each in found)
        while some := list(islice(parts, _DELETED_AT_ONCE)):
            wanted = {"_id": {"$in": some}}
            await self._answer("delete", partial(self._collection.delete_many, wanted))
        if (usage := self._usage.get(tenant)) is not None:
            usage.letters -= deleted.deleted_count
            usage.bytes -= sum(each["bytes"] for each in found)
        return int(deleted.deleted_count)

    # Quarantined keys. Each has a document that is deleted with its last letter. It has the `turn` of the last write:
    # the epoch of the group's host, and how many releases of this server were not answered before. So a host that was
    # frozen, and does not know that another one has taken its place, releases no key; and a release that MongoDB
    # carries out late releases none that is quarantined again. A document of the group has the turn of its last host.
    # A letter has that of the host that was the newest when it was marked, or has failed again: no host before that one
    # changes it.

    def _turn(self, epoch: int) -> Int64:
        return Int64((epoch << _UNANSWERED_BITS) + self._unanswered)

    def _without_successor(self, epoch: int) -> dict[str, Any]:
        """What letters match that no host after the one with this `epoch` concerns."""
        return {"$or": [{"turn": None}, {"turn": {"$lt": Int64((epoch + 1) << _UNANSWERED_BITS)}}]}

    async def quarantine(
        self, tenant: str, subscription: str, epoch: int, keys: Collection[bytes], new: int, now_s: float
    ) -> None:
        """Note that these group keys, of which `new` were not, are quarantined for as long as a letter that is written
        now is kept. `epoch` is that of the host. Raises QUOTA_EXCEEDED."""
        usage = await self.usage(tenant)
        if new and usage.keys + new > self.place.keys_max:
            raise exceeded("dead_letters.quarantined_keys_max", self.place.keys_max)
        values = {"pins": {"tenant": tenant, "subscription": subscription}}
        expires = {"expires_at": DatetimeMS(int((now_s + self.place.keep_s) * 1000)), "turn": self._turn(epoch)}
        updates = [
            UpdateOne(
                {"_id": _pin(tenant, subscription, each)},
                {"$set": values, "$max": expires},
                upsert=True,
                collation=_BY_BYTES,
            )
            for each in keys
        ]
        done = await self._answer("update", lambda: self._collection.bulk_write(updates, ordered=False))
        usage.keys += done.upserted_count

    async def take_over(self, tenant: str, subscription: str, epoch: int) -> list[bytes]:
        """Return the quarantined keys of a subscription for a host, which has the newest `epoch`. From now on, hosts
        before it release none of them, and what they quarantine does not count: this host delivers its events."""
        pins, turn = {"pins.tenant": tenant, "pins.subscription": subscription}, self._turn(epoch)
        host = {"tenant": tenant, "subscription": subscription, "host": True}
        before = await self._answer("find", lambda: self._collection.find_one({"_id": host}))
        if before is not None:
            await self._delete_pins(tenant, {**pins, "turn": {"$lt": before["turn"]}})
        await self._answer("update", lambda: self._collection.update_many(pins, {"$max": {"turn": turn}}))
        keys = await self._quarantined({**pins, "turn": {"$gte": turn}})
        # Last: a host that dies before it has these keys leaves them to the next one.
        values = {"turn": turn, "expires_at": DatetimeMS(int((wall_s() + self.place.keep_s) * 1000))}
        update = UpdateOne({"_id": host}, {"$set": values}, upsert=True, collation=_BY_BYTES)
        await self._answer("update", lambda: self._collection.bulk_write([update]))
        return keys

    async def quarantined(self, tenant: str, subscription: str, *, to_replay: bool = False) -> list[bytes]:
        """The quarantined keys of a subscription; with `to_replay`, those whose letters are delivered again
        (`mark_key`)."""
        wanted: dict[str, Any] = {"pins.tenant": tenant, "pins.subscription": subscription}
        if to_replay:
            wanted["replay"] = True
        return await self._quarantined(wanted)

    async def _quarantined(self, wanted: dict[str, Any]) -> list[bytes]:
        async def find() -> list[bytes]:
            found = list[bytes]()
            cursor = self._collection.find(wanted, {"_id": 1}, batch_size=_KEYS_AT_ONCE)
            async for each in cursor:
                found.append(bytes(each["_id"]["key"]))
                if not len(found) % _LETTERS_AT_ONCE:
                    await asyncio.sleep(0)
            return found

        return await self._answer("find", find)

    async def release(self, tenant: str, subscription: str, epoch: int, keys: Sequence[bytes]) -> None:
        """These keys are quarantined no longer, unless the host with this `epoch` has a successor."""
        pins = [_pin(tenant, subscription, each) for each in keys]
        turns = {"$gte": Int64(epoch << _UNANSWERED_BITS), "$lte": self._turn(epoch)}
        try:
            await self._delete_pins(tenant, {"_id": {"$in": pins}, "turn": turns})
        except BaseException:
            self._unanswered += 1
            raise

    async def _delete_pins(self, tenant: str, wanted: dict[str, Any]) -> None:
        deleted = await self._answer("delete", lambda: self._collection.delete_many(wanted))
        if (usage := self._usage.get(tenant)) is not None:
            usage.keys -= deleted.deleted_count

    async def check(
        self,
        tenant: str,
        subscription: str,
        keys: Collection[bytes],
        newest: Mapping[bytes, tuple[str, bytes]] | None = None,
    ) -> None:
        """Let the host of the group find out whether these keys, if they are quarantined, still have letters. `newest`
        is of keys of which all letters are discarded: the place and the `documentKey` of the last one."""
        check = {"check": True, "check_id": Binary(secrets.token_bytes(8))}
        for some in _parted(list(keys), _LETTERS_AT_ONCE):
            pins = {each: _pin(tenant, subscription, each) for each in some}
            if not newest:
                wanted = {"_id": {"$in": list(pins.values())}}
                await self._answer("update", partial(self._collection.update_many, wanted, {"$set": check}))
                continue
            updates = [
                UpdateOne({"_id": pin}, {"$set": {**check, "newest": {"place": place, "key": Binary(document_key)}}})
                for pin, (place, document_key) in ((pin, newest[key]) for key, pin in pins.items())
            ]
            await self._answer("update", partial(self._collection.bulk_write, updates, ordered=False))

    async def to_check(self, tenant: str, subscription: str) -> list[Check]:
        """CHECK_AT_ONCE of the keys for which `check` was called, or all."""
        wanted = {"pins.tenant": tenant, "pins.subscription": subscription, "check": True}
        shown = {"check_id": 1, "newest": 1}
        found = await self._answer("find", lambda: self._collection.find(wanted, shown, limit=CHECK_AT_ONCE).to_list())
        return [_check_of(each) for each in found]

    async def checked(self, tenant: str, subscription: str, check: Check) -> None:
        """This key was found to have letters. Without effect if more was discarded since `to_check`."""
        pin = {"_id": _pin(tenant, subscription, check.key), "check_id": check.id}
        done = {"$unset": {"check": "", "check_id": "", "newest": ""}}
        await self._answer("update", lambda: self._collection.update_one(pin, done))

    async def without_letters(self, tenant: str, subscription: str, keys: Iterable[bytes]) -> set[bytes]:
        """Those of these group keys that have no letter."""
        left, wanted = set(keys), _of(tenant, subscription, None)
        for some in _parted(list(left), _KEYS_AT_ONCE):
            wanted["group_key"] = {"$in": [Binary(each) for each in some]}
            stages = [{"$match": wanted}, {"$group": {"_id": "$group_key"}}]

            async def find(stages: list[dict[str, Any]] = stages) -> list[Any]:
                return await (await self._collection.aggregate(stages, maxTimeMS=self._max_ms)).to_list()

            left.difference_update(bytes(each["_id"]) for each in await self._answer("aggregate", find))
        return left

    # Letters that are delivered again.

    async def mark(
        self,
        tenant: str,
        subscription: str,
        stream_key: bytes,
        forks: Sequence[Fork],
        *,
        epoch: int,
        ids: Sequence[bytes] | None = None,
        key: bytes = b"",
        most: int,
    ) -> tuple[int, bool]:
        """Let letters of a stream key be delivered again: those of `ids`, of a `documentKey`, or all, but none that the
        forks of its deployment have lost. `epoch` is the newest of the subscription. Returns how many there are that
        were not marked before, at most `most`, and whether there may be more."""
        wanted = _of(tenant, subscription, OfKey(key, stream_key) if key else None)
        wanted |= {"stream_key": Binary(stream_key), "state": _SET_ASIDE}
        if lost := _lost(forks):
            wanted["$nor"] = lost
        if ids is not None:
            wanted["_id"] = {"$in": [_key(tenant, subscription, each) for each in ids]}
        found = await self._ids(wanted, most + 1)
        count = await self._set_state({"_id": {"$in": found[:most]}}, _REPLAY, epoch) if found else 0
        return count, len(found) > most

    async def withheld(
        self,
        tenant: str,
        subscription: str,
        stream_key: bytes,
        forks: Sequence[Fork],
        *,
        ids: Sequence[bytes] | None = None,
        most: int,
    ) -> int:
        """How many letters, of `ids` or all, have another stream key or are lost, at most `most`."""
        other = {"stream_key": {"$ne": Binary(stream_key)}}
        lost = _lost(forks)
        wanted = _of(tenant, subscription, None) | ({"$or": [other, *lost]} if lost else other)
        if ids is not None:
            wanted["_id"] = {"$in": [_key(tenant, subscription, each) for each in ids]}
        return await self._answer(
            "count", lambda: self._collection.count_documents(wanted, limit=most, maxTimeMS=self._max_ms)
        )

    async def mark_key(
        self, tenant: str, subscription: str, stream_key: bytes, epoch: int, key: bytes, *, to_replay: bool
    ) -> None:
        """Let all letters of a quarantined key be delivered again, or not. The mark is the key's: it may have all
        letters of its tenant, and each of them may fail again. With it, those of its letters that a caller has marked
        are marked no longer: a caller who marks them after that asks for another try. Without effect if the host with
        this `epoch` has a successor."""
        pin = {"_id": _pin(tenant, subscription, key), "turn": {"$lte": self._turn(epoch)}}
        mark: dict[str, Any] = {"$set": {"replay": True}} if to_replay else {"$unset": {"replay": ""}}
        done = await self._answer("update", lambda: self._collection.update_one(pin, mark))
        if to_replay and done.matched_count:
            wanted = _of(tenant, subscription, None) | {"stream_key": Binary(stream_key), "group_key": Binary(key)}
            await self._set_state(wanted | {"state": _REPLAY}, _SET_ASIDE, epoch)

    async def mark_letters(
        self, tenant: str, subscription: str, stream_key: bytes, epoch: int, keys: Sequence[bytes]
    ) -> None:
        """Where keys are to be delivered again (`mark_key`) that are no longer quarantined: let the letters that they
        have now be, each by itself."""
        wanted = _of(tenant, subscription, None) | {"stream_key": Binary(stream_key), "state": _SET_ASIDE}
        for some in _parted(keys, _LETTERS_AT_ONCE):
            await self._set_state(wanted | {"group_key": {"$in": [Binary(each) for each in some]}}, _REPLAY, epoch)
            pins = {"_id": {"$in": [_pin(tenant, subscription, each) for each in some]}}
            await self._answer("update", partial(self._collection.update_many, pins, {"$unset": {"replay": ""}}))

    async def failed_again(self, tenant: str, subscription: str, epoch: int, letter: DeadLetter, id_: bytes) -> bool:
        """Store what is known of the deliveries of a letter, which is not delivered again now. Returns whether it is
        still there. Without effect, and False, if it is marked or has failed again since the host with this `epoch` has
        a successor."""
        new = self._document(letter)
        fields = {name: new[name] for name in (*_OF_DELIVERIES, "failed_at", "expires_at", "state")}
        own = _key(tenant, subscription, id_)
        if parts := list(_parts(own, letter.event_bytes)):
            kept = {"$max": {"expires_at": new["expires_at"]}}
            await self._answer("update", lambda: self._collection.update_many({"_id": {"$in": parts}}, kept))
        wanted = {"_id": own} | self._without_successor(epoch)
        change = {"$set": fields, "$max": {"turn": self._turn(epoch)}}
        done = await self._answer("update", lambda: self._collection.update_one(wanted, change))
        return bool(done.matched_count)

    async def failed_in_replay(
        self, tenant: str, subscription: str, epoch: int, failures: Mapping[bytes, tuple[int, int]]
    ) -> None:
        """Store how often letters have failed since they are delivered again, and how often by the loss of a member.
        Without effect on a letter as `failed_again`."""
        own, turn = self._without_successor(epoch), {"turn": self._turn(epoch)}
        updates = [
            UpdateOne(
                {"_id": _key(tenant, subscription, each)} | own,
                {"$set": {"failures": failed, "losses": losses}, "$max": turn},
            )
            for each, (failed, losses) in failures.items()
        ]
        if updates:
            await self._answer("update", lambda: self._collection.bulk_write(updates, ordered=False))

    async def to_replay(
        self, tenant: str, subscription: str, stream_key: bytes, most: int, *, after: bytes
    ) -> list[DeadLetter]:
        """The first letters that callers have marked, key by key, of the group keys after `after`; without their
        events."""
        wanted = _of(tenant, subscription, None) | {"stream_key": Binary(stream_key), "state": _REPLAY}
        wanted["group_key"] = {"$gt": Binary(after)}
        return await self._in_order(wanted, most)

    async def of_group_key(self, tenant: str, subscription: str, key: bytes, most: int) -> list[DeadLetter]:
        """The first letters of a group key, without their events."""
        return await self._in_order({"tenant": tenant, "subscription": subscription, "group_key": Binary(key)}, most)

    async def _in_order(self, wanted: dict[str, Any], most: int) -> list[DeadLetter]:
        async def find() -> list[DeadLetter]:
            letters = list[DeadLetter]()
            async for each in self._collection.find(
                wanted, _WITHOUT_EVENT, sort=_IN_ORDER, limit=most, max_time_ms=self._max_ms
            ):
                letters.append(_letter(each))
                if not len(letters) % _LETTERS_AT_ONCE:
                    await asyncio.sleep(0)
            return letters

        return await self._answer("find", find)

    async def _set_state(self, wanted: dict[str, Any], state: str, epoch: int) -> int:
        change = {"$set": {"state": state}, "$max": {"turn": self._turn(epoch)}}
        done = await self._answer("update", lambda: self._collection.update_many(wanted, change))
        return int(done.matched_count)

    async def usage(self, tenant: str) -> Usage:
        """How many letters a tenant has, and their bytes."""
        usage, now_s = self._usage.get(tenant), monotonic_s()
        if usage is not None and now_s - usage.at_s < (_FULL_S if self.place.share(usage) >= 1 else _USAGE_S):
            return usage
        stages: list[dict[str, Any]] = [
            {"$match": {"tenant": tenant}},
            {"$group": {"_id": None, "letters": {"$sum": 1}, "bytes": {"$sum": "$bytes"}}},
        ]

        async def count() -> tuple[list[Any], int]:
            found = await (await self._collection.aggregate(stages, maxTimeMS=self._max_ms)).to_list()
            return found, await self._collection.count_documents({"pins.tenant": tenant}, maxTimeMS=self._max_ms)

        found, keys = await self._answer("aggregate", count)
        counted = (int(found[0]["letters"]), int(found[0]["bytes"])) if found else (0, 0)
        usage = self._usage[tenant] = Usage(*counted, keys, now_s)
        return usage

    def shares(self) -> dict[str, float]:
        """How much of its bounds each tenant uses, 1 for all, as far as this process knows."""
        return {tenant: self.place.share(usage) for tenant, usage in self._usage.items()}

    @property
    def _collection(self) -> AsyncCollection[Any]:
        return self._commands.client[self.place.database].get_collection(
            self.place.collection,
            codec_options=_RAW,
            read_preference=ReadPreference.PRIMARY,
            write_concern=WriteConcern("majority", wtimeout=self._max_ms),
        )

    @property
    def _max_ms(self) -> int:
        return int(self._commands.wait_s * 1000)

    async def _answer(self, operation: str, command: Callable[[], Awaitable[T]]) -> T:
        with self._commands.span(operation, self.place.database, self.place.collection):
            try:
                return await self._commands.answer(command())
            except FeedmuxError as error:
                cause = error.__cause__
                why = _why_failed(cause) if isinstance(cause, OperationFailure) else error.message
                raise self._unavailable(why) from error

    def _unavailable(self, why: str) -> FeedmuxError:
        now_s = monotonic_s()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + _LOG_EVERY_S
            log.error(
                "the collection for dead letters, %s.%s of %s, cannot be used: %s. Events that become dead letters"
                " hold their keys until it can. Check dead_letters in the configuration with `feedmux doctor`",
                self.place.database,
                self.place.collection,
                self._commands.name,
                why,
            )
        return FeedmuxError(
            ErrorReason.SOURCE_UNAVAILABLE,
            "the collection for dead letters cannot be used now; try again, and tell the operator if this stays so",
            retry_after_s=RETRY_AFTER_S,
        )


# One that changes needs another name: MongoDB rejects a second definition of a name.
_INDEXES: Final = (
    IndexModel([("tenant", 1), ("subscription", 1), ("failed_at", 1), ("_id", 1)], name="by_time"),
    IndexModel(
        [(name, 1) for name in ("tenant", "subscription", "key", "stream_key", "state", "failed_at", "_id")],
        name="by_key_and_state",
    ),
    IndexModel(
        [(name, 1) for name in ("tenant", "subscription", "stream_key", "state", "failed_at", "_id")], name="by_state"
    ),
    IndexModel([("tenant", 1), ("bytes", 1)], name="usage"),
    IndexModel([("expires_at", 1)], name="expiry", expireAfterSeconds=0),
    IndexModel([("tenant", 1), ("subscription", 1), ("group_key", 1), ("place", 1), ("_id", 1)], name="by_group_key"),
    IndexModel(
        [(name, 1) for name in ("tenant", "subscription", "stream_key", "group_key", "place", "_id")],
        name="marked",
        partialFilterExpression={"state": _REPLAY},
    ),
    IndexModel([("pins.tenant", 1), ("pins.subscription", 1), ("check", 1)], name="quarantined", sparse=True),
)


def _is_there(failure: Mapping[str, Any]) -> bool:
    """Whether a document was not inserted because there is one with its `_id`."""
    return failure["code"] == _DUPLICATE and list(failure.get("keyPattern", ["_id"])) == ["_id"]


def _why_failed(error: OperationFailure) -> str:
    """The code, and the fields of a unique index: MongoDB's messages quote what is stored."""
    details: Mapping[str, Any] = error.details or {}
    # pymongo gives all bulk writes a code of its own.
    failures = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
    first = next((each for each in failures if not _is_there(each)), details)
    code = first.get("code", error.code)
    if code == _DUPLICATE and (fields := ", ".join(first.get("keyPattern", ()))):
        return f"its unique index on {fields} rejects a letter (MongoDB's error {code})"
    return f"MongoDB's error {code}"


def _why_unfit(index: Mapping[str, Any]) -> str:
    """Why letters cannot be stored with an index that was found; empty if they can."""
    if list(index["key"]) == ["_id"]:
        return ""
    # Nothing within a field is decoded except the key: a filter may have megabytes.
    own = {each.document["name"]: RawBSONDocument(bson.encode(each.document), RAW_ANSWER) for each in _INDEXES}
    fields = ("key", "expireAfterSeconds", "sparse", "partialFilterExpression", "unique", "collation")

    def meaning(of: Mapping[str, Any]) -> list[Any]:
        return [list(of["key"].items()), *(of.get(name) for name in fields[1:])]

    if any((index["name"] == name) is not (meaning(index) == meaning(each)) for name, each in own.items()):
        return "takes the place of one that feedmux creates"
    if index["name"] in own:
        return ""
    if index.get("unique"):
        return f"on {', '.join(index['key'])[:_NAME_CHARS]} is unique and would reject letters"
    return "would delete letters early" if "expireAfterSeconds" in index else ""


def _parted(items: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    return (items[begin : begin + count] for begin in range(0, len(items), count))


def _key(tenant: str, subscription: str, id_: bytes) -> dict[str, Any]:
    return {"tenant": tenant, "subscription": subscription, "event": Binary(id_)}


def _parts(own: dict[str, Any], event_bytes: int) -> Iterator[dict[str, Any]]:
    """The `_id`s of the documents with what a letter's own document has not of its event."""
    return ({**own, "part": number} for number in range(1, -(-event_bytes // PART_BYTES)))


def _pin(tenant: str, subscription: str, key: bytes) -> dict[str, Any]:
    return {"tenant": tenant, "subscription": subscription, "key": Binary(key)}


def _id(letter: DeadLetter) -> dict[str, Any]:
    return _key(letter.tenant, letter.subscription, letter.id)


def _of(tenant: str, subscription: str, of: OfKey | None) -> dict[str, Any]:
    wanted: dict[str, Any] = {"tenant": tenant, "subscription": subscription}
    if of is not None:
        wanted["key"] = {"$eq": RawBSONDocument(of.key)}  # a value, also if it looks like an operator
        wanted["stream_key"] = Binary(of.stream_key)
        wanted["state"] = {"$in": [_SET_ASIDE, _REPLAY]}  # all; so the index has them in the order of their times
    return wanted


def _lost(forks: Sequence[Fork]) -> list[dict[str, Any]]:
    """What letters match whose events these forks have lost (`Fork.has_lost_event`)."""
    return [{"cluster_time": {"$gt": _timestamp(each.after), "$lt": _timestamp(each.until)}} for each in forks]


def _timestamp(time: int) -> Timestamp:
    return Timestamp(time >> 32, time & 0xFFFF_FFFF)


def _size(letter: DeadLetter) -> int:
    reasons = sum(len(each.encode()) for each in letter.reasons)
    return letter.event_bytes + len(letter.key) + reasons + OVERHEAD_BYTES


def _document_key(letter: Any) -> bytes:
    key = letter.get("key")
    return b"" if key is None else bytes(key.raw)


def _check_of(pin: Any) -> Check:
    newest = pin.get("newest")
    return Check(
        bytes(pin["_id"]["key"]),
        pin.get("check_id"),
        None if newest is None else (newest["place"], bytes(newest["key"])),
    )


def _letter(document: Any, event: bytes = b"") -> DeadLetter:
    time = document["cluster_time"]
    return DeadLetter(
        tenant=document["tenant"],
        subscription=document["subscription"],
        id=bytes(document["_id"]["event"]),
        stream_key=bytes(document["stream_key"]),
        key=_document_key(document),
        group_key=bytes(document["group_key"]),
        place=document["place"],
        event_bytes=document["event_bytes"],
        attempts=document["attempts"],
        failures=document.get("failures", 0),
        losses=document.get("losses", 0),
        reasons=tuple(document["reasons"]),
        member=document["member"],
        cluster_time=time.time << 32 | time.inc,
        failed_ms=int(document["failed_at"]),
        expires_ms=int(document["expires_at"]),
        event=event,
    )
