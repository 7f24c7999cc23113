"""The sections of the server's configuration."""

import hashlib
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.feeds.names import check_scope

_PORT = re.compile(r":\d{1,5}$")
_ADDRESS = re.compile(r"(\[[\w:.%-]+\]|[^\s\[\]:/@]+):[0-9]{1,5}")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class RestrictingSection(Section):
    """A section whose options restrict callers, so that what is left out allows more. YAML reads an option whose lines
    are commented out as null: that is not left out."""

    @model_validator(mode="before")
    @classmethod
    def _has_values(cls, given: Any) -> Any:
        for name, value in given.items() if isinstance(given, dict) else ():
            if value is None:
                raise ValueError(f"{name} has no value; delete the option, or give it a value")
        return given


class SourceSection(Section):
    """A MongoDB deployment, under the name that feeds use."""

    uri: str
    """MongoDB URI of a replica set or sharded cluster, with its credentials. Not with readConcernLevel other than
    majority, timeoutMS or loadBalanced, with which change streams fail."""
    username_file: Path | None = None
    """File with the user of MongoDB, instead of a user in the URI. It is read again when it changes."""
    password_file: Path | None = None
    """File with the user's password, one line, not percent-encoded. It is read again when it changes, and new
    connections use it: the password can rotate without a restart."""
    id: str = ""
    """Identity of the deployment inside positions. Empty: the replica set's own id. Set it where the account may not
    run replSetGetConfig, so that positions survive a change of permissions."""
    server_selection_timeout_ms: int = Field(default=10_000, ge=100)
    """How long a request waits for an unavailable MongoDB, in milliseconds."""
    history_reads: int = Field(2, ge=1)
    """Concurrent reads of history from MongoDB. Each occupies one core of MongoDB while it lasts; streams at the head
    never wait for such a read, but they need a core: keep this below the number of MongoDB's cores. More lets feeds of
    different tenants catch up in parallel."""

    @model_validator(mode="after")
    def _names_a_user(self) -> Self:
        if self.password_file is not None and self.username_file is None and "@" not in self.uri:
            raise ValueError("password_file needs username_file, or a user in the URI")
        return self


class ListenSection(Section):
    """Addresses, host:port. Port 0 picks a free one."""

    data: str = "127.0.0.1:7117"
    """Services ChangeFeed and Subscriptions. 0.0.0.0:7117 listens on all interfaces."""
    data_mtls: str = ""
    """A second address for the same services, where a client certificate is required; `data` then requires none. Needs
    tls.client_ca_file."""
    operator: str = "127.0.0.1:7118"
    """Service Operator."""
    health: str = "127.0.0.1:7119"
    """Service grpc.health.v1 without TLS, for probes."""
    metrics: str = "127.0.0.1:9117"
    """The metrics page for Prometheus, HTTP without TLS; empty for none. If this is not set and the default port is in
    use, the server runs without the page."""
    accept_plaintext: bool = False
    """Whether credentials may cross the network without TLS, because a proxy or a service mesh encrypts the connection.
    False: the server warns at its start if `data` or `operator` accepts them without TLS."""

    @field_validator("data", "data_mtls", "operator", "health")
    @classmethod
    def _is_an_address(cls, address: str, info: ValidationInfo) -> str:
        # gRPC would listen on port 443.
        if address.startswith("unix:") or (not address and info.field_name == "data_mtls"):
            return address
        if not _PORT.search(address):
            raise ValueError(f"{address!r} has no port; write host:port")
        if _PORT.fullmatch(address):
            raise ValueError(f"{address!r} has no host; write 0.0.0.0{address} to listen on all interfaces")
        if not _ADDRESS.fullmatch(address) or int(address.rpartition(":")[2]) >= 1 << 16:
            raise ValueError(f"{address!r} is not host:port, as in 0.0.0.0:7117")
        return address

    @property
    def open_addresses(self) -> tuple[str, ...]:
        """The addresses `data` and `operator`, if other machines can reach them."""
        return tuple(each for each in (self.data, self.operator) if not _is_of_this_machine(each))


