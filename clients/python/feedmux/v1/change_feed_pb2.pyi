from feedmux.v1 import feed_pb2 as _feed_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubscribeRequest(_message.Message):
    __slots__ = ("open", "credit", "ack", "close", "settle")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    open: Open
    credit: Credit
    ack: Ack
    close: Close
    settle: Settle
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("subscription", "feed", "start", "format", "last_acked", "instance_id", "credit", "takeover", "heartbeat_interval", "message_bytes_max", "join", "held", "settled", "epoch")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    LAST_ACKED_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    feed: _feed_pb2.Feed
    start: _feed_pb2.Start
    format: _feed_pb2.Format
    last_acked: LastAcked
    instance_id: str
    credit: Credit
    takeover: bool
    heartbeat_interval: _duration_pb2.Duration
    message_bytes_max: int
    join: bool
    held: _containers.RepeatedScalarFieldContainer[int]
    settled: _containers.RepeatedScalarFieldContainer[int]
    epoch: int
    def __init__(self, subscription: _Optional[str] = ..., feed: _Optional[_Union[_feed_pb2.Feed, _Mapping]] = ..., start: _Optional[_Union[_feed_pb2.Start, _Mapping]] = ..., format: _Optional[_Union[_feed_pb2.Format, str]] = ..., last_acked: _Optional[_Union[LastAcked, _Mapping]] = ..., instance_id: _Optional[str] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., takeover: bool = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., message_bytes_max: _Optional[int] = ..., join: bool = ..., held: _Optional[_Iterable[int]] = ..., settled: _Optional[_Iterable[int]] = ..., epoch: _Optional[int] = ...) -> None: ...

