"""Every metric of the server, once: name, kind, unit, attributes and what it says.

`metrics_snapshot` and `otel_observer` give them values, `otel_setup` makes the instruments, docs/metrics.md is written
from here (`python -m tests.telemetry.metrics_page`), and the dashboard and the alert rules are checked against them.

Names are feedmux's own, but where OpenTelemetry has a convention for the very thing (`rpc.*`, `process.*`). Units are
UCUM. Every attribute is bounded: sources, states, quotas and outcomes by nature, tenants by `telemetry.tenants`,
MongoDB's and Redis's error names by ERROR_TYPES_MAX.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    COUNTER = "counter"
    UP_DOWN = "updowncounter"
    """What can be added up over sources, tenants and replicas."""
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
TRAILING: Final = Metric(
    "feedmux.stream.trailing", _U, "{stream}", "Shared streams that read history beside the leading one of their feed.",
    (SOURCE,),
)  # fmt: skip
TRAILING_LIMIT: Final = Metric(
    "feedmux.stream.trailing_limit", _G, "{stream}", "How many there may be: limits.trailing_streams."
)
CURSORS: Final = Metric(
    "feedmux.stream.cursors", _U, "{cursor}", "Change-stream cursors that are open in MongoDB.", (SOURCE,)
)
VIEWS: Final = Metric(
    "feedmux.stream.views", _U, "{stream}", "Shared streams that are views of a wide stream now.", (SOURCE,)
)
WIDE_STREAMS: Final = Metric(
    "feedmux.wide.streams", _U, "{stream}", "Wide streams: each reads a database or a deployment for many feeds.",
    (SOURCE,),
)  # fmt: skip
STREAM_LAG: Final = Metric(
    "feedmux.stream.lag", _G, "s",
    "How far the leading streams have read behind their source's operation time: the worst of those that somebody"
    " waits for.", (SOURCE,),
)  # fmt: skip
READS: Final = Metric(
    "feedmux.stream.reads", _C, "{read}", "Batches read from MongoDB, empty ones included: a stream without"
    " events has one every limits.max_await_ms, or every 8 s where there are many.", (SOURCE,),
)  # fmt: skip
RESUMES: Final = Metric(
    "feedmux.stream.resumes", _C, "{resume}", "Change streams resumed after an error, by MongoDB's name of it or the"
    " driver's.", (SOURCE, ERROR),
)  # fmt: skip
SOURCE_EVENTS: Final = Metric(
    "feedmux.source.events", _C, "{event}", "Events read from MongoDB, once for all who share them.", (SOURCE,)
)
SOURCE_IO: Final = Metric("feedmux.source.io", _C, "By", "Bytes of events read from MongoDB.", (SOURCE,))
SOURCE_AVAILABLE: Final = Metric(
    "feedmux.source.available", _G, "1", "1 while MongoDB answers, 0 while it is away.", (SOURCE,)
)
RING_EVENTS: Final = Metric("feedmux.ring.events", _U, "{event}", "Events in the rings.", (SOURCE,))
RING_USAGE: Final = Metric("feedmux.ring.usage", _U, "By", "Bytes in the rings.", (SOURCE,))
RING_WINDOW: Final = Metric(
    "feedmux.ring.window", _G, "s",
    "How long a subscriber may fall behind before MongoDB is read again for it: the shortest of the leading streams"
    " whose ring is full.", (SOURCE,),
)  # fmt: skip
MEMORY: Final = Metric(
    "feedmux.memory.usage",
    _U,
    "By",
    "Bytes held by the rings, by messages that clients have not taken (`unsent`), for events that are not"
    " acknowledged, for the requests of open streams, by renderings, by caches of checks and of policies, and by ranges"
    " that are not read yet (`kept`).",
    (PART,),
)
MEMORY_LIMIT: Final = Metric(
    "feedmux.memory.limit", _G, "By",
    "The bound of each: parts of limits.memory_bytes, of which the rings may have what the others leave, and"
    " limits.kept_bytes. Caches have none.", (PART,),
)  # fmt: skip
PROCESS_MEMORY: Final = Metric("process.memory.usage", _U, "By", "Resident memory of the process.")
PROCESS_CPU: Final = Metric("process.cpu.time", _C, "s", "CPU time of the process, all threads.")
LOOP_LAG: Final = Metric(
    "feedmux.event_loop.lag", _H, "s", "How late the event loop comes to a timer: what everything else waits for.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)  # fmt: skip
TASK_FAILURES: Final = Metric(
    "feedmux.task.failures", _C, "{failure}",
    "Tasks of the server that failed unexpectedly, by kind. One that keeps something up to date is started again; the"
    " log has the error.", (TASK,),
)  # fmt: skip
SURVEY_AGE: Final = Metric(
    "feedmux.telemetry.age", _G, "s",
    "How old the values beside this one are: more than a moment where the event loop did not answer within two seconds,"
    " and those of the time before are repeated.",
)  # fmt: skip
READY: Final = Metric("feedmux.ready", _G, "1", "1 while the server takes sessions, 0 while it should get none.")

SUBSCRIBERS: Final = Metric(
    "feedmux.subscriber.active", _U, "{subscriber}",
    "Open sessions: live on the leading stream, catch_up on one that reads history, lagging on none (out of credit,"
    " or waiting for a trailing stream).", (TENANT, STATE),
)  # fmt: skip
LAG: Final = Metric(
    "feedmux.subscriber.lag", _G, "s",
    "How far the place from which a session would go on is behind its source's operation time: the worst of the"
    " tenant.", (TENANT,),
)  # fmt: skip
LAG_EVENTS: Final = Metric(
    "feedmux.subscriber.lag_events", _G, "{event}",
    "Events that a session has ahead of it in its ring: the most of the tenant.", (TENANT,),
)  # fmt: skip
UNACKED: Final = Metric(
    "feedmux.subscriber.unacked", _U, "{event}", "Events sent to durable subscriptions and not acknowledged.", (TENANT,)
)
SESSION_LIMIT: Final = Metric("feedmux.session.limit", _G, "{session}", "How many there may be: limits.sessions.")
SESSIONS_OPENED: Final = Metric(
    "feedmux.session.opened", _C, "{session}", "Sessions that were opened: Subscribe and Watch.", (TENANT,)
)
SESSIONS_ENDED: Final = Metric(
    "feedmux.session.ended", _C, "{session}", "Sessions that ended: OK, CANCELLED by the client, or a reason of"
    " ErrorReason.", (TENANT, OUTCOME),
)  # fmt: skip
DELIVERED: Final = Metric("feedmux.delivered.events", _C, "{event}", "Events sent to sessions.", (TENANT,))
DELIVERED_IO: Final = Metric("feedmux.delivered.io", _C, "By", "Bytes of events sent to sessions.", (TENANT,))
STAGES: Final = Metric(
    "feedmux.stage.duration", _H, "s",
    "Time of each stage of an event's way: read (MongoDB's clock to read here; by source), ring (read to in the ring;"
    " by source), sent (read to given to gRPC; by tenant), acked (sent to acknowledged; by tenant). What is read or"
    " sent late counts with its age. Of messages and acks a random sixteenth is measured.",
    (STAGE, SOURCE, TENANT), buckets=_DURATIONS,
)  # fmt: skip

OPLOG_WINDOW: Final = Metric(
    "feedmux.oplog.window", _G, "s", "From the oldest to the newest entry of the oplog.", (SOURCE,)
)
HEADROOM: Final = Metric(
    "feedmux.oplog.headroom", _G, "s",
    "Time until the first of the tenant's open sessions loses its place, by the oplog's present rate; 30 days at most.",
    (SOURCE, TENANT),
)  # fmt: skip
AT_RISK: Final = Metric(
    "feedmux.history.at_risk", _U, "{session}",
    "Open sessions whose headroom is below the first of limits.history_at_risk_s.", (SOURCE, TENANT),
)  # fmt: skip
STORED_HEADROOM: Final = Metric(
    "feedmux.oplog.stored_headroom", _G, "s",
    "The same for the tenant's durable subscriptions as they are stored, also where nobody is connected.",
    (SOURCE, TENANT),
)  # fmt: skip
STORED_AT_RISK: Final = Metric(
    "feedmux.history.stored_at_risk", _U, "{subscription}",
    "Durable subscriptions whose stored position has less headroom than the first of limits.history_at_risk_s. Every"
    " replica reports all of them.", (SOURCE, TENANT),
)  # fmt: skip
DAMAGED: Final = Metric(
    "feedmux.subscription.damaged", _U, "{subscription}",
    "Durable subscriptions that Redis has in part. Every replica reports all of them.", (TENANT,),
)  # fmt: skip
AT_RISK_NOTICES: Final = Metric(
    "feedmux.history.notices", _C, "{notice}", "History-at-risk notices sent to sessions.", (TENANT,)
)

COMMITS: Final = Metric(
    "feedmux.commit.results", _C, "{commit}",
    "Commits and lease renewals: ok, fenced (another session owns the subscription), missing (Redis lost it), failed"
    " (Redis refused the key), unavailable (Redis did not answer).", (OUTCOME,),
)  # fmt: skip
COMMIT_TIME: Final = Metric(
    "feedmux.commit.duration", _H, "s", "Time of a round trip to Redis that commits for many sessions.",
    buckets=_DURATIONS,
)  # fmt: skip
COMMITS_WAITING: Final = Metric(
    "feedmux.commit.waiting", _U, "{session}", "Sessions with acknowledgements that are not stored yet."
)
REDIS_ERRORS: Final = Metric(
    "feedmux.redis.errors", _C, "{error}", "Round trips to Redis that failed, by Redis's code, TIMEOUT or CONNECTION.",
    (ERROR,),
)  # fmt: skip
REDIS_AVAILABLE: Final = Metric(
    "feedmux.redis.available", _G, "1", "1 while commits reach Redis, 0 while they wait for it."
)

QUOTA_UTILIZATION: Final = Metric(
    "feedmux.quota.utilization", _G, "1", "Used share of each quota that counts something, on this replica.",
    (TENANT, QUOTA),
)  # fmt: skip
QUOTA_LIMIT: Final = Metric("feedmux.quota.limit", _G, "1", "The quota, in its own unit.", (TENANT, QUOTA))
HELD_BACK: Final = Metric(
    "feedmux.quota.held_back", _C, "s", "How long sessions have waited for a rate or for acks, all together.", (TENANT,)
)
REFUSALS: Final = Metric("feedmux.quota.refusals", _C, "{refusal}", "Calls refused by a quota.", (TENANT, QUOTA))

CALLS: Final = Metric(
    "rpc.server.call.duration", _H, "s", "Duration of calls; of a stream, from its first to its last message.",
    ("rpc.system.name", "rpc.method", "rpc.response.status_code", ERROR), buckets=_CALLS,
)  # fmt: skip

METRICS: Final[tuple[Metric, ...]] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
