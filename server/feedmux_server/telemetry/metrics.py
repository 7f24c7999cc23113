"""Every metric of the server: name, kind, unit, attributes and description.

`jobs/metrics_collector.py` and `telemetry/otel_observer.py` give the metrics values, and `telemetry/otel_setup.py`
makes the instruments. docs/metrics.md is written from here (`python -m tests.telemetry.metrics_page`), and the
dashboard and the alert rules are checked against it.

Names are feedmux's own, except where OpenTelemetry has a convention (`rpc.*`, `process.*`). Units are UCUM. Every
attribute is bounded: sources, states, quotas and outcomes by their number, tenants by the option `telemetry.tenants`,
the error names of MongoDB and Redis by ERROR_TYPES_MAX.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    COUNTER = "counter"
    UP_DOWN = "updowncounter"
    """A sum that can be added up over sources, tenants and replicas."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """Compared by identity: there is one object for each."""

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


SOURCE: Final = "feedmux.source"
TENANT: Final = "feedmux.tenant"
STATE: Final = "feedmux.state"
STAGE: Final = "feedmux.stage"
QUOTA: Final = "feedmux.quota"
OUTCOME: Final = "feedmux.outcome"
PART: Final = "feedmux.part"
TASK: Final = "feedmux.task"
ERROR: Final = "error.type"

OTHER: Final = "other"
"""The tenants and errors beyond the bound."""
ERROR_TYPES_MAX: Final = 50

_C, _U, _G, _H = Kind.COUNTER, Kind.UP_DOWN, Kind.GAUGE, Kind.HISTOGRAM
_DURATIONS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_CALLS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The convention's own."""

