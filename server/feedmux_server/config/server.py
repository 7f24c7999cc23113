"""The whole configuration of the server."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from feedmux_server.config.sections import (
    AuditSection,
    DeadLettersSection,
    JwtSection,
    KeyHashes,
    LimitsSection,
    ListenSection,
    LogSection,
    PositionsSection,
    RedisSection,
    SourceSection,
    TelemetrySection,
    TlsSection,
    WideSection,
)
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.names import check_name


class Config(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        env_prefix="FEEDMUX_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    sources: dict[str, SourceSection] = Field(min_length=1)
    redis: RedisSection = RedisSection()
    positions: PositionsSection = PositionsSection()
    listen: ListenSection = ListenSection()
    tls: TlsSection | None = None
    jwt: JwtSection | None = None
    tenants_file: Path | None = None
    """YAML or TOML file of the tenants and their credentials (docs/tenants.md). It is read again when it changes;
    `feedmux tenants check` checks whether it can be used."""
    reload_s: float = Field(default=2.0, ge=0.05, le=10)
    """How often the tenants file, the TLS files, the JWKS file and the keys of positions are checked for changes, and
    open streams are compared with their credentials. A changed file takes effect when the next check finds it unchanged
    since."""
    when_unavailable: Literal["fail", "wait"] = "fail"
    """What to do if a source or Redis cannot be reached at the start. fail: do not start. wait: serve what is
    available, report NOT_SERVING for the rest, and keep trying. A source or Redis that is unsuitable prevents the start
    in either case."""
    operator_key_hashes: KeyHashes = ()
    """SHA-256 hashes of the operators' keys, as `feedmux keys new` prints them."""
    limits: LimitsSection = LimitsSection()
    wide: WideSection = WideSection()
    dead_letters: DeadLettersSection | None = None
    log: LogSection = LogSection()
    telemetry: TelemetrySection = TelemetrySection()
    audit: AuditSection = AuditSection()

    @model_validator(mode="after")
    def _has_authorities_for_mtls(self) -> Self:
        if self.listen.data_mtls and (self.tls is None or self.tls.client_ca_file is None):
            raise ValueError("listen.data_mtls needs tls.client_ca_file")
        return self

    @model_validator(mode="after")
    def _has_the_source_of_dead_letters(self) -> Self:
        if self.dead_letters is not None and self.dead_letters.source not in ("", *self.sources):
            raise ValueError(f"dead_letters.source is {self.dead_letters.source!r}, which sources does not have")
        return self

    @property
    def plaintext_addresses(self) -> tuple[str, ...]:
        """Addresses where credentials cross the network without TLS although `listen.accept_plaintext` is not set."""
        return () if self.tls is not None or self.listen.accept_plaintext else self.listen.open_addresses

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
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The environment overrides the file, whose values come in as arguments.
        return (env_settings, init_settings)


SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("sources.<name>", SourceSection),
    ("redis", RedisSection),
    ("positions", PositionsSection),
    ("listen", ListenSection),
    ("tls", TlsSection),
    ("jwt", JwtSection),
    ("limits", LimitsSection),
    ("wide", WideSection),
    ("dead_letters", DeadLettersSection),
    ("log", LogSection),
    ("telemetry", TelemetrySection),
    ("audit", AuditSection),
)


class ConfigWithoutEnvironment(Config):
    """The configuration of a server inside another program: `feedmux dev`, the demo, a test."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)