class TlsSection(RestrictingSection):
    """TLS of the data and operator ports. The files are read again when they change."""

    certificate_file: Path
    """Certificate chain, PEM."""
    key_file: Path
    """Private key, PEM."""
    client_ca_file: Path | None = None
    """Authorities of the clients' certificates, PEM. If set, `listen.data` requires a client certificate; if
    `listen.data_mtls` is set as well, only that address does."""


Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class JwtSection(Section):
    """JSON Web Tokens as credentials of tenants: `authorization: Bearer <JWT>`."""

    issuer: str = Field(min_length=1)
    """What `iss` must be."""
    audience: str = Field(min_length=1)
    """What `aud` must be or contain."""
    jwks_file: Path | None = None
    """The issuer's public keys (JWKS); this or jwks_url."""
    jwks_url: str | None = None
    """Where the issuer publishes its keys; https, or http on this machine. While the URL cannot be read, the keys read
    last stay in force."""
    algorithms: tuple[Algorithm, ...] = Field(default=("RS256", "ES256"), min_length=1)
    """Accepted signatures: RS256 to RS512, PS256 to PS512, ES256 to ES512, EdDSA. HMAC is not supported, because anyone
    who can check an HMAC can also forge one."""
    tenant_claim: str = Field(default="tenant", min_length=1)
    """The claim that names the tenant, which must be in the tenants file."""
    refresh_s: float = Field(default=300.0, ge=1)
    """How often jwks_url is read. A token with an unknown key causes an extra read, at most every 10 s."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.jwks_file is None) == (self.jwks_url is None):
            raise ValueError("name either jwks_file or jwks_url")
        if self.jwks_url is not None:
            url = urlsplit(self.jwks_url)
            if not url.hostname or not (url.scheme == "https" or (url.scheme == "http" and _is_local(url.hostname))):
                raise ValueError("jwks_url must be https://…; http:// only on this machine")
        return self


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _is_of_this_machine(address: str) -> bool:
    return address.startswith("unix") or _is_local(address.rpartition(":")[0].strip("[]"))


class LimitsSection(Section):
    """Bounds of the process."""

    memory_bytes: int = Field(default=1 << 30, ge=64 << 20)
    """For everything held for tenants except ranges. The rings get what the rest leaves: above that, the oldest chunks
    of the largest rings are evicted, and subscribers that still need them read them from MongoDB again. At most a
    quarter is for messages that clients have not taken, a quarter for what unacknowledged events retain, and an eighth
    for requests."""
    ring_bytes: int = Field(default=64 << 20, ge=4 << 20)
    """Ring of one stream. Larger: slow subscribers stay on the shared read for longer."""
    ring_events: int = Field(default=500_000, ge=1_000)
    """Events in one ring."""
    read_ahead_bytes: int = Field(default=4 << 20, ge=1 << 20)
    """The pump continues to read while a subscriber with credit is nearer to the head than this. Larger values cause
    bursts of reads that load MongoDB; keep it under half of ring_bytes, or the fastest subscriber pushes others out."""
    join_distance_s: int = Field(default=30, ge=0)
    """A subscriber waits for a stream that is behind its position by at most this (cluster time), instead of opening
    another one. More shares more reads after a mass reconnect; a late starter waits longer."""
    catch_up_streams: int = Field(default=32, ge=1)
    """Streams, in total, that read history in addition to the live stream of their feed. Each costs an oplog scan. When
    more are needed, they take turns."""
    snapshot_step_s: float = Field(default=2.0, ge=0, le=60)
    """Of a snapshot: the time for which documents are read before the changes to those copied so far, in seconds. A
    shorter time costs MongoDB more change streams; changes to copied documents wait for as long."""
    batch_events: int = Field(default=4_000, ge=1, le=100_000)
    """Events per getMore at most. Large events come in smaller batches, of about 2.5 MB."""
    max_await_ms: int = Field(default=1_000, ge=10, le=60_000)
    """How long MongoDB waits for an event before it reports how far it has read. With more than 125 feeds without
    events it waits longer, up to 8 s."""
    event_time_s: PositiveFloat = 5.0
    """How long MongoDB may compute on one event for the pipeline of a feed before the feed ends."""
    coalesce_ms: float = Field(default=5.0, ge=0, le=1_000)
    """Requests to open one feed are gathered for this long and share one read."""
    unused_stream_s: float = Field(default=10.0, ge=0)
    """A stream without subscribers stays open for this long, in case they reconnect."""
    idle_close_s: float = Field(default=60.0, ge=1)
    """If no subscriber can take more for this long, the cursor in MongoDB is closed."""
    credit_events: int = Field(default=1_000_000, ge=1)
    """Maximum unused credit of a session, in events."""
    credit_bytes: int = Field(default=64 << 20, ge=1)
    """Maximum unused credit of a session, in bytes."""
    unacked_events: int = Field(default=50_000, ge=1)
    """Delivery to a durable subscription pauses at this many unacknowledged events. It bounds the events that are
    delivered again after a failure, and the memory for their tokens."""
    retained_bytes: int = Field(default=256 << 20, ge=1 << 20)
    """Events that PlanRange has read and ReadRange has not. Above this, the oldest range of the tenant that retains
    most is evicted, and read from MongoDB again when needed. Counts in addition to memory_bytes."""
    sessions: int = Field(default=10_000, ge=1)
    """Sessions of the process; about 60 KB each when idle."""
    request_bytes: int = Field(default=256 << 10, ge=16 << 10, le=1 << 20)
    """Largest request. The default fits the largest pipeline that is allowed; less saves memory if pipelines are
    small."""
    first_message_s: float = Field(default=10.0, gt=0, le=120)
    """A call whose request has not arrived after this long is ended, including Subscribe without its Open message."""
    connections: int = Field(default=11_000, ge=1)
    """Connections of each port, from clients with or without credentials; more connections are closed. Each takes about
    20 KB, more with TLS, and a file descriptor. Do not set it below `sessions`, because each session may have a
    connection."""
    streams_per_connection: int = Field(default=10_000, ge=1)
    """Concurrent calls on one connection; further calls wait within the client. A client object has one connection for
    all its sessions."""
    history_at_risk_s: tuple[PositiveFloat, ...] = (3_600.0, 600.0)
    """A session is notified when the time until its position leaves the oplog, at the oplog's present rate, falls below
    each of these. The largest is also what the metrics call at risk. Empty: no notification."""
    oplog_check_interval_s: float = Field(default=10.0, ge=0.1)
    """How often the oplog of each source is checked, with five small commands. Less often: warnings and lags are older,
    and so is the entry by which a restored MongoDB is known."""
    position_check_interval_s: float = Field(default=60.0, ge=1)
    """How often the stored positions of all subscriptions are checked, with one Redis command each, so that the server
    also warns about a subscription whose consumer is not connected."""
    drain_s: float = Field(default=5.0, ge=0.1)
    """After SIGTERM, clients have this long to acknowledge the events they have."""
    drain_delay_s: float = Field(default=0.0, ge=0)
    """After SIGTERM, health reports NOT_SERVING for this long before clients are asked to disconnect, so that load
    balancers that check only now and then stop sending clients here. Counts in addition to drain_s."""
    connection_age_s: float = Field(default=3_600.0, ge=0)
    """Connections older than this, give or take a tenth, are replaced. Their sessions reconnect a little later, at
    different times and without loss, so that new replicas get their share. 0: never."""
    unused_subscription_days: float = Field(default=0.0, ge=0)
    """Subscriptions that nobody has opened, sought or changed for this many days are deleted. The log and the audit log
    announce it a tenth of that time before, at most a week. 0: never."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.ring_bytes > self.memory_bytes:
            raise ValueError(f"ring_bytes ({self.ring_bytes}) is above memory_bytes ({self.memory_bytes}): lower it")
        return self


