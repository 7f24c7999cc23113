from feedmux.v1 import feed_pb2 as _feed_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListSharedStreamsRequest(_message.Message):
    __slots__ = ("source", "omit_subscribers")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OMIT_SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    source: str
    omit_subscribers: bool
    def __init__(self, source: _Optional[str] = ..., omit_subscribers: bool = ...) -> None: ...

class ListSharedStreamsResponse(_message.Message):
    __slots__ = ("shared_streams", "detached_subscribers", "totals", "wide_groups")
    SHARED_STREAMS_FIELD_NUMBER: _ClassVar[int]
    DETACHED_SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    WIDE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    shared_streams: _containers.RepeatedCompositeFieldContainer[SharedStream]
    detached_subscribers: _containers.RepeatedCompositeFieldContainer[Subscriber]
    totals: Totals
    wide_groups: _containers.RepeatedCompositeFieldContainer[WideGroup]
    def __init__(self, shared_streams: _Optional[_Iterable[_Union[SharedStream, _Mapping]]] = ..., detached_subscribers: _Optional[_Iterable[_Union[Subscriber, _Mapping]]] = ..., totals: _Optional[_Union[Totals, _Mapping]] = ..., wide_groups: _Optional[_Iterable[_Union[WideGroup, _Mapping]]] = ...) -> None: ...

class SharedStream(_message.Message):
    __slots__ = ("id", "stream_key", "source", "scope", "pipeline", "state", "catch_up", "oldest", "newest", "ring_events", "ring_bytes", "lag", "events_read", "batches_read", "resumes", "cursor_open", "subscribers", "subscriber_count", "view_of")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[SharedStream.State]
        STATE_OPENING: _ClassVar[SharedStream.State]
        STATE_READING: _ClassVar[SharedStream.State]
        STATE_PAUSED: _ClassVar[SharedStream.State]
        STATE_IDLE: _ClassVar[SharedStream.State]
        STATE_RECOVERING: _ClassVar[SharedStream.State]
        STATE_ENDED: _ClassVar[SharedStream.State]
    STATE_UNSPECIFIED: SharedStream.State
    STATE_OPENING: SharedStream.State
    STATE_READING: SharedStream.State
    STATE_PAUSED: SharedStream.State
    STATE_IDLE: SharedStream.State
    STATE_RECOVERING: SharedStream.State
    STATE_ENDED: SharedStream.State
    ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_KEY_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    RING_EVENTS_FIELD_NUMBER: _ClassVar[int]
    RING_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    EVENTS_READ_FIELD_NUMBER: _ClassVar[int]
    BATCHES_READ_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_OPEN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    VIEW_OF_FIELD_NUMBER: _ClassVar[int]
    id: str
    stream_key: str
    source: str
    scope: str
    pipeline: str
    state: SharedStream.State
    catch_up: bool
    oldest: _feed_pb2.ClusterTime
    newest: _feed_pb2.ClusterTime
    ring_events: int
    ring_bytes: int
    lag: _duration_pb2.Duration
    events_read: int
    batches_read: int
    resumes: int
    cursor_open: bool
    subscribers: _containers.RepeatedCompositeFieldContainer[Subscriber]
    subscriber_count: int
    view_of: str
    def __init__(self, id: _Optional[str] = ..., stream_key: _Optional[str] = ..., source: _Optional[str] = ..., scope: _Optional[str] = ..., pipeline: _Optional[str] = ..., state: _Optional[_Union[SharedStream.State, str]] = ..., catch_up: bool = ..., oldest: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., newest: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., ring_events: _Optional[int] = ..., ring_bytes: _Optional[int] = ..., lag: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., events_read: _Optional[int] = ..., batches_read: _Optional[int] = ..., resumes: _Optional[int] = ..., cursor_open: bool = ..., subscribers: _Optional[_Iterable[_Union[Subscriber, _Mapping]]] = ..., subscriber_count: _Optional[int] = ..., view_of: _Optional[str] = ...) -> None: ...

