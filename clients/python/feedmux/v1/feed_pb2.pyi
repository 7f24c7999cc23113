from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORMAT_UNSPECIFIED: _ClassVar[Format]
    FORMAT_BSON: _ClassVar[Format]
    FORMAT_EXTENDED_JSON_RELAXED: _ClassVar[Format]
    FORMAT_EXTENDED_JSON_CANONICAL: _ClassVar[Format]

class OnInvalidate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_INVALIDATE_UNSPECIFIED: _ClassVar[OnInvalidate]
    ON_INVALIDATE_STOP: _ClassVar[OnInvalidate]
    ON_INVALIDATE_CONTINUE: _ClassVar[OnInvalidate]

class OnHistoryLost(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_HISTORY_LOST_UNSPECIFIED: _ClassVar[OnHistoryLost]
    ON_HISTORY_LOST_FAIL: _ClassVar[OnHistoryLost]
    ON_HISTORY_LOST_EARLIEST: _ClassVar[OnHistoryLost]
    ON_HISTORY_LOST_SNAPSHOT: _ClassVar[OnHistoryLost]
FORMAT_UNSPECIFIED: Format
FORMAT_BSON: Format
FORMAT_EXTENDED_JSON_RELAXED: Format
FORMAT_EXTENDED_JSON_CANONICAL: Format
ON_INVALIDATE_UNSPECIFIED: OnInvalidate
ON_INVALIDATE_STOP: OnInvalidate
ON_INVALIDATE_CONTINUE: OnInvalidate
ON_HISTORY_LOST_UNSPECIFIED: OnHistoryLost
ON_HISTORY_LOST_FAIL: OnHistoryLost
ON_HISTORY_LOST_EARLIEST: OnHistoryLost
ON_HISTORY_LOST_SNAPSHOT: OnHistoryLost

class Feed(_message.Message):
    __slots__ = ("source", "database", "collection", "pipeline", "full_document", "full_document_before_change", "show_expanded_events", "collation", "comment", "batch_size", "max_await_time_ms", "read_preference", "read_concern", "match_collection_uuid_for_update_lookup", "extra_options")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    FULL_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    FULL_DOCUMENT_BEFORE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    SHOW_EXPANDED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    COLLATION_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_AWAIT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    READ_PREFERENCE_FIELD_NUMBER: _ClassVar[int]
    READ_CONCERN_FIELD_NUMBER: _ClassVar[int]
    MATCH_COLLECTION_UUID_FOR_UPDATE_LOOKUP_FIELD_NUMBER: _ClassVar[int]
    EXTRA_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    source: str
    database: str
    collection: str
    pipeline: Pipeline
    full_document: str
    full_document_before_change: str
    show_expanded_events: bool
    collation: bytes
    comment: bytes
    batch_size: int
    max_await_time_ms: int
    read_preference: str
    read_concern: str
    match_collection_uuid_for_update_lookup: bool
    extra_options: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source: _Optional[str] = ..., database: _Optional[str] = ..., collection: _Optional[str] = ..., pipeline: _Optional[_Union[Pipeline, _Mapping]] = ..., full_document: _Optional[str] = ..., full_document_before_change: _Optional[str] = ..., show_expanded_events: bool = ..., collation: _Optional[bytes] = ..., comment: _Optional[bytes] = ..., batch_size: _Optional[int] = ..., max_await_time_ms: _Optional[int] = ..., read_preference: _Optional[str] = ..., read_concern: _Optional[str] = ..., match_collection_uuid_for_update_lookup: bool = ..., extra_options: _Optional[_Iterable[str]] = ...) -> None: ...

class Pipeline(_message.Message):
    __slots__ = ("extended_json", "bson")
    EXTENDED_JSON_FIELD_NUMBER: _ClassVar[int]
    BSON_FIELD_NUMBER: _ClassVar[int]
    extended_json: str
    bson: bytes
    def __init__(self, extended_json: _Optional[str] = ..., bson: _Optional[bytes] = ...) -> None: ...

class ClusterTime(_message.Message):
    __slots__ = ("seconds", "increment")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    INCREMENT_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    increment: int
    def __init__(self, seconds: _Optional[int] = ..., increment: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("position", "resume_after", "start_after", "start_at_operation_time", "time", "earliest", "latest", "snapshot")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RESUME_AFTER_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    START_AT_OPERATION_TIME_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    position: bytes
    resume_after: bytes
    start_after: bytes
    start_at_operation_time: ClusterTime
    time: _timestamp_pb2.Timestamp
    earliest: Earliest
    latest: Latest
    snapshot: Snapshot
    def __init__(self, position: _Optional[bytes] = ..., resume_after: _Optional[bytes] = ..., start_after: _Optional[bytes] = ..., start_at_operation_time: _Optional[_Union[ClusterTime, _Mapping]] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., earliest: _Optional[_Union[Earliest, _Mapping]] = ..., latest: _Optional[_Union[Latest, _Mapping]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class Earliest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Latest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotStatus(_message.Message):
    __slots__ = ("state", "documents", "bytes", "documents_estimated", "remaining", "read_time", "namespace", "generation")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[SnapshotStatus.State]
        STATE_RUNNING: _ClassVar[SnapshotStatus.State]
        STATE_DONE: _ClassVar[SnapshotStatus.State]
    STATE_UNSPECIFIED: SnapshotStatus.State
    STATE_RUNNING: SnapshotStatus.State
    STATE_DONE: SnapshotStatus.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    READ_TIME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    state: SnapshotStatus.State
    documents: int
    bytes: int
    documents_estimated: int
    remaining: _duration_pb2.Duration
    read_time: ClusterTime
    namespace: str
    generation: int
    def __init__(self, state: _Optional[_Union[SnapshotStatus.State, str]] = ..., documents: _Optional[int] = ..., bytes: _Optional[int] = ..., documents_estimated: _Optional[int] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., read_time: _Optional[_Union[ClusterTime, _Mapping]] = ..., namespace: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...
