"""The configured credentials: read at the start, and again when the files change.

This module stands between `config`, which checks the files, and `tenants` and `rpc`, which use their contents. If a
file cannot be used any more, the contents read before stay in force, and the error is logged once. Streams whose
credential is gone are ended.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from feedmux_server.config.errors import ConfigError, FileUnreadable
from feedmux_server.config.load import load_tenants
from feedmux_server.config.sections import JwtSection
from feedmux_server.config.server import Config
from feedmux_server.config.tenants_file import QuotaSection
from feedmux_server.core.grants.grant import Grants
from feedmux_server.core.limits.quota import UNLIMITED_QUOTAS, Quotas
from feedmux_server.core.positions.position_keys import PositionKeys, parse_keys
from feedmux_server.rpc.auth import ANONYMOUS, Authenticator
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.tls import Tls
from feedmux_server.supervision import Tasks, Work
from feedmux_server.telemetry.audit import AuditEvent
from feedmux_server.tenants.jwks import Jwks, JwksUnusable, read_file, read_url
from feedmux_server.tenants.jwt_verifier import JwtRules, JwtVerifier
from feedmux_server.tenants.model import ApiKey, TenantRecord
from feedmux_server.tenants.registry import Registry
from feedmux_server.tenants.watched_files import WatchedFiles
from feedmux_server.tls_files import load_tls, tls_paths

log = logging.getLogger(__name__)

_REMOVED_QUOTAS = Quotas(**QuotaSection().model_dump())


class Credentials:
    """The credentials of one server. The constructor raises ConfigError if a file cannot be used."""

    def __init__(self, config: Config, *, insecure_no_auth: bool) -> None:
        self._config = config
        self._tenants_file: Path | None = None if insecure_no_auth else config.tenants_file
        self._registry: Registry | None = None
        self._jwks: Jwks | None = None
        self.tls: Tls | None = None
        self.position_keys = PositionKeys()
        """Empty if no file is configured, because the keys are then in Redis."""
        if config.positions.key_file is not None:
            self._keys_watch = WatchedFiles([config.positions.key_file])
            self.position_keys.replace(read_position_keys(config.positions.key_file))
        if config.tls is not None:
            # The watch begins before the read, so that a file that changes during the read is read again.
            self._tls_watch = WatchedFiles(tls_paths(config.tls))
            self.tls = Tls(load_tls(config.tls))
        if insecure_no_auth:
            self.auth = self.operator_auth = Authenticator(None)
            return
        if config.tenants_file is None:
            raise ConfigError(
                "no authentication is configured. Name a tenants_file (make a key with `feedmux keys new`), or pass"
                " --insecure-no-auth to accept every caller without credentials"
            )
        self._tenants_watch = WatchedFiles([config.tenants_file])
        try:
            self._registry = Registry(load_tenants(config.tenants_file).records())
        except ConfigError as error:
            raise ConfigError(
                f"tenants_file: {error}. `feedmux tenants check FILE` checks the file without a server"
            ) from None
        verifier: JwtVerifier | None = None
        if config.jwt is not None:
            self._jwks_watch = WatchedFiles([config.jwt.jwks_file] if config.jwt.jwks_file else [])
            self._jwks = _jwks(config.jwt)
            verifier = _verifier(config.jwt, self._jwks)
        self.auth = Authenticator(self._registry, verifier)
        operators = tuple(ApiKey(each) for each in config.operator_key_hashes)
        self.operator_auth = Authenticator(Registry([TenantRecord("operator", operators)]))

    def quotas_of(self, tenant: str) -> Quotas:
        """Return the tenant's present quotas. A tenant that was removed has the defaults until its streams have
        ended."""
        if self._registry is None:
            return UNLIMITED_QUOTAS
        record = self._registry.tenants.get(tenant)
        return record.quotas if record is not None else _REMOVED_QUOTAS

    def grants(self) -> dict[str, Grants]:
        """Return each tenant's present grants; without a tenants file, the grants of the anonymous tenant."""
        if self._registry is None:
            return {ANONYMOUS.tenant: None}
        return {record.name: record.grants for record in self._registry.tenants.values()}

    def trusted(self) -> frozenset[str]:
        """Return the tenants whose pipelines may use MongoDB's whole language; without a tenants file, all callers."""
        if self._registry is None:
            return frozenset({ANONYMOUS.tenant})
        return frozenset(record.name for record in self._registry.tenants.values() if record.any_pipelines)

    def start(self, service: Service, tasks: Tasks) -> list[asyncio.Task[None]]:
        """Start the tasks that keep the credentials up to date; to be cancelled at the end."""
        every_s = self._config.reload_s
        work: dict[str, Callable[[], Work]] = {"audit-suppressed": partial(_flush_audit, service)}
        if self._config.positions.key_file is not None:
            work["position-keys"] = partial(self._keys_watch.run, self._reload_keys, every_s=every_s)
        if self.tls is not None:
            work["tls-files"] = partial(self._tls_watch.run, self._reload_tls, every_s=every_s)
        if self._registry is not None:
            reload = partial(self._reload_tenants, service)
            work["tenants-file"] = partial(self._tenants_watch.run, reload, every_s=every_s)
            work["credential-sweep"] = partial(_sweep, service, every_s)
        jwt = self._config.jwt
        if jwt is not None and self._jwks is not None:
            if jwt.jwks_file is not None:
                work["jwks-file"] = partial(self._jwks_watch.run, self._jwks.refresh, every_s=every_s)
            else:
                work["jwks-url"] = partial(self._jwks.run, jwt.refresh_s)
        return [tasks.keep_running(kind, each) for kind, each in work.items()]

    async def _reload_keys(self) -> bool:
        assert self._config.positions.key_file is not None
        try:
            materials = await asyncio.to_thread(read_position_keys, self._config.positions.key_file)
        except ConfigError as error:
            log.error("the keys of positions cannot be used; the keys read before stay in force: %s", error)
            return not isinstance(error, FileUnreadable)
        if self.position_keys.replace(materials):
            log.info("the keys of positions were read again", extra={"count": len(materials)})
        return True

    async def _reload_tls(self) -> bool:
        assert self.tls is not None
        assert self._config.tls is not None
        try:
            self.tls.replace(await asyncio.to_thread(load_tls, self._config.tls))
        except ConfigError as error:
            log.error("the TLS files cannot be used; the files read before stay in force: %s", error)
            return not isinstance(error, FileUnreadable)
        log.info("the TLS files were read again; new connections use them")
        return True

    async def _reload_tenants(self, service: Service) -> bool:
        assert self._tenants_file is not None
        try:
            tenants = await asyncio.to_thread(load_tenants, self._tenants_file)
        except ConfigError as error:
            log.error("the tenants file cannot be used; the tenants read before stay in force: %s", error)
            service.audit.log.record(AuditEvent.TENANTS_REFUSED, reason="the file cannot be used")
            return not isinstance(error, FileUnreadable)
        await self.use_tenants(service, tenants.records())
        return True

    async def use_tenants(self, service: Service, records: Sequence[TenantRecord]) -> None:
        """Make `service` use `records` from now on. End streams of tenants that are gone or whose grants changed."""
        assert self._registry is not None
        changes = self._registry.replace(records)
        log.info(
            "the tenants file was read again: %d added, %d removed, %d changed",
            len(changes.added),
            len(changes.removed),
            len(changes.changed),
            extra={"count": len(records)},
        )
        for what, names in (("added", changes.added), ("removed", changes.removed), ("changed", changes.changed)):
            for name in names:
                service.audit.log.record(AuditEvent.TENANTS_CHANGED, tenant=name, reason=what)
        try:
            await service.sessions.change_grants(self.grants(), self.trusted())
        finally:
            service.manager.accounts.refresh()


