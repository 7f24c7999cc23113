"""Configuration: one TOML or YAML file, then environment variables `FEEDMUX_…` (`__` between levels).

Only modules above `config` in the layers import it (ARCHITECTURE.md); they hand plain values down. The description of
every tunable names its trade-off. `python -m tests.reference.pages` writes docs/reference/configuration.md from here.
"""

import difflib
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from bson import json_util
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.grants.grant import GRANTS_MAX, Grant, make_grant
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.tenants.model import ApiKey, CertificateName, NameKind, TenantRecord
from feedmux_server.yaml_with_lines import MarkedError, parse_yaml

S = TypeVar("S", bound=BaseModel)


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file, the field and the reason."""


class FileUnreadable(ConfigError):
    """A file that the configuration names cannot be read now; a later attempt may succeed."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSection(_Section):
    """A MongoDB deployment, under the name that feeds use."""

    uri: str = Field(description="MongoDB URI of a replica set or sharded cluster, with its credentials.")
    id: str = Field(
        default="",
        description="Identity of the deployment inside positions. Empty: the replica set's own id. Set it where the"
        " account may not run replSetGetConfig, so that positions survive a change of permissions.",
    )
    server_selection_timeout_ms: int = Field(
        default=10_000, ge=100, description="How long a request waits for an unavailable MongoDB, in milliseconds."
    )
    history_reads: int = Field(
        2,
        ge=1,
        description="Concurrent reads of history from MongoDB. Each occupies one core of MongoDB while it lasts;"
        " streams at the head never wait for such a read. More lets feeds of different tenants catch up in parallel.",
    )


class ListenSection(_Section):
    """Addresses, host:port. Port 0 picks a free one."""

    data: str = Field(
        default="127.0.0.1:7117",
        description="Services ChangeFeed and Subscriptions. 0.0.0.0:7117 listens on all interfaces.",
    )
    data_mtls: str = Field(
        default="",
        description="A second address for the same services, where a client certificate is required; `data` then"
        " requires none. Needs tls.client_ca_file.",
    )
    operator: str = Field(default="127.0.0.1:7118", description="Service Operator.")
    health: str = Field(default="127.0.0.1:7119", description="Service grpc.health.v1 without TLS, for probes.")
    metrics: str = Field(
        default="127.0.0.1:9117",
        description="The metrics page for Prometheus, HTTP without TLS; empty for none. If this is not set and the"
        " default port is in use, the server runs without the page.",
    )
    accept_plaintext: bool = Field(
        default=False,
        description="Whether credentials may cross the network without TLS, because a proxy or a service mesh encrypts"
        " the connection. False: the server warns at its start if `data` or `operator` accepts them without TLS.",
    )

    @property
    def open_addresses(self) -> tuple[str, ...]:
        """The addresses `data` and `operator`, if other machines can reach them."""
        return tuple(each for each in (self.data, self.operator) if not _is_of_this_machine(each))


class TlsSection(_Section):
    """TLS of the data and operator ports. The files are read again when they change."""

    certificate_file: Path = Field(description="Certificate chain, PEM.")
    key_file: Path = Field(description="Private key, PEM.")
    client_ca_file: Path | None = Field(
        default=None,
        description="Authorities of the clients' certificates, PEM. If set, `listen.data` requires a client"
        " certificate; if `listen.data_mtls` is set as well, only that address does.",
    )


Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class JwtSection(_Section):
    """JSON Web Tokens as credentials of tenants: `authorization: Bearer <JWT>`."""

    issuer: str = Field(min_length=1, description="What `iss` must be.")
    audience: str = Field(min_length=1, description="What `aud` must be or contain.")
    jwks_file: Path | None = Field(default=None, description="The issuer's public keys (JWKS); this or jwks_url.")
    jwks_url: str | None = Field(
        default=None,
        description="Where the issuer publishes its keys; https, or http on this machine. While the URL cannot be read,"
        " the keys read last stay in force.",
    )
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "ES256"),
        min_length=1,
        description="Accepted signatures: RS256 to RS512, PS256 to PS512, ES256 to ES512, EdDSA. HMAC is not supported,"
        " because anyone who can check an HMAC can also forge one.",
    )
    tenant_claim: str = Field(
        default="tenant",
        min_length=1,
        description="The claim that names the tenant, which must be in the tenants file.",
    )
    refresh_s: float = Field(
        default=300.0,
        ge=1,
        description="How often jwks_url is read. A token with an unknown key causes an extra read, at most every 10 s.",
    )

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


