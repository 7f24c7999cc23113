"""To whom a key or certificate belongs, and whether an identity is still valid."""

import pytest

from feedmux_server.tenants.model import (
    ApiKey,
    CertificateName,
    CredentialKind,
    Identity,
    NameKind,
    TenantRecord,
    Unauthenticated,
)
from feedmux_server.tenants.registry import Changes, Registry, hash_key
from tests.tables import over

NOW_S = 1_000.0
COMMON_NAME = CertificateName(NameKind.COMMON_NAME, "search")
DNS = CertificateName(NameKind.DNS, "search")


def tenant(
    name: str, *keys: str, expires_s: float | None = None, certificates: tuple[CertificateName, ...] = ()
) -> TenantRecord:
    return TenantRecord(name, tuple(ApiKey(hash_key(key), key, expires_s) for key in keys), certificates)


def causes(registry: Registry, key: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        registry.by_key(key, NOW_S)
    return refused.value.cause


def test_each_key_of_a_tenant_opens_it() -> None:
    registry = Registry([tenant("a", "one", "two"), tenant("b", "three")])
    assert [registry.by_key(key, NOW_S).tenant for key in ("one", "two", "three")] == ["a", "a", "b"]
    assert causes(registry, "four") == causes(registry, "") == "unknown API key"


def test_a_hash_is_no_key() -> None:
    assert causes(Registry([tenant("a", "one")]), hash_key("one")) == "unknown API key"


def test_a_key_expires() -> None:
    registry = Registry([tenant("a", "one", expires_s=NOW_S)])
    identity = registry.by_key("one", NOW_S - 1)
    assert identity.expires_s == NOW_S, "open sessions end then"
    assert registry.holds(identity, NOW_S - 1)
    assert not registry.holds(identity, NOW_S)
    assert causes(registry, "one") == "expired API key"


def test_all_messages_are_one() -> None:
    assert len({Unauthenticated(cause).message for cause in ("a", "b")}) == 1


@over(
    ("after", "holds"),
    [
        ([tenant("a", "one")], True),
        ([tenant("a", "one", "two"), tenant("b")], True),
        ([tenant("a", "two")], False),
        ([tenant("b", "one")], False),
        ([tenant("a"), tenant("b", "one")], False),
        ([tenant("a", "one", expires_s=NOW_S)], False),
        ([tenant("a", "one", expires_s=NOW_S + 1)], True),
        ([], False),
    ],
)
def test_whether_an_identity_holds_after_a_change(after: list[TenantRecord], holds: bool) -> None:
    registry = Registry([tenant("a", "one")])
    identity = registry.by_key("one", NOW_S)
    registry.replace(after)
    assert registry.holds(identity, NOW_S) is holds


def test_certificates() -> None:
    registry = Registry([tenant("a", certificates=(COMMON_NAME,)), tenant("b", certificates=(DNS,))])
    identity = registry.by_certificate([COMMON_NAME], NOW_S + 1, NOW_S)
    assert identity.tenant == "a"
    assert registry.by_certificate([DNS], NOW_S + 1, NOW_S).tenant == "b"
    for names, not_after_s, cause in (
        ((), NOW_S + 1, "certificate of no tenant"),
        ((COMMON_NAME, DNS), NOW_S + 1, "certificate of several tenants"),
        ((DNS,), NOW_S, "expired certificate"),
    ):
        with pytest.raises(Unauthenticated) as refused:
            registry.by_certificate(names, not_after_s, NOW_S)
        assert refused.value.cause == cause
    assert not registry.holds(identity, NOW_S + 1)
    registry.replace([tenant("a", certificates=(DNS,))])
    assert not registry.holds(identity, NOW_S)


def test_what_changed() -> None:
    registry = Registry([tenant("a", "one"), tenant("b", "two"), tenant("c", "three")])
    changes = registry.replace([tenant("a", "one"), tenant("b", "four"), tenant("d", "five")])
    assert (changes.added, changes.removed, changes.changed) == (("d",), ("c",), ("b",))
    assert registry.replace([tenant("a", "one"), tenant("b", "four"), tenant("d", "five")]) == Changes((), (), ())


def test_an_identity_without_a_tenant_does_not_hold() -> None:
    assert not Registry().holds(Identity("a", CredentialKind.JWT, "key"), NOW_S)