class WideGroup(_message.Message):
    __slots__ = ("source", "options", "feeds", "views", "decision", "scope", "events_read", "events_taken", "ring_bytes")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FEEDS_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_READ_FIELD_NUMBER: _ClassVar[int]
    EVENTS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    RING_BYTES_FIELD_NUMBER: _ClassVar[int]
    source: str
    options: str
    feeds: int
    views: int
    decision: str
    scope: str
    events_read: int
    events_taken: int
    ring_bytes: int
    def __init__(self, source: _Optional[str] = ..., options: _Optional[str] = ..., feeds: _Optional[int] = ..., views: _Optional[int] = ..., decision: _Optional[str] = ..., scope: _Optional[str] = ..., events_read: _Optional[int] = ..., events_taken: _Optional[int] = ..., ring_bytes: _Optional[int] = ...) -> None: ...

class Subscriber(_message.Message):
    __slots__ = ("id", "tenant", "subscription", "instance_id", "state", "position", "lag", "lag_events", "events_sent", "events_unacked", "credit_events", "credit_bytes", "peer", "snapshot")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAG_EVENTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_SENT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_UNACKED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_EVENTS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    subscription: str
    instance_id: str
    state: str
    position: _feed_pb2.ClusterTime
    lag: _duration_pb2.Duration
    lag_events: int
    events_sent: int
    events_unacked: int
    credit_events: int
    credit_bytes: int
    peer: str
    snapshot: _feed_pb2.SnapshotStatus
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ..., subscription: _Optional[str] = ..., instance_id: _Optional[str] = ..., state: _Optional[str] = ..., position: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., lag: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., lag_events: _Optional[int] = ..., events_sent: _Optional[int] = ..., events_unacked: _Optional[int] = ..., credit_events: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., peer: _Optional[str] = ..., snapshot: _Optional[_Union[_feed_pb2.SnapshotStatus, _Mapping]] = ...) -> None: ...

class Totals(_message.Message):
    __slots__ = ("shared_streams", "cursors", "subscribers", "memory_bytes", "memory_bytes_max")
    SHARED_STREAMS_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    shared_streams: int
    cursors: int
    subscribers: int
    memory_bytes: int
    memory_bytes_max: int
    def __init__(self, shared_streams: _Optional[int] = ..., cursors: _Optional[int] = ..., subscribers: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_bytes_max: _Optional[int] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants", "since")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantUsage]
    since: _timestamp_pb2.Timestamp
    def __init__(self, tenants: _Optional[_Iterable[_Union[TenantUsage, _Mapping]]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TenantUsage(_message.Message):
    __slots__ = ("tenant", "open_sessions", "subscriptions", "shared_streams", "exclusive_streams", "events_sent", "bytes_sent", "upstream_events", "upstream_bytes", "upstream_share", "configured", "quotas", "throttled")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    SHARED_STREAMS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_STREAMS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_EVENTS_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_SHARE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    open_sessions: int
    subscriptions: int
    shared_streams: int
    exclusive_streams: int
    events_sent: int
    bytes_sent: int
    upstream_events: float
    upstream_bytes: float
    upstream_share: float
    configured: bool
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaUse]
    throttled: _duration_pb2.Duration
    def __init__(self, tenant: _Optional[str] = ..., open_sessions: _Optional[int] = ..., subscriptions: _Optional[int] = ..., shared_streams: _Optional[int] = ..., exclusive_streams: _Optional[int] = ..., events_sent: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., upstream_events: _Optional[float] = ..., upstream_bytes: _Optional[float] = ..., upstream_share: _Optional[float] = ..., configured: bool = ..., quotas: _Optional[_Iterable[_Union[QuotaUse, _Mapping]]] = ..., throttled: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("quota", "limit", "used")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    quota: str
    limit: int
    used: int
    def __init__(self, quota: _Optional[str] = ..., limit: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class EndSubscriberRequest(_message.Message):
    __slots__ = ("subscriber_id",)
    SUBSCRIBER_ID_FIELD_NUMBER: _ClassVar[int]
    subscriber_id: str
    def __init__(self, subscriber_id: _Optional[str] = ...) -> None: ...

class EndSubscriberResponse(_message.Message):
    __slots__ = ("tenant", "subscription")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    subscription: str
    def __init__(self, tenant: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("sessions", "deadline")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    deadline: _duration_pb2.Duration
    def __init__(self, sessions: _Optional[int] = ..., deadline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