class LimitsSection(_Section):
    """Bounds of the process."""

    memory_bytes: int = Field(
        default=1 << 30,
        ge=64 << 20,
        description="For everything held for tenants except ranges. The rings get what the rest leaves: above that, the"
        " oldest chunks of the largest rings are evicted, and subscribers that still need them read them from MongoDB"
        " again. At most a quarter is for messages that clients have not taken, a quarter for what unacknowledged"
        " events retain, and an eighth for requests.",
    )
    ring_bytes: int = Field(
        default=64 << 20,
        ge=4 << 20,
        description="Ring of one stream. Larger: slow subscribers stay on the shared read for longer.",
    )
    ring_events: int = Field(default=500_000, ge=1_000, description="Events in one ring.")
    read_ahead_bytes: int = Field(
        default=4 << 20,
        ge=1 << 20,
        description="The pump continues to read while a subscriber with credit is nearer to the head than this. Larger"
        " values cause bursts of reads that load MongoDB; keep it under half of ring_bytes, or the fastest subscriber"
        " pushes others out.",
    )
    join_distance_s: int = Field(
        default=30,
        ge=0,
        description="A subscriber waits for a stream that is behind its position by at most this (cluster time),"
        " instead of opening another one. More shares more reads after a mass reconnect; a late starter waits longer.",
    )
    trailing_streams: int = Field(
        default=32,
        ge=1,
        description="Streams, in total, that read history beside the leading stream of their feed. Each costs an oplog"
        " scan.",
    )
    batch_events: int = Field(
        default=4_000,
        ge=1,
        le=100_000,
        description="Events per getMore. Smaller batches let reading and sending overlap; larger save round trips.",
    )
    max_await_ms: int = Field(
        default=1_000,
        ge=10,
        le=60_000,
        description="How long MongoDB waits for an event before it reports how far it has read. With more than 125"
        " feeds without events it waits longer, up to 8 s.",
    )
    event_time_s: PositiveFloat = Field(
        default=5.0,
        description="How long MongoDB may compute on one event for the pipeline of a feed before the feed ends.",
    )
    gather_ms: float = Field(
        default=5.0,
        ge=0,
        le=1_000,
        description="Requests to open one feed are gathered for this long and share one read.",
    )
    linger_s: float = Field(
        default=10.0, ge=0, description="A stream without subscribers stays open for this long, in case they reconnect."
    )
    idle_close_s: float = Field(
        default=60.0, ge=1, description="If no subscriber can take more for this long, the cursor in MongoDB is closed."
    )
    credit_events: int = Field(default=1_000_000, ge=1, description="Maximum unused credit of a session, in events.")
    credit_bytes: int = Field(default=64 << 20, ge=1, description="Maximum unused credit of a session, in bytes.")
    unacked_events: int = Field(
        default=50_000,
        ge=1,
        description="Delivery to a durable subscription pauses at this many unacknowledged events. It bounds the events"
        " that are delivered again after a failure, and the memory for their tokens.",
    )
    kept_bytes: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description="Events that PlanRange has read and ReadRange has not. Above this, the oldest range of the tenant"
        " that retains most is evicted, and read from MongoDB again when needed. Counts in addition to memory_bytes.",
    )
    sessions: int = Field(default=10_000, ge=1, description="Sessions of the process; about 60 KB each when idle.")
    request_bytes: int = Field(
        default=256 << 10,
        ge=16 << 10,
        le=1 << 20,
        description="Largest request. The default fits the largest pipeline that is allowed; less saves memory if"
        " pipelines are small.",
    )
    first_message_s: float = Field(
        default=10.0,
        gt=0,
        le=120,
        description="A call whose request has not arrived after this long is ended, including Subscribe without its"
        " Open message.",
    )
    connections: int = Field(
        default=11_000,
        ge=1,
        description="Connections of each port, from clients with or without credentials; more connections are closed."
        " Each takes about 20 KB, more with TLS, and a file descriptor. Do not set it below `sessions`, because each"
        " session may have a connection.",
    )
    streams_per_connection: int = Field(
        default=10_000,
        ge=1,
        description="Concurrent calls on one connection; further calls wait within the client. A client object has one"
        " connection for all its sessions.",
    )
    history_at_risk_s: tuple[PositiveFloat, ...] = Field(
        default=(3_600.0, 600.0),
        description="A session is notified when the time until its position leaves the oplog, at the oplog's present"
        " rate, falls below each of these. The largest is also what the metrics call at risk. Empty: no notification.",
    )
    history_look_s: float = Field(
        default=10.0,
        ge=0.1,
        description="How often the oplog of each source is checked, with three small commands. Less often: warnings and"
        " lags are older.",
    )
    stored_look_s: float = Field(
        default=60.0,
        ge=1,
        description="How often the stored positions of all subscriptions are checked, with one Redis command each, so"
        " that the server also warns about a subscription whose consumer is not connected.",
    )
    drain_s: float = Field(
        default=5.0, ge=0.1, description="After SIGTERM, clients have this long to acknowledge the events they have."
    )
    drain_delay_s: float = Field(
        default=0.0,
        ge=0,
        description="After SIGTERM, health reports NOT_SERVING for this long before clients are asked to disconnect, so"
        " that load balancers that check only now and then stop sending clients here. Counts in addition to drain_s.",
    )
    connection_age_s: float = Field(
        default=3_600.0,
        ge=0,
        description="Connections older than this, give or take a tenth, are replaced. Their sessions reconnect a little"
        " later, at different times and without loss, so that new replicas get their share. 0: never.",
    )
    unused_subscription_days: float = Field(
        default=0.0,
        ge=0,
        description="Subscriptions that nobody has opened, sought or changed for this many days are deleted. The log"
        " and the audit log announce it a tenth of that time before, at most a week. 0: never.",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.ring_bytes > self.memory_bytes:
            raise ValueError(f"ring_bytes ({self.ring_bytes}) is above memory_bytes ({self.memory_bytes}): lower it")
        return self


class RedisSection(_Section):
    """Redis, which stores positions."""

    url: str = Field(
        default="redis://127.0.0.1:6379/0",
        description="redis://HOST:6379/0, redis+sentinel://HOST:26379,HOST:26379/SERVICE,"
        " redis+cluster://HOST:6379,HOST:6379 or unix://PATH; with TLS rediss://, rediss+sentinel://,"
        " rediss+cluster:// (docs/redis.md).",
    )
    username: str = Field(default="", description="User of Redis's ACL. Empty: the user in the URL, or `default`.")
    password: SecretStr = Field(
        default=SecretStr(""), description="Password of the user. Empty: the password in the URL, or none."
    )
    sentinel_username: str = Field(default="", description="User at the sentinels, if they require one.")
    sentinel_password: SecretStr = Field(default=SecretStr(""), description="Password at the sentinels.")
    ca_file: Path | None = Field(
        default=None, description="Authorities of Redis's certificate, PEM. None: the system's authorities."
    )
    certificate_file: Path | None = Field(default=None, description="Client certificate for Redis, PEM.")
    key_file: Path | None = Field(default=None, description="Private key of the client certificate, PEM.")
    commit_interval_s: float = Field(
        default=0.5,
        ge=0.01,
        description="Acks are written at most once per subscription in this time. Shorter: fewer events are delivered"
        " again after a crash; longer: less load on Redis.",
    )
    control_replicas: Literal["auto"] | NonNegativeInt = Field(
        default="auto",
        description="How many Redis replicas must have the change that CreateSubscription, UpdateSubscription,"
        " SeekSubscription or DeleteSubscription makes before the call succeeds, so that a failover does not undo it."
        " auto: 1 if a replica is connected. 0: calls do not wait for replicas. Acks never wait.",
    )
    lease_s: float = Field(
        default=15.0,
        ge=2,
        description="A subscription whose owner has disappeared can be opened again after this long.",
    )

    @model_validator(mode="after")
    def _renews_in_time(self) -> Self:
        if self.lease_s < 3 * self.commit_interval_s:
            raise ValueError("lease_s must be at least three times commit_interval_s, or leases end between renewals")
        return self


class PositionsSection(_Section):
    """The keys that authenticate positions. Without a file the first server creates a key in Redis, and all use it."""

    key_file: Path | None = Field(
        default=None,
        description="Keys of positions, one a line in base64, at least 32 bytes each (openssl rand -base64 32): the"
        " first signs, all verify. Use the same file on every server; it is read again when it changes"
        " (docs/operations.md).",
    )


class WideSection(_Section):
    """Wide streams: many narrow feeds are read as one stream of their database or deployment. The delivered events stay
    the same."""

    enabled: bool = Field(default=True, description="False: every feed is read by a separate change stream.")
    feeds_min: int = Field(
        default=8,
        ge=2,
        description="How many feeds of collections or databases with the same options it takes to share one stream;"
        " with less than half of that, the shared stream is closed.",
    )
    events_per_s_max: float = Field(
        default=20_000,
        gt=0,
        description="A wide stream with more events per second than this is closed, unless half of them are for its"
        " feeds. A higher value saves MongoDB scans, and costs this process time for events of other namespaces.",
    )
    ring_bytes: int = Field(
        default=32 << 20,
        ge=1 << 20,
        description="How far a feed may be behind, in bytes of the wide stream, to join it.",
    )
    inbox_bytes: int = Field(
        default=4 << 20,
        ge=64 << 10,
        description="Events of one feed that wait for its subscribers; above this, the feed reads MongoDB by itself.",
    )


class LogSection(_Section):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error. From warning on, only messages that need attention."
    )
    format: Literal["auto", "json", "text"] = Field(
        default="auto", description="auto: text on a terminal, otherwise JSON lines."
    )


