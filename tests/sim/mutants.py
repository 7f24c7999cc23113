"""Broken variants (mutants) of the production code, which the simulation must detect.

A mutant replaces one piece of text in one function, or in one of Redis's scripts. `Gone` means that the text no longer
occurs exactly once: adapt the mutant to the changed code.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any, Final

from feedmux_server.store import scripts

LUA: Final = "lua:"


class Gone(Exception):
    """The text to be replaced does not occur exactly once in the code."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`target` is `module:Class.method`, `module:function` or `lua:script`."""

    name: str
    guarantee: str
    """The guarantee that the mutant breaks."""
    target: str
    old: str
    new: str
    size: str = "small"
    """The size of the runs that find it."""
    seeds: int = 400
    """This many runs are enough to find it."""
    scenario: str = ""
    """One of `faults.SCENARIOS`."""
    rare: bool = False
    """It takes minutes to find: `./run test` leaves it to `--all`."""

    def __str__(self) -> str:
        return self.name


def _read(text: str) -> Mutant:
    """Read an entry of `MUTANTS`."""
    title, where, *lines = text.split("\n")
    guarantee, _, name = title.partition(": ")
    target, *options = where.split(" | ")
    old, new = ("\n".join(line[2:] for line in lines if line[0] in signs) for signs in (" -", " +"))
    more: dict[str, Any] = {}
    for each in options:
        match each.split():
            case [number, "seeds"]:
                more["seeds"] = int(number)
            case ["large"]:
                more["size"] = "large"
            case ["rare"]:
                more["rare"] = True
            case _:
                more["scenario"] = each
    return Mutant(name, guarantee, target, old, new, **more)


