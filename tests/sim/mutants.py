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


MUTANTS: Final = (
    Mutant(
        "a read begins after the cluster time of its position",
        "Complete",
        "feedmux_server.source.stream_request:StreamRequest.stages",
        'stage["startAfter" if place.from_invalidate else "resumeAfter"] = token',
        'stage["startAtOperationTime"] = Timestamp(place.cluster_time + 1 >> 32, place.cluster_time + 1 & 0xFFFF_FFFF)',
        scenario="MongoDB 8.0",
    ),
    Mutant(
        "events lose a field that 6.0 does not have",
        "Complete",
        "feedmux_server.source.reader:ChangeStreamReader.read",
        "part, start, read_time_s",
        "b''.join(\n"
        "                    bson.encode({name: value for name, value in each.items() if name != 'collectionUUID'})\n"
        "                    for bson in (__import__('bson'),) for each in bson.decode_all(part)\n"
        "                ), start, read_time_s",
        scenario="MongoDB 8.2",
    ),
    Mutant(
        "a change of the feature version ends feeds",
        "Resumable or loud",
        "feedmux_server.source.reader:ChangeStreamReader._fail",
        "        verdict = judge(error, during)\n",
        "        verdict = judge(error, during)\n"
        '        if getattr(error, "code", None) == 234:\n'
        '            raise FeedmuxError(ErrorReason.PIPELINE_FAILED, "killed") from error\n',
        scenario="feature version changes",
    ),
    Mutant(
        "the token of a batch is the newest",
        "Consistent",
        "feedmux_server.source.reader:ChangeStreamReader.read",
        "newest = chunks[-1].end if chunks else post_batch",
        "newest = post_batch or (chunks[-1].end if chunks else None)",
        scenario="MongoDB 9.0.1",
    ),
    Mutant(
        "an update whose document was not found is left out",
        "Snapshot exact",
        "feedmux_server.source.reader:ChangeStreamReader.read",
        "part, start, read_time_s",
        "b''.join(\n"
        "                    bson.encode(each)\n"
        "                    for bson in (__import__('bson'),) for each in bson.decode_all(part)\n"
        "                    if each.get('fullDocument', 0) is not None\n"
        "                ), start, read_time_s",
        scenario="MongoDB 9.0.1",
    ),
    Mutant(
        "a read without events has read up to the present",
        "Bookmarkable",
        "feedmux_server.source.reader:ChangeStreamReader.read",
        "post_batch = read_token(raw.post_batch, chunks[-1].end if chunks else place)",
        "post_batch = read_token(raw.post_batch) if raw.data else"
        " ResumeToken.high_water_mark(self._source.clock.known_time, 2)",
        scenario="an idle shard",
    ),
    Mutant(
        "the parts of a message come in reverse",
        "Ordered",
        "feedmux_server.core.delivery.subscriber:Subscriber.cut",
        "tuple(parts)",
        "tuple(parts[::-1])",
    ),
    Mutant(
        "one that is handed over begins at the oldest event",
        "Ordered",
        "feedmux_server.core.delivery.feed_streams:FeedStreams._attach",
        "ring.locate(place) if ring.covers(place) else (ring.next_seq, 0)",
        "(ring.first_seq, 0)\n"
        "        if ring.next_seq:\n"
        "            subscriber.at = JoinPoint(ring.oldest, exact=True)",
    ),
    Mutant(
        "an event of each message is left out",
        "Complete",
        "feedmux_server.core.delivery.subscriber:Subscriber.cut",
        "            self.index = stop\n",
        "            self.index = stop + (stop + 1 < chunk.count)\n",
    ),
    Mutant(
        "one that joins begins an event too far",
        "Resumable or loud",
        "feedmux_server.core.delivery.replay_buffer:ReplayBuffer.locate",
        "0 if not place.is_after(chunk.start) else chunk.first_after(place)",
        "min(chunk.count, chunk.first_after(place) + 1)",
    ),
    Mutant(
        "one that fell out of the ring continues at its oldest event",
        "Complete",
        "feedmux_server.core.delivery.feed_streams:FeedStreams.take",
        "subscriber.seq < stream.ring.first_seq:\n",
        "subscriber.seq < stream.ring.first_seq:\n"
        "                subscriber.seq, subscriber.index = stream.ring.first_seq, 0\n"
        "                subscriber.at = JoinPoint(stream.ring.oldest, exact=True)\n"
        "            elif False:\n",
    ),
    Mutant(
        "after an invalidate a session continues at the present",
        "Complete",
        "feedmux_server.sessions.session:Session._meet_end",
        "JoinPoint(place, exact=place.given is Given.BY_MONGODB)",
        "JoinPoint(ResumeToken.high_water_mark(self._manager.source(self.source).clock.known_time + 1))",
    ),
    Mutant(
        "the events of one cluster time are passed together",
        "Complete",
        "feedmux_server.core.events.chunk:Chunk.first_after",
        "not place.reaches(self.token(index))",
        "self.token(index).cluster_time > place.cluster_time",
    ),
    Mutant(
        "a stream that begins further back says that it does not",
        "Complete",
        "feedmux_server.core.delivery.shared_stream:SharedStream.lower_start",
        "        self.ring.restart_at(origin.place)\n",
        "",
        scenario="short of memory",
    ),
    Mutant(
        "lost history is skipped without a notice",
        "Complete",
        "feedmux_server.sessions.session:Session._meet_end",
        "self.notice(GapMark(subscriber.at.place, place, error.reason.value))",
        "pass",
        scenario="history lost",
    ),
    Mutant(
        "events before the position come again",
        "Unique",
        "feedmux_server.core.delivery.subscriber:Subscriber.cut",
        "self.index = chunk.first_after(self.at.place)",
        "pass",
        scenario="clients closed",
    ),
    Mutant(
        "the client hands out what it has handed out before",
        "Unique",
        "feedmux.delivery_tracker:DeliveryTracker.begin",
        "                    self._repeats[key] = unacked.first_sequence + index\n",
        "                    pass\n",
        scenario="position keys rotate",
    ),
    Mutant(
        "the client hands out a message that comes twice",
        "Unique",
        "feedmux.delivery_tracker:DeliveryTracker.arrive",
        "if first_sequence != self._next_sequence:",
        "if first_sequence > self._next_sequence:",
        scenario="protocol broken",
    ),
    Mutant(
        "what was sent is stored as if it were acked",
        "At least once",
        "feedmux_server.core.delivery.ack_tracker:AckTracker.ack",
        "done = sequence - first_sequence + 1",
        "done = self.sent - first_sequence + 1",
    ),
    Mutant(
        "an ack stores the end of its chunk",
        "At least once",
        "feedmux_server.core.events.chunk:Chunk.ack_place",
        "if index == self.count - 1 and not self._split:",
        "if not self._split:",
    ),
    Mutant(
        "a heartbeat stores what is not acked",
        "At least once",
        "feedmux_server.core.delivery.ack_tracker:AckTracker.progress",
        "if self.outstanding or self.place",
        "if self.place",
    ),
    Mutant(
        "the client takes what was handed out for acked when it reconnects",
        "At least once",
        "feedmux.connection:Connection._open_request",
        "feed_position = self._tracker.acked_position(self._open_acked)",
        "feed_position = self._tracker.latest",
        scenario="position keys rotate",
    ),
    Mutant(
        "the client takes all that it has received for acked",
        "At least once",
        "feedmux.delivery_tracker:DeliveryTracker.acked_position",
        "acked = max(acked, self._floor)",
        "acked = max(acked, self._floor, self._received)",
        scenario="position keys rotate",
    ),
    Mutant(
        "a stream is resumed at an old position",
        "Consistent",
        "feedmux_server.source.stream_request:StreamRequest.advance",
        "self.at = JoinPoint(to, exact=True, native=None if has_events else self.at.native)",
        "pass",
        size="large",
    ),
    Mutant(
        "the client acks an event that did not come",
        "Resumable or loud",
        "feedmux.delivery_tracker:DeliveryTracker.acked_sequence",
        "sequence + done - 1",
        "sequence + done",
    ),
    Mutant(
        "a heartbeat has the ring's newest position",
        "Bookmarkable",
        "feedmux_server.core.delivery.subscriber:Subscriber.progress",
        "self.can_receive and self.at_head",
        "self.can_receive",
    ),
    Mutant(
        "a batch names the end of its chunk",
        "Bookmarkable",
        "feedmux_server.core.events.chunk:Chunk.place_after",
        "self.end if index == self.count - 1 else self.token(index)",
        "self.end",
    ),
    Mutant(
        "parts of a message are swapped",
        "Whole",
        "feedmux_server.core.delivery.subscriber:Subscriber.cut",
        "tuple(parts)",
        "tuple(parts) if len(parts) < 3 else (parts[1], parts[0], *parts[2:])",
    ),
    Mutant(
        "the chunks of a batch come in reverse",
        "Complete",
        "feedmux_server.core.delivery.shared_stream:SharedStream.append",
        "for chunk in chunks:",
        "for chunk in reversed(list(chunks)):",
    ),
    Mutant(
        "the first part of a message comes last",
        "Whole",
        "feedmux_server.core.delivery.subscriber:Subscriber.cut",
        "tuple(parts)",
        "(*parts[1:], parts[0])",
    ),
    Mutant(
        "the limit of unacknowledged events is not kept",
        "Bounded",
        "feedmux_server.core.delivery.subscriber:Subscriber.cut",
        "self.credit.events if self.acks is None else min(self.credit.events, self.acks.room)",
        "self.credit.events",
    ),
    Mutant(
        "credit in bytes is not spent",
        "Bounded",
        "feedmux_server.core.delivery.credit:CreditWindow.spend",
        "self.bytes -= size",
        "self.bytes -= size // 2",
    ),
    Mutant(
        "acks return credit",
        "Bounded",
        "feedmux_server.core.delivery.feed_streams:FeedStreams.ack",
        "        moved = acks.ack(sequence)\n",
        "        subscriber.credit.grant(max(0, sequence - acks.acked), 0, zero_allowed=True)\n"
        "        moved = acks.ack(sequence)\n",
    ),
    Mutant(
        "a commit may move the position back",
        "Monotone commit",
        "lua:commit",
        "if before(stored[5] .. stored[6], ARGV[7] .. ARGV[8]) then",
        "if stored[5] .. stored[6] ~= ARGV[7] .. ARGV[8] then",
        scenario="late commands",
    ),
    Mutant(
        "a commit is confirmed before it is stored",
        "Monotone commit",
        "feedmux_server.store.committer:Committer._commit",
        "        outcomes = await self._commit_many(",
        "        for handle, waiting in sent:\n"
        "            if waiting is not None:\n"
        "                handle._listener.committed(waiting.delivery_sequence, waiting.place.position)\n"
        "        outcomes = await self._commit_many(",
    ),
    Mutant(
        "a client that leaves while it opens leaves its lease",
        "Fenced",
        "feedmux_server.rpc.subscription_lease:_release_opened",
        "await leases.release(lease)",
        "pass",
        scenario="killed while opening",
    ),
    Mutant(
        "an older session commits too",
        "Fenced",
        "lua:commit",
        "if epoch ~= mine or stored[2] ~= ARGV[2] then",
        "if false then",
        scenario="takeover",
    ),
    Mutant(
        "a session opens without a new epoch",
        "Fenced",
        "lua:open",
        "'epoch', epoch, 'nonce', ARGV[2]",
        "'epoch', stored[1], 'nonce', ARGV[2]",
    ),
    Mutant(
        "an epoch is the time, even if it was used",
        "Fenced",
        "lua:open",
        "int(next_epoch(stored[1], now))",
        "int(now)",
        scenario="Redis's clock steps",
    ),
    Mutant(
        "a lease that holds is given to another",
        "Fenced",
        "lua:open",
        "and lease_until > now",
        "and false",
        scenario="another program",
    ),
    Mutant(
        "leases are not renewed",
        "Fenced",
        "feedmux_server.store.commit_queue:CommitQueue.ready",
        "if self._rules.renew_due(h.confirmed_s, now_s)",
        "if False",
        scenario="another program",
    ),
    Mutant(
        "Redis runs a command that its caller has abandoned",
        "Fenced",
        "lua:open",
        "if too_late then return too_late end",
        "",
        scenario="late takeover",
    ),
    Mutant(
        "a session that another opening of its client replaces is taken over",
        "Fenced",
        "lua:open",
        "same and 'LEASE' or 'TAKEOVER'",
        "'TAKEOVER'",
        scenario="late commands",
    ),
    Mutant(
        "lost state is restored over a newer owner's",
        "Fenced",
        "lua:restore",
        "if epoch and (epoch > mine or epoch == mine and not damaged()) then return {'EXISTS'} end",
        "",
        scenario="lost and created again",
    ),
    Mutant(
        "a seek leaves the session its lease",
        "Fenced",
        "lua:seek",
        "'epoch', epoch, 'seek_epoch', epoch,\n  'nonce', '', 'owner', '', 'lease_until_ms', '0',",
        "'seek_epoch', epoch,",
        scenario="seek",
    ),
    Mutant(
        "the client takes over again and again",
        "Fenced",
        "feedmux.connection:Connection._open_request",
        "opening.takeover and self._state in FIRST_OPENING",
        "opening.takeover",
        scenario="takeover",
    ),
    Mutant(
        "credit does not wake",
        "Convergent",
        "feedmux_server.core.delivery.feed_streams:FeedStreams.grant",
        "if blocked:",
        "if False:",
    ),
    Mutant(
        "the pump does not hear of demand",
        "Convergent",
        "feedmux_server.core.delivery.shared_stream:SharedStream.poke",
        "self.demand_changed()",
        "pass",
    ),
    Mutant(
        "repeats use up the client's window",
        "Convergent",
        "feedmux.connection:Connection._deliver",
        "self._window.discard(events, size_bytes)",
        "pass",
        scenario="short of memory",
    ),
    Mutant(
        "the client counts each grant twice",
        "Convergent",
        "feedmux.window:CreditWindow.refill",
        "self._granted_events += grant.events",
        "self._granted_events += 2 * grant.events",
    ),
    Mutant(
        "sessions keep what their tenant is not granted any more",
        "Authorised",
        "feedmux_server.rpc.live_sessions:LiveSessions.change_grants",
        "live.end(refusal)",
        "pass",
        scenario="grants change",
    ),
    Mutant(
        "feeds are opened without the grants",
        "Authorised",
        "feedmux_server.rpc.access:Access.key_of",
        "self.grants_of(tenant)",
        "None",
    ),
    Mutant(
        "all tenants have one account",
        "Isolated",
        "feedmux_server.core.limits.account:Accounts.of",
        "self._accounts.get(tenant)",
        "next(iter(self._accounts.values()), None)",
        scenario="a slowed tenant",
    ),
    Mutant(
        "a stream waits until all its tenants may read",
        "Isolated",
        "feedmux_server.core.limits.account:Accounts.read_wait_s",
        "min((",
        "max((",
        scenario="a slowed tenant",
    ),
    Mutant(
        "those who wait for events are not woken",
        "Latency at rest",
        "feedmux_server.core.delivery.shared_stream:SharedStream.wake_takers",
        "            subscriber.wake()\n",
        "            subscriber.wake() if self.batches_read % 2 else None\n",
    ),
    Mutant(
        "a session looks for events at times",
        "Latency at rest",
        "feedmux_server.sessions.session:Session.next_output",
        "await self._signal.wait(min(left_s, taken.most_s, drain_left_s, close_left_s))",
        "await asyncio.sleep(min(left_s, taken.most_s, drain_left_s, 1.0))",
    ),
    Mutant(
        "an ack waits for the next look at the leases",
        "Durability at rest",
        "feedmux_server.store.committer:Committer.wake",
        "        self._wake.set()\n",
        "",
    ),
    Mutant(
        "acks are looked for at times",
        "Durability at rest",
        "feedmux_server.store.committer:Committer.run",
        "await self._wake.wait()",
        "await asyncio.sleep(60)",
    ),
    Mutant(
        "a session keeps its lease at its end",
        "Nothing left",
        "feedmux_server.store.committer:Committer._released",
        "await self._leases.release_unless_lost(handle.lease, handle.delivered_time, handle.answered)",
        "True",
    ),
    Mutant(
        "cursors stay open",
        "Nothing left",
        "feedmux_server.source.reader:ChangeStreamReader._close_cursor",
        "                await cursor.close()\n",
        "                pass\n",
    ),
    Mutant(
        "a subscriber that has left is still listed",
        "Nothing left",
        "feedmux_server.streams.manager:StreamManager.release",
        "self._keys[key].streams.remove(subscriber)",
        "self._keys[key].streams.leave(subscriber)",
    ),
    Mutant(
        "a session that ends keeps its chunks",
        "Consistent",
        "feedmux_server.core.delivery.ack_tracker:AckTracker.release",
        "self._sent.popleft()[1].let_go(self)",
        "self._sent.popleft()",
    ),
    Mutant(
        "an acked chunk is paid for",
        "Consistent",
        "feedmux_server.core.delivery.ack_tracker:AckTracker.ack",
        "self.pays(-TRACKED_BYTES * len(passed))",
        "self.pays(-TRACKED_BYTES)",
    ),
    Mutant(
        "nobody pays for what a ring has evicted",
        "Consistent",
        "feedmux_server.core.events.chunk:Chunk._leave_ring",
        "        self._charge()\n",
        "",
    ),
    Mutant(
        "a ring counts what it has dropped",
        "Consistent",
        "feedmux_server.core.delivery.replay_buffer:ReplayBuffer.drop_oldest",
        "        self.events -= chunk.count\n",
        "",
    ),
    Mutant(
        "the quota of subscriptions is not checked",
        "Isolated",
        "feedmux_server.rpc.subscriptions:Subscriptions._check_room",
        "if existing >= account.quotas.subscriptions and",
        "if False and",
        scenario="many subscriptions",
    ),
    Mutant(
        "a repeated create counts against the quota",
        "Loud",
        "feedmux_server.rpc.subscriptions:Subscriptions._check_room",
        " and not await store.names.has(tenant, name)",
        "",
        scenario="many subscriptions",
    ),
    Mutant(
        "an abandoned read continues to compute",
        "Isolated",
        "feedmux_server.source.read_watch:ReadWatch._check",
        'await self._server.kill_operation(address, stuck["opid"])',
        "pass",
        scenario="slow pipelines",
    ),
    Mutant(
        "a batch that takes long ends the feed",
        "Resumable or loud",
        "feedmux_server.source.timed_reads:TimedReads.next_batch",
        "is_careful = self.is_careful",
        "is_careful = True",
        scenario="slow pipelines",
    ),
    Mutant(
        "a MongoDB that is slow for all ends a feed",
        "Resumable or loud",
        "feedmux_server.source.timed_reads:TimedReads._too_slow",
        "if not await self._reads_without_pipeline():",
        "if False:",
        scenario="slow pipelines",
    ),
    Mutant(
        "a slice ends before its last event",
        "Complete",
        "feedmux_server.core.delivery.cached_range:CachedRange._cut",
        "start = chunk.place_after(stop - 1)",
        "start = chunk.place_after(max(0, stop - 2))",
    ),
    Mutant(
        "a slice leaves its first event out",
        "Complete",
        "feedmux_server.core.delivery.cached_range:CachedRange.read",
        "chunk.first_after(after), chunk.count",
        "min(chunk.count, chunk.first_after(after) + 1), chunk.count",
    ),
    Mutant(
        "a plan is caught up at the time of events that it has not read",
        "Complete",
        "feedmux_server.core.delivery.feed_streams:FeedStreams.has_read",
        "subscriber.progress().cluster_time > cluster_time",
        "subscriber.progress().cluster_time >= cluster_time",
    ),
    Mutant(
        "an unused subscription is not deleted",
        "Nothing left",
        "feedmux_server.jobs.subscription_expiry:_sweep_tenant",
        "elif left_s <= 0 and await",
        "elif left_s <= -1_000 and await",
        scenario="a subscription expires",
    ),
    Mutant(
        "a page of a list ends one subscription too far",
        "Complete",
        "feedmux_server.store.store:SubscriptionStore.list",
        "return listed[:page_size], listed[:page_size][-1].name",
        "return listed[:page_size], name",
        scenario="many subscriptions",
        seeds=20,
    ),
    Mutant(
        "an update ignores its etag",
        "Durable only",
        f"{LUA}update",
        "if ARGV[3] ~= '' and ARGV[3] ~= stored[3] then return {'ETAG_MISMATCH'} end",
        "",
        scenario="many subscriptions",
        seeds=20,
    ),
    Mutant(
        "the clock of a server decides that a subscription has expired",
        "Durable only",
        f"{LUA}expire",
        "if used + tonumber(ARGV[1]) > now then return {'USED'} end",
        "",
        scenario="a subscription expires",
        seeds=20,
    ),
    Mutant(
        "the beginning of a copy that begins again is not stored",
        "Snapshot ends",
        "feedmux_server.sessions.session:Session._meet_end",
        "or copies_again) and",
        "or False) and",
        scenario="snapshot again and killed",
    ),
    Mutant(
        "a copy gives its slot away before it has made progress",
        "Snapshot ends",
        "feedmux_server.streams.pump:Pump._is_turn_over",
        "has_progress = newest",
        "has_progress = True or newest",
        scenario="copies share a slot",
    ),
    Mutant(
        "a stream that rests keeps its slot",
        "Convergent",
        "feedmux_server.core.delivery.slots:Slots.next_step",
        "(not reads or used[tenant]",
        "(reads and used[tenant]",
        scenario="history left unread",
        seeds=100,
    ),
    Mutant(
        "of a stream that gives way the rest is skipped",
        "Complete",
        "feedmux_server.core.delivery.feed_streams:FeedStreams.give_way",
        "            if subscriber.at_head:\n",
        "            subscriber.seq = stream.ring.next_seq\n            if subscriber.at_head:\n",
        scenario="history left unread",
        seeds=100,
    ),
    Mutant(
        "a server that was not ready never is again",
        "Convergent",
        "feedmux_server.core.readiness:Presence.observe",
        "self.there, self._against = there, 0",
        "self.there, self._against = False, 0",
    ),
    Mutant(
        "a change counts as confirmed without a replica",
        "Durable only",
        "feedmux_server.store.commands:Commands._replicated_on",
        "return answer, confirmed >= replicas",
        "return answer, True",
        scenario="Redis fails over",
    ),
    Mutant(
        "nobody waits for a replica",
        "Durable only",
        "feedmux_server.store.commands:Commands._replicated_on",
        'replicas = min(1, int(info.get("connected_slaves", 0)))',
        "replicas = 0",
        scenario="Redis fails over",
    ),
    Mutant(
        "bytes that are no message are a defect",
        "Loud",
        "feedmux_server.rpc.convert:parse",
        "except DecodeError:",
        "except EOFError:",
        scenario="hostile requests",
    ),
    Mutant(
        "a rejection has no reason",
        "Loud",
        "feedmux_server.rpc.status:error_status",
        "reason=error.reason.value",
        'reason=""',
        scenario="hostile requests",
    ),
    Mutant(
        "a cause of a newer version ends the session",
        "Resumable or loud",
        "feedmux_server.store.answers:_cause",
        "return FenceCause.LEASE",
        "return FenceCause.DELETE",
        scenario="a newer version",
    ),
    Mutant(
        "an open forgets fields of a newer version",
        "Durable only",
        "lua:open",
        "local same =",
        "redis.call('HDEL', key, 'of_a_newer_version') local same =",
        scenario="a newer version",
    ),
    Mutant(
        "a notice of a newer version breaks the protocol",
        "Resumable or loud",
        "feedmux.responses:_notice",
        "return make(notice) if make else None",
        'if make is None:\n        raise ProtocolError("unknown")\n    return make(notice)',
        scenario="a newer version",
    ),
    Mutant(
        "nobody looks whether MongoDB was restored",
        "One history",
        "feedmux_server.source.timeline:SourceTimeline.verify",
        "while self._settled < self._doubts:",
        "while False:",
        scenario="MongoDB restored",
        seeds=20,
    ),
    Mutant(
        "rings keep what MongoDB has lost",
        "One history",
        "feedmux_server.streams.manager:StreamManager._fork",
        "if each.source.name == source:",
        "if False:",
        scenario="MongoDB restored",
        seeds=40,
    ),
    Mutant(
        "a stored position of the lost history is resumed",
        "One history",
        "feedmux_server.core.positions.timeline:Fork.has_lost",
        "return place.last_time > self.after and place.cluster_time < self.until",
        "return False",
        scenario="MongoDB restored",
        seeds=20,
    ),
    Mutant(
        "what earlier sessions have delivered counts for nothing",
        "One history",
        "feedmux_server.rpc.subscription_lease:received",
        "if stored.delivered_time < stored.cluster_time:",
        "if True:",
        scenario="MongoDB restored",
        seeds=40,
    ),
    Mutant(
        "no session says what it has delivered",
        "One history",
        "feedmux_server.store.handle:CommitHandle.delivered",
        "self.delivered_time = max(self.delivered_time, cluster_time)",
        "pass",
        scenario="MongoDB restored",
        seeds=40,
    ),
    Mutant(
        "the stored position stays in the lost history",
        "Consistent",
        "feedmux_server.sessions.session:Session._meet_end",
        "subscriber.acks.move_back(place)",
        "pass",
        scenario="MongoDB restored",
        seeds=20,
    ),
    Mutant(
        "changes to the last copied document are withheld",
        "Snapshot exact",
        "feedmux_server.source.stream_request:StreamRequest.__init__",
        "[gate(copied)]",
        '[{"$match": {"$or": ['
        ' {"$expr": {"$lt": each["$expr"]["$lte"]}} if "$expr" in each else each for each in'
        ' gate(copied)["$match"]["$or"]]}}]',
        scenario="snapshot",
    ),
    Mutant(
        "deletes of what is not copied are withheld",
        "Snapshot converges",
        "feedmux_server.source.stream_request:StreamRequest.__init__",
        "[gate(copied)]",
        '[{"$match": {"$or": gate(copied)["$match"]["$or"][1:]}}]',
        scenario="snapshot",
    ),
    Mutant(
        "a copy takes the time of its last change for complete",
        "Snapshot exact",
        "feedmux_server.core.delivery.snapshot_steps:SnapshotSteps.mark_after",
        "read_to.cluster_time - 1",
        "read_to.cluster_time",
        scenario="snapshot",
    ),
    Mutant(
        "the changes of a step begin after the mark",
        "Snapshot exact",
        "feedmux_server.streams.snapshot_reader:SnapshotReader._open_changes",
        "JoinPoint(place.outside_copy(), from_before=is_newest, of_mongodb=self._is_of_mongodb)",
        "JoinPoint(place.high_water_mark(place.cluster_time + 1))",
        scenario="snapshot",
    ),
    Mutant(
        "documents are read as of an earlier time than they say",
        "Snapshot exact",
        "feedmux_server.source.documents:DocumentsReader._open_cursor",
        "events, cluster_time, opening)",
        "events, cluster_time - 1, opening)",
        scenario="snapshot",
    ),
    Mutant(
        "a copy goes on with the document that it has",
        "Ordered",
        "feedmux_server.core.feeds.snapshot_stages:_after",
        '"$gt"',
        '"$gte"',
        scenario="snapshot",
    ),
    Mutant(
        "a position within a batch covers the whole batch",
        "Snapshot exact",
        "feedmux_server.core.events.copy_chunks:DocumentsChunk._place",
        "up_to = copied_id(raw)",
        "up_to = self.last_id() if self.bson is not None else copied_id(raw)",
        scenario="snapshot",
    ),
    Mutant(
        "a copy ends with its first batch",
        "Snapshot exact",
        "feedmux_server.streams.snapshot_reader:SnapshotReader._read_documents",
        "is_last = raw.exhausted and not passed",
        "is_last = True",
        scenario="snapshot",
    ),
    Mutant(
        "one that copies is handed over",
        "Snapshot exact",
        "feedmux_server.core.delivery.feed_streams:FeedStreams._hand_over",
        " or here.copies:",
        ":",
        scenario="snapshot",
    ),
    Mutant(
        "a position does not say what is copied",
        "Snapshot exact",
        "feedmux_server.core.positions.position:PositionEncoder._while_copying",
        "end = count + named + copied.up_to",
        "end = count + named",
        scenario="snapshot",
    ),
    Mutant(
        "a range of a copy has changes to the documents in it",
        "Snapshot exact",
        "feedmux_server.core.delivery.copy_range:is_of_one_step",
        'return start.copied.up_to in (b"", place.copied.up_to)',
        "return True",
        scenario="MongoDB 9.0.1",
        rare=True,
    ),
    Mutant(
        "changes to collections that were copied are withheld",
        "Snapshot exact",
        "feedmux_server.core.feeds.snapshot_stages:_before",
        '"ns.coll": {"$lt": collection}',
        '"ns.coll": {"$gt": collection}',
        scenario="snapshot of a database",
    ),
    Mutant(
        "collections are listed before the time of a step",
        "Snapshot exact",
        "feedmux_server.streams.snapshot_reader:SnapshotReader._read_changes",
        "self._namespaces.forget()",
        "pass",
        scenario="snapshot of a database",
    ),
    Mutant(
        "a rename to a name that was passed goes unnoticed",
        "Snapshot exact",
        "feedmux_server.streams.snapshot_reader:SnapshotReader._look_ahead",
        "if back is not None:",
        "if False:",
        scenario="snapshot of a database",
    ),
    Mutant(
        "a collection that was dropped or renamed is taken for an empty one",
        "Snapshot exact",
        "feedmux_server.streams.snapshot_reader:SnapshotReader._is_same",
        "now <= steps.time",
        "True",
        scenario="snapshot of a database",
    ),
    Mutant(
        "another copy has the generation of the one before",
        "Snapshot converges",
        "feedmux_server.core.positions.resume_token:ResumeToken.with_generation_after",
        "max(self.copied.generation, generation + 1)",
        "1",
        scenario="snapshot again",
    ),
    Mutant(
        "the end of a copy is announced before its last document",
        "Snapshot ends",
        "feedmux_server.core.delivery.copy_progress:CopyProgress.status",
        "            running,\n",
        "            running and not self.documents,\n",
        scenario="snapshot again",
    ),
    Mutant(
        "no client is notified that a copy is complete",
        "Snapshot ends",
        "feedmux_server.sessions.session:Session._copy_ended",
        "is_due = place.copied is None",
        "is_due = False",
        scenario="snapshot",
        seeds=20,
    ),
    Mutant(
        "the client does not notice that a copy is complete",
        "Snapshot ends",
        "feedmux.session_base:SessionBase._say",
        "self._buffer.copying = None",
        "pass",
        scenario="snapshot",
        seeds=20,
    ),
    Mutant(
        "a key is ready while a member has its run",
        "Key exclusive",
        "feedmux_server.core.delivery.key_ledger:KeyLedger._record",
        "                key.waiting.append(number)\n            events[number] = span, index, key",
        "                key.waiting.append(number)\n                if key.flight:\n                    ready(key)\n"
        "            events[number] = span, index, key",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "a settled event frees its key",
        "Key exclusive",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.settle",
        "if len(key.flight) > 1:",
        "if len(key.flight) > 1 and key.waiting:\n"
        "                key.flight.remove(number)\n"
        "                self._offer(key)\n"
        "                continue\n"
        "            if len(key.flight) > 1:",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "what a member has in hand goes to others when its connection is lost",
        "Key exclusive",
        "feedmux_server.sessions.groups:Group._leave",
        "or self.definition.reconnect_s == 0",
        "or True",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "what failed goes to the end of its key",
        "Key order",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.fail",
        "key.waiting[:0] = back",
        "key.waiting += back",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "an event without a key waits for nobody",
        "Key order",
        "feedmux_server.core.delivery.key_ledger:KeyLedger._admit",
        "if None in self.keys or (name is None and len(self.events) > len(behind)):",
        "if None in self.keys:",
        scenario="group",
        seeds=100,
    ),
    Mutant(
        "a failed event holds nothing",
        "Held",
        "feedmux_server.core.delivery.retry:Retries.failed",
        "tries.due_s = now_s + min(wait_s, HELD_MAX_S)",
        "tries.due_s = now_s",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "chance may leave no delay",
        "Held",
        "feedmux_server.core.delivery.retry:RetryPolicy.delay_s",
        "(1 - chance / 2)",
        "(1 - chance)",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "a new host delivers everything after the position",
        "Settled stays settled",
        "feedmux_server.core.delivery.key_ledger:_Restored.unsettled",
        "if name in self._open:",
        "if True:",
        scenario="group hosts killed",
        seeds=40,
    ),
    Mutant(
        "a new host ignores what is settled ahead",
        "Settled stays settled",
        "feedmux_server.rpc.join:_hosted",
        "service.positions(key, tenant), ahead, service.letters,",
        "service.positions(key, tenant), None, service.letters,",
        scenario="group hosts killed",
        seeds=40,
    ),
    Mutant(
        "a new host does not wait for the members of a lost one",
        "Key exclusive",
        "feedmux_server.sessions.groups:Group.__init__",
        "if definition.follows_lost:",
        "if False:",
        scenario="group hosts killed",
        seeds=40,
    ),
    Mutant(
        "a new host does not wait for all members of a lost one",
        "Key exclusive",
        "feedmux_server.sessions.groups:Group._is_back",
        "self._back >= self._expected",
        "self._back",
        scenario="group hosts killed",
        seeds=300,
    ),
    Mutant(
        "a change of a group's definition counts as an orderly end of its host",
        "Key exclusive",
        "lua:update",
        "(stored[4] or '') ~= '' and 'lost' or ''",
        "''",
        scenario="group changed",
        seeds=40,
    ),
    Mutant(
        "a new host gives what a member holds to anybody",
        "Key exclusive",
        "feedmux_server.core.delivery.claims:Claims.holder_of",
        "return hand",
        "return None",
        scenario="group hosts killed",
        seeds=40,
    ),
    Mutant(
        "a new host ignores what members have settled",
        "Settled stays settled",
        "feedmux_server.core.delivery.claims:Claims.meet",
        "del left[index]",
        "pass",
        scenario="group hosts killed",
        seeds=40,
    ),
    Mutant(
        "a member does not tell what it has settled",
        "Settled stays settled",
        "feedmux.settlements:Settlements.settle",
        "self._settled.append((event.delivery, mark_of(token)))",
        "pass",
        scenario="group hosts killed",
        seeds=40,
    ),
    Mutant(
        "the position of a group is after what its members have",
        "Covered",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.settled_place",
        "place = span.before(index)",
        "place = self._end",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "a hole is forgotten",
        "Covered",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.ahead",
        "            holes[mark] = ",
        "            if not (holes and key.flight):\n                holes[mark] = ",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "what follows a hole in its key is forgotten",
        "At least once",
        "feedmux_server.core.delivery.key_ledger:_Restored.unsettled",
        "self._open[name] = mark",
        "found[index] = attempts",
        scenario="group hosts killed",
        seeds=100,
    ),
    Mutant(
        "an event is settled before its letter is written",
        "Dead letters durable",
        "feedmux_server.sessions.dead_letters:LetterWriter._write",
        "written, pins = await self._stored(batch)",
        "written, pins = len(batch), True",
        scenario="letters away",
        seeds=40,
    ),
    Mutant(
        "a letter counts that only the primary has",
        "Dead letters durable",
        "feedmux_server.source.letters:Letters._insert_many",
        "if there and not await self._renew(",
        "if False and not await self._renew(",
        scenario="letters away",
        seeds=200,
    ),
    Mutant(
        "an event is set aside an attempt too early",
        "Set aside rightly",
        "feedmux_server.core.delivery.retry:Retries.failed",
        "tries.exhausted = failure.reject or 0 < most <= tries.failures",
        "tries.exhausted = failure.reject or 0 < most <= tries.failures + 1",
        scenario="letters away",
        seeds=40,
    ),
    Mutant(
        "all events of a lost member count",
        "Set aside rightly",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.give_back",
        "self.retries.lost(key.waiting[0])",
        "[self.retries.lost(number) for number in key.waiting]",
        scenario="poison",
        seeds=40,
    ),
    Mutant(
        "the later events of a quarantined key are delivered",
        "Key order",
        "feedmux_server.core.delivery.key_ledger:KeyLedger._offer",
        "if key.name in self.pinned:",
        "if False:",
        scenario="quarantine",
        seeds=40,
    ),
    Mutant(
        "a new host does not know the quarantined keys",
        "Key order",
        "feedmux_server.rpc.join:_hosted",
        "if definition.quarantine and service.letters is not None:",
        "if False:",
        scenario="quarantine",
        seeds=40,
    ),
    Mutant(
        "a letter that a member processes goes to another one after a crash",
        "Key exclusive",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.replay",
        "key.hand = holder",
        "key.hand = holder = None",
        scenario="hosts killed in a replay",
        seeds=100,
    ),
    Mutant(
        "a lost host releases a key that its successor has quarantined",
        "Key order",
        "feedmux_server.source.letters:Letters.release",
        '"$gte": Int64(epoch << _UNANSWERED_BITS), "$lte": self._turn(epoch)',
        '"$gte": Int64(0)',
        scenario="keys released late",
        seeds=150,
    ),
    Mutant(
        "letters are delivered again out of order",
        "Key order",
        "feedmux_server.source.letters:Letters._in_order",
        "sort=_IN_ORDER",
        "sort=_AS_FAILED",
        scenario="quarantine",
        seeds=40,
    ),
    Mutant(
        "what follows letters does not wait until they are deleted",
        "Key order",
        "feedmux_server.core.delivery.key_ledger:KeyLedger._offer",
        "if key.deleting:",
        "if False:",
        scenario="quarantine",
        seeds=100,
    ),
    Mutant(
        "letters in a run are followed by other events",
        "Key order",
        "feedmux_server.core.delivery.key_ledger:KeyLedger._of_one_kind",
        "return waiting[: next(stops, len(waiting))]",
        "return waiting",
        scenario="quarantine",
        seeds=100,
    ),
    Mutant(
        "what waits of a quarantined key comes before its letters",
        "Key order",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.replay",
        "key.waiting[at:at] = numbers",
        "key.waiting += numbers",
        scenario="quarantine",
        seeds=100,
    ),
    Mutant(
        "letters are deleted when they are delivered",
        "Dead letters durable",
        "feedmux_server.sessions.replays:Replays.delete",
        "[letter for letter, _ in replayed.values()]",
        "list(ledger.loaded)",
        scenario="quarantine",
        seeds=40,
    ),
    Mutant(
        "a key stays in quarantine whose letters an earlier one of several calls has discarded",
        "Convergent",
        "feedmux_server.source.letters:Letters.discard",
        "if complete is False:",
        "if False:",
        scenario="quarantine",
        seeds=100,
        rare=True,
    ),
    Mutant(
        "a letter that fails again is deleted",
        "Dead letters durable",
        "feedmux_server.source.letters:Letters.failed_again",
        "return bool(done.matched_count)",
        "return bool(await self.discard(tenant, subscription, [id_]))",
        scenario="quarantine",
        seeds=40,
    ),
    Mutant(
        "a failed event comes back without the rest of its run",
        "Convergent",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.fail",
        "back, key.flight = key.flight[at:], key.flight[:at]",
        "back, key.flight = key.flight[at : at + 1], key.flight[:at] + key.flight[at + 1 :]",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "the higher position is after what is not listed",
        "Covered",
        "feedmux_server.core.delivery.key_ledger:KeyLedger.ahead",
        "high = span.before(index)\n                break",
        "continue",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "a new host forgets what is settled ahead when it has read a part",
        "Settled stays settled",
        "feedmux_server.core.delivery.key_ledger:KeyLedger._record_again",
        "if restored is not None and (restored.is_passed_by(self._end) or restored.is_of_other_version(self._end)):",
        "if restored is not None:",
        scenario="group hosts killed",
        seeds=100,
    ),
    Mutant(
        "what waited is not made ready",
        "Convergent",
        "feedmux_server.core.delivery.key_ledger:KeyLedger._freed",
        "self._offer(key)",
        "pass",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "a member that leaves keeps its events",
        "Convergent",
        "feedmux_server.sessions.groups:Group._vacate",
        "self._give_back(seat.hand, lost=lost)",
        "pass",
        scenario="group",
        seeds=40,
    ),
    Mutant(
        "held keys are never tried",
        "Convergent",
        "feedmux_server.sessions.groups:Group._plan_retry",
        "if due_s is not None:",
        "if False:",
        scenario="group",
        seeds=40,
    ),
)


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