class TelemetrySection(_Section):
    """Metrics, traces and logs by OpenTelemetry, which has its own variables for the rest: OTEL_EXPORTER_OTLP_ENDPOINT
    (without it nothing is sent), OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, OTEL_SDK_DISABLED … (docs/telemetry.md)."""

    tenants: int = Field(
        default=50,
        ge=0,
        description="How many tenants the metrics name, in order of appearance; all further tenants are `other`. Each"
        " further name adds about 40 series to the metrics store.",
    )
    shutdown_s: float = Field(
        default=2.0,
        ge=0,
        description="How long to wait at the end to send telemetry that is still queued for a collector; the rest is"
        " dropped.",
    )


class AuditSection(_Section):
    """Records who was rejected and who did what: JSON lines, without documents, keys or tokens."""

    file: Path | None = Field(
        default=None, description="The server appends to it, and reopens it after a rotation. None: standard error."
    )
    lines_per_minute: int = Field(
        default=60,
        ge=1,
        description="Limit for each peer, tenant and kind of event; more lines are counted, and the count is written."
        " Lower: an attacker fills the disk more slowly; higher: the log shows more of what the attacker tried.",
    )


class Config(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        env_prefix="FEEDMUX_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    sources: dict[str, SourceSection] = Field(min_length=1)
    redis: RedisSection = RedisSection()
    positions: PositionsSection = PositionsSection()
    listen: ListenSection = ListenSection()
    tls: TlsSection | None = None
    jwt: JwtSection | None = None
    tenants_file: Path | None = Field(
        default=None,
        description="YAML or TOML file of the tenants and their credentials (docs/tenants.md). It is read again when it"
        " changes; `feedmux tenants check` checks whether it can be used.",
    )
    reload_s: float = Field(
        default=2.0,
        ge=0.05,
        le=10,
        description="How often the tenants file, the TLS files, the JWKS file and the keys of positions are checked for"
        " changes, and open streams are compared with their credentials. A changed file takes effect when the next"
        " check finds it unchanged since.",
    )
    when_away: Literal["refuse", "wait"] = Field(
        default="refuse",
        description="What to do if a source or Redis cannot be reached at the start. refuse: do not start. wait: serve"
        " what is available, report NOT_SERVING for the rest, and keep trying. A source or Redis that is unsuitable"
        " prevents the start in either case.",
    )
    operator_key_hashes: tuple[str, ...] = Field(
        default=(), description="SHA-256 hashes of the operators' keys, as `feedmux keys new` prints them."
    )
    limits: LimitsSection = LimitsSection()
    wide: WideSection = WideSection()
    log: LogSection = LogSection()
    telemetry: TelemetrySection = TelemetrySection()
    audit: AuditSection = AuditSection()

    @model_validator(mode="after")
    def _has_authorities_for_mtls(self) -> Self:
        if self.listen.data_mtls and (self.tls is None or self.tls.client_ca_file is None):
            raise ValueError("listen.data_mtls needs tls.client_ca_file")
        return self

    @property
    def plaintext_addresses(self) -> tuple[str, ...]:
        """Addresses where credentials cross the network without TLS although `listen.accept_plaintext` is not set."""
        return () if self.tls is not None or self.listen.accept_plaintext else self.listen.open_addresses

    @field_validator("operator_key_hashes")
    @classmethod
    def _are_hashes(cls, hashes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_checked_hash(each) for each in hashes)

    @field_validator("sources")
    @classmethod
    def _named_well(cls, sources: dict[str, SourceSection]) -> dict[str, SourceSection]:
        for name in sources:
            try:
                check_name("source", name)
            except FeedmuxError as error:
                raise ValueError(error.message) from None
        return sources

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The environment overrides the file, whose values come in as arguments.
        return (env_settings, init_settings)


class QuotaSection(_Section):
    """Limits of a tenant, on each replica separately. A limit on a count rejects calls, a limit on a rate throttles."""

    subscriptions: int = Field(default=1_000, ge=0, description="Durable subscriptions that exist, on all replicas.")
    subscription_bytes: int = Field(
        default=8 << 20, ge=0, description="Size of their stored definitions; one definition is 64 KiB at most."
    )
    streams: int = Field(
        default=200,
        ge=0,
        description="Concurrent Subscribe, Watch and ReadRange calls, each from when its caller is known.",
    )
    shared_streams: int = Field(
        default=50,
        ge=0,
        description="Distinct feeds that are read at a time, even if other tenants share them. Each costs MongoDB an"
        " oplog scan. A feed counts until its cursor is closed; a cursor without readers is closed when another feed"
        " needs its room. A start at the client's own token counts as one more until the feed's next event.",
    )
    trailing_streams: int = Field(
        default=4,
        ge=0,
        description="Streams that read history at a time. Further streams wait; with more, more subscribers catch up at"
        " once.",
    )
    events_per_s: int = Field(
        default=100_000, ge=1, description="Events delivered to all sessions of the tenant; more are throttled."
    )
    bytes_per_s: int = Field(
        default=64 << 20, ge=1_024, description="Bytes delivered to all sessions of the tenant; more are throttled."
    )
    outstanding_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Events that were delivered to durable subscriptions and are not acknowledged. At this limit,"
        " delivery pauses. It also bounds the memory that these events retain after their rings have evicted them.",
    )
    kept_bytes: int = Field(
        default=160 << 20,
        ge=1 << 20,
        description="Events that PlanRange has read and ReadRange has not. At this limit, a plan ends with the events"
        " that it has.",
    )
    reads_per_s: int = Field(
        default=250,
        ge=10,
        description="Reads of MongoDB for all feeds of the tenant, including reads without events: one a second for"
        " each feed with a cursor of its own. Above this limit, events wait for the next read of their feed and share"
        " it. A stream that serves several tenants has the limit of the tenant that may read most.",
    )
    messages_per_s: int = Field(
        default=5_000,
        ge=100,
        description="Acknowledgements and credits that all sessions of the tenant send. Above this limit, the server"
        " reads them more slowly.",
    )
    calls: int = Field(
        default=200,
        ge=1,
        description="Concurrent calls other than Subscribe, Watch and ReadRange; each may hold a request in memory.",
    )
    pipeline_bytes: int = Field(default=64 << 10, ge=0, description="Size of a feed's pipeline as BSON.")
    requests_per_s: int = Field(
        default=50,
        ge=1,
        description="Calls of any kind. A request counts as one more call for every 8 KiB of its size and for every 5"
        " ms of CPU that checking its pipeline takes. Five seconds' worth may come at once. Above this limit, a call"
        " waits for up to a second; a call that would wait longer is rejected.",
    )