class RedisSection(Section):
    """Redis, which stores positions."""

    url: str = "redis://127.0.0.1:6379/0"
    """redis://HOST:6379/0, redis+sentinel://HOST:26379,HOST:26379/SERVICE, redis+cluster://HOST:6379,HOST:6379 or
    unix://PATH; with TLS rediss://, rediss+sentinel://, rediss+cluster:// (docs/redis.md)."""
    username: str = ""
    """User of Redis's ACL. Empty: the user in the URL, or `default`."""
    password: SecretStr = SecretStr("")
    """Password of the user. Empty: the password in the URL, or none."""
    username_file: Path | None = None
    """File with the user, instead of `username`. It is read again when it changes."""
    password_file: Path | None = None
    """File with the password, one line, instead of `password`. It is read again when it changes, and new connections
    use it."""
    sentinel_username: str = ""
    """User at the sentinels, if they require one."""
    sentinel_password: SecretStr = SecretStr("")
    """Password at the sentinels."""
    sentinel_username_file: Path | None = None
    """File with the user at the sentinels, read as `username_file`."""
    sentinel_password_file: Path | None = None
    """File with the password at the sentinels, read as `password_file`."""
    ca_file: Path | None = None
    """Authorities of Redis's certificate, PEM. None: the system's authorities."""
    certificate_file: Path | None = None
    """Client certificate for Redis, PEM."""
    key_file: Path | None = None
    """Private key of the client certificate, PEM."""
    key_prefix: str = Field(default="feedmux", pattern="^[A-Za-z0-9_.-]{1,64}$")
    """What the name of every key begins with, before a colon. Deployments of feedmux that share a Redis need one each:
    otherwise they see, move and delete each other's subscriptions (docs/redis.md)."""
    commit_interval_s: float = Field(default=0.5, ge=0.01)
    """Acks are written at most once per subscription in this time. Shorter: fewer events are delivered again after a
    crash; longer: less load on Redis."""
    control_replicas: Literal["auto"] | NonNegativeInt = "auto"
    """How many Redis replicas must have the change that CreateSubscription, UpdateSubscription, SeekSubscription or
    DeleteSubscription makes before the call succeeds, so that a failover does not undo it. auto: 1 if a replica is
    connected. 0: calls do not wait for replicas. Acks never wait."""
    lease_s: float = Field(default=15.0, ge=2, le=6 * 3_600)
    """A subscription whose owner has disappeared can be opened again after this long."""

    @model_validator(mode="after")
    def _names_one_login(self) -> Self:
        named = {
            "username": (self.username, self.username_file),
            "password": (self.password.get_secret_value(), self.password_file),
            "sentinel_username": (self.sentinel_username, self.sentinel_username_file),
            "sentinel_password": (self.sentinel_password.get_secret_value(), self.sentinel_password_file),
        }
        for name, (value, file) in named.items():
            if value and file is not None:
                raise ValueError(f"set {name} or {name}_file, not both")
        return self

    @model_validator(mode="after")
    def _renews_in_time(self) -> Self:
        if self.lease_s < 3 * self.commit_interval_s:
            raise ValueError("lease_s must be at least three times commit_interval_s, or leases end between renewals")
        return self


