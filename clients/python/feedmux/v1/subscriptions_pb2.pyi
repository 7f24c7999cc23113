from feedmux.v1 import feed_pb2 as _feed_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AfterDeadLetter(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AFTER_DEAD_LETTER_UNSPECIFIED: _ClassVar[AfterDeadLetter]
    AFTER_DEAD_LETTER_SKIP: _ClassVar[AfterDeadLetter]
    AFTER_DEAD_LETTER_QUARANTINE: _ClassVar[AfterDeadLetter]
AFTER_DEAD_LETTER_UNSPECIFIED: AfterDeadLetter
AFTER_DEAD_LETTER_SKIP: AfterDeadLetter
AFTER_DEAD_LETTER_QUARANTINE: AfterDeadLetter

class Subscription(_message.Message):
    __slots__ = ("name", "feed", "on_invalidate", "on_history_lost", "position", "cluster_time", "create_time", "update_time", "etag", "active", "owner", "epoch", "expire_time", "routing_key", "snapshot", "group", "session_state", "unacked_events")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    ON_INVALIDATE_FIELD_NUMBER: _ClassVar[int]
    ON_HISTORY_LOST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SESSION_STATE_FIELD_NUMBER: _ClassVar[int]
    UNACKED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    feed: _feed_pb2.Feed
    on_invalidate: _feed_pb2.OnInvalidate
    on_history_lost: _feed_pb2.OnHistoryLost
    position: bytes
    cluster_time: _feed_pb2.ClusterTime
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    etag: str
    active: bool
    owner: str
    epoch: int
    expire_time: _timestamp_pb2.Timestamp
    routing_key: str
    snapshot: _feed_pb2.SnapshotStatus
    group: Group
    session_state: str
    unacked_events: int
    def __init__(self, name: _Optional[str] = ..., feed: _Optional[_Union[_feed_pb2.Feed, _Mapping]] = ..., on_invalidate: _Optional[_Union[_feed_pb2.OnInvalidate, str]] = ..., on_history_lost: _Optional[_Union[_feed_pb2.OnHistoryLost, str]] = ..., position: _Optional[bytes] = ..., cluster_time: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., etag: _Optional[str] = ..., active: bool = ..., owner: _Optional[str] = ..., epoch: _Optional[int] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., routing_key: _Optional[str] = ..., snapshot: _Optional[_Union[_feed_pb2.SnapshotStatus, _Mapping]] = ..., group: _Optional[_Union[Group, _Mapping]] = ..., session_state: _Optional[str] = ..., unacked_events: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("reconnect_time", "retry_first", "retry_most", "attempts_max", "after_dead_letter", "key_field")
    RECONNECT_TIME_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIRST_FIELD_NUMBER: _ClassVar[int]
    RETRY_MOST_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    AFTER_DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_FIELD_NUMBER: _ClassVar[int]
    reconnect_time: _duration_pb2.Duration
    retry_first: _duration_pb2.Duration
    retry_most: _duration_pb2.Duration
    attempts_max: int
    after_dead_letter: AfterDeadLetter
    key_field: str
    def __init__(self, reconnect_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., retry_first: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., retry_most: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., attempts_max: _Optional[int] = ..., after_dead_letter: _Optional[_Union[AfterDeadLetter, str]] = ..., key_field: _Optional[str] = ...) -> None: ...

class CreateSubscriptionRequest(_message.Message):
    __slots__ = ("subscription", "start")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    subscription: Subscription
    start: _feed_pb2.Start
    def __init__(self, subscription: _Optional[_Union[Subscription, _Mapping]] = ..., start: _Optional[_Union[_feed_pb2.Start, _Mapping]] = ...) -> None: ...

class GetSubscriptionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListSubscriptionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSubscriptionsResponse(_message.Message):
    __slots__ = ("subscriptions", "next_page_token")
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    next_page_token: str
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateSubscriptionRequest(_message.Message):
    __slots__ = ("subscription", "update_mask")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    subscription: Subscription
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, subscription: _Optional[_Union[Subscription, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class DeleteSubscriptionRequest(_message.Message):
    __slots__ = ("name", "etag", "allow_missing")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    ALLOW_MISSING_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    allow_missing: bool
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ..., allow_missing: bool = ...) -> None: ...

class SeekSubscriptionRequest(_message.Message):
    __slots__ = ("name", "to")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    name: str
    to: _feed_pb2.Start
    def __init__(self, name: _Optional[str] = ..., to: _Optional[_Union[_feed_pb2.Start, _Mapping]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("id", "key", "event", "event_bytes", "attempts", "reasons", "member", "cluster_time", "fail_time", "expire_time", "withheld")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    EVENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TIME_FIELD_NUMBER: _ClassVar[int]
    FAIL_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    key: bytes
    event: bytes
    event_bytes: int
    attempts: int
    reasons: _containers.RepeatedScalarFieldContainer[str]
    member: str
    cluster_time: _feed_pb2.ClusterTime
    fail_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    withheld: bool
    def __init__(self, id: _Optional[bytes] = ..., key: _Optional[bytes] = ..., event: _Optional[bytes] = ..., event_bytes: _Optional[int] = ..., attempts: _Optional[int] = ..., reasons: _Optional[_Iterable[str]] = ..., member: _Optional[str] = ..., cluster_time: _Optional[_Union[_feed_pb2.ClusterTime, _Mapping]] = ..., fail_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., withheld: bool = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("name", "key", "page_size", "page_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    key: bytes
    page_size: int
    page_token: str
    def __init__(self, name: _Optional[str] = ..., key: _Optional[bytes] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("dead_letters", "next_page_token")
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    dead_letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next_page_token: str
    def __init__(self, dead_letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetDeadLetterRequest(_message.Message):
    __slots__ = ("name", "id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: bytes
    def __init__(self, name: _Optional[str] = ..., id: _Optional[bytes] = ...) -> None: ...

class DiscardDeadLettersRequest(_message.Message):
    __slots__ = ("name", "ids", "key", "all")
    class Ids(_message.Message):
        __slots__ = ("ids",)
        IDS_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, ids: _Optional[_Iterable[bytes]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    name: str
    ids: DiscardDeadLettersRequest.Ids
    key: bytes
    all: _empty_pb2.Empty
    def __init__(self, name: _Optional[str] = ..., ids: _Optional[_Union[DiscardDeadLettersRequest.Ids, _Mapping]] = ..., key: _Optional[bytes] = ..., all: _Optional[_Union[_empty_pb2.Empty, _Mapping]] = ...) -> None: ...

class DiscardDeadLettersResponse(_message.Message):
    __slots__ = ("discarded", "more")
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    discarded: int
    more: bool
    def __init__(self, discarded: _Optional[int] = ..., more: bool = ...) -> None: ...

class ReplayDeadLettersRequest(_message.Message):
    __slots__ = ("name", "ids", "key", "all")
    class Ids(_message.Message):
        __slots__ = ("ids",)
        IDS_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, ids: _Optional[_Iterable[bytes]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    name: str
    ids: ReplayDeadLettersRequest.Ids
    key: bytes
    all: _empty_pb2.Empty
    def __init__(self, name: _Optional[str] = ..., ids: _Optional[_Union[ReplayDeadLettersRequest.Ids, _Mapping]] = ..., key: _Optional[bytes] = ..., all: _Optional[_Union[_empty_pb2.Empty, _Mapping]] = ...) -> None: ...

class ReplayDeadLettersResponse(_message.Message):
    __slots__ = ("chosen", "more", "withheld")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    chosen: int
    more: bool
    withheld: int
    def __init__(self, chosen: _Optional[int] = ..., more: bool = ..., withheld: _Optional[int] = ...) -> None: ...