# Each with its guarantee, its name, where it is, and the difference. Lines are indented as in the code only where an
# entry has several. What follows `|` are the fields of `Mutant` that are not as usual.
_ENTRIES: Final = r"""
Complete: a read begins after the cluster time of its position
feedmux_server.source.stream_request:StreamRequest.stages | MongoDB 8.0
- stage["startAfter" if place.from_invalidate else "resumeAfter"] = token
+ stage["startAtOperationTime"] = Timestamp(place.cluster_time + 1 >> 32, place.cluster_time + 1 & 0xFFFF_FFFF)

Complete: events lose a field that 6.0 does not have
feedmux_server.source.reader:ChangeStreamReader.read | MongoDB 8.2
- part, start, read_time_s
+ b''.join(
+                     bson.encode({name: value for name, value in each.items() if name != 'collectionUUID'})
+                     for bson in (__import__('bson'),) for each in bson.decode_all(part)
+                 ), start, read_time_s

Resumable or loud: a change of the feature version ends feeds
feedmux_server.source.reader:ChangeStreamReader._fail | feature version changes
          verdict = judge(error, during)
+         if getattr(error, "code", None) == 234:
+             raise FeedmuxError(ErrorReason.PIPELINE_FAILED, "killed") from error

Consistent: the token of a batch is the newest
feedmux_server.source.reader:ChangeStreamReader.read | MongoDB 9.0.1
- newest = chunks[-1].end if chunks else post_batch
+ newest = post_batch or (chunks[-1].end if chunks else None)

Snapshot exact: an update whose document was not found is left out
feedmux_server.source.reader:ChangeStreamReader.read | MongoDB 9.0.1
- part, start, read_time_s
+ b''.join(
+                     bson.encode(each)
+                     for bson in (__import__('bson'),) for each in bson.decode_all(part)
+                     if each.get('fullDocument', 0) is not None
+                 ), start, read_time_s

Bookmarkable: a read without events has read up to the present
feedmux_server.source.reader:ChangeStreamReader.read | an idle shard
- post_batch = read_token(raw.post_batch, chunks[-1].end if chunks else place)
+ post_batch = read_token(raw.post_batch) if raw.data else ResumeToken.high_water_mark(self._source.clock.known_time, 2)

Ordered: the parts of a message come in reverse
feedmux_server.core.delivery.subscriber:Subscriber.cut
- tuple(parts)
+ tuple(parts[::-1])

Ordered: one that is handed over begins at the oldest event
feedmux_server.core.delivery.feed_streams:FeedStreams._attach
- ring.locate(place) if ring.covers(place) else (ring.next_seq, 0)
+ (ring.first_seq, 0)
+         if ring.next_seq:
+             subscriber.at = JoinPoint(ring.oldest, exact=True)

Complete: an event of each message is left out
feedmux_server.core.delivery.subscriber:Subscriber.cut
- self.index = stop
+ self.index = stop + (stop + 1 < chunk.count)

Resumable or loud: one that joins begins an event too far
feedmux_server.core.delivery.replay_buffer:ReplayBuffer.locate
- 0 if not place.is_after(chunk.start) else chunk.first_after(place)
+ min(chunk.count, chunk.first_after(place) + 1)

Complete: one that fell out of the ring continues at its oldest event
feedmux_server.core.delivery.feed_streams:FeedStreams.take
  subscriber.seq < stream.ring.first_seq:
+                 subscriber.seq, subscriber.index = stream.ring.first_seq, 0
+                 subscriber.at = JoinPoint(stream.ring.oldest, exact=True)
+             elif False:

Complete: after an invalidate a session continues at the present
feedmux_server.sessions.session:Session._meet_end
- JoinPoint(place, exact=place.given is Given.BY_MONGODB)
+ JoinPoint(ResumeToken.high_water_mark(self._manager.source(self.source).clock.known_time + 1))

Complete: the events of one cluster time are passed together
feedmux_server.core.events.chunk:Chunk.first_after
- not place.reaches(self.token(index))
+ self.token(index).cluster_time > place.cluster_time

Complete: a stream that begins further back says that it does not
feedmux_server.core.delivery.shared_stream:SharedStream.lower_start | short of memory
- self.ring.restart_at(origin.place)

Complete: lost history is skipped without a notice
feedmux_server.sessions.session:Session._meet_end | history lost
- self.notice(GapMark(subscriber.at.place, place, error.reason.value))
+ pass

Unique: events before the position come again
feedmux_server.core.delivery.subscriber:Subscriber.cut | clients closed
- self.index = chunk.first_after(self.at.place)
+ pass

Unique: the client hands out what it has handed out before
feedmux.delivery_tracker:DeliveryTracker.begin | position keys rotate
- self._repeats[key] = unacked.first_sequence + index
+ pass

Unique: the client hands out a message that comes twice
feedmux.delivery_tracker:DeliveryTracker.arrive | protocol broken
- if first_sequence != self._next_sequence:
+ if first_sequence > self._next_sequence:

At least once: what was sent is stored as if it were acked
feedmux_server.core.delivery.ack_tracker:AckTracker.ack
- done = sequence - first_sequence + 1
+ done = self.sent - first_sequence + 1

At least once: an ack stores the end of its chunk
feedmux_server.core.events.chunk:Chunk.ack_place
- if index == self.count - 1 and not self._split:
+ if not self._split:

At least once: a heartbeat stores what is not acked
feedmux_server.core.delivery.ack_tracker:AckTracker.progress
- if self.outstanding or self.place
+ if self.place

At least once: the client takes what was handed out for acked when it reconnects
feedmux.connection:Connection._open_request | position keys rotate
- feed_position = self._tracker.acked_position(self._open_acked)
+ feed_position = self._tracker.latest

At least once: the client takes all that it has received for acked
feedmux.delivery_tracker:DeliveryTracker.acked_position | position keys rotate
- acked = max(acked, self._floor)
+ acked = max(acked, self._floor, self._received)

Consistent: a stream is resumed at an old position
feedmux_server.source.stream_request:StreamRequest.advance | large
- self.at = JoinPoint(to, exact=True, native=None if has_events else self.at.native)
+ pass

Resumable or loud: the client acks an event that did not come
feedmux.delivery_tracker:DeliveryTracker.acked_sequence
- sequence + done - 1
+ sequence + done

Bookmarkable: a heartbeat has the ring's newest position
feedmux_server.core.delivery.subscriber:Subscriber.progress
- self.can_receive and self.at_head
+ self.can_receive

Bookmarkable: a batch names the end of its chunk
feedmux_server.core.events.chunk:Chunk.place_after
- self.end if index == self.count - 1 else self.token(index)
+ self.end

Whole: parts of a message are swapped
feedmux_server.core.delivery.subscriber:Subscriber.cut
- tuple(parts)
+ tuple(parts) if len(parts) < 3 else (parts[1], parts[0], *parts[2:])

Complete: the chunks of a batch come in reverse
feedmux_server.core.delivery.shared_stream:SharedStream.append
- for chunk in chunks:
+ for chunk in reversed(list(chunks)):

Whole: the first part of a message comes last
feedmux_server.core.delivery.subscriber:Subscriber.cut
- tuple(parts)
+ (*parts[1:], parts[0])

Bounded: the limit of unacknowledged events is not kept
feedmux_server.core.delivery.subscriber:Subscriber.cut
- self.credit.events if self.acks is None else min(self.credit.events, self.acks.room)
+ self.credit.events

Bounded: credit in bytes is not spent
feedmux_server.core.delivery.credit:CreditWindow.spend
- self.bytes -= size
+ self.bytes -= size // 2

Bounded: acks return credit
feedmux_server.core.delivery.feed_streams:FeedStreams.ack
+         subscriber.credit.grant(max(0, sequence - acks.acked), 0, zero_allowed=True)
          moved = acks.ack(sequence)

Monotone commit: a commit may move the position back
lua:commit | late commands
- if before(stored[5] .. stored[6], ARGV[7] .. ARGV[8]) then
+ if stored[5] .. stored[6] ~= ARGV[7] .. ARGV[8] then

Monotone commit: a commit is confirmed before it is stored
feedmux_server.store.committer:Committer._commit
+         for handle, waiting in sent:
+             if waiting is not None:
+                 handle._listener.committed(waiting.delivery_sequence, waiting.place.position)
          outcomes = await self._commit_many(

Fenced: a client that leaves while it opens leaves its lease
feedmux_server.rpc.subscription_lease:_release_opened | killed while opening
- await leases.release(lease)
+ pass

Fenced: an older session commits too
lua:commit | takeover
- if epoch ~= mine or stored[2] ~= ARGV[2] then
+ if false then

Fenced: a session opens without a new epoch
lua:open
- 'epoch', epoch, 'nonce', ARGV[2]
+ 'epoch', stored[1], 'nonce', ARGV[2]

Fenced: an epoch is the time, even if it was used
lua:open | Redis's clock steps
- int(next_epoch(stored[1], now))
+ int(now)

Fenced: a lease that holds is given to another
lua:open | another program
- and lease_until > now
+ and false

Fenced: leases are not renewed
feedmux_server.store.commit_queue:CommitQueue.ready | another program
- if self._rules.renew_due(h.confirmed_s, now_s)
+ if False

Fenced: Redis runs a command that its caller has abandoned
lua:open | late takeover
- if too_late then return too_late end

Fenced: a session that another opening of its client replaces is taken over
lua:open | late commands
- same and 'LEASE' or 'TAKEOVER'
+ 'TAKEOVER'

Fenced: lost state is restored over a newer owner's
lua:restore | lost and created again
- if epoch and (epoch > mine or epoch == mine and not damaged()) then return {'EXISTS'} end

Fenced: a seek leaves the session its lease
lua:seek | seek
- 'epoch', epoch, 'seek_epoch', epoch,
-   'nonce', '', 'owner', '', 'lease_until_ms', '0',
+ 'seek_epoch', epoch,

Fenced: the client takes over again and again
feedmux.connection:Connection._open_request | takeover
- opening.takeover and self._state in FIRST_OPENING
+ opening.takeover

Convergent: credit does not wake
feedmux_server.core.delivery.feed_streams:FeedStreams.grant
- if blocked:
+ if False:

Convergent: the pump does not hear of demand
feedmux_server.core.delivery.shared_stream:SharedStream.poke
- self.demand_changed()
+ pass

Convergent: repeats use up the client's window
feedmux.connection:Connection._deliver | short of memory
- self._window.discard(events, size_bytes)
+ pass

Convergent: the client counts each grant twice
feedmux.window:CreditWindow.refill
- self._granted_events += grant.events
+ self._granted_events += 2 * grant.events

Authorised: sessions keep what their tenant is not granted any more
feedmux_server.rpc.live_sessions:LiveSessions.change_grants | grants change
- live.end(refusal)
+ pass

Authorised: feeds are opened without the grants
feedmux_server.rpc.access:Access.key_of
- self.grants_of(tenant)
+ None

Isolated: all tenants have one account
feedmux_server.core.limits.account:Accounts.of | a slowed tenant
- self._accounts.get(tenant)
+ next(iter(self._accounts.values()), None)

Isolated: a stream waits until all its tenants may read
feedmux_server.core.limits.account:Accounts.read_wait_s | a slowed tenant
- min((
+ max((

Latency at rest: those who wait for events are not woken
feedmux_server.core.delivery.shared_stream:SharedStream.wake_takers
- subscriber.wake()
+ subscriber.wake() if self.batches_read % 2 else None

Latency at rest: a session looks for events at times
feedmux_server.sessions.session:Session.next_output
- await self._signal.wait(min(left_s, taken.most_s, drain_left_s, close_left_s))
+ await asyncio.sleep(min(left_s, taken.most_s, drain_left_s, 1.0))

Durability at rest: an ack waits for the next look at the leases
feedmux_server.store.committer:Committer.wake
- self._wake.set()

Durability at rest: acks are looked for at times
feedmux_server.store.committer:Committer.run
- await self._wake.wait()
+ await asyncio.sleep(60)

Nothing left: a session keeps its lease at its end
feedmux_server.store.committer:Committer._released
- await self._leases.release_unless_lost(handle.lease, handle.delivered_time, handle.answered)
+ True

Nothing left: cursors stay open
feedmux_server.source.reader:ChangeStreamReader._close_cursor
- await cursor.close()
+ pass

Nothing left: a subscriber that has left is still listed
feedmux_server.streams.manager:StreamManager.release
- self._keys[key].streams.remove(subscriber)
+ self._keys[key].streams.leave(subscriber)

Consistent: a session that ends keeps its chunks
feedmux_server.core.delivery.ack_tracker:AckTracker.release
- self._sent.popleft()[1].let_go(self)
+ self._sent.popleft()

Consistent: an acked chunk is paid for
feedmux_server.core.delivery.ack_tracker:AckTracker.ack
- self.pays(-TRACKED_BYTES * len(passed))
+ self.pays(-TRACKED_BYTES)

Consistent: nobody pays for what a ring has evicted
feedmux_server.core.events.chunk:Chunk._leave_ring
- self._charge()

Consistent: a ring counts what it has dropped
feedmux_server.core.delivery.replay_buffer:ReplayBuffer.drop_oldest
- self.events -= chunk.count

Isolated: the quota of subscriptions is not checked
feedmux_server.rpc.subscriptions:Subscriptions._check_room | many subscriptions
- if existing >= account.quotas.subscriptions and
+ if False and

Loud: a repeated create counts against the quota
feedmux_server.rpc.subscriptions:Subscriptions._check_room | many subscriptions
- and not await store.names.has(tenant, name)

Isolated: an abandoned read continues to compute
feedmux_server.source.read_watch:ReadWatch._check | slow pipelines
- await self._server.kill_operation(address, stuck["opid"])
+ pass

Resumable or loud: a batch that takes long ends the feed
feedmux_server.source.timed_reads:TimedReads.next_batch | slow pipelines
- is_careful = self.is_careful
+ is_careful = True

Resumable or loud: a MongoDB that is slow for all ends a feed
feedmux_server.source.timed_reads:TimedReads._too_slow | slow pipelines
- if not await self._reads_without_pipeline():
+ if False:

Complete: a slice ends before its last event
feedmux_server.core.delivery.cached_range:CachedRange._cut
- start = chunk.place_after(stop - 1)
+ start = chunk.place_after(max(0, stop - 2))

Complete: a slice leaves its first event out
feedmux_server.core.delivery.cached_range:CachedRange.read
- chunk.first_after(after), chunk.count
+ min(chunk.count, chunk.first_after(after) + 1), chunk.count

Complete: a plan is caught up at the time of events that it has not read
feedmux_server.core.delivery.feed_streams:FeedStreams.has_read
- subscriber.progress().cluster_time > cluster_time
+ subscriber.progress().cluster_time >= cluster_time

Nothing left: an unused subscription is not deleted
feedmux_server.jobs.subscription_expiry:_sweep_tenant | a subscription expires
- elif left_s <= 0 and await
+ elif left_s <= -1_000 and await

Complete: a page of a list ends one subscription too far
feedmux_server.store.store:SubscriptionStore.list | many subscriptions | 20 seeds
- return listed[:page_size], listed[:page_size][-1].name
+ return listed[:page_size], name

Durable only: an update ignores its etag
lua:update | many subscriptions | 20 seeds
- if ARGV[3] ~= '' and ARGV[3] ~= stored[3] then return {'ETAG_MISMATCH'} end

Durable only: the clock of a server decides that a subscription has expired
lua:expire | a subscription expires | 20 seeds
- if used + tonumber(ARGV[1]) > now then return {'USED'} end

Snapshot ends: the beginning of a copy that begins again is not stored
feedmux_server.sessions.session:Session._meet_end | snapshot again and killed
- or copies_again) and
+ or False) and

Snapshot ends: a copy gives its slot away before it has made progress
feedmux_server.streams.pump:Pump._is_turn_over | copies share a slot
- has_progress = newest
+ has_progress = True or newest

Convergent: a stream that rests keeps its slot
feedmux_server.core.delivery.slots:Slots.next_step | history left unread | 100 seeds
- (not reads or used[tenant]
+ (reads and used[tenant]

Complete: of a stream that gives way the rest is skipped
feedmux_server.core.delivery.feed_streams:FeedStreams.give_way | history left unread | 100 seeds
+             subscriber.seq = stream.ring.next_seq
              if subscriber.at_head:

Convergent: a server that was not ready never is again
feedmux_server.core.readiness:Presence.observe
- self.there, self._against = there, 0
+ self.there, self._against = False, 0

Durable only: a change counts as confirmed without a replica
feedmux_server.store.commands:Commands._replicated_on | Redis fails over
- return answer, confirmed >= replicas
+ return answer, True

Durable only: nobody waits for a replica
feedmux_server.store.commands:Commands._replicated_on | Redis fails over
- replicas = min(1, int(info.get("connected_slaves", 0)))
+ replicas = 0

Loud: bytes that are no message are a defect
feedmux_server.rpc.convert:parse | hostile requests
- except DecodeError:
+ except EOFError:

Loud: a rejection has no reason
feedmux_server.rpc.status:error_status | hostile requests
- reason=error.reason.value
+ reason=""

Resumable or loud: a cause of a newer version ends the session
feedmux_server.store.answers:_cause | a newer version
- return FenceCause.LEASE
+ return FenceCause.DELETE

Durable only: an open forgets fields of a newer version
lua:open | a newer version
- local same =
+ redis.call('HDEL', key, 'of_a_newer_version') local same =

Resumable or loud: a notice of a newer version breaks the protocol
feedmux.responses:_notice | a newer version
- return make(notice) if make else None
+ if make is None:
+         raise ProtocolError("unknown")
+     return make(notice)

One history: nobody looks whether MongoDB was restored
feedmux_server.source.timeline:SourceTimeline.verify | MongoDB restored | 20 seeds
- while self._settled < self._doubts:
+ while False:

One history: rings keep what MongoDB has lost
feedmux_server.streams.manager:StreamManager._fork | MongoDB restored | 40 seeds
- if each.source.name == source:
+ if False:

One history: a stored position of the lost history is resumed
feedmux_server.core.positions.timeline:Fork.has_lost | MongoDB restored | 20 seeds
- return place.last_time > self.after and place.cluster_time < self.until
+ return False

One history: what earlier sessions have delivered counts for nothing
feedmux_server.rpc.subscription_lease:received | MongoDB restored | 40 seeds
- if stored.delivered_time < stored.cluster_time:
+ if True:

One history: no session says what it has delivered
feedmux_server.store.handle:CommitHandle.delivered | MongoDB restored | 40 seeds
- self.delivered_time = max(self.delivered_time, cluster_time)
+ pass

Consistent: the stored position stays in the lost history
feedmux_server.sessions.session:Session._meet_end | MongoDB restored | 20 seeds
- subscriber.acks.move_back(place)
+ pass

Snapshot exact: changes to the last copied document are withheld
feedmux_server.source.stream_request:StreamRequest.__init__ | snapshot
- [gate(copied)]
+ [{"$match": {"$or": [
+             {"$expr": {"$lt": each["$expr"]["$lte"]}} if "$expr" in each else each
+             for each in gate(copied)["$match"]["$or"]]}}]

Snapshot converges: deletes of what is not copied are withheld
feedmux_server.source.stream_request:StreamRequest.__init__ | snapshot
- [gate(copied)]
+ [{"$match": {"$or": gate(copied)["$match"]["$or"][1:]}}]

Snapshot exact: a copy takes the time of its last change for complete
feedmux_server.core.delivery.snapshot_steps:SnapshotSteps.mark_after | snapshot
- read_to.cluster_time - 1
+ read_to.cluster_time

Snapshot exact: the changes of a step begin after the mark
feedmux_server.streams.snapshot_reader:SnapshotReader._open_changes | snapshot
- JoinPoint(place.outside_copy(), from_before=is_newest, of_mongodb=self._is_of_mongodb)
+ JoinPoint(place.high_water_mark(place.cluster_time + 1))

Snapshot exact: documents are read as of an earlier time than they say
feedmux_server.source.documents:DocumentsReader._open_cursor | snapshot
- events, cluster_time, opening)
+ events, cluster_time - 1, opening)

Ordered: a copy goes on with the document that it has
feedmux_server.core.feeds.snapshot_stages:_after | snapshot
- "$gt"
+ "$gte"

Snapshot exact: a position within a batch covers the whole batch
feedmux_server.core.events.copy_chunks:DocumentsChunk._place | snapshot
- up_to = copied_id(raw)
+ up_to = self.last_id() if self.bson is not None else copied_id(raw)

Snapshot exact: a copy ends with its first batch
feedmux_server.streams.snapshot_reader:SnapshotReader._read_documents | snapshot
- is_last = raw.exhausted and not passed
+ is_last = True

Snapshot exact: one that copies is handed over
feedmux_server.core.delivery.feed_streams:FeedStreams._hand_over | snapshot
-  or here.copies:
+ :

Snapshot exact: a position does not say what is copied
feedmux_server.core.positions.position:PositionEncoder._while_copying | snapshot
- end = count + named + copied.up_to
+ end = count + named

Snapshot exact: a range of a copy has changes to the documents in it
feedmux_server.core.delivery.copy_range:is_of_one_step | MongoDB 9.0.1 | rare
- return start.copied.up_to in (b"", place.copied.up_to)
+ return True

Snapshot exact: changes to collections that were copied are withheld
feedmux_server.core.feeds.snapshot_stages:_before | snapshot of a database
- "ns.coll": {"$lt": collection}
+ "ns.coll": {"$gt": collection}

Snapshot exact: collections are listed before the time of a step
feedmux_server.streams.snapshot_reader:SnapshotReader._read_changes | snapshot of a database
- self._namespaces.forget()
+ pass

Snapshot exact: a rename to a name that was passed goes unnoticed
feedmux_server.streams.snapshot_reader:SnapshotReader._look_ahead | snapshot of a database
- if back is not None:
+ if False:

Snapshot exact: a collection that was dropped or renamed is taken for an empty one
feedmux_server.streams.snapshot_reader:SnapshotReader._is_same | snapshot of a database
- now <= steps.time
+ True

Snapshot converges: another copy has the generation of the one before
feedmux_server.core.positions.resume_token:ResumeToken.with_generation_after | snapshot again
- max(self.copied.generation, generation + 1)
+ 1

Snapshot ends: the end of a copy is announced before its last document
feedmux_server.core.delivery.copy_progress:CopyProgress.status | snapshot again
- running,
+ running and not self.documents,

Snapshot ends: no client is notified that a copy is complete
feedmux_server.sessions.session:Session._copy_ended | snapshot | 20 seeds
- is_due = place.copied is None
+ is_due = False

Snapshot ends: the client does not notice that a copy is complete
feedmux.session_base:SessionBase._say | snapshot | 20 seeds
- self._buffer.copying = None
+ pass

Key exclusive: a key is ready while a member has its run
feedmux_server.core.delivery.key_ledger:KeyLedger._record | group | 40 seeds
                  key.waiting.append(number)
+                 if key.flight:
+                     ready(key)
              events[number] = span, index, key

Key exclusive: a settled event frees its key
feedmux_server.core.delivery.key_ledger:KeyLedger.settle | group | 40 seeds
- if len(key.flight) > 1:
+ if len(key.flight) > 1 and key.waiting:
+                 key.flight.remove(number)
+                 self._offer(key)
+                 continue
+             if len(key.flight) > 1:

Key exclusive: what a member has in hand goes to others when its connection is lost
feedmux_server.sessions.groups:Group._leave | group | 40 seeds
- or self.definition.reconnect_s == 0
+ or True

Key order: what failed goes to the end of its key
feedmux_server.core.delivery.key_ledger:KeyLedger.fail | group | 40 seeds
- key.waiting[:0] = back
+ key.waiting += back

Key order: an event without a key waits for nobody
feedmux_server.core.delivery.key_ledger:KeyLedger._admit | group | 100 seeds
- if None in self.keys or (name is None and len(self.events) > len(behind)):
+ if None in self.keys:

Held: a failed event holds nothing
feedmux_server.core.delivery.retry:Retries.failed | group | 40 seeds
- tries.due_s = now_s + min(wait_s, HELD_MAX_S)
+ tries.due_s = now_s

Held: chance may leave no delay
feedmux_server.core.delivery.retry:RetryPolicy.delay_s | group | 40 seeds
- (1 - chance / 2)
+ (1 - chance)

Settled stays settled: a new host delivers everything after the position
feedmux_server.core.delivery.key_ledger:_Restored.unsettled | group hosts killed | 40 seeds
- if name in self._open:
+ if True:

Settled stays settled: a new host ignores what is settled ahead
feedmux_server.rpc.join:_hosted | group hosts killed | 40 seeds
- service.positions(key, tenant), ahead, service.letters,
+ service.positions(key, tenant), None, service.letters,

Key exclusive: a new host does not wait for the members of a lost one
feedmux_server.sessions.groups:Group.__init__ | group hosts killed | 40 seeds
- if definition.follows_lost:
+ if False:

Key exclusive: a new host does not wait for all members of a lost one
feedmux_server.sessions.groups:Group._is_back | group hosts killed | 300 seeds
- self._back >= self._expected
+ self._back

Key exclusive: a change of a group's definition counts as an orderly end of its host
lua:update | group changed | 40 seeds
- (stored[4] or '') ~= '' and 'lost' or ''
+ ''

Key exclusive: a new host gives what a member holds to anybody
feedmux_server.core.delivery.claims:Claims.holder_of | group hosts killed | 40 seeds
- return hand
+ return None

Settled stays settled: a new host ignores what members have settled
feedmux_server.core.delivery.claims:Claims.meet | group hosts killed | 40 seeds
- del left[index]
+ pass

Settled stays settled: a member does not tell what it has settled
feedmux.settlements:Settlements.settle | group hosts killed | 40 seeds
- self._settled += marks
+ pass

Covered: the position of a group is after what its members have
feedmux_server.core.delivery.key_ledger:KeyLedger.settled_place | group | 40 seeds
- place = span.before(index)
+ place = self._end

Covered: a hole is forgotten
feedmux_server.core.delivery.key_ledger:KeyLedger.ahead | group | 40 seeds
-             holes[mark] =
+             if not (holes and key.flight):
+                 holes[mark] =

At least once: what follows a hole in its key is forgotten
feedmux_server.core.delivery.key_ledger:_Restored.unsettled | group hosts killed | 100 seeds
- self._open[name] = mark
+ found[index] = attempts

Dead letters durable: an event is settled before its letter is written
feedmux_server.sessions.dead_letters:LetterWriter._write | letters away | 40 seeds
- written, pins = await self._stored(batch)
+ written, pins = len(batch), True

Dead letters durable: a letter counts that only the primary has
feedmux_server.source.letters:Letters._insert_many | letters away | 200 seeds
- if there and not await self._renew(
+ if False and not await self._renew(

Set aside rightly: an event is set aside an attempt too early
feedmux_server.core.delivery.retry:Retries.failed | letters away | 40 seeds
- tries.exhausted = failure.reject or 0 < most <= tries.failures
+ tries.exhausted = failure.reject or 0 < most <= tries.failures + 1

Set aside rightly: all events of a lost member count
feedmux_server.core.delivery.key_ledger:KeyLedger.give_back | poison | 40 seeds
- self.retries.lost(key.waiting[0])
+ [self.retries.lost(number) for number in key.waiting]

Key order: the later events of a quarantined key are delivered
feedmux_server.core.delivery.key_ledger:KeyLedger._offer | quarantine | 40 seeds
- if key.name in self.pinned:
+ if False:

Key order: a new host does not know the quarantined keys
feedmux_server.rpc.join:_hosted | quarantine | 40 seeds
- if definition.quarantine and service.letters is not None:
+ if False:

Key exclusive: a letter that a member processes goes to another one after a crash
feedmux_server.core.delivery.key_ledger:KeyLedger.replay | hosts killed in a replay | 100 seeds
- key.hand = holder
+ key.hand = holder = None

Key order: a lost host releases a key that its successor has quarantined
feedmux_server.source.letters:Letters.release | keys released late | 150 seeds
- "$gte": Int64(epoch << _UNANSWERED_BITS), "$lte": self._turn(epoch)
+ "$gte": Int64(0)

Key order: letters are delivered again out of order
feedmux_server.source.letters:Letters._in_order | quarantine | 40 seeds
- sort=_IN_ORDER
+ sort=_AS_FAILED

Key order: what follows letters does not wait until they are deleted
feedmux_server.core.delivery.key_ledger:KeyLedger._offer | quarantine | 100 seeds
- if key.deleting:
+ if False:

Key order: letters in a run are followed by other events
feedmux_server.core.delivery.key_ledger:KeyLedger._of_one_kind | quarantine | 100 seeds
- return waiting[: next(stops, len(waiting))]
+ return waiting

Key order: what waits of a quarantined key comes before its letters
feedmux_server.core.delivery.key_ledger:KeyLedger.replay | quarantine | 100 seeds
- key.waiting[at:at] = numbers
+ key.waiting += numbers

Dead letters durable: letters are deleted when they are delivered
feedmux_server.sessions.replays:Replays.delete | quarantine | 40 seeds
- [letter for letter, _ in replayed.values()]
+ list(ledger.loaded)

Convergent: a key stays in quarantine whose letters an earlier one of several calls has discarded
feedmux_server.source.letters:Letters.discard | quarantine | 100 seeds | rare
- if complete is False:
+ if False:

Dead letters durable: a letter that fails again is deleted
feedmux_server.source.letters:Letters.failed_again | quarantine | 40 seeds
- return bool(done.matched_count)
+ return bool(await self.discard(tenant, subscription, [id_]))

Convergent: a failed event comes back without the rest of its run
feedmux_server.core.delivery.key_ledger:KeyLedger.fail | group | 40 seeds
- back, key.flight = key.flight[at:], key.flight[:at]
+ back, key.flight = key.flight[at : at + 1], key.flight[:at] + key.flight[at + 1 :]

Covered: the higher position is after what is not listed
feedmux_server.core.delivery.key_ledger:KeyLedger.ahead | group | 40 seeds
- high = span.before(index)
-                 break
+ continue

Settled stays settled: a new host forgets what is settled ahead when it has read a part
feedmux_server.core.delivery.key_ledger:KeyLedger._record_again | group hosts killed | 100 seeds
- if restored is not None and (restored.is_passed_by(self._end) or restored.is_of_other_version(self._end)):
+ if restored is not None:

Convergent: what waited is not made ready
feedmux_server.core.delivery.key_ledger:KeyLedger._freed | group | 40 seeds
- self._offer(key)
+ pass

Convergent: a member that leaves keeps its events
feedmux_server.sessions.groups:Group._vacate | group | 40 seeds
- self._give_back(seat.hand, lost=lost)
+ pass

Convergent: held keys are never tried
feedmux_server.sessions.groups:Group._plan_retry | group | 40 seeds
- if due_s is not None:
+ if False:
"""