def _checked_hash(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("must be 64 hexadecimal digits, as `feedmux keys new` prints them")
    return text


class ApiKeySection(_Section):
    """An API key of a tenant: its hash, as `feedmux keys new` prints it."""

    sha256: str = Field(description="Hash of the key. A key belongs to one tenant.")
    label: str = Field(default="", max_length=120, description="Purpose of the key, which the audit log shows.")
    expires: AwareDatetime | None = Field(
        default=None,
        description="From then on, the server rejects the key and ends its open streams. None: the key is valid until"
        " it is removed.",
    )

    @field_validator("sha256")
    @classmethod
    def _is_hash(cls, text: str) -> str:
        return _checked_hash(text)

    def key(self) -> ApiKey:
        return ApiKey(self.sha256, self.label, self.expires.timestamp() if self.expires else None)


class CertificateSection(_Section):
    """A name in a client certificate: exactly one of the three fields. Names are compared literally, without wildcards.
    The server rejects a certificate that names two tenants."""

    common_name: str | None = Field(default=None, min_length=1, description="Common name of the subject.")
    dns: str | None = Field(default=None, min_length=1, description="Subject alternative name of the type DNS.")
    uri: str | None = Field(default=None, min_length=1, description="Subject alternative name of the type URI.")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(name is not None for name in (self.common_name, self.dns, self.uri)) != 1:
            raise ValueError("name one of common_name, dns, uri")
        return self

    def certificate(self) -> CertificateName:
        [(kind, value)] = self.model_dump(exclude_none=True).items()
        return CertificateName(NameKind(kind), value)


class GrantSection(_Section):
    """Namespaces that a tenant may see, and which parts of their documents (docs/grants.md)."""

    source: str = Field(
        default="*",
        description="Pattern of the source's name. A pattern matches the whole name: `*` matches any sequence of"
        " characters (including dots, and the empty sequence), `?` matches exactly one character, and every other"
        " character matches itself. Patterns are case-sensitive.",
    )
    database: str = Field(description="Pattern of the database's name.")
    collection: str = Field(default="*", description="Pattern of the collection's name.")
    match: dict[str, Any] | None = Field(
        default=None,
        description="Condition that a document must meet, before and after each change: `{field: value}`, `$eq`, `$ne`,"
        " `$in`, `$nin`, combined with `$and`, `$or`, `$nor`, with MongoDB's meaning (including arrays). Values are"
        ' text, numbers and booleans; other types as extended JSON, `{"$oid": "…"}`. `null`, ranges and regular'
        " expressions are not allowed.",
    )
    hide: tuple[str, ...] = Field(
        default=(),
        description="Dotted paths of fields that are never shown. A path passes through arrays without indices:"
        " `lines.note`. `_id` cannot be hidden, because it is part of every resume token.",
    )

    @model_validator(mode="after")
    def _can_be_granted(self) -> Self:
        self.grant()
        return self

    def grant(self) -> Grant:
        """Raises ValueError."""
        match = None
        if self.match is not None:
            try:
                match = json_util.loads(json.dumps(self.match))
            except Exception:  # noqa: BLE001 json_util lets through whatever its constructors raise
                raise ValueError(
                    'match: values other than text, numbers and booleans are written as extended JSON: {"$oid": "…"}'
                ) from None
        return make_grant(self.source, self.database, self.collection, match, self.hide)


class Tenant(_Section):
    """One tenant. Without keys and certificates, only a JWT can name it."""

    name: str = Field(
        description="Unique: letters, digits, `.`, `_` and `-`, beginning with a letter or digit; at most 120 bytes."
        " The name is part of every Redis key and position, so a renamed tenant is another tenant."
    )
    api_key_hashes: tuple[str, ...] = Field(
        default=(), description="Short form of `api_keys`: hashes of keys, as `feedmux keys new` prints them."
    )
    api_keys: tuple[ApiKeySection, ...] = ()
    certificates: tuple[CertificateSection, ...] = ()
    quotas: QuotaSection = Field(
        default=QuotaSection(), description="Limits of this tenant. `default_quotas` sets those that are left out."
    )
    grants: tuple[GrantSection, ...] | None = Field(
        default=None,
        max_length=GRANTS_MAX,
        description="Without `grants`, the tenant may see everything that feedmux serves; with an empty list, nothing.",
    )
    pipelines: Literal["bounded", "any"] = Field(
        default="bounded",
        description="`bounded`: only pipelines whose output and work are bounded by the size of the event"
        " (docs/pipelines.md). `any`: MongoDB's whole language, for a tenant that you trust with your MongoDB, because"
        " a pipeline can use all its memory. When a tenant becomes `bounded`, its sessions reconnect, and feeds with a"
        " pipeline that is no longer allowed end.",
    )

    @field_validator("name")
    @classmethod
    def _named_well(cls, name: str) -> str:
        try:
            check_name("tenant", name)
        except FeedmuxError as error:
            raise ValueError(error.message) from None
        return name

    @field_validator("api_key_hashes")
    @classmethod
    def _are_hashes(cls, hashes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_checked_hash(each) for each in hashes)


class TenantsFile(_Section):
    """The tenants file."""

    tenants: tuple[Tenant, ...] = Field(min_length=1)
    default_quotas: QuotaSection = Field(
        default=QuotaSection(), description="Quotas that apply where a tenant's own `quotas` set none."
    )

    def quotas(self) -> dict[str, Quotas]:
        """What each tenant may use."""
        base = self.default_quotas.model_dump()
        return {
            each.name: Quotas(**(base | each.quotas.model_dump(include=each.quotas.model_fields_set)))
            for each in self.tenants
        }

    def records(self) -> list[TenantRecord]:
        """The tenants as `tenants` knows them."""
        quotas = self.quotas()
        return [
            TenantRecord(
                name=each.name,
                api_keys=(*(ApiKey(sha256) for sha256 in each.api_key_hashes), *(key.key() for key in each.api_keys)),
                certificates=tuple(certificate.certificate() for certificate in each.certificates),
                quotas=quotas[each.name],
                any_pipelines=each.pipelines == "any",
                grants=None if each.grants is None else tuple(grant.grant() for grant in each.grants),
            )
            for each in self.tenants
        ]


def load_config(path: Path | None) -> Config:
    """Raises ConfigError."""
    _check_environment()
    if path is None:
        return _build(Config, {}, "the environment")
    content, line = _read(path)
    return _build(Config, content, str(path), line)


def _check_environment() -> None:
    """Reject variables of unknown sections, which would be ignored. Clients' variables have no `__`."""
    strange = [
        f"  {name}: there is no section {section.lower()!r}{_meant(section.lower(), _HELP)}"
        for name in os.environ
        if name.upper().startswith("FEEDMUX_") and "__" in name
        if (section := name[len("FEEDMUX_") :].partition("__")[0]).lower() not in Config.model_fields
    ]
    if strange:
        raise ConfigError(_cannot_be_used("the environment", strange))


def load_tenants(path: Path) -> TenantsFile:
    """Raises ConfigError, which names the lines of a YAML file."""
    content, line = _read(path)
    file = _build(TenantsFile, content, str(path), line)
    doubles = [_told(place, problem, line) for place, problem in _doubles(file.tenants)]
    if doubles:
        raise ConfigError(_cannot_be_used(str(path), doubles))
    return file


def _doubles(tenants: Sequence[Tenant]) -> Iterator[tuple[tuple[int | str, ...], str]]:
    """Yield what must be unique in the file and is not: the owner of a credential would depend on the order."""
    seen: set[tuple[str, str]] = set()
    for number, tenant in enumerate(tenants):
        here: tuple[int | str, ...] = ("tenants", number)
        named = [((*here, "name"), "tenant", tenant.name)]
        named += [((*here, "api_key_hashes", i), "key", each) for i, each in enumerate(tenant.api_key_hashes)]
        named += [((*here, "api_keys", i), "key", each.sha256) for i, each in enumerate(tenant.api_keys)]
        named += [
            ((*here, "certificates", i), kind, value)
            for i, each in enumerate(tenant.certificates)
            for kind, value in each.model_dump(exclude_none=True).items()
        ]
        for place, kind, value in named:
            if (kind, value) in seen:
                yield place, f"this {kind} appears in the file twice"
            seen.add((kind, value))


Line = Callable[[Sequence[int | str]], int | None]


def _no_line(_: Sequence[int | str]) -> int | None:
    return None


def _read(path: Path) -> tuple[dict[str, Any], Line]:
    """Read a TOML (.toml) or YAML file, and return also the lines of its values. The ConfigError that it raises quotes
    nothing of the file."""
    line: Line = _no_line
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            content: object = tomllib.loads(text)
        else:
            marked = parse_yaml(text)
            content, line = marked.content, marked.line
    except OSError as error:
        raise FileUnreadable(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be parsed: it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} cannot be parsed: {error}") from None
    except MarkedError as error:
        raise ConfigError(f"{path} cannot be parsed: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be parsed: it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must have a mapping at its top level")
    return content, line


def make_config(values: dict[str, Any]) -> Config:
    """Build the configuration from `values` alone, and ignore the environment. Raises ConfigError."""
    return _build(_WithoutEnvironment, values, "given")


def describe_options() -> str:
    """Describe every option with its default and its trade-off, for `feedmux serve --help` and the documentation."""
    lines: list[str] = []
    for name, kind in _SECTIONS:
        lines.append(f"{name}: {_purpose(kind)}")
        lines += _described(kind, "  ")
        lines.append("")
    lines.append("At the top level:")
    lines += _described(Config, "  ", skip={name.partition(".")[0] for name, _ in _SECTIONS})
    return "\n".join(lines)


def sample_config() -> str:
    """Return a commented TOML file: every option with its default, and options without a default to fill in."""
    lines = [
        "# feedmux serve --config THIS_FILE",
        "# Options that are commented out show their defaults. Environment variables override the file:",
        "# FEEDMUX_REDIS__URL is url in [redis], FEEDMUX_SOURCES__MAIN__URI is uri in [sources.main].",
        "",
        *_sample_of(Config, skip={name.partition(".")[0] for name, _ in _SECTIONS}),
    ]
    for name, kind in _SECTIONS:
        header = f"[{name.replace('<name>', 'main')}]"
        lines += ["", f"# {_purpose(kind)}", f"# {header}" if name in _OPTIONAL_SECTIONS else header, ""]
        lines += _sample_of(kind, required_commented=name in _OPTIONAL_SECTIONS)
    return "\n".join(lines) + "\n"


_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("sources.<name>", SourceSection),
    ("redis", RedisSection),
    ("positions", PositionsSection),
    ("listen", ListenSection),
    ("tls", TlsSection),
    ("jwt", JwtSection),
    ("limits", LimitsSection),
    ("wide", WideSection),
    ("log", LogSection),
    ("telemetry", TelemetrySection),
    ("audit", AuditSection),
)
_OPTIONAL_SECTIONS = frozenset({"tls", "jwt"})
_SAMPLE_VALUES = {
    "uri": "mongodb://localhost:27017/?replicaSet=rs0",
    "tenants_file": "tenants.yaml",
    "certificate_file": "server.pem",
    "key_file": "server.key",
    "client_ca_file": "clients-ca.pem",
    "ca_file": "redis-ca.pem",
    "issuer": "https://login.example.com/",
    "audience": "feedmux",
    "jwks_file": "jwks.json",
    "jwks_url": "https://login.example.com/jwks.json",
    "file": "/var/log/feedmux/audit.jsonl",
}


