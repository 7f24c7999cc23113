"""Tenants of a run: their keys, grants and quotas.

`tests/integration/test_grants.py` checks with a real MongoDB what the stages of a grant show of an event. Here a cursor
recognises the stages, and applies the grant itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Final

import bson

from feedmux_server.core.feeds.feed import FeedSpec, Scope
from feedmux_server.core.grants.grant import Grant, Grants, make_grant
from feedmux_server.core.grants.stages import apply_grants
from feedmux_server.core.limits.quota import UNLIMITED, Quotas
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.credentials import Credentials
from feedmux_server.rpc.auth import Authenticator
from feedmux_server.tenants.model import ApiKey, TenantRecord
from feedmux_server.tenants.registry import Registry, hash_key

if TYPE_CHECKING:
    from tests.sim.mongo import Entry

EVERYBODY: Final = "default"
"""The tenant of runs without credentials."""
HIDDEN: Final = "pad"
"""The field of documents that is hidden from a tenant that is granted `HIDING`."""
HIDING: Final = "hiding"
CHOICES: Final[dict[str, Grants]] = {
    "": None,
    "group 1": (make_grant("main", "db", "*", {"g": 1}),),
    "group 2": (make_grant("main", "db", "*", {"g": 2}),),
    HIDING: (make_grant("main", "db", "*", hide=[HIDDEN]),),
}
"""The possible grants of a tenant, by their names in the records."""


def allows(granted: str, entry: "Entry") -> bool:
    """Whether a grant shows an event: only its group's documents, and every change to a collection itself."""
    document = entry.event.get("fullDocument")
    return granted in ("", HIDING) or document is None or document["g"] == int(granted[-1])


@dataclass(slots=True)
class Tenant:
    """One tenant. `granted` is a name of `CHOICES`."""

    name: str
    quotas: Quotas = field(default_factory=Quotas)
    granted: str = ""
    any_pipelines: bool = True
    changed_s: float = 0.0
    """The time at which its grants last changed."""

    @property
    def key(self) -> str:
        return f"key-of-{self.name}"

    def record(self) -> TenantRecord:
        keys = (ApiKey(hash_key(self.key)),)
        return TenantRecord(
            self.name,
            keys,
            quotas=self.quotas,
            grants=CHOICES[self.granted],
            any_pipelines=self.any_pipelines,
        )


def subscription_key(tenant: Tenant, name: str) -> bytes:
    """The key of the subscription's hash in Redis."""
    return f"feedmux:1:{{{tenant.name}/{name}}}".encode()


def names_key(tenant: Tenant) -> bytes:
    """The key in Redis of the names of the tenant's subscriptions."""
    return f"feedmux:1:names:{{{tenant.name}}}".encode()


OPERATOR: Final = Tenant("operator")
"""The tenant whose key opens the operator methods, if keys are needed."""


def draw_tenants(rng: Random, choices: Sequence[str]) -> list[Tenant]:
    """Draw the tenants; an empty list if a run has no credentials. A feed of group 1 shows nothing to a tenant with
    group 2."""
    if rng.random() < 0.5:
        return []
    granted = ["", *(name for name in choices if name != "group 2")]
    return [
        Tenant(name, _draw_quotas(rng), rng.choice(granted), any_pipelines=rng.random() < 0.5)
        for name in ("red", "blue")
    ]


def draw_copying(rng: Random) -> Tenant:
    """Draw the tenant of the programs that copy a collection, which narrowing grants do not allow."""
    return Tenant("green", _draw_quotas(rng))


def draw_unequal(rng: Random) -> list[Tenant]:
    """Draw two tenants with the same grants, one of which has a rate limit."""
    slow = rng.choice((Quotas(events_per_s=10), Quotas(bytes_per_s=5_000), Quotas(reads_per_s=5)))
    return [Tenant("red", slow), Tenant("blue")]


def _draw_quotas(rng: Random) -> Quotas:
    """Draw quotas that slow a tenant down, but let it read everything that a run reads."""
    return Quotas(
        events_per_s=rng.choice((UNLIMITED, UNLIMITED, 25)),
        bytes_per_s=rng.choice((UNLIMITED, UNLIMITED, 20_000)),
        outstanding_bytes=rng.choice((UNLIMITED, UNLIMITED, 20_000)),
        reads_per_s=rng.choice((UNLIMITED, UNLIMITED, 5)),
        messages_per_s=rng.choice((UNLIMITED, UNLIMITED, 20)),
        catch_up_streams=rng.choice((UNLIMITED, 1)),
        shared_streams=rng.choice((UNLIMITED, 4)),
    )


def is_slowed(tenant: Tenant) -> bool:
    """Whether a quota makes the tenant wait."""
    quotas = tenant.quotas
    rates = quotas.events_per_s, quotas.bytes_per_s, quotas.reads_per_s, quotas.messages_per_s
    return any(rate != UNLIMITED for rate in (*rates, quotas.outstanding_bytes))


class SimCredentials(Credentials):
    """The server's credentials, without files."""

    def __init__(self, tenants: list[Tenant], keys: tuple[bytes, ...]) -> None:
        self.tls = None
        self.position_keys = PositionKeys()
        self.position_keys.replace(keys)
        self._registry = Registry([tenant.record() for tenant in tenants]) if tenants else None
        self.auth = Authenticator(self._registry)
        self.operator_auth = Authenticator(Registry([OPERATOR.record()]) if tenants else None)


def stages_by_choice(spec: FeedSpec) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The stages that a cursor gets for each grant, before the user's own stages."""
    for name, grants in CHOICES.items():
        if grants is not None and spec.scope.database == grants[0].database:
            yield name, _stages(grants, spec.scope)


@cache
def _stages(grants: tuple[Grant, ...], scope: Scope) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bson.decode(apply_grants(grants, FeedSpec(scope)).policy)["pipeline"]
    return found