def read_position_keys(path: Path) -> tuple[bytes, ...]:
    """Raises ConfigError."""
    try:
        return parse_keys(path.read_text("utf-8-sig"))
    except OSError as error:
        raise FileUnreadable(f"positions.key_file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"positions.key_file {path} is not text; make a key with: openssl rand -base64 32") from None
    except ValueError as error:
        raise ConfigError(f"positions.key_file {path}: {error}") from None


def _jwks(section: JwtSection) -> Jwks:
    """Read the JWKS. A file must be usable at the start; a URL need not be, because the server also serves while the
    issuer is unavailable."""
    if section.jwks_url is not None:
        host = urlsplit(section.jwks_url).hostname
        return Jwks(partial(read_url, section.jwks_url), f"of {host}")
    assert section.jwks_file is not None
    jwks = Jwks(partial(read_file, section.jwks_file), str(section.jwks_file), miss_refresh_s=None)
    try:
        jwks.load()
    except JwksUnusable as error:
        raise ConfigError(f"jwt.jwks_file {section.jwks_file} cannot be used: {error}") from None
    return jwks


def _verifier(section: JwtSection, jwks: Jwks) -> JwtVerifier:
    rules = JwtRules(section.issuer, section.audience, section.algorithms, section.tenant_claim)
    return JwtVerifier(rules, jwks)


async def _sweep(service: Service, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await service.sessions.end_revoked()


async def _flush_audit(service: Service) -> None:
    while True:
        await asyncio.sleep(60)
        service.audit.log.flush_suppressed()
