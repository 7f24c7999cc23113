"""The tenants file: credentials, quotas and grants of each tenant."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from pydantic import AwareDatetime, Field, field_validator, model_validator

from feedmux_server.config.sections import KeyHash, KeyHashes, RestrictingSection, Section
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.feeds.query_json import QueryInvalid, parse_query
from feedmux_server.core.grants.grant import GRANTS_MAX, Grant, make_grant
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.tenants.model import ApiKey, CertificateName, NameKind, TenantRecord


class QuotaSection(Section):
    """Limits of a tenant, on each replica separately. A limit on a count rejects calls, a limit on a rate throttles."""

    subscriptions: int = Field(default=1_000, ge=0)
    """Durable subscriptions that exist, on all replicas."""
    subscription_bytes: int = Field(default=8 << 20, ge=0)
    """Size of their stored definitions; one definition is 64 KiB at most."""
    sessions: int = Field(default=200, ge=0)
    """Concurrent Subscribe, Watch and ReadRange calls, each from when its caller is known."""
    shared_streams: int = Field(default=50, ge=0)
    """Distinct feeds that are read at a time, even if other tenants share them. Each costs MongoDB an oplog scan. A
    feed counts until its cursor is closed; a cursor without readers is closed when another feed needs its room. A start
    at the client's own token counts as one more until the feed's next event."""
    catch_up_streams: int = Field(default=4, ge=1)
    """Streams that read history at a time. Further streams wait, and take turns; with more, more subscribers catch up
    at once."""
    events_per_s: int = Field(default=100_000, ge=1)
    """Events delivered to all sessions of the tenant, and events read by PlanRange; more are throttled. ReadRange
    delivers what PlanRange has read once without counting it again."""
    bytes_per_s: int = Field(default=64 << 20, ge=1_024)
    """The bytes of these events; more are throttled."""
    outstanding_bytes: int = Field(default=64 << 20, ge=1)
    """Events that were delivered to durable subscriptions and are not acknowledged. At this limit, delivery pauses. It
    also bounds the memory that these events retain after their rings have evicted them."""
    retained_bytes: int = Field(default=160 << 20, ge=1 << 20)
    """Events that PlanRange has read and ReadRange has not. At this limit, a plan ends with the events that it has."""
    reads_per_s: int = Field(default=250, ge=10)
    """Reads of MongoDB for all feeds of the tenant, including reads without events: one a second for each feed with a
    cursor of its own. Above this limit, events wait for the next read of their feed and share it. A stream that serves
    several tenants has the limit of the tenant that may read most."""
    messages_per_s: int = Field(default=5_000, ge=100)
    """Acknowledgements and credits that all sessions of the tenant send. Above this limit, the server reads them more
    slowly. The same limit applies to the messages with events that the sessions receive: above it, events wait for the
    next message of their session and share it."""
    calls: int = Field(default=200, ge=1)
    """Concurrent calls other than Subscribe, Watch and ReadRange, each until the client has taken its answer; each may
    hold a request in memory."""
    pipeline_bytes: int = Field(default=64 << 10, ge=0)
    """Size of a feed's pipeline as BSON."""
    requests_per_s: int = Field(default=50, ge=1)
    """Calls of any kind. A request counts as one more call for every 8 KiB of its size, for every 5 ms of CPU that
    checking its pipeline takes, and for every 50 slices, subscriptions or dead letters that it returns, names of
    collections that it lists, or quarantined keys of a group that it opens. Five seconds' worth may come at once. Above
    this limit, a call waits for up to a second; a call that would wait longer is rejected."""


class ApiKeySection(RestrictingSection):
    """An API key of a tenant: its hash, as `feedmux keys new` prints it."""

    sha256: KeyHash
    """Hash of the key. A key belongs to one tenant."""
    label: str = Field(default="", max_length=120)
    """Purpose of the key, which the audit log shows."""
    expires: AwareDatetime | None = None
    """From then on, the server rejects the key and ends its open streams. None: the key is valid until it is
    removed."""

    def key(self) -> ApiKey:
        return ApiKey(self.sha256, self.label, self.expires.timestamp() if self.expires else None)