MUTANTS: Final = tuple(map(_read, _ENTRIES.strip().split("\n\n")))


@contextmanager
def built_with(mutant: Mutant) -> Iterator[None]:
    """Run with the broken code. Raises `Gone`."""
    if mutant.target.startswith(LUA):
        with _script(mutant):
            yield
        return
    module_name, _, path = mutant.target.partition(":")
    module = import_module(module_name)
    *owners, name = path.split(".")
    owner: Any = module
    for each in owners:
        owner = getattr(owner, each)
    original = owner.__dict__[name]
    source = _replaced(mutant, inspect.getsource(original))
    made: dict[str, Any] = {}
    # Compiled in the module's own globals, so that it uses the same names as the module. A method is indented.
    exec(compile(f"if True:\n{source}" if owners else source, f"<{mutant}>", "exec"), module.__dict__, made)  # noqa: S102
    if isinstance(original, FunctionType) and original.__closure__ is None:
        # So it also changes for modules that have imported the function by its name.
        code, original.__code__ = original.__code__, made[name].__code__
        try:
            yield
        finally:
            original.__code__ = code
        return
    setattr(owner, name, made[name])
    try:
        yield
    finally:
        setattr(owner, name, original)


def _replaced(mutant: Mutant, source: str) -> str:
    if (count := source.count(mutant.old)) != 1:
        raise Gone(f"{mutant}: the text {mutant.old!r} is {count} times in {mutant.target}")
    return source.replace(mutant.old, mutant.new)


@contextmanager
def _script(mutant: Mutant) -> Iterator[None]:
    script = mutant.target.removeprefix(LUA)
    original = scripts.source_of

    def source_of(name: str) -> str:
        source = original(name)
        return _replaced(mutant, source) if name == script else source

    _replaced(mutant, original(script))
    scripts.source_of = source_of  # type: ignore[assignment]
    scripts._sha_of.cache_clear()
    try:
        yield
    finally:
        scripts.source_of = original
        scripts._sha_of.cache_clear()