class PositionsSection(Section):
    """The keys that authenticate positions. Without a file the first server creates a key in Redis, and all use it."""

    key_file: Path | None = None
    """Keys of positions, one a line in base64, at least 32 bytes each (openssl rand -base64 32): the first signs, all
    verify. Use the same file on every server; it is read again when it changes (docs/operations.md)."""


class DeadLettersSection(Section):
    """The collection for dead letters, which groups set aside (docs/groups.md). Without this section, groups have no
    dead letters. feedmux writes only there: to any other collection it needs no access but to read."""

    source: str = ""
    """The source whose deployment has the collection. Deployment-wide feeds of this source do not show the database of
    the collection, and feeds of that database are refused. Empty: `uri` names a deployment that is no source."""
    uri: str = ""
    """MongoDB URI for the collection, with its credentials. Empty: that of the source. The user needs the role
    readWrite on the database, and no other."""
    username_file: Path | None = None
    """File with the user, instead of a user in `uri`. It is read again when it changes."""
    password_file: Path | None = None
    """File with the user's password, one line, not percent-encoded. It is read again when it changes, and new
    connections use it."""
    database: str = Field(default="feedmux", min_length=1)
    """The database of the collection."""
    collection: str = Field(default="dead_letters", min_length=1)
    """The collection, for nothing else."""
    keep_days: float = Field(default=30, gt=0, le=3_650)
    """Dead letters are deleted after this many days. A change applies to letters written from then on."""
    bytes_max: int = Field(default=1 << 30, ge=32 << 20)
    """The most bytes of the dead letters of a tenant. At the bound, an event that becomes a dead letter holds its key,
    until letters are discarded or expire; all other keys are delivered."""
    letters_max: int = Field(default=100_000, ge=1)
    """The most dead letters of a tenant. The same happens at this bound."""
    quarantined_keys_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """The most keys of a tenant that are quarantined. The same happens at this bound to an event that would quarantine
    another key. Each key takes 200 bytes of memory on the server that hosts its group."""
    server_selection_timeout_ms: int = Field(default=10_000, ge=100)
    """How long a request waits for an unavailable MongoDB, in milliseconds. Only with `uri`."""

    @model_validator(mode="after")
    def _names_a_deployment(self) -> Self:
        if not (self.source or self.uri):
            raise ValueError("name a source, or a uri, or both if the uri is one of the source's deployment")
        if (self.username_file or self.password_file) and not self.uri:
            raise ValueError("username_file and password_file belong to uri; the source has its own")
        if self.password_file is not None and self.username_file is None and "@" not in self.uri:
            raise ValueError("password_file needs username_file, or a user in the URI")
        return self

    @model_validator(mode="after")
    def _names_a_collection(self) -> Self:
        try:
            check_scope(Scope("dead-letters", self.database, self.collection))
        except FeedmuxError as error:
            raise ValueError(error.message) from None
        return self