class CertificateSection(Section):
    """A name in a client certificate: exactly one of the three fields. Names are compared literally, without wildcards.
    The server rejects a certificate that names two tenants."""

    common_name: str | None = Field(default=None, min_length=1)
    """Common name of the subject."""
    dns: str | None = Field(default=None, min_length=1)
    """Subject alternative name of the type DNS."""
    uri: str | None = Field(default=None, min_length=1)
    """Subject alternative name of the type URI."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(name is not None for name in (self.common_name, self.dns, self.uri)) != 1:
            raise ValueError("name one of common_name, dns, uri")
        return self

    def certificate(self) -> CertificateName:
        [(kind, value)] = self.model_dump(exclude_none=True).items()
        return CertificateName(NameKind(kind), value)


class GrantSection(RestrictingSection):
    """Namespaces that a tenant may see, and which parts of their documents (docs/grants.md)."""

    source: str = "*"
    """Pattern of the source's name. A pattern matches the whole name: `*` matches any sequence of characters (including
    dots, and the empty sequence), `?` matches exactly one character, and every other character matches itself. Patterns
    are case-sensitive."""
    database: str
    """Pattern of the database's name."""
    collection: str = "*"
    """Pattern of the collection's name."""
    match: dict[str, Any] | None = None
    """Condition that a document must meet, before and after each change: `{field: value}`, `$eq`, `$ne`, `$in`, `$nin`,
    combined with `$and`, `$or`, `$nor`, with MongoDB's meaning (including arrays). Values are text, numbers and
    booleans; other types as extended JSON, `{"$oid": "…"}`. `null`, ranges and regular expressions are not allowed."""
    hide: tuple[str, ...] = ()
    """Dotted paths of fields that are never shown. A path passes through arrays without indices: `lines.note`. `_id`
    cannot be hidden, because it is part of every resume token."""

    @model_validator(mode="after")
    def _can_be_granted(self) -> Self:
        self.grant()
        return self

    def grant(self) -> Grant:
        """Raises ValueError."""
        match = None
        if self.match is not None:
            try:
                text = json.dumps(self.match)
            except (TypeError, ValueError, RecursionError):  # a date of YAML, an alias that contains itself
                raise ValueError(
                    'match: values other than text, numbers and booleans are written as extended JSON: {"$oid": "…"}'
                ) from None
            try:
                match = parse_query(text, "match")
            except QueryInvalid as error:
                raise ValueError(f"{'.'.join(error.path)}: {error.message}") from None
        return make_grant(self.source, self.database, self.collection, match, self.hide)


class Tenant(RestrictingSection):
    """One tenant. Without keys and certificates, only a JWT can name it."""

    name: str
    """Unique: letters, digits, `.`, `_` and `-`, beginning with a letter or digit; at most 120 bytes. The name is part
    of every Redis key and position, so a renamed tenant is another tenant."""
    api_key_hashes: KeyHashes = ()
    """Short form of `api_keys`: hashes of keys, as `feedmux keys new` prints them."""
    api_keys: tuple[ApiKeySection, ...] = ()
    certificates: tuple[CertificateSection, ...] = ()
    quotas: QuotaSection = QuotaSection()
    """Limits of this tenant. `default_quotas` sets those that are left out."""
    grants: tuple[GrantSection, ...] | None = Field(default=None, max_length=GRANTS_MAX)
    """Without `grants`, the tenant may see everything that feedmux serves; with an empty list, nothing."""
    pipelines: Literal["bounded", "any"] = "bounded"
    """`bounded`: only pipelines whose output and work are bounded by the size of the event (docs/pipelines.md). `any`:
    MongoDB's whole language, for a tenant that you trust with your MongoDB, because a pipeline can use all its memory.
    When a tenant becomes `bounded`, its sessions reconnect, and feeds with a pipeline that is no longer allowed end."""

    @field_validator("name")
    @classmethod
    def _named_well(cls, name: str) -> str:
        try:
            check_name("tenant", name)
        except FeedmuxError as error:
            raise ValueError(error.message) from None
        return name


class TenantsFile(Section):
    """The tenants file."""

    tenants: tuple[Tenant, ...] = Field(min_length=1)
    default_quotas: QuotaSection = QuotaSection()
    """Quotas that apply where a tenant's own `quotas` set none."""

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


def duplicates(tenants: Sequence[Tenant]) -> Iterator[tuple[tuple[int | str, ...], str]]:
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
