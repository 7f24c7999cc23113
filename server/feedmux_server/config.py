"""Configuration: one TOML or YAML file, then environment variables `FEEDMUX_…` (`__` between levels).

`app` reads it and hands plain dataclasses down; no other module imports this one. Every tunable says what it trades.
"""

import json
import re
import textwrap
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from bson import json_util
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.grant import GRANTS_MAX, Grant, make_grant
from feedmux_server.core.names import check_name

S = TypeVar("S", bound=BaseModel)


class ConfigError(Exception):
    """The configuration cannot be used; the message names file, field and reason."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSection(_Section):
    """A MongoDB deployment."""

    uri: str = Field(description="MongoDB URI of a replica set or sharded cluster, with its credentials.")
    id: str = Field(
        default="",
        description="Identity of the deployment inside positions. Empty: the replica set's own id. Set it where the"
        " account may not run replSetGetConfig, so that positions survive a change of permissions.",
    )
    server_selection_timeout_ms: int = Field(
        default=10_000, ge=100, description="How long a request waits for a MongoDB that is away, in milliseconds."
    )


class ListenSection(_Section):
    """Addresses, host:port. Port 0 picks a free one."""

    data: str = Field(
        default="127.0.0.1:7117", description="ChangeFeed and Subscriptions. 0.0.0.0:7117 for all interfaces."
    )
    operator: str = Field(default="127.0.0.1:7118", description="Operator.")
    health: str = Field(default="127.0.0.1:7119", description="grpc.health.v1 without TLS, for probes.")


class TlsSection(_Section):
    """TLS of the data and operator ports."""

    certificate_file: Path = Field(description="Certificate chain, PEM.")
    key_file: Path = Field(description="Private key, PEM.")


class LimitsSection(_Section):
    """Bounds of the process."""

    memory_bytes: int = Field(
        default=1 << 30,
        ge=64 << 20,
        description="For the rings of all streams. Over it the oldest chunks of the largest rings go, and who was there"
        " reads them from MongoDB again.",
    )
    ring_bytes: int = Field(
        default=64 << 20,
        ge=4 << 20,
        description="Ring of one stream. Larger: slower subscribers stay on the shared read.",
    )
    ring_events: int = Field(default=500_000, ge=1_000, description="Events in one ring.")
    read_ahead_bytes: int = Field(
        default=24 << 20,
        ge=1 << 20,
        description="The pump reads on while a subscriber with credit is nearer to the head than this. Keep it under"
        " half of ring_bytes, or the fastest subscriber pushes the others out.",
    )
    join_distance_s: int = Field(
        default=30,
        ge=0,
        description="A subscriber waits for a stream that is behind its place by at most this (cluster time), instead"
        " of opening its own. More shares more reads after a mass reconnect; a late starter waits longer.",
    )
    trailing_streams: int = Field(
        default=32,
        ge=1,
        description="Streams that read history beside the leading one of their feed, in all. Each costs an oplog scan.",
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
        description="How long MongoDB waits for an event before it answers with how far it has read.",
    )
    gather_ms: float = Field(
        default=5.0, ge=0, le=1_000, description="Opens for one feed are gathered for this long and share one read."
    )
    linger_s: float = Field(
        default=10.0, ge=0, description="A stream without subscribers is kept for this long, for those who reconnect."
    )
    idle_close_s: float = Field(
        default=60.0, ge=1, description="With nobody to take more for this long, the cursor in MongoDB is closed."
    )
    credit_events: int = Field(default=1_000_000, ge=1, description="Most unused credit of a session, in events.")
    credit_bytes: int = Field(default=64 << 20, ge=1, description="Most unused credit of a session, in bytes.")
    unacked_events: int = Field(
        default=50_000,
        ge=1,
        description="Delivery to a durable subscription pauses at this many unacknowledged events. It bounds what comes"
        " again after a failure, and the memory for their tokens.",
    )
    sessions: int = Field(default=10_000, ge=1, description="Sessions of the process; about 60 KB each when idle.")
    drain_s: float = Field(
        default=5.0, ge=0.1, description="After SIGTERM clients have this long to acknowledge what they have."
    )


class RedisSection(_Section):
    """Where positions are kept."""

    url: str = Field(default="redis://127.0.0.1:6379/0", description="redis://, rediss:// or unix:// URL.")
    commit_interval_s: float = Field(
        default=0.5,
        ge=0.01,
        description="Acks are written at most once per subscription in this time. Shorter: less comes again after a"
        " crash; longer: less load on Redis.",
    )
    lease_s: float = Field(
        default=15.0,
        ge=2,
        description="A subscription whose owner has vanished is free after this long.",
    )


class LogSection(_Section):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error; from warning on only what wants attention."
    )
    format: Literal["auto", "json", "text"] = Field(
        default="auto", description="auto: text on a terminal, else JSON lines."
    )


class Config(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        env_prefix="FEEDMUX_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    sources: dict[str, SourceSection] = Field(description="MongoDB deployments by name.", min_length=1)
    redis: RedisSection = RedisSection()
    listen: ListenSection = ListenSection()
    tls: TlsSection | None = None
    tenants_file: Path | None = Field(
        default=None,
        description="YAML or TOML file of the tenants and their keys' hashes, as `feedmux keys new` prints it.",
    )
    operator_key_hashes: tuple[str, ...] = Field(
        default=(), description="SHA-256 hashes of the operators' keys, as `feedmux keys new` prints them."
    )
    limits: LimitsSection = LimitsSection()
    log: LogSection = LogSection()

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
        # The environment wins over the file, whose values come in as arguments.
        return (env_settings, init_settings)


class GrantSection(_Section):
    """Namespaces that a tenant may see, and what of their documents (docs/grants.md)."""

    source: str = Field(default="*", description="Pattern of the source's name: * any characters, ? one.")
    database: str = Field(description="Pattern of the database's name.")
    collection: str = Field(default="*", description="Pattern of the collection's name.")
    match: dict[str, Any] | None = Field(
        default=None,
        description="Condition on the document's fields that is always applied, before and after each change. Values"
        " in relaxed extended JSON.",
    )
    hide: tuple[str, ...] = Field(default=(), description="Dotted paths of fields that are never shown.")

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
    """One tenant."""

    name: str
    api_key_hashes: tuple[str, ...] = Field(min_length=1)
    grants: tuple[GrantSection, ...] | None = Field(
        default=None,
        max_length=GRANTS_MAX,
        description="What the tenant may see. Left out: everything that feedmux serves. An empty list: nothing.",
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
        if not all(re.fullmatch(r"[0-9a-f]{64}", each) for each in hashes):
            raise ValueError("api_key_hashes are 64 hexadecimal digits each, as `feedmux keys new` prints them")
        return hashes


class TenantsFile(_Section):
    """The tenants file."""

    tenants: tuple[Tenant, ...] = Field(min_length=1)


def load_config(path: Path | None) -> Config:
    """Raises ConfigError."""
    return _build(Config, read_file(path) if path else {}, str(path or "the environment"))


def load_tenants(path: Path) -> tuple[Tenant, ...]:
    """Raises ConfigError."""
    return _build(TenantsFile, read_file(path), str(path)).tenants


def read_file(path: Path) -> dict[str, Any]:
    """A TOML (.toml) or YAML file as a dictionary. Raises ConfigError."""
    try:
        text = path.read_text("utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be parsed: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a mapping at its top level")
    return content


def make_config(values: dict[str, Any]) -> Config:
    """From values alone, whatever the environment says. Raises ConfigError."""
    return _build(_WithoutEnvironment, values, "given")


def describe_options() -> str:
    """Every option with its default and its trade-off, for `feedmux serve --help` and the documentation."""
    lines: list[str] = []
    for name, kind in _SECTIONS:
        lines.append(f"{name}: {_purpose(kind)}")
        lines += _described(kind, "  ")
        lines.append("")
    lines.append("At the top level:")
    lines += _described(Config, "  ", skip={name.partition(".")[0] for name, _ in _SECTIONS})
    return "\n".join(lines)


def sample_config() -> str:
    """A commented TOML file: every option with its default, and what has none to be filled in."""
    lines = [
        "# feedmux serve --config THIS_FILE",
        "# What is commented out shows its default. Environment variables win over the file:",
        "# FEEDMUX_REDIS__URL is url in [redis], FEEDMUX_SOURCES__MAIN__URI is uri in [sources.main].",
        "",
        *_sample_of(Config, skip={name.partition(".")[0] for name, _ in _SECTIONS}),
    ]
    for name, kind in _SECTIONS:
        header = f"[{name.replace('<name>', 'main')}]"
        lines += ["", f"# {_purpose(kind)}", f"# {header}" if name == "tls" else header, ""]
        lines += _sample_of(kind, required_commented=name == "tls")
    return "\n".join(lines) + "\n"


_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("sources.<name>", SourceSection),
    ("redis", RedisSection),
    ("listen", ListenSection),
    ("tls", TlsSection),
    ("limits", LimitsSection),
    ("log", LogSection),
)
_SAMPLE_VALUES = {
    "uri": "mongodb://localhost:27017/?replicaSet=rs0",
    "tenants_file": "tenants.yaml",
    "certificate_file": "server.pem",
    "key_file": "server.key",
}


def _purpose(kind: type[BaseModel]) -> str:
    return (kind.__doc__ or "").strip()


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
        case bool() | str() | Path():
            return json.dumps(value if isinstance(value, bool) else str(value))
    return str(value)


class _WithoutEnvironment(Config):
    """The configuration of a server that is part of something: `feedmux dev`, the demo, a test."""

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


def _build(kind: type[S], values: dict[str, Any], origin: str) -> S:
    try:
        return kind(**values)
    except ValidationError as error:
        problems = [f"  {'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
        raise ConfigError(f"the configuration ({origin}) cannot be used:\n" + "\n".join(problems)) from None