class WideSection(Section):
    """Wide streams: many narrow feeds are read as one stream of their database or deployment. The delivered events stay
    the same."""

    enabled: bool = True
    """False: every feed is read by a separate change stream."""
    feeds_min: int = Field(default=8, ge=2)
    """How many feeds of collections or databases with the same options it takes to share one stream; with less than
    half of that, the shared stream is closed."""
    events_per_s_max: float = Field(default=20_000, gt=0)
    """A wide stream with more events per second than this is closed, unless half of them are for its feeds. Several
    wide streams have equal parts of this rate. A higher value saves MongoDB scans, and costs this process time for
    events of other namespaces."""
    ring_bytes: int = Field(default=32 << 20, ge=1 << 20)
    """How far a feed may be behind, in bytes of the wide stream, to join it."""
    inbox_bytes: int = Field(default=4 << 20, ge=64 << 10)
    """Events of one feed that wait for its subscribers; above this, the feed reads MongoDB by itself."""


class LogSection(Section):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error. From warning on, only messages that need attention."""
    format: Literal["auto", "json", "text"] = "auto"
    """auto: text on a terminal, otherwise JSON lines."""


class TelemetrySection(Section):
    """Metrics, traces and logs by OpenTelemetry, which has its own variables for the rest: OTEL_EXPORTER_OTLP_ENDPOINT
    (without it nothing is sent), OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, OTEL_SDK_DISABLED … (docs/telemetry.md)."""

    tenants: int = Field(default=50, ge=0)
    """How many tenants the metrics name, in order of appearance; all further tenants are `other`. Each further name
    adds about 40 series to the metrics store."""
    shutdown_s: float = Field(default=2.0, ge=0)
    """How long to wait at the end to send telemetry that is still queued for a collector; the rest is dropped."""


class AuditSection(Section):
    """Records who was rejected and who did what: JSON lines, without documents, keys or tokens."""

    file: Path | None = None
    """The server appends to it, and reopens it after a rotation. None: standard error."""
    lines_per_minute: int = Field(default=60, ge=1)
    """Limit for each peer, tenant and kind of event; more lines are counted, and the count is written. Lower: an
    attacker fills the disk more slowly; higher: the log shows more of what the attacker tried."""


def _checked_hash(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("must be 64 hexadecimal digits, as `feedmux keys new` prints them")
    if text == hashlib.sha256().hexdigest():
        raise ValueError("is the hash of an empty key: callers without a key would be accepted")
    return text


KeyHash = Annotated[str, AfterValidator(_checked_hash)]
KeyHashes = Annotated[tuple[str, ...], AfterValidator(lambda hashes: tuple(map(_checked_hash, hashes)))]