STREAMS: Final = Metric(
    "feedmux.stream.active", _U, "{stream}", "Shared streams: each reads one distinct feed from MongoDB.",
    (SOURCE, STATE),
)  # fmt: skip
CATCH_UP: Final = Metric(
    "feedmux.stream.catch_up", _U, "{stream}", "Catch-up streams: they read history, in addition to the live stream.",
    (SOURCE,),
)  # fmt: skip
CATCH_UP_LIMIT: Final = Metric(
    "feedmux.stream.catch_up_limit", _G, "{stream}", "Maximum number of catch-up streams: limits.catch_up_streams."
)
CURSORS: Final = Metric(
    "feedmux.stream.cursors", _U, "{cursor}", "Change-stream cursors that are open in MongoDB now.", (SOURCE,)
)
VIEWS: Final = Metric(
    "feedmux.stream.views", _U, "{stream}", "Shared streams that are currently views of a wide stream.", (SOURCE,)
)
WIDE_STREAMS: Final = Metric(
    "feedmux.wide.streams", _U, "{stream}", "Wide streams: each reads a database or a deployment for many feeds.",
    (SOURCE,),
)  # fmt: skip
STREAM_LAG: Final = Metric(
    "feedmux.stream.lag", _G, "s",
    "How far the live streams are behind the operation time of their source: the largest lag of a stream that a"
    " subscriber waits for.", (SOURCE,),
)  # fmt: skip
READS: Final = Metric(
    "feedmux.stream.reads", _C, "{read}", "Batches read from MongoDB, including empty batches: a stream without"
    " events reads one every limits.max_await_ms, or every 8 s if there are many streams.", (SOURCE,),
)  # fmt: skip
RESUMES: Final = Metric(
    "feedmux.stream.resumes", _C, "{resume}", "Change streams resumed after an error, by the name that MongoDB or the"
    " driver gives the error.", (SOURCE, ERROR),
)  # fmt: skip
SOURCE_EVENTS: Final = Metric(
    "feedmux.source.events", _C, "{event}", "Events read from MongoDB, once for all sessions.", (SOURCE,)
)
SOURCE_IO: Final = Metric("feedmux.source.io", _C, "By", "Bytes of events read from MongoDB.", (SOURCE,))
SOURCE_AVAILABLE: Final = Metric(
    "feedmux.source.available", _G, "1", "1 while MongoDB is available, 0 while it is unavailable.", (SOURCE,)
)
FORKS: Final = Metric(
    "feedmux.source.forks", _C, "{fork}", "Times that MongoDB was found to have lost history that was read: it was"
    " restored from an older copy, or replaced.", (SOURCE,),
)  # fmt: skip
RING_EVENTS: Final = Metric("feedmux.ring.events", _U, "{event}", "Events in the rings.", (SOURCE,))
RING_USAGE: Final = Metric("feedmux.ring.usage", _U, "By", "Bytes in the rings.", (SOURCE,))
RING_WINDOW: Final = Metric(
    "feedmux.ring.window", _G, "s",
    "How far a subscriber may fall behind before the server reads MongoDB again for it: the shortest window of a live"
    " stream whose ring is full.", (SOURCE,),
)  # fmt: skip
MEMORY: Final = Metric(
    "feedmux.memory.usage",
    _U,
    "By",
    "Bytes that the process holds for tenants: rings, messages that clients have not taken (`unsent`), events that are"
    " not acknowledged, requests of open streams, renderings, caches of checks and of policies, and ranges that were"
    " planned and not yet read (`retained`).",
    (PART,),
)
MEMORY_LIMIT: Final = Metric(
    "feedmux.memory.limit", _G, "By",
    "Bound of each part: the part's share of limits.memory_bytes (for the rings, what the other parts leave), or"
    " limits.retained_bytes. Caches have no bound.", (PART,),
)  # fmt: skip
PROCESS_MEMORY: Final = Metric("process.memory.usage", _U, "By", "Resident memory of the process.")
PROCESS_CPU: Final = Metric("process.cpu.time", _C, "s", "CPU time of the process, in all threads.")
LOOP_LAG: Final = Metric(
    "feedmux.event_loop.lag", _H, "s",
    "How late the event loop runs a timer. Everything on the replica is late by as much.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)  # fmt: skip
TASK_FAILURES: Final = Metric(
    "feedmux.task.failures", _C, "{failure}",
    "Tasks of the server that failed unexpectedly, by kind. The server restarts a task that keeps something up to date;"
    " the log contains the error.", (TASK,),
)  # fmt: skip
SURVEY_AGE: Final = Metric(
    "feedmux.telemetry.age", _G, "s",
    "Age of the other values in this collection. It is large if the event loop did not answer within two seconds, and"
    " the previous values are repeated.",
)  # fmt: skip
READY: Final = Metric("feedmux.ready", _G, "1", "1 while the server accepts sessions, 0 while it does not.")

SUBSCRIBERS: Final = Metric(
    "feedmux.subscriber.active", _U, "{subscriber}",
    "Open sessions: `live` on the live stream, `catch_up` on a catch-up stream, `lagging` on no stream (without credit,"
    " or waiting for a catch-up stream), `unacknowledged` on any or none, with limits.unacked_events events to"
    " acknowledge before it gets more.", (TENANT, STATE),
)  # fmt: skip
LAG: Final = Metric(
    "feedmux.subscriber.lag", _G, "s",
    "How far the position from which a session would resume is behind the operation time of its source: the largest lag"
    " of the tenant.", (TENANT,),
)  # fmt: skip
LAG_EVENTS: Final = Metric(
    "feedmux.subscriber.lag_events", _G, "{event}",
    "How many events a session is behind the newest event in its ring: the largest number of the tenant.", (TENANT,),
)  # fmt: skip
UNACKED: Final = Metric(
    "feedmux.subscriber.unacked", _U, "{event}", "Events sent to durable subscriptions and not acknowledged.", (TENANT,)
)
GROUP_MEMBERS: Final = Metric(
    "feedmux.group.members", _U, "{member}", "Sessions that are members of a group that this replica hosts.", (TENANT,)
)
GROUP_UNSETTLED: Final = Metric(
    "feedmux.group.unsettled", _U, "{event}",
    "Events that groups have read and that are not settled: sent, waiting for their key, or failed.", (TENANT,),
)  # fmt: skip
GROUP_HELD_KEYS: Final = Metric(
    "feedmux.group.held_keys", _U, "{key}", "Keys whose events wait because one of them has failed.", (TENANT,)
)
GROUP_OLDEST: Final = Metric(
    "feedmux.group.oldest_unsettled", _G, "s",
    "How long ago the group read its first unsettled event, which keeps its position back: the longest of the tenant.",
    (TENANT,),
)  # fmt: skip
GROUP_REDELIVERED: Final = Metric(
    "feedmux.group.redelivered", _C, "{event}",
    "Deliveries in groups that failed, or whose member was lost at work, so that the event is delivered again.",
    (TENANT,),
)  # fmt: skip
GROUPS_UNATTENDED: Final = Metric(
    "feedmux.group.unattended", _U, "{group}",
    "Groups without a member, whose events wait. Every replica reports all of them.", (TENANT,),
)  # fmt: skip
SESSION_LIMIT: Final = Metric("feedmux.session.limit", _G, "{session}", "Maximum number of sessions: limits.sessions.")
SESSIONS_OPENED: Final = Metric(
    "feedmux.session.opened", _C, "{session}", "Sessions that were opened, by Subscribe or Watch.", (TENANT,)
)
SESSIONS_ENDED: Final = Metric(
    "feedmux.session.ended", _C, "{session}", "Sessions that ended: with OK, CANCELLED by the client, or with a reason"
    " of ErrorReason.", (TENANT, OUTCOME),
)  # fmt: skip
DELIVERED: Final = Metric("feedmux.delivered.events", _C, "{event}", "Events sent to sessions.", (TENANT,))
DELIVERED_IO: Final = Metric("feedmux.delivered.io", _C, "By", "Bytes of events sent to sessions.", (TENANT,))
STAGES: Final = Metric(
    "feedmux.stage.duration", _H, "s",
    "Duration of each stage of an event's way. By source: `read`, from MongoDB's clock until the server has read the"
    " event; `ring`, from then until the event is in the ring. By tenant: `sent`, from reading until the event is given"
    " to gRPC; `acked`, from then until it is acknowledged. An event that is read or sent late counts with its age. Of"
    " messages and acks, a random sixteenth is measured.",
    (STAGE, SOURCE, TENANT), buckets=_DURATIONS,
)  # fmt: skip

SNAPSHOTS: Final = Metric(
    "feedmux.snapshot.active", _U, "{copy}",
    "Open sessions that copy existing documents: `running`; `waiting` for their client, which gives no credit, does not"
    " acknowledge or does not read; `stalled`, without a document for a minute although the client can take some.",
    (SOURCE, TENANT, STATE),
)  # fmt: skip
SNAPSHOT_DOCUMENTS: Final = Metric(
    "feedmux.snapshot.documents", _C, "{document}",
    "Existing documents read from MongoDB for copies. They count as events sent, too, and not as events read.",
    (SOURCE,),
)  # fmt: skip
SNAPSHOT_BYTES: Final = Metric("feedmux.snapshot.bytes", _C, "By", "Bytes of these documents, as events.", (SOURCE,))
SNAPSHOT_RETRIES: Final = Metric(
    "feedmux.snapshot.retries", _C, "{retry}",
    "Reads of documents that MongoDB ended because it cannot read as of their time any more; the rest was read as"
    " of a later one.", (SOURCE,),
)  # fmt: skip
SNAPSHOT_RESTARTS: Final = Metric(
    "feedmux.snapshot.restarts", _C, "{restart}",
    "Copies that the server began again, by cause: `HISTORY_LOST` or `TIMELINE_FORKED`, under `on_history_lost:"
    " SNAPSHOT`; `RENAMED`, at the new name of a collection, which the copy had passed.", (SOURCE, TENANT, ERROR),
)  # fmt: skip
SNAPSHOT_REMAINING: Final = Metric(
    "feedmux.snapshot.remaining", _G, "s",
    "Time left of the copy that takes longest, by the rate of its last minute. No value where the rate or the number of"
    " documents is not known.", (SOURCE, TENANT),
)  # fmt: skip
DEAD_LETTERS: Final = Metric(
    "feedmux.group.dead_letters", _C, "{event}", "Events of groups that became dead letters.", (TENANT,)
)
DEAD_LETTERS_WAITING: Final = Metric(
    "feedmux.group.dead_letters_waiting", _U, "{event}",
    "Events that are to become dead letters and hold their keys, because their letters are not written yet.", (TENANT,),
)  # fmt: skip
QUARANTINED_KEYS: Final = Metric(
    "feedmux.group.quarantined_keys", _U, "{key}",
    "Keys of groups that this replica hosts whose later events become dead letters, too.", (TENANT,),
)  # fmt: skip
DEAD_LETTERS_UTILIZATION: Final = Metric(
    "feedmux.dead_letters.utilization", _G, "1",
    "How much of dead_letters.bytes_max, letters_max and quarantined_keys_max a tenant uses: the largest share. Each"
    " replica reports the tenants whose groups it has hosted.", (TENANT,),
)  # fmt: skip

OPLOG_WINDOW: Final = Metric(
    "feedmux.oplog.window", _G, "s", "Time from the oldest to the newest entry of the oplog.", (SOURCE,)
)
HEADROOM: Final = Metric(
    "feedmux.oplog.headroom", _G, "s",
    "Time until the position of the first open session of the tenant leaves the oplog, at the oplog's present rate; 30"
    " days at most.",
    (SOURCE, TENANT),
)  # fmt: skip
AT_RISK: Final = Metric(
    "feedmux.history.at_risk", _U, "{session}",
    "Open sessions whose headroom is below the largest of limits.history_at_risk_s.", (SOURCE, TENANT),
)  # fmt: skip
STORED_HEADROOM: Final = Metric(
    "feedmux.oplog.stored_headroom", _G, "s",
    "Time until the first stored position of the tenant's durable subscriptions leaves the oplog, including"
    " subscriptions without a session.",
    (SOURCE, TENANT),
)  # fmt: skip
STORED_AT_RISK: Final = Metric(
    "feedmux.history.stored_at_risk", _U, "{subscription}",
    "Durable subscriptions whose stored position has less headroom than the largest of limits.history_at_risk_s. Every"
    " replica reports all of them.", (SOURCE, TENANT),
)  # fmt: skip
DAMAGED: Final = Metric(
    "feedmux.subscription.damaged", _U, "{subscription}",
    "Durable subscriptions of which Redis has only a part. Every replica reports all of them.", (TENANT,),
)  # fmt: skip
AT_RISK_NOTICES: Final = Metric(
    "feedmux.history.notices", _C, "{notice}", "History-at-risk notices sent to sessions.", (TENANT,)
)

COMMITS: Final = Metric(
    "feedmux.commit.results", _C, "{commit}",
    "Commits and lease renewals: `ok`, `fenced` (another session owns the subscription), `missing` (Redis lost the"
    " subscription), `failed` (Redis rejected the key), `unavailable` (Redis did not answer).", (OUTCOME,),
)  # fmt: skip
COMMIT_TIME: Final = Metric(
    "feedmux.commit.duration", _H, "s", "Duration of a round trip to Redis that commits for many sessions.",
    buckets=_DURATIONS,
)  # fmt: skip
COMMITS_WAITING: Final = Metric(
    "feedmux.commit.waiting", _U, "{session}", "Sessions with acknowledgements that are not stored yet."
)
REDIS_ERRORS: Final = Metric(
    "feedmux.redis.errors", _C, "{error}", "Round trips to Redis that failed: Redis's code, TIMEOUT or CONNECTION.",
    (ERROR,),
)  # fmt: skip
REDIS_AVAILABLE: Final = Metric(
    "feedmux.redis.available", _G, "1", "1 while commits reach Redis, 0 while they wait for Redis."
)

QUOTA_UTILIZATION: Final = Metric(
    "feedmux.quota.utilization", _G, "1", "Used share of each quota on a count, on this replica.",
    (TENANT, QUOTA),
)  # fmt: skip
QUOTA_LIMIT: Final = Metric(
    "feedmux.quota.limit", _G, "1", "Limit of each quota, in the quota's own unit.", (TENANT, QUOTA)
)
THROTTLED: Final = Metric(
    "feedmux.quota.throttled",
    _C,
    "s",
    "How long quotas have throttled sessions and plans, in total: waits for a rate or for acks.",
    (TENANT,),
)
REJECTIONS: Final = Metric(
    "feedmux.quota.rejections", _C, "{rejection}", "Calls that a quota rejected.", (TENANT, QUOTA)
)

CALLS: Final = Metric(
    "rpc.server.call.duration", _H, "s", "Duration of calls. A stream lasts from its first to its last message.",
    ("rpc.system.name", "rpc.method", "rpc.response.status_code", ERROR), buckets=_CALLS,
)  # fmt: skip

METRICS: Final[tuple[Metric, ...]] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