class LastAcked(_message.Message):
    __slots__ = ("position", "resume_token", "epoch")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    position: bytes
    resume_token: bytes
    epoch: int
    def __init__(self, position: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("events", "bytes")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    events: int
    bytes: int
    def __init__(self, events: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("delivery_sequence",)
    DELIVERY_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    delivery_sequence: int
    def __init__(self, delivery_sequence: _Optional[int] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("done", "failed")
    class Range(_message.Message):
        __slots__ = ("first", "last")
        FIRST_FIELD_NUMBER: _ClassVar[int]
        LAST_FIELD_NUMBER: _ClassVar[int]
        first: int
        last: int
        def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...
    class Failed(_message.Message):
        __slots__ = ("delivery_sequence", "retry_after", "reason", "reject")
        DELIVERY_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        REJECT_FIELD_NUMBER: _ClassVar[int]
        delivery_sequence: int
        retry_after: _duration_pb2.Duration
        reason: str
        reject: bool
        def __init__(self, delivery_sequence: _Optional[int] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ..., reject: bool = ...) -> None: ...
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    done: _containers.RepeatedCompositeFieldContainer[Settle.Range]
    failed: _containers.RepeatedCompositeFieldContainer[Settle.Failed]
    def __init__(self, done: _Optional[_Iterable[_Union[Settle.Range, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[Settle.Failed, _Mapping]]] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("opened", "batch", "event_fragment", "progress", "committed", "notice")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    EVENT_FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    batch: Batch
    event_fragment: EventFragment
    progress: Progress
    committed: Committed
    notice: Notice
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., event_fragment: _Optional[_Union[EventFragment, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("epoch", "position", "resume_token", "cluster_time", "limits", "heartbeat_interval", "at_last_acked", "routing_key", "snapshot", "group")
    class Membership(_message.Message):
        __slots__ = ("members", "seek_epoch")
        MEMBERS_FIELD_NUMBER: _ClassVar[int]
        SEEK_EPOCH_FIELD_NUMBER: _ClassVar[int]
        members: int
        seek_epoch: int
        def __init__(self, members: _Optional[int] = ..., seek_epoch: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    AT_LAST_ACKED_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    position: bytes
    resume_token: bytes
    cluster_time: _feed_pb2.ClusterTime
    limits: Limits
    heartbeat_interval: _duration_pb2.Duration
    at_last_acked: bool
    routing_key: str
    snapshot: _feed_pb2.SnapshotStatus
    group: Opened.Membership
    def __init__(self, epoch: _Optional[int] = ..., position: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ..., cluster_time: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., at_last_acked: bool = ..., routing_key: _Optional[str] = ..., snapshot: _Optional[_Union[_feed_pb2.SnapshotStatus, _Mapping]] = ..., group: _Optional[_Union[Opened.Membership, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("credit_events_max", "credit_bytes_max", "unacked_events_max", "message_bytes_max", "resume_token_bytes_max")
    CREDIT_EVENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    UNACKED_EVENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    credit_events_max: int
    credit_bytes_max: int
    unacked_events_max: int
    message_bytes_max: int
    resume_token_bytes_max: int
    def __init__(self, credit_events_max: _Optional[int] = ..., credit_bytes_max: _Optional[int] = ..., unacked_events_max: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., resume_token_bytes_max: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("first_delivery_sequence", "event_count", "position", "resume_token", "cluster_time", "read_time", "snapshot", "runs", "attempts", "bson", "json")
    FIRST_DELIVERY_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    READ_TIME_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BSON_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    first_delivery_sequence: int
    event_count: int
    position: bytes
    resume_token: bytes
    cluster_time: _feed_pb2.ClusterTime
    read_time: _timestamp_pb2.Timestamp
    snapshot: bool
    runs: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    bson: bytes
    json: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first_delivery_sequence: _Optional[int] = ..., event_count: _Optional[int] = ..., position: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ..., cluster_time: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., read_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., snapshot: bool = ..., runs: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., bson: _Optional[bytes] = ..., json: _Optional[_Iterable[str]] = ...) -> None: ...

class EventFragment(_message.Message):
    __slots__ = ("delivery_sequence", "index", "count", "data", "position", "resume_token", "cluster_time", "snapshot", "attempts")
    DELIVERY_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    delivery_sequence: int
    index: int
    count: int
    data: bytes
    position: bytes
    resume_token: bytes
    cluster_time: _feed_pb2.ClusterTime
    snapshot: bool
    attempts: int
    def __init__(self, delivery_sequence: _Optional[int] = ..., index: _Optional[int] = ..., count: _Optional[int] = ..., data: _Optional[bytes] = ..., position: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ..., cluster_time: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., snapshot: bool = ..., attempts: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("position", "resume_token", "cluster_time")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    position: bytes
    resume_token: bytes
    cluster_time: _feed_pb2.ClusterTime
    def __init__(self, position: _Optional[bytes] = ..., resume_token: _Optional[bytes] = ..., cluster_time: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("delivery_sequence", "position")
    DELIVERY_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    delivery_sequence: int
    position: bytes
    def __init__(self, delivery_sequence: _Optional[int] = ..., position: _Optional[bytes] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("draining", "rewound", "history_at_risk", "gap", "degraded", "skipped", "snapshot", "unacknowledged")
    class Draining(_message.Message):
        __slots__ = ("deadline", "position")
        DEADLINE_FIELD_NUMBER: _ClassVar[int]
        POSITION_FIELD_NUMBER: _ClassVar[int]
        deadline: _duration_pb2.Duration
        position: bytes
        def __init__(self, deadline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., position: _Optional[bytes] = ...) -> None: ...
    class Rewound(_message.Message):
        __slots__ = ("to",)
        FROM_FIELD_NUMBER: _ClassVar[int]
        TO_FIELD_NUMBER: _ClassVar[int]
        to: _feed_pb2.ClusterTime
        def __init__(self, to: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., **kwargs) -> None: ...
    class HistoryAtRisk(_message.Message):
        __slots__ = ("remaining",)
        REMAINING_FIELD_NUMBER: _ClassVar[int]
        remaining: _duration_pb2.Duration
        def __init__(self, remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
    class Gap(_message.Message):
        __slots__ = ("to", "reason")
        FROM_FIELD_NUMBER: _ClassVar[int]
        TO_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        to: _feed_pb2.ClusterTime
        reason: str
        def __init__(self, to: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., reason: _Optional[str] = ..., **kwargs) -> None: ...
    class Degraded(_message.Message):
        __slots__ = ("dependency", "unavailable")
        DEPENDENCY_FIELD_NUMBER: _ClassVar[int]
        UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
        dependency: str
        unavailable: bool
        def __init__(self, dependency: _Optional[str] = ..., unavailable: bool = ...) -> None: ...
    class Skipped(_message.Message):
        __slots__ = ("to", "from_position", "to_position")
        FROM_FIELD_NUMBER: _ClassVar[int]
        TO_FIELD_NUMBER: _ClassVar[int]
        FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
        TO_POSITION_FIELD_NUMBER: _ClassVar[int]
        to: _feed_pb2.ClusterTime
        from_position: bytes
        to_position: bytes
        def __init__(self, to: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., from_position: _Optional[bytes] = ..., to_position: _Optional[bytes] = ..., **kwargs) -> None: ...
    class Unacknowledged(_message.Message):
        __slots__ = ("events",)
        EVENTS_FIELD_NUMBER: _ClassVar[int]
        events: int
        def __init__(self, events: _Optional[int] = ...) -> None: ...
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REWOUND_FIELD_NUMBER: _ClassVar[int]
    HISTORY_AT_RISK_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    draining: Notice.Draining
    rewound: Notice.Rewound
    history_at_risk: Notice.HistoryAtRisk
    gap: Notice.Gap
    degraded: Notice.Degraded
    skipped: Notice.Skipped
    snapshot: _feed_pb2.SnapshotStatus
    unacknowledged: Notice.Unacknowledged
    def __init__(self, draining: _Optional[_Union[Notice.Draining, _Mapping]] = ..., rewound: _Optional[_Union[Notice.Rewound, _Mapping]] = ..., history_at_risk: _Optional[_Union[Notice.HistoryAtRisk, _Mapping]] = ..., gap: _Optional[_Union[Notice.Gap, _Mapping]] = ..., degraded: _Optional[_Union[Notice.Degraded, _Mapping]] = ..., skipped: _Optional[_Union[Notice.Skipped, _Mapping]] = ..., snapshot: _Optional[_Union[_feed_pb2.SnapshotStatus, _Mapping]] = ..., unacknowledged: _Optional[_Union[Notice.Unacknowledged, _Mapping]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("feed", "start", "format", "heartbeat_interval", "message_bytes_max")
    FEED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    feed: _feed_pb2.Feed
    start: _feed_pb2.Start
    format: _feed_pb2.Format
    heartbeat_interval: _duration_pb2.Duration
    message_bytes_max: int
    def __init__(self, feed: _Optional[_Union[_feed_pb2.Feed, _Mapping]] = ..., start: _Optional[_Union[_feed_pb2.Start, _Mapping]] = ..., format: _Optional[_Union[_feed_pb2.Format, str]] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., message_bytes_max: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("opened", "batch", "event_fragment", "progress", "notice")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    EVENT_FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    batch: Batch
    event_fragment: EventFragment
    progress: Progress
    notice: Notice
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., event_fragment: _Optional[_Union[EventFragment, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class ResolvePositionRequest(_message.Message):
    __slots__ = ("feed", "start")
    FEED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    feed: _feed_pb2.Feed
    start: _feed_pb2.Start
    def __init__(self, feed: _Optional[_Union[_feed_pb2.Feed, _Mapping]] = ..., start: _Optional[_Union[_feed_pb2.Start, _Mapping]] = ...) -> None: ...

class ResolvePositionResponse(_message.Message):
    __slots__ = ("position", "cluster_time", "time", "feed_fingerprint", "snapshot")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    FEED_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    position: bytes
    cluster_time: _feed_pb2.ClusterTime
    time: _timestamp_pb2.Timestamp
    feed_fingerprint: bytes
    snapshot: _feed_pb2.SnapshotStatus
    def __init__(self, position: _Optional[bytes] = ..., cluster_time: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., feed_fingerprint: _Optional[bytes] = ..., snapshot: _Optional[_Union[_feed_pb2.SnapshotStatus, _Mapping]] = ...) -> None: ...

class PlanRangeRequest(_message.Message):
    __slots__ = ("subscription", "feed", "after", "until", "events_max", "bytes_max", "slices", "wait", "processed", "instance_id", "feed_fingerprint")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    FEED_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    feed: _feed_pb2.Feed
    after: bytes
    until: bytes
    events_max: int
    bytes_max: int
    slices: int
    wait: _duration_pb2.Duration
    processed: bytes
    instance_id: str
    feed_fingerprint: bytes
    def __init__(self, subscription: _Optional[str] = ..., feed: _Optional[_Union[_feed_pb2.Feed, _Mapping]] = ..., after: _Optional[bytes] = ..., until: _Optional[bytes] = ..., events_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., slices: _Optional[int] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., processed: _Optional[bytes] = ..., instance_id: _Optional[str] = ..., feed_fingerprint: _Optional[bytes] = ...) -> None: ...

class PlanRangeResponse(_message.Message):
    __slots__ = ("end", "cluster_time", "event_count", "size_bytes", "slices", "caught_up", "latest", "after", "routing_key", "feed_fingerprint")
    END_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    FEED_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    end: bytes
    cluster_time: _feed_pb2.ClusterTime
    event_count: int
    size_bytes: int
    slices: _containers.RepeatedCompositeFieldContainer[RangeSlice]
    caught_up: bool
    latest: _feed_pb2.ClusterTime
    after: bytes
    routing_key: str
    feed_fingerprint: bytes
    def __init__(self, end: _Optional[bytes] = ..., cluster_time: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., event_count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., slices: _Optional[_Iterable[_Union[RangeSlice, _Mapping]]] = ..., caught_up: bool = ..., latest: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., after: _Optional[bytes] = ..., routing_key: _Optional[str] = ..., feed_fingerprint: _Optional[bytes] = ...) -> None: ...

class RangeSlice(_message.Message):
    __slots__ = ("after", "until", "event_count", "size_bytes")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    after: bytes
    until: bytes
    event_count: int
    size_bytes: int
    def __init__(self, after: _Optional[bytes] = ..., until: _Optional[bytes] = ..., event_count: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ReadRangeRequest(_message.Message):
    __slots__ = ("subscription", "feed", "after", "until", "message_bytes_max", "feed_fingerprint")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    FEED_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    feed: _feed_pb2.Feed
    after: bytes
    until: bytes
    message_bytes_max: int
    feed_fingerprint: bytes
    def __init__(self, subscription: _Optional[str] = ..., feed: _Optional[_Union[_feed_pb2.Feed, _Mapping]] = ..., after: _Optional[bytes] = ..., until: _Optional[bytes] = ..., message_bytes_max: _Optional[int] = ..., feed_fingerprint: _Optional[bytes] = ...) -> None: ...

class ReadRangeResponse(_message.Message):
    __slots__ = ("batch", "event_fragment")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    EVENT_FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    batch: Batch
    event_fragment: EventFragment
    def __init__(self, batch: _Optional[_Union[Batch, _Mapping]] = ..., event_fragment: _Optional[_Union[EventFragment, _Mapping]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("feed", "start")
    FEED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    feed: _feed_pb2.Feed
    start: _feed_pb2.Start
    def __init__(self, feed: _Optional[_Union[_feed_pb2.Feed, _Mapping]] = ..., start: _Optional[_Union[_feed_pb2.Start, _Mapping]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("refusal", "pipeline", "stream_key", "stream_open", "images", "oplog_headroom", "withheld", "may_be_view", "scope_missing", "documents_estimated")
    class Refusal(_message.Message):
        __slots__ = ("status", "reason", "message")
        STATUS_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        status: str
        reason: str
        message: str
        def __init__(self, status: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
    class CollectionImages(_message.Message):
        __slots__ = ("database", "collection", "enabled", "for_grants")
        DATABASE_FIELD_NUMBER: _ClassVar[int]
        COLLECTION_FIELD_NUMBER: _ClassVar[int]
        ENABLED_FIELD_NUMBER: _ClassVar[int]
        FOR_GRANTS_FIELD_NUMBER: _ClassVar[int]
        database: str
        collection: str
        enabled: bool
        for_grants: bool
        def __init__(self, database: _Optional[str] = ..., collection: _Optional[str] = ..., enabled: bool = ..., for_grants: bool = ...) -> None: ...
    class Withheld(_message.Message):
        __slots__ = ("what", "why")
        WHAT_FIELD_NUMBER: _ClassVar[int]
        WHY_FIELD_NUMBER: _ClassVar[int]
        what: str
        why: str
        def __init__(self, what: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STREAM_KEY_FIELD_NUMBER: _ClassVar[int]
    STREAM_OPEN_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    OPLOG_HEADROOM_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_VIEW_FIELD_NUMBER: _ClassVar[int]
    SCOPE_MISSING_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    refusal: ExplainResponse.Refusal
    pipeline: str
    stream_key: str
    stream_open: bool
    images: _containers.RepeatedCompositeFieldContainer[ExplainResponse.CollectionImages]
    oplog_headroom: _duration_pb2.Duration
    withheld: _containers.RepeatedCompositeFieldContainer[ExplainResponse.Withheld]
    may_be_view: bool
    scope_missing: bool
    documents_estimated: int
    def __init__(self, refusal: _Optional[_Union[ExplainResponse.Refusal, _Mapping]] = ..., pipeline: _Optional[str] = ..., stream_key: _Optional[str] = ..., stream_open: bool = ..., images: _Optional[_Iterable[_Union[ExplainResponse.CollectionImages, _Mapping]]] = ..., oplog_headroom: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., withheld: _Optional[_Iterable[_Union[ExplainResponse.Withheld, _Mapping]]] = ..., may_be_view: bool = ..., scope_missing: bool = ..., documents_estimated: _Optional[int] = ...) -> None: ...