def _purpose(kind: type[BaseModel]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _described(kind: type[BaseModel], indent: str, skip: Collection[str] = ()) -> list[str]:
    lines: list[str] = []
    for option, field in kind.model_fields.items():
        if option in skip:
            continue
        lines.append(f"{indent}{option} ({'required' if field.is_required() else f'default {_toml(field.default)}'})")
        lines += textwrap.wrap(field.description or "", 100, initial_indent=indent * 3, subsequent_indent=indent * 3)
    return lines


def _sample_of(kind: type[BaseModel], *, skip: Collection[str] = (), required_commented: bool = False) -> list[str]:
    lines: list[str] = []
    for option, field in kind.model_fields.items():
        if option in skip:
            continue
        lines += textwrap.wrap(field.description or "", 100, initial_indent="# ", subsequent_indent="# ")
        commented = required_commented or not field.is_required()
        value = _toml(_SAMPLE_VALUES.get(option, field.default))
        lines.append(f"{'# ' if commented else ''}{option} = {value}")
    return lines


def _toml(value: object) -> str:
    match value:
        case None:
            return "none"
        case tuple():
            return json.dumps(list(value))
        case SecretStr():
            return '""'
        case bool() | str() | Path():
            return json.dumps(value if isinstance(value, bool) else str(value))
    return str(value)


class _WithoutEnvironment(Config):
    """The configuration of a server inside another program: `feedmux dev`, the demo, a test."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


_HELP = "`feedmux serve --help`"


def _build(kind: type[S], values: dict[str, Any], origin: str, line: Line = _no_line) -> S:
    try:
        return kind(**{str(name): value for name, value in values.items()})
    except ValidationError as error:
        guide = _HELP if issubclass(kind, Config) else "docs/tenants.md"
        found = error.errors(include_input=False)
        # pydantic does not count an entry that it cannot read, so the list may seem empty.
        problems = [
            _told(each["loc"], _problem(each, guide), line)
            for each in found
            if each["type"] != "too_short" or not any(_is_inside(other["loc"], each["loc"]) for other in found)
        ]
        raise ConfigError(_cannot_be_used(origin, problems)) from None


def _is_inside(place: Sequence[int | str], other: Sequence[int | str]) -> bool:
    return len(place) > len(other) and tuple(place[: len(other)]) == tuple(other)


def _problem(error: ErrorDetails, guide: str) -> str:
    """Describe what is wrong, and add what to do where pydantic does not say it."""
    match error["type"]:
        case "extra_forbidden":
            return f"there is no such option{_meant(str(error['loc'][-1]), guide)}"
        case "missing":
            return f"it is required; {guide} describes it"
    return error["msg"]


def _meant(name: str, guide: str) -> str:
    known = {option for _, kind in _SECTIONS for option in kind.model_fields} | set(Config.model_fields)
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; {guide} lists all options"


def _told(place: Sequence[int | str], problem: str, line: Line) -> str:
    at = line(place)
    path = ".".join(str(part) for part in place)
    return f"  {f'line {at}: ' if at else ''}{path}{': ' if path else ''}{problem.removeprefix('Value error, ')}"


def _cannot_be_used(origin: str, problems: Sequence[str]) -> str:
    return f"the configuration ({origin}) cannot be used:\n" + "\n".join(problems)
